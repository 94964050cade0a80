"""`short_conv` in vectorised torch: one product of the shifted input for each tap."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.ops.arguments import INVALID, RESET, zero_invalid


def _predecessors(flags: Tensor, taps: int) -> Tensor:
    """Return, for every index into [a zero, K-1 state entries, L steps], the index of the input before it; that of 0 is 0.

    The input before a step is the last valid step of its segment, else the newest state entry; that of a step at which the
    state restarts is the zero. flags: (B, L). Returns indices (B, K + L).
    """
    batch, length = flags.shape
    steps = torch.arange(taps, taps + length, device=flags.device)
    latest = torch.where(flags == INVALID, taps - 1, steps).cummax(1).values  # state entries are places 1..K-1
    newest_state = torch.full((batch, min(length, 1)), taps - 1, device=flags.device)
    before = torch.cat([newest_state, latest[:, :-1]], 1)
    state = (torch.arange(taps, device=flags.device) - 1).clamp(min=0).expand(batch, taps)
    return torch.cat([state, torch.where(flags == RESET, 0, before)], 1)


def short_conv(
    u: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor, flags: Tensor | None, *, apply_silu: bool
) -> tuple[Tensor, Tensor]:
    """Compute `reference.short_conv` by one product for each tap."""
    batch, length, channels = u.shape
    taps = weight.shape[1]
    (u,) = zero_invalid(flags, u)
    if flags is None:
        inputs = torch.cat([initial_state.transpose(1, 2), u], 1)
        y = sum((inputs[:, k : k + length] * weight[:, k] for k in range(1, taps)), inputs[:, :length] * weight[:, 0])
        final = inputs[:, length:].transpose(1, 2).clone(memory_format=torch.contiguous_format)
    else:
        zero = u.new_zeros(batch, 1, channels)
        inputs = torch.cat([zero, initial_state.transpose(1, 2), u], 1)
        previous = _predecessors(flags, taps)
        place = torch.arange(taps, taps + length, device=u.device).expand(batch, length)
        newest_state = torch.full((batch, 1), taps - 1, device=u.device)
        last = torch.cat([newest_state, torch.where(flags == INVALID, taps - 1, place)], 1).amax(1, keepdim=True)
        y = u * weight[:, -1]
        entries: list[Tensor] = []
        for k in range(taps - 2, -1, -1):
            place = previous.gather(1, place)
            y = y + inputs.gather(1, place.unsqueeze(-1).expand(-1, -1, channels)) * weight[:, k]
            entries.insert(0, inputs.gather(1, last.unsqueeze(-1).expand(-1, -1, channels)))
            last = previous.gather(1, last)
        # For one tap the state is empty, but depends on the inputs for autograd, as without masks.
        final = torch.cat(entries or [inputs[:, :0]], 1).transpose(1, 2).contiguous()
    y = y if bias is None else y + bias
    y = silu(y) if apply_silu else y
    return y if flags is None else torch.where((flags == INVALID).unsqueeze(-1), 0, y), final
