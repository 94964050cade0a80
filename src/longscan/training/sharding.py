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

    `fully_shard` creates new parameters, which lack the learning rate scale and weight decay that the old ones declare
    (`longscan.layers.parameters.mark`); here the new ones declare the same. Build the optimiser afterwards.
    """
    declared = {name: parameter_options(parameter) for name, parameter in model.named_parameters()}
    stack = model.backbone if isinstance(model, SiameseModel) else model
    for unit in (*stack.blocks, model):
        # True also for the whole model: else its own parameters would stay gathered after a forward pass without a backward pass.
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    for name, parameter in model.named_parameters():
        mark(parameter, **declared[name]._asdict())
    return model
