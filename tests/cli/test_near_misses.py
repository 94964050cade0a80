"""Names that are nearly right: the error of one line gives the right one."""

import pytest

from longscan.cli import main


@pytest.mark.parametrize(
    ("argv", "right"),
    [
        ("trian", "did you mean `longscan train`?"),
        ("baseline", "did you mean `longscan baselines`?"),
        ("train --out x --task partiy", "did you mean parity?"),
        ("train --out x --task parity --lr 1", "did you mean --training.lr?"),
        ("train --out x --task parity --learning_rate 1", "did you mean --training.lr?"),
        ("train --out x --task parity --learning-rate 1", "did you mean --training.lr?"),
        ("train --out x --task parity --training.learning_rate 1", "did you mean lr?"),
        ("train --out x --task parity --batch-size 4", "did you mean --training.batch_size?"),
        ("train --out x --task parity --epochs 4", "did you mean --training.steps?"),
        ("train --out x --task parity --d_modell 4", "did you mean --model.d_model?"),
        ("train --out x --task parity --model.d_modell 4", "did you mean d_model?"),
        ("train --out x --task parity --distributed.context 2", "did you mean --training.context?"),
        ("train --out x --task parity --distributed.shard=true", "did you mean --training.shard?"),
        ("train --out x --task parity --context-parallel-size 2", "did you mean --training.context?"),
        (f"train {__file__} --labl worn", "did you mean --label?"),  # an option of the command, before settings of a task
        (f"train {__file__} --horizn 3", "did you mean --horizon?"),
        (f"show {__file__} --labl worn", "did you mean --label?"),
        ("train --out x --task uea --task.labl 3", "the settings are "),
        ("train --resum --out x --task parity", "did you mean --resume?"),
        ("tasks --setings", "did you mean --settings?"),
        ("report --outt x", "did you mean --out?"),
    ],
)
def test_error_has_the_right_name(argv: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert right in line


def test_word_like_no_name_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "x", "--task", "parity", "--bananas", "3"]) == 2
    assert "did you mean" not in capsys.readouterr().err
