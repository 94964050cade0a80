"""Models whose parameters are split over several processes by FSDP2."""

from typing import TYPE_CHECKING, TypeVar

from torch.distributed.fsdp import fully_shard

from longscan.layers.parameters import mark, parameter_options
from longscan.models import SequenceModel, SiameseModel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

M = TypeVar("M", bound=SequenceModel | SiameseModel)


def shard_model(model: M, mesh: "DeviceMesh | None" = None) -> M:
    """Split a model over the processes by FSDP2, in place, each block as one unit. Without a mesh, over all processes.

    `fully_shard` creates new parameters without the options of the old ones (learning rate scale, weight decay, see
    `longscan.layers.parameters.mark`). This function copies the options. Build the optimiser afterwards.
    """
    declared = {name: parameter_options(parameter) for name, parameter in model.named_parameters()}
    stack = model.backbone if isinstance(model, SiameseModel) else model
    for unit in (*stack.blocks, model):
        # True also for the whole model: otherwise its parameters would stay gathered after a forward pass without a backward one.
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    for name, parameter in model.named_parameters():
        mark(parameter, **declared[name]._asdict())
    return model
