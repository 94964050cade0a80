"""Two processes of torchrun train on the same data as one process and have the same weights up to rounding."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longscan.training.checkpoint import read_tensors
from longscan.training.logs import read_rows

PROGRAM = "import sys; from longscan.cli import main; sys.exit(main())"


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_two_processes_equal_one_process(tmp_path: Path, reduction: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = [
        *(
            "--task",
            "bucket_sort",
            "--task.train_lengths",
            "[6, 12]",
            "--task.eval_lengths",
            "[13, 20]",
            "--task.valid_size",
            "16",
        ),
        *("--task.test_size", "16", "--model.d_model", "8", "--model.d_state", "4", "--model.backend", "eager", "--steps", "8"),
        *("--training.batch_size", "7", "--training.eval_every", "4", "--training.log_every", "1", "--training.threads", "1"),
        *("--training.device", "cpu", "--training.loss_reduction", reduction, "--training.curriculum.start", "6"),
        *("--training.curriculum.end", "12", "--training.curriculum.threshold", "0.0", "--training.curriculum.every", "2"),
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    printed = {}
    for name, command in (("one", [sys.executable]), ("two", torchrun)):
        completed = subprocess.run(
            [*command, str(tmp_path / "program.py"), "train", "--out", str(tmp_path / name), *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert completed.returncode == 0, completed.stderr
        printed[name] = completed.stdout.replace(str(tmp_path / name), "OUT")
    assert printed["one"] == printed["two"]
    one, two = (read_tensors(tmp_path / name / "checkpoints" / "last" / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=1e-3, atol=1e-4), name
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two")]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    for left, right in zip(*rows, strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-3)
        assert left.get("grad_norm", 0.0) == pytest.approx(right.get("grad_norm", 0.0), rel=1e-2)
