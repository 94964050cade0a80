"""Implementations that longscan is compared with. Each computes the same function as an op or a block of ours.

Functions take float32 tensors and return y. `loop` is a plain loop over time, `associative` uses torch's associative scan, and
mambapy and transformers are called by their public functions. Peers of the scans take (u, dt, A, B, C, D, z, dt_bias) for S6, and
apply softplus to dt; (u, dt, W, bias, B, C, D, z) for AUSSM, and compute the angles; (x, dt, A, B, C, D) for heads of Mamba-2.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus


def _recurrence_arguments(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the decay and the input of every step, each (B, L, D, N)."""
    step = softplus(dt + dt_bias)
    return torch.exp(step.unsqueeze(-1) * A), (step * u).unsqueeze(-1) * B.unsqueeze(2)


def s6_loop(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, dt_bias: Tensor) -> Tensor:
    """Compute the S6 scan by a plain loop over time."""
    step = softplus(dt + dt_bias)
    entering = step * u
    h = u.new_zeros(u.shape[0], *A.shape)
    outputs = []
    # unbind, because its backward is one stack, while the backward of an index fills a whole tensor at every step
    for step_t, entering_t, B_t, C_t in zip(step.unbind(1), entering.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        h = torch.exp(step_t.unsqueeze(-1) * A) * h + entering_t.unsqueeze(-1) * B_t.unsqueeze(1)
        outputs.append(torch.matmul(h, C_t.unsqueeze(-1)).squeeze(-1))
    return (torch.stack(outputs, 1) + D * u) * silu(z)


def s6_transformers(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, dt_bias: Tensor) -> Tensor:
    """Compute the S6 scan as transformers' MambaMixer does without CUDA kernels, in its channels-first layout."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    first = [x.transpose(1, 2) for x in (u, dt, B, C, z)]
    y = mamba_selective_scan(first[0], first[1], A, first[2], first[3], D=D, z=first[4], delta_bias=dt_bias, delta_softplus=True)
    return y.transpose(1, 2)


def ssd_loop(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Compute the scan of one group of heads by a plain loop over time."""
    decay, entering = torch.exp(dt * A), dt.unsqueeze(-1) * x
    h = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1])
    outputs = []
    for decay_t, entering_t, B_t, C_t in zip(decay.unbind(1), entering.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        h = decay_t[..., None, None] * h + entering_t.unsqueeze(-1) * B_t.unsqueeze(2)
        outputs.append(torch.matmul(h, C_t.unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 1) + D.unsqueeze(-1) * x


def ssd_transformers(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Compute the scan of heads as transformers' Mamba2Mixer does without CUDA kernels, in its chunks of 256."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    return mamba2_chunk_scan(x, dt, A, B, C, 256, D=D)


def s6_mambapy(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, dt_bias: Tensor) -> Tensor:
    """Compute the S6 scan by mambapy's parallel scan, as its MambaBlock calls it."""
    from mambapy.pscan import pscan

    states = pscan(*_recurrence_arguments(u, dt, A, B, dt_bias))
    return ((states @ C.unsqueeze(-1)).squeeze(3) + D * u) * silu(z)


def _combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return left[0] * right[0], right[0] * left[1] + right[1]


def s6_associative(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, dt_bias: Tensor) -> Tensor:
    """Compute the S6 scan by torch's associative scan."""
    from torch._higher_order_ops.associative_scan import associative_scan

    pair = _recurrence_arguments(u, dt, A, B, dt_bias)
    _, states = associative_scan(_combine, pair, 1, combine_mode="generic")
    return ((states @ C.unsqueeze(-1)).squeeze(3) + D * u) * silu(z)


def _angles_and_inputs(u: Tensor, dt: Tensor, W: Tensor, bias: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    angle = torch.einsum("blp,dnp->bldn", u, W) + bias
    return angle, (dt * silu(u)).unsqueeze(-1) * B


def _read_out(states: Tensor, u: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
    return ((C * states).real.sum(-1) + D * silu(u)) * silu(z)


def aussm_loop(u: Tensor, dt: Tensor, W: Tensor, bias: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
    """Compute the AUSSM scan by a plain loop over time on complex states."""
    angle, entering = _angles_and_inputs(u, dt, W, bias, B)
    h = entering.new_zeros(u.shape[0], *bias.shape)
    outputs = []
    for angle_t, entering_t in zip(angle.unbind(1), entering.unbind(1), strict=True):
        h = torch.polar(torch.ones_like(angle_t), angle_t) * h + entering_t
        outputs.append((C * h).real.sum(-1))
    return (torch.stack(outputs, 1) + D * silu(u)) * silu(z)


def aussm_separable(u: Tensor, dt: Tensor, W: Tensor, bias: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
    """Compute the AUSSM scan by two cumulative sums: h_t = e^{iG_t} sum_k e^{-iG_k} x_k, where G is the sum of the angles."""
    angle, entering = _angles_and_inputs(u, dt, W, bias, B)
    total = angle.cumsum(1)
    rotation = torch.polar(torch.ones_like(total), total)
    return _read_out(rotation * (rotation.conj() * entering).cumsum(1), u, C, D, z)


def aussm_associative(u: Tensor, dt: Tensor, W: Tensor, bias: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Tensor:
    """Compute the AUSSM scan by torch's associative scan, without torch.compile, which does not support complex numbers."""
    from torch._higher_order_ops.associative_scan import associative_scan

    angle, entering = _angles_and_inputs(u, dt, W, bias, B)
    rotation = torch.polar(torch.ones_like(angle), angle)
    _, states = associative_scan(_combine, (rotation, entering), 1, combine_mode="generic")
    return _read_out(states, u, C, D, z)


def mambapy_stack(layers: int, d_model: int, d_state: int) -> torch.nn.Module:
    """Return mambapy's stack of Mamba blocks with norms and residual connections, initialised by mambapy."""
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=d_model, n_layers=layers, d_state=d_state))


def mambapy_caches(stack: torch.nn.Module, batch: int) -> list[tuple[None, Tensor]]:
    """Return the caches of mambapy's stack before the first token, for `stack.step(x, caches)`."""
    config = stack.config
    return [(None, torch.zeros(batch, config.d_inner, config.d_conv - 1)) for _ in range(config.n_layers)]


def transformers_stepper(layers: int, d_model: int, d_state: int) -> tuple[Callable[[Tensor, Any], tuple[Tensor, Any]], Any]:
    """Return the step function of transformers' MambaModel with random weights of the same shapes, and its cache."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(hidden_size=d_model, num_hidden_layers=layers, state_size=d_state, vocab_size=8)
    model = MambaModel(config).eval()
    cache = model(inputs_embeds=torch.zeros(1, 1, d_model), use_cache=True).cache_params

    def step(x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        found = model(inputs_embeds=x.unsqueeze(1), cache_params=cache, use_cache=True)
        return found.last_hidden_state.squeeze(1), cache

    return step, cache
