"""Training on several processes: which rows of a batch are whose, what makes their gradients one, models that are split.

Data parallel wrappers (DDP, FSDP2) take the mean of the processes' gradients. With every process's loss multiplied by its
`Share.factor`, this mean is the gradient of one process with the whole batch, however unequal the shares and their answers.
"""

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
    """A process's part of a batch.

    weight: of its mean score among those of the others, the number of its scored answers; factor: on its loss before the
    gradients' mean is taken.
    """

    rows: Batch
    weight: float
    factor: float


def share_of(batch: Batch, task: Task, reduction: Reduction, process: int, processes: int) -> Share:
    """Every n-th row of a batch, so that any number of processes sees the same data.

    A process whose rows hold no scored answer, as where there are fewer rows than processes, gets all rows at factor 0: the mean
    over no answers is no number, and all processes have to take part in the exchange of gradients.
    """
    if processes == 1:
        return Share(batch, 1.0, 1.0)
    rows = Batch(*(None if part is None else part[process::processes] for part in batch))  # type: ignore[arg-type]
    answers = float(scored_answers(rows, task))
    if not answers:
        return Share(batch, 0.0, 0.0)
    part = 1.0 if reduction == "sum" else answers / float(scored_answers(batch, task))
    return Share(rows, answers, processes * part)


def shard_model(model: M, mesh: "DeviceMesh | None" = None) -> M:
    """The model split over the processes by FSDP2, each block a unit, in place; without a mesh, over all processes.

    `fully_shard` makes new parameters, which would lose what they declare to the optimiser (`longscan.layers.parameters.mark`): a
    rate and decay of their own. Here they keep it. Build the optimiser afterwards.
    """
    from torch.distributed.fsdp import fully_shard

    declared = {name: parameter_options(parameter) for name, parameter in model.named_parameters()}
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh)
    for name, parameter in model.named_parameters():
        mark(parameter, **declared[name]._asdict())
    return model
