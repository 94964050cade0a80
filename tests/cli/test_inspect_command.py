"""`longscan inspect`: pictures of what the model of a run does with one example."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longscan.cli import main
from longscan.models import SiameseModel
from longscan.tasks import TASKS
from longscan.training import Run
from longscan.training.pictures import find_example

SMALL = ["--model.d_model", "4", "--model.d_state", "2", "--training.threads", "1", "--training.device", "cpu", "--steps", "1"]


def train_run(folder: Path, *argv: str) -> str:
    """Train a model for one step and return its folder."""
    assert main(["train", *argv, *SMALL, "--training.test_batches", "1", "--out", str(folder)]) == 0
    return str(folder)


@pytest.fixture(scope="module")
def recall(tmp_path_factory: pytest.TempPathFactory) -> str:
    sizes = ("--task.train_size=8", "--task.valid_size=8", "--task.test_size=8", "--training.batch_size=2")
    folder = tmp_path_factory.mktemp("recall")
    return train_run(folder, "--task", "multi_query_recall", "--model.spec", "mamba2 attention gru", *sizes)


def test_each_layer_has_a_picture(recall: str, tmp_path: Path, run_command: Callable[..., str]) -> None:
    lines = run_command("inspect", recall, "--row", "3", "--split", "valid", "--out", tmp_path / "pictures").splitlines()
    names = ["valid_3", "valid_3_blocks_0_block_heads", "valid_3_blocks_1_block", "valid_3_blocks_2_block"]
    assert lines == [f"picture: {tmp_path / 'pictures' / name}.png" for name in names]
    assert all((tmp_path / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    assert not (Path(recall) / "inspection").exists()
    assert "attends to in time" not in (Path(recall) / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("task", "spec", "count"),
    [
        ("parity", "s4d lstm", 3),
        ("pendulum", "s5", 2),  # irregular times, numbers as answers
        ("parity", "bidirectional", 3),  # two layers, and no run in pieces
    ],
)
def test_pictures_of_other_tasks_and_models(task: str, spec: str, count: int, tmp_path: Path) -> None:
    sizes = [f"--task.{name}=4" for name in ("train_size", "valid_size", "test_size") if name in TASKS[task].__dataclass_fields__]
    sizes += ["--task.train_lengths=[3, 8]", "--task.eval_lengths=[9, 12]"] * (task == "parity")
    run = train_run(tmp_path / "run", "--task", task, "--model.spec", spec, *sizes)
    assert main(["inspect", run]) == 0
    assert len(list((tmp_path / "run" / "inspection").glob("test_0*.png"))) == count
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert page.count('src="data:image/png;base64,') == count
    assert "<h3>Test example 0</h3>" in page


def test_the_answer_is_that_of_the_example_without_padding(tmp_path: Path, tiny_argv: list[str]) -> None:
    assert main(["train", *tiny_argv, "--out", str(tmp_path / "run")]) == 0
    run = Run(tmp_path / "run")
    task, model = run.settings.task, run.model()
    rows = task.batch("test", 0, 8, run.settings.data_seed)
    with torch.no_grad():
        output = model(rows.inputs, valid=rows.valid)
        for row in range(8):
            example = find_example(model, task, "test", row, run.settings.data_seed)  # type: ignore[arg-type]
            assert torch.equal(example.inputs[0], rows.unpadded(row))
            assert example.step == len(rows.unpadded(row)) - 1
            assert example.column == int(output[row, example.step].argmax())
            assert task.classes is not None
            assert example.label == task.classes[example.column]


def test_the_answer_of_a_task_with_answers_at_steps_is_the_last_one(recall: str) -> None:
    run = Run(recall)
    batch = run.settings.task.batch("test", 2, 1, run.settings.data_seed)
    model = run.model()
    example = find_example(model, run.settings.task, "test", 2, run.settings.data_seed)  # type: ignore[arg-type]
    assert batch.loss_mask is not None
    assert example.step == int(batch.loss_mask[0].nonzero().max())
    assert example.column == int(model(batch.inputs)[0, example.step].argmax())


def test_wrong_arguments(recall: str, run_failing_command: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    count = Run(recall).settings.task.size("test")
    assert f"`--row` must be from 0 to {count - 1}, got {count}" in run_failing_command("inspect", recall, "--row", count)  # type: ignore[operator]
    assert "`--row` must be from 0 to" in run_failing_command("inspect", recall, "--row=-1")
    assert "`--out` must be" in run_failing_command("inspect", recall, "--out", Path(recall) / "settings.yaml")
    task = TASKS["multi_query_recall"]
    packed = task.batch

    def batch(*args: int) -> object:
        found = packed(*args)  # type: ignore[arg-type]
        return found._replace(seq_idx=torch.zeros_like(found.inputs))

    monkeypatch.setattr(task, "batch", batch)
    assert "the examples of the task must be single sequences" in run_failing_command("inspect", recall)


def test_a_model_without_layers(tmp_path: Path, run_failing_command: Callable[..., str]) -> None:
    run = train_run(tmp_path / "run", "--task", "parity", "--model.spec", "feed_forward")
    assert "`model` must call a layer of longscan, got SequenceModel" in run_failing_command("inspect", run)


def test_models_of_pairs_have_no_pictures(
    recall: str, run_failing_command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = SiameseModel.from_spec("s4d", d_model=4, d_output=2, vocab_size=3)
    monkeypatch.setattr(Run, "model", lambda run, which: pairs)  # noqa: ARG005
    assert "the model must be a SequenceModel, got SiameseModel" in run_failing_command("inspect", recall)
