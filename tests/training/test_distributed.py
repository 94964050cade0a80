"""Training in two processes by DDP and FSDP2 has the gradients and losses of one process, and the same bits after a kill."""

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from accelerate.utils import DistributedType
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from command_lines import replace_options
from fork_server import PROCESSES, act_at_step
from longscan.cli import main
from longscan.layers.parameters import parameter_options
from longscan.models import SequenceModel
from longscan.models.roles import optimizer_groups
from longscan.tasks import TASKS, Batch, Task
from longscan.training import Run, SettingError, shard_model, share_of, train
from longscan.training import trainer as trainer_module
from longscan.training.checkpoint import read_tensors
from longscan.training.evaluate import predict, scored_answers
from longscan.training.logs import read_rows
from longscan.training.records import result_row
from run_files import have_equal_tensors, read_log

OPTIONS: dict[str, dict[str, Any]] = {"m": {}, "a": {"d_conv": 2}}


def make_task_and_model(dtype: torch.dtype) -> tuple[Task, SequenceModel]:
    torch.manual_seed(0)
    task = TASKS["bucket_sort"](train_lengths=(6, 12), eval_lengths=(13, 20), valid_size=4, test_size=4)
    sizes = {"d_output": task.d_output, "vocab_size": task.vocab_size, "d_model": 8, "d_state": 4}
    return task, SequenceModel.from_spec("ma", pooling="none", block_options=OPTIONS, **sizes).to(dtype)


def first_rows(batch: Batch, count: int) -> Batch:
    return Batch(*(None if part is None else part[:count] for part in batch))


def compute_gradients(rows: int, reduction: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the gradients of one process for a batch whose sequences differ in length and number of scored answers."""
    task, model = make_task_and_model(dtype)
    batch = first_rows(task.batch("train", 0, 7), rows)
    task.loss(predict(model, batch), batch, reduction).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def write_gradient_errors(rank: int, method: str, folder: str) -> None:
    """Write the relative errors of the gradients of this process, compared with one process, to a file."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    lines = []
    for dtype in (torch.float32, torch.float64):
        for rows in (7, 1):
            for reduction in ("mean", "sum"):
                task, model = make_task_and_model(dtype)
                before = {name: parameter_options(parameter) for name, parameter in model.named_parameters()}
                wrapped = DistributedDataParallel(model) if method == "ddp" else shard_model(model)
                assert {name: parameter_options(parameter) for name, parameter in model.named_parameters()} == before
                share = share_of(first_rows(task.batch("train", 0, 7), rows), task, reduction, rank, 2)
                (task.loss(predict(wrapped, share.rows), share.rows, reduction) * share.factor).backward()
                expected = compute_gradients(rows, reduction, dtype)
                for name, parameter in model.named_parameters():
                    gradient = parameter.grad if method == "ddp" else parameter.grad.full_tensor()
                    error = (gradient - expected[name]).norm() / expected[name].norm()
                    lines.append(f"{dtype} {rows} {reduction} {name} {error.item()}")
    Path(folder, f"errors-{rank}.txt").write_text("\n".join(lines))
    distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["ddp", "fsdp2"])
def test_gradients_of_two_processes_equal_those_of_one(tmp_path: Path, method: str) -> None:
    workers = [PROCESSES.Process(target=write_gradient_errors, args=(rank, method, str(tmp_path))) for rank in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(120)
        assert process.exitcode == 0
    number = len(list(make_task_and_model(torch.float32)[1].parameters()))
    for rank in range(2):
        lines = [line.split() for line in (tmp_path / f"errors-{rank}.txt").read_text().splitlines()]
        assert len(lines) == 8 * number
        for dtype, *case, error in lines:
            assert float(error) < (1e-6 if dtype == "torch.float32" else 1e-13), (dtype, *case, error)


def test_shares_of_a_batch_have_rows_weights_and_factors() -> None:
    task, _ = make_task_and_model(torch.float32)
    batch = task.batch("train", 0, 7)
    whole = share_of(batch, task, "mean", 0, 1)
    assert whole.rows is batch
    assert whole.factor == 1.0
    shares = [share_of(batch, task, "mean", process, 3) for process in range(3)]
    assert [len(share.rows.inputs) for share in shares] == [3, 2, 2]
    assert sum(share.weight for share in shares) == float(scored_answers(batch, task))
    assert len({share.weight for share in shares}) > 1
    assert sum(share.factor for share in shares) == pytest.approx(3.0)
    assert [share_of(batch, task, "sum", process, 3).factor for process in range(3)] == [3.0] * 3
    for reduction in ("mean", "sum"):
        full, empty = (share_of(first_rows(batch, 1), task, reduction, process, 2) for process in range(2))
        assert (full.factor, empty.factor, empty.weight) == (2.0, 0.0, 0.0)
        assert torch.equal(empty.rows.inputs, batch.inputs[:1])


def test_sharded_model_has_the_parameter_options_of_the_model() -> None:
    """FSDP2 creates new parameters also in a single process."""
    _, whole = make_task_and_model(torch.float32)
    _, split = make_task_and_model(torch.float32)
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        shard_model(split)
        groups = [
            [(group["scale"], group["weight_decay"], len(group["params"])) for group in optimizer_groups(model, weight_decay=0.1)]
            for model in (whole, split)
        ]
    finally:
        distributed.destroy_process_group()
    assert groups[0] == groups[1]
    assert len(groups[0]) > 1


def write_meshes(rank: int, folder: str) -> None:
    """Write which meshes give this process other parts of the parameters, or other gradients, than they should."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    inputs = torch.randn(2, 3, 5, 2)  # of both processes

    def make_model() -> SequenceModel:
        torch.manual_seed(0)
        return SequenceModel.from_spec("ma", d_model=8, d_state=4, d_input=2, d_output=3)

    def gradients_of(model: SequenceModel, x: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        model(x).square().mean().backward()
        gradients: dict[str, Any] = {name: parameter.grad for name, parameter in model.named_parameters()}
        return {name: (x.full_tensor() if hasattr(x, "full_tensor") else x).clone() for name, x in gradients.items()}

    own, other = (gradients_of(make_model(), inputs[i]) for i in (rank, 1 - rank))
    mean = {name: (own[name] + other[name]) / 2 for name in own}
    grid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"))
    # name -> (mesh, number of parts, number of this process's part, gradients)
    cases: dict[str, tuple[DeviceMesh | None, int, int, dict[str, Tensor]]] = {
        "no mesh": (None, 2, rank, mean),
        "both processes": (grid["data"], 2, rank, mean),
        "this process alone": (grid["model"], 1, 0, own),
    }
    wrong = []
    for case, (mesh, count, part, expected) in cases.items():
        whole, model = dict(make_model().named_parameters()), make_model()
        assert shard_model(model, mesh=mesh) is model
        for name, parameter in model.named_parameters():
            chunks = whole[name].detach().chunk(count)
            local = parameter.detach().to_local()
            if not (torch.equal(local, chunks[part]) if part < len(chunks) else local.numel() == 0):
                wrong.append(f"{case}: part of {name}")
        for name, gradient in gradients_of(model, inputs[rank]).items():
            if not torch.allclose(gradient, expected[name], rtol=1e-5, atol=1e-7):
                wrong.append(f"{case}: gradient of {name}")
    Path(folder, f"wrong-{rank}.txt").write_text("\n".join(wrong))
    distributed.destroy_process_group()


def test_mesh_of_a_sharded_model_says_which_processes_share_its_parameters(tmp_path: Path) -> None:
    workers = [PROCESSES.Process(target=write_meshes, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(120)
        assert process.exitcode == 0
    assert [(tmp_path / f"wrong-{rank}.txt").read_text() for rank in range(2)] == ["", ""]


def test_sharding_by_accelerate_raises(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_sharding_accelerator(**_: Any) -> Any:
        return SimpleNamespace(distributed_type=DistributedType.FSDP, num_processes=1)

    monkeypatch.setattr(trainer_module, "Accelerator", make_sharding_accelerator)
    with pytest.raises(SettingError, match=r"^`accelerate` must be launched without sharding, .*, got 'FSDP'"):
        train(tiny(), tmp_path / "run")


def test_context_that_does_not_divide_the_processes_raises(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^`training\.context` must be a divisor of 1, the number of processes .*, got 2"):
        train(tiny(context=2), tmp_path / "run")


def test_capture_with_sharding_raises(tiny: Any) -> None:
    with pytest.raises(SettingError, match=r"^`training\.capture` must be false with training\.shard, got True"):
        tiny(shard=True, capture=True)


def test_sharding_in_one_process_raises(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^`training\.shard` must be false, or several processes.*, got True"):
        train(tiny(shard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


STEPS = 12
NO_GPU = "cpu" if torch.accelerator.is_available() else "auto"
ARGUMENTS = [
    *("train", "--task", "bucket_sort", "--task.train_lengths", "[6, 12]", "--task.eval_lengths", "[13, 20]"),
    *("--task.valid_size", "16", "--task.test_size", "16", "--model.d_model", "8", "--model.d_state", "4"),
    *("--model.block_options.m.dropout", "0.3", "--training.batch_size", "7", "--training.eval_every", "6"),
    *("--training.log_every", "1", "--training.average", "0.9", "--training.threads", "1", "--training.device", "cpu"),
    *("--training.lr", "0.01", "--checkpoint-every", "4", "--steps", str(STEPS)),
]


def run_command(rank: int, size: int, port: int, argv: list[str], errors: str, last: int | None) -> None:
    """Run the command with the environment of one of `size` processes of torchrun, with its stderr in a file.

    last: step after which the run waits to be killed; None: it runs to its end.
    """
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    from longscan.cli import main

    if last is not None:
        act_at_step(last)
    code = main(argv)
    distributed.destroy_process_group()
    sys.exit(code)


def find_port() -> int:
    """Return a free port below those that the system gives to connections: another process could be given one of these."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start_processes(folder: Path, *options: str, size: int = 2, last: int | None = None) -> list[Any]:
    port = find_port()
    argv = [*replace_options(ARGUMENTS, *options), "--out", str(folder)]
    arguments = [(rank, size, port, argv, f"{folder}-{rank}.err", last) for rank in range(size)]
    workers = [PROCESSES.Process(target=run_command, args=given) for given in arguments]
    for process in workers:
        process.start()
    return workers


def join_processes(workers: list[Any], folder: Path) -> None:
    for rank, process in enumerate(workers):
        process.join(200)
        assert process.exitcode == 0, Path(f"{folder}-{rank}.err").read_text()


@pytest.mark.parametrize(
    "split",
    [
        # Checkpoints of whole models are those of one process, which test_kill.py resumes.
        pytest.param(["--training.shard", "false"], marks=pytest.mark.slow),
        ["--training.shard", "true"],
        pytest.param(["--training.context", "2"], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_resumed_run_of_two_killed_processes_equals_an_uninterrupted_run(tmp_path: Path, split: list[str]) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "cut"
    join_processes(start_processes(whole, *split), whole)
    workers = start_processes(killed, *split, last=STEPS - 2)
    while all(process.is_alive() for process in workers) and len(read_rows(killed / "metrics.jsonl")) < 7:
        time.sleep(0.002)
    for process in reversed(workers):
        assert process.is_alive(), Path(f"{killed}-0.err").read_text()
        process.kill()
    for process in workers:
        process.join()
    assert len(read_rows(killed / "metrics.jsonl")) < STEPS
    join_processes(start_processes(killed, "--resume"), killed)
    for which in ("last", "best", "average"):
        for path in sorted((whole / "checkpoints" / which).glob("*.safetensors")):
            left, right = read_tensors(path), read_tensors(killed / "checkpoints" / which / path.name)
            assert have_equal_tensors(left, right), path
    assert read_log(whole) == read_log(killed)


def assert_runs_close(one: Path, two: Path) -> None:
    """Assert that the logs and all weights and states of the optimiser of two runs agree up to rounding."""
    for left, right in zip(read_log(one), read_log(two), strict=True):
        assert (left.pop("split"), left) == (right.pop("split"), pytest.approx(right, rel=1e-4, abs=1e-6))
    for path in sorted((one / "checkpoints").glob("*/*.safetensors")):
        left, right = read_tensors(path), read_tensors(two / path.relative_to(one))
        assert left.keys() == right.keys()
        for key, value in left.items():
            torch.testing.assert_close(value, right[key], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_goes_on_with_each_other_mesh(tmp_path: Path) -> None:
    """Four steps each on pieces, by FSDP2, on a mesh of both and in one process, from each other's checkpoints."""
    meshes = [(2, "1", "true"), (2, "2", "false"), (4, "2", "true"), (1, "1", "false"), (4, "2", "false"), (2, "2", "true")]
    options = ["--model.block_options.m.dropout", "0", "--training.eval_every", "4"]
    one, many = tmp_path / "one", tmp_path / "many"
    for number, (size, context, shard) in enumerate(meshes):
        common = [*options, "--steps", str(4 * number + 4), *["--resume"] * bool(number)]
        assert main([*replace_options(ARGUMENTS, *common), "--out", str(one)]) == 0
        split = ["--training.context", context, "--training.shard", shard]
        if size == 1:
            assert main([*replace_options(ARGUMENTS, *common, *split), "--out", str(many)]) == 0
        else:
            join_processes(start_processes(many, *common, *split, size=size), many)
        assert_runs_close(one, many)


@pytest.mark.parametrize(
    ("size", "split"),
    [
        (2, ["--training.shard", "true"]),
        (2, ["--training.context", "2", "--training.device", NO_GPU]),
        pytest.param(4, ["--training.context", "2", "--training.shard", "true"], marks=pytest.mark.slow),
        pytest.param(4, ["--training.context", "2"], marks=pytest.mark.slow),
        pytest.param(2, ["--training.context", "2", "--training.capture", "true"], marks=pytest.mark.slow),
        pytest.param(4, ["--training.context", "2", "--training.capture", "true"], marks=pytest.mark.slow),
        (2, ["--training.capture", "true", "--training.device", NO_GPU]),
    ],
    ids=str,
)
def test_several_processes_equal_one_process(tmp_path: Path, size: int, split: list[str]) -> None:
    """Logs and weights agree up to rounding, without dropout, which differs between processes; one process resumes the run.

    Models are split by FSDP2 or whole in each process (DDP), and sequences whole or in two pieces.
    """
    options = ["--model.block_options.m.dropout", "0", "--training.select", "average", "--training.eval_every", "4"]
    one, two = tmp_path / "one", tmp_path / "two"
    join_processes(start_processes(two, *options, *split, size=size), two)
    assert main([*replace_options(ARGUMENTS, *options), "--out", str(one)]) == 0
    assert_runs_close(one, two)
    single = ["--training.shard", "false", "--training.context", "1"]
    assert main(["train", "--out", str(two), "--resume", *single, "--steps", str(STEPS + 2)]) == 0
    assert Run(two).model("average")(torch.zeros(1, 3, dtype=torch.long)).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("split", [["--training.context", "2"], ["--training.shard", "true"]], ids=str)
def test_without_torchrun_a_process_stops_within_a_minute_and_names_the_one_that_died(tmp_path: Path, split: list[str]) -> None:
    folder = tmp_path / "run"
    first, second = start_processes(folder, *split, "--training.eval_every", "0", "--steps", "1000000")
    while len(read_rows(folder / "metrics.jsonl")) < 2:
        assert first.is_alive(), Path(f"{folder}-0.err").read_text()
        time.sleep(0.1)
    second.kill()
    first.join(60)
    assert first.exitcode == 1
    assert f"process 1 of 2 has ended (pid {second.pid} on " in Path(f"{folder}-0.err").read_text()


@pytest.mark.slow
def test_torchrun_stops_the_others_and_names_the_process_that_died(tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text("import sys\n\nfrom longscan.cli import main\n\nsys.exit(main())\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    options = ["--training.context", "2", "--training.eval_every", "0", "--steps", "1000000"]
    argv = [*torchrun, *replace_options(ARGUMENTS, *options), "--out", str(tmp_path / "run")]
    with (tmp_path / "errors").open("w") as errors:
        agent = subprocess.Popen(argv, stdout=errors, stderr=errors)
        try:
            while len(read_rows(tmp_path / "run" / "metrics.jsonl")) < 2:
                assert agent.poll() is None, (tmp_path / "errors").read_text()
                time.sleep(0.1)
            ranks = {child.environ().get("RANK"): child for child in psutil.Process(agent.pid).children()}
            ranks["1"].kill()
            assert agent.wait(60)
        finally:
            agent.kill()
    cause = (tmp_path / "errors").read_text().partition("Root Cause")[2]
    assert re.search(r"rank +: 1 .*\n *exitcode +: -9", cause), cause
    assert not ranks["0"].is_running()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize(("spec", "size", "context"), [("m m", 2, 2), ("m a attention", 2, 2), ("m a", 2, 1), ("m a", 4, 2)])
def test_captured_steps_on_pieces_equal_plain_steps(tmp_path: Path, spec: str, size: int, context: int) -> None:
    """Logs of GPUs that share each sequence, or a batch, with steps that are replayed as CUDA graphs and without."""
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")
    options = ["--model.spec", spec, "--model.block_options.m.dropout", "0", "--training.device", "auto", "--steps", "30"]
    options += ["--training.context", str(context)]
    for name in ("plain", "captured"):
        folder = tmp_path / name
        capture = ["--training.capture", str(name == "captured").lower()]
        join_processes(start_processes(folder, *options, *capture, size=size), folder)
    plain, captured = (read_log(tmp_path / name) for name in ("plain", "captured"))
    for left, right in zip(plain, captured, strict=True):
        assert (left.pop("split"), left) == (right.pop("split"), pytest.approx(right, rel=1e-3, abs=1e-5))
    assert result_row(Run(tmp_path / "captured"))["replayed_updates_per_second"] > 0
