"""Names that are nearly right: the error of one line gives the right one."""

import pytest

from longscan.cli import COMMANDS, main
from longscan.cli._arguments import list_arguments


@pytest.mark.parametrize(
    ("argv", "right"),
    [
        ("trian", "did you mean `longscan train`?"),
        ("help", "did you mean `longscan --help`?"),
        ("version", "did you mean `longscan --version`?"),
        ("baseline", "did you mean `longscan baselines`?"),
        ("train --out x --task partiy", "must be the name of a task, got 'partiy'; did you mean parity? the tasks are"),
        ("train --out x --task qqq", "got 'qqq'; a task of your own is known once its module is imported; the tasks are bounded"),
        ("train --out x --task parity --lr 1", "did you mean --training.lr?"),
        ("train --out x --task parity --learning_rate 1", "did you mean --training.lr?"),
        ("train --out x --task parity --learning-rate 1", "did you mean --training.lr?"),
        ("train --out x --task parity --training.learning_rate 1", "did you mean lr?"),
        ("train --out x --task parity --batch-size 4", "did you mean --training.batch_size?"),
        ("train --out x --task parity --epochs 4", "did you mean --steps?"),
        ("train --out x --task parity --model_dim 4", "did you mean --model.d_model?"),
        ("train --out x --tsak parity", "did you mean --task?"),
        ("train --out x --task parity --confg r.yaml", "did you mean --config?"),
        ("train --out x --task parity --check 3", "did you mean --checkpoint-every?"),
        ("train --uot x --task parity", "did you mean --out?"),
        ("train --output-dir x --task parity", "did you mean --out?"),
        ("sweep --otu=x --task parity", "`--otu` is an unknown argument; did you mean --out?"),
        ("sweep --out x --task parity --seed 3", "did you mean --seeds or --training.seed?"),
        ("train --out x --task parity --d_modell 4", "did you mean --model.d_model?"),
        ("train --out x --task parity --model.d_modell 4", "did you mean d_model?"),
        ("train --out x --task parity --distributed.context 2", "did you mean --training.context?"),
        ("train --out x --task parity --distributed.shard=true", "did you mean --training.shard?"),
        ("train --out x --task parity --context-parallel-size 2", "did you mean --training.context?"),
        (f"train {__file__} --labl worn", "did you mean --label?"),  # an option of the command, before settings of a task
        (f"train {__file__} --labels worn", "did you mean --label or --task.labels?"),
        (f"train {__file__} --target_column price", "did you mean --target?"),
        (f"train {__file__} --horizn 3", "did you mean --horizon?"),
        (f"show {__file__} --labl worn", "did you mean --label?"),
        ("train --out x --task uea --task.labl 3", "the settings are "),
        ("train --resum --out x --task parity", "did you mean --resume?"),
        ("train --out x --task parity --model.spec mamba aussm", "`aussm` is an unknown argument; a value with blanks needs"),
        ("layers mamba", "`mamba` is an unknown argument; `--help` lists"),
        ("tasks parity7", "must be the name of a task, got 'parity7'; did you mean parity? "),
        ("tasks --setings", "did you mean --settings?"),
        ("report --outt x", "did you mean --out?"),
    ],
)
def test_error_has_the_right_name(argv: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert right in line


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_option_with_two_letters_exchanged_is_suggested(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    task = ["--task", "parity", "--out", "x"] if name in ("train", "sweep", "show") else []
    words = [one.word[2:] for one in list_arguments(COMMANDS[name]) if not one.is_positional and len(one.word) > 4]
    for word in words:
        for i in range(len(word) - 1):
            typo = word[:i] + word[i + 1] + word[i] + word[i + 2 :]
            if typo != word and typo[0] != "-":
                assert main([name, f"--{typo}", "x", *task]) == 2
                assert f"did you mean --{word}" in capsys.readouterr().err, typo


def test_word_like_no_name_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "x", "--task", "parity", "--bananas", "3"]) == 2
    assert "did you mean" not in capsys.readouterr().err
