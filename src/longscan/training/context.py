"""Models on batches whose sequences are split along their length over processes, for training and evaluation."""

from collections.abc import Iterable
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import pad

from longscan._errors import setting_error
from longscan.distributed import context_parallel, shard_sequence
from longscan.distributed.collectives import gather_steps
from longscan.layers import SequenceModule
from longscan.models import SequenceModel
from longscan.tasks import Batch
from longscan.training.evaluate import predict

TIMEOUT = timedelta(minutes=1)  # time after which the processes of a group stop if one of them does not join an exchange


def build_group(processes: int, context: int) -> ProcessGroup:
    """Return this process's group of `context` processes that share each sequence. All processes must call it.

    An exchange raises an error if another process of the group does not join it within TIMEOUT; with NCCL the process ends. NCCL
    does not check exchanges inside captured steps; `watch_processes` detects ended processes there, too.
    """
    ranks = torch.arange(processes).view(-1, context).tolist()
    group: ProcessGroup = distributed.new_subgroups_by_enumeration(ranks, timeout=TIMEOUT)[0]  # type: ignore[no-untyped-call]
    return group


def average_gradients(parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
    """Replace the gradients by their means over the processes of a group, by one exchange for each dtype, after a backward pass.

    Used by steps that are captured as CUDA graphs: with `DistributedDataParallel` a step could be captured only after eleven
    other steps.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for dtype in dict.fromkeys(grad.dtype for grad in gradients):
        same = [grad for grad in gradients if grad.dtype == dtype]
        total = torch.cat([grad.reshape(-1) for grad in same])
        distributed.all_reduce(total, group=group)
        total /= distributed.get_world_size(group)
        for grad, mean in zip(same, torch.split(total, [grad.numel() for grad in same]), strict=True):
            grad.copy_(mean.view_as(grad))


def check_model(model: nn.Module, context: int) -> None:
    """Raise SettingError for a model that cannot run on pieces of sequences."""
    for module in model.modules():
        if isinstance(module, SequenceModule) and not module.context_parallel:
            needed = f"1, as {type(module).__name__} cannot compute pieces of sequences"
            raise setting_error("training.context", context, needed)
    if not isinstance(model, SequenceModel):
        raise setting_error("training.context", context, "1 for a task of pairs of sequences")


def pad_steps(batch: Batch, multiple: int) -> Batch:
    """Return a batch whose inputs have a length that is a multiple of a number, by padding on the right with valid = False.

    Targets and loss_mask are unchanged.
    """
    extra = -batch.inputs.shape[1] % multiple
    if not extra:
        return batch
    valid = batch.valid
    if valid is None:
        valid = torch.ones(batch.inputs.shape[:2], dtype=torch.bool, device=batch.inputs.device)
    widths = (0, 0) * (batch.inputs.ndim - 2) + (0, extra)
    others = {"elapsed": batch.elapsed, "seq_idx": batch.seq_idx}
    padded = {name: pad(part, (0, extra)) for name, part in others.items() if part is not None}
    return batch._replace(inputs=pad(batch.inputs, widths), valid=pad(valid, (0, extra)), **padded)


class PiecePredictor:
    """A callable like `longscan.training.evaluate.predict` that runs a model on this process's piece of each sequence of a batch.

    All processes of the group must have the same batch. They return the same outputs, those for whole sequences, so that any loss
    and any metric of a task can be computed from them: outputs of single steps are gathered. The mean of the gradients over the
    processes is then the gradient of one process with the whole sequences.

    Args:
        group: the processes that share each sequence.
        model: the model, which may be wrapped when it is called.
    """

    def __init__(self, group: ProcessGroup, model: SequenceModel) -> None:
        self.group, self.has_steps, self.padding = group, model.pooling == "none", model.padding

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the model's output on a batch. Raises SettingError if the batch must be padded and the model reads padding."""
        size, length = distributed.get_world_size(self.group), batch.inputs.shape[1]
        if length % size and self.padding == "read":
            needed = f"a divisor of the length of each batch ({length}) with model.padding=read"
            raise setting_error("training.context", size, needed)
        padded = pad_steps(batch, size)
        parts = (padded.inputs, None, padded.valid, None, padded.elapsed, padded.seq_idx)
        piece = Batch(*(None if part is None else shard_sequence(part, self.group) for part in parts))  # type: ignore[arg-type]
        with context_parallel(self.group) as split:
            output = predict(model, piece)
        if not self.has_steps or split is None:
            return output
        return gather_steps(output, split)[:, :length]
