"""Training on several processes: the rows of a batch that each trains on, and models whose parameters are split over them."""

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from longscan.layers.parameters import mark, parameter_options
from longscan.models import SequenceModel
from longscan.tasks import Batch, Task
from longscan.tasks.base import Reduction
from longscan.training.evaluate import scored_answers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

M = TypeVar("M", bound=SequenceModel)


class Share(NamedTuple):
    """The rows of a batch that one of several processes trains on.

    Data parallel wrappers (DDP, FSDP2) take the mean of the processes' gradients. With every process's loss multiplied by its
    `factor`, this mean is the gradient of one process with the whole batch, however unequal the shares and their numbers of
    scored answers. `weight` is that number, with which the process's mean loss and score enter those of the whole batch.
    """

    rows: Batch
    weight: float
    factor: float


def share_of(batch: Batch, task: Task, reduction: Reduction, process: int, processes: int) -> Share:
    """Return every n-th row of a batch, from row number `process` on, so that any number of processes sees the same data.

    A process whose rows have no scored answer, as with fewer rows than processes, gets all rows with factor 0: the mean over no
    answers is not a number, and all processes must take part in the exchange of gradients.
    """
    if processes == 1:
        return Share(batch, 1.0, 1.0)
    rows = Batch(*(None if tensor is None else tensor[process::processes] for tensor in batch))  # type: ignore[arg-type]
    answers = float(scored_answers(rows, task))
    if not answers:
        return Share(batch, 0.0, 0.0)
    fraction = 1.0 if reduction == "sum" else answers / float(scored_answers(batch, task))
    return Share(rows, answers, processes * fraction)


def shard_model(model: M, mesh: "DeviceMesh | None" = None) -> M:
    """Split a model over the processes by FSDP2, in place, each block a unit. Without a mesh, over all processes.

    `fully_shard` creates new parameters, which lack the learning rate scale and weight decay that the old ones declare
    (`longscan.layers.parameters.mark`); here the new ones declare the same. Build the optimiser afterwards.
    """
    from torch.distributed.fsdp import fully_shard

    declared = {name: parameter_options(parameter) for name, parameter in model.named_parameters()}
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh)
    for name, parameter in model.named_parameters():
        mark(parameter, **declared[name]._asdict())
    return model
