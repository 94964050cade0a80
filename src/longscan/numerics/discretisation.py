"""From continuous diagonal systems x' = lambda x + b u to steps x_k = a_bar x_{k-1} + b_bar u_k.

Numbers are real pairs (..., 2); `dt` has the same axes without the last, and may differ at every step (irregular sampling).
"""

from typing import Literal

import torch
from torch import Tensor

from longscan.numerics.pairs import constant, divide, exponential, exponential_minus_one

Rule = Literal["zoh", "bilinear"]
RULES = ("zoh", "bilinear")
EventRule = Literal["zoh", "bilinear", "dirac", "async"]
EVENT_RULES = (*RULES, "dirac", "async")


def change(eigenvalues: Tensor, dt: Tensor, rule: Rule = "zoh") -> Tensor:
    """Return a_bar - 1 of one step, accurate for short steps, too.

    Under both rules b_bar / b = (a_bar - 1) / lambda: lambda x is a recurrence with factor a_bar and input (a_bar - 1) b u_k.
    Arguments and errors as for `discretise`.
    """
    z = eigenvalues * dt.unsqueeze(-1)
    if rule == "zoh":
        return exponential_minus_one(z)
    if rule == "bilinear":
        return divide(z, constant(z, 1.0, 0.0) - z / 2)
    raise ValueError(f"`rule` must be one of {RULES}, got {rule!r}")


def discretise(eigenvalues: Tensor, dt: Tensor, rule: Rule = "zoh") -> tuple[Tensor, Tensor]:
    """Return the pair (a_bar, b_bar / b) of one step of length `dt`.

    zoh: a_bar = e^{lambda dt}, b_bar = (e^{lambda dt} - 1) / lambda b, exact where u is held over the step (S4D, section 3.1).
    bilinear: a_bar = (1 + lambda dt / 2) / (1 - lambda dt / 2), b_bar = dt / (1 - lambda dt / 2) b, of second order.

    Args:
        eigenvalues: (..., 2), real parts negative; not zero.
        dt: (...), positive, broadcast against the eigenvalues.
        rule: "zoh" or "bilinear"; anything else raises ValueError.
    """
    z = eigenvalues * dt.unsqueeze(-1)
    if rule == "zoh":
        return exponential(z), divide(exponential_minus_one(z), eigenvalues)
    if rule == "bilinear":
        one = constant(z, 1.0, 0.0)
        below = one - z / 2
        return divide(one + z / 2, below), divide(dt.unsqueeze(-1) * one, below)
    raise ValueError(f"`rule` must be one of {RULES}, got {rule!r}")


def log_step(eigenvalues: Tensor, dt: Tensor, rule: Rule = "zoh") -> Tensor:
    """Return (log |a_bar|, angle of a_bar) of one step, (..., 2): a_bar^l is exp of l times this, for any real l.

    Arguments and errors as for `discretise`.
    """
    z = eigenvalues * dt.unsqueeze(-1)
    if rule == "zoh":
        return z
    a_bar, _ = discretise(eigenvalues, dt, rule)
    return torch.stack([a_bar.square().sum(-1).log() / 2, torch.atan2(a_bar[..., 1], a_bar[..., 0])], -1)


def discretise_events(eigenvalues: Tensor, dt: Tensor, elapsed: Tensor | None, rule: EventRule = "zoh") -> tuple[Tensor, Tensor]:
    """Return the pair (a_bar, b_bar / b) of the step to an event, `elapsed` units of dt after the event before.

    zoh, bilinear: `discretise` for a step of dt elapsed. dirac: a_bar = e^{lambda dt elapsed}, b_bar = b, an event is an impulse.
    async: a_bar as for dirac, b_bar of zero-order hold over dt, however long the pause was (event-ssm, Schoene et al. 2024).

    Args:
        eigenvalues: (..., 2), real parts negative; not zero.
        dt: (...), positive.
        elapsed: (..., 1, ...), broadcast against dt; None means 1.
        rule: one of EVENT_RULES; anything else raises ValueError.
    """
    if rule not in EVENT_RULES:
        raise ValueError(f"`rule` must be one of {EVENT_RULES}, got {rule!r}")
    pause = dt if elapsed is None else dt * elapsed
    if rule in RULES:
        return discretise(eigenvalues, pause, "zoh" if rule == "zoh" else "bilinear")
    a_bar = exponential(eigenvalues * pause.unsqueeze(-1))
    return a_bar, discretise(eigenvalues, dt)[1] if rule == "async" else constant(a_bar, 1.0, 0.0).expand(eigenvalues.shape)
