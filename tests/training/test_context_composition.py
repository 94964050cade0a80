"""Pieces of sequences on a mesh of 2 x 2 processes, with DDP or FSDP2 over all of them: gradients are those of one process."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from fork_server import PROCESSES
from longscan.blocks.gated import GatedBlock
from longscan.distributed import context_parallel, shard_sequence
from longscan.models import SequenceModel
from longscan.training import shard_model

WAYS = ("plain", "accumulate", "recompute", "bfloat16", "compile")


def make_model(dtype: torch.dtype, *, recompute: bool = False) -> Any:
    torch.manual_seed(0)
    model = SequenceModel.from_spec("mamba aussm s5 attention", d_model=8, d_state=4, d_input=3, d_output=2).to(dtype)
    for block in model.modules():
        if isinstance(block, GatedBlock):
            block.recompute = recompute
    return model


def compute_loss(model: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    return (model(x) - targets).square().mean()


def read_gradients(model: nn.Module) -> dict[str, Tensor]:
    gradients: dict[str, Any] = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: (x.full_tensor() if hasattr(x, "full_tensor") else x).double() for name, x in gradients.items()}


def largest_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max(((found[name] - x).norm() / x.norm().clamp(min=1e-3)).item() for name, x in expected.items())


def run_way(kind: str, way: str, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a model that is sharded or replicated over all processes, from this process's rows and piece."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    dtype = torch.float32 if way == "bfloat16" else torch.float64
    model = make_model(dtype, recompute=way == "recompute")
    wrapped: Any = shard_model(model) if kind == "fsdp" else DistributedDataParallel(model)
    called = torch.compile(wrapped, backend="aot_eager") if way == "compile" else wrapped
    rows = [part.chunk(2)[mesh["data"].get_local_rank()].to(dtype) for part in (x, targets)]
    parts = [[part[i::2] for part in rows] for i in range(2)] if way == "accumulate" else [rows]
    for number, (inputs, wanted) in enumerate(parts):
        is_last = number == len(parts) - 1
        if kind == "fsdp":
            model.set_requires_gradient_sync(is_last)
        waits = nullcontext() if is_last or kind == "fsdp" else wrapped.no_sync()
        with waits, context_parallel(mesh), torch.autocast("cpu", torch.bfloat16, enabled=way == "bfloat16"):
            (compute_loss(called, shard_sequence(inputs, mesh), wanted) / len(parts)).backward()
    return read_gradients(model)


def run_all(rank: int, folder: str) -> None:
    """Run all ways on this process, and write the errors to a file."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    torch.manual_seed(1)
    x, targets = torch.randn(8, 12, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    one = make_model(torch.float64)
    compute_loss(one, x, targets).backward()
    expected = read_gradients(one)
    errors = {
        f"{kind} {way}": largest_error(run_way(kind, way, x, targets), expected) for kind in ("ddp", "fsdp") for way in WAYS
    }
    Path(folder, f"errors-{rank}.json").write_text(json.dumps(errors))
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gradients_on_a_mesh_equal_those_of_one_process(tmp_path: Path) -> None:
    workers = [PROCESSES.Process(target=run_all, args=(rank, str(tmp_path))) for rank in range(4)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(500)
        assert process.exitcode == 0
    for rank in range(4):
        errors = json.loads((tmp_path / f"errors-{rank}.json").read_text())
        assert len(errors) == 2 * len(WAYS)
        for name, error in errors.items():
            assert error < (0.05 if "bfloat16" in name else 1e-10), (name, error)
