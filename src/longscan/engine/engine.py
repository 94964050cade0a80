"""The training loop: `Engine` makes gradient steps over batches; everything else in a training is a `Callback`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from longscan.engine.graphed_step import GraphedStep, make_capturable


class NonFiniteLossError(FloatingPointError):
    """A loss, or the norm of its gradient, was infinite or NaN."""


class StepResult(NamedTuple):
    """The result of one gradient step. If steps are replayed as CUDA graphs, the next step overwrites all tensors.

    Attributes:
        outputs: the second value that `compute_loss` returned.
        loss: the scalar that was differentiated, detached.
        grad_norm: the norm of the gradient before clipping, as `clip_gradients` returned it; None without clipping.
        learning_rate: the learning rate of the step, of parameter groups with "scale" 1.
    """

    outputs: Any
    loss: Tensor
    grad_norm: Tensor | None
    learning_rate: float


class Callback:
    """Base class of callbacks, whose methods the engine calls after each step; override the methods that are needed.

    Callbacks are called in the order of `Engine.callbacks`. A callback may read `engine.step`, the number of steps made, set
    `engine.stop_requested`, and send a row to all callbacks by `engine.log`.
    """

    def on_step_end(self, engine: "Engine", result: StepResult) -> None:
        """Run after each step."""

    def on_log(self, engine: "Engine", row: dict[str, Any]) -> None:
        """Run for each row that a callback sends by `Engine.log`."""

    def on_train_end(self, engine: "Engine") -> None:
        """Run after the last step of `Engine.run`, unless an exception ended it."""


class Engine:
    """Minimise a loss by gradient steps, one for each batch.

    Args:
        optimizer: the optimiser of the parameters to train. A group may have an entry "scale", a factor on its learning rate
            (default 1).
        compute_loss: maps a batch to (loss, outputs): a scalar to differentiate, and anything that callbacks need, detached.
        learning_rate: maps the number of steps made so far and the scale of a group to the group's learning rate in the next
            step, so that resuming a training needs only the number.
        clip_gradients: clips the gradients in place and returns their norm before that, a scalar or one for each of several
            models trained together. None for no clipping.
        backward: function that differentiates the loss, such as `Accelerator.backward` for several processes.
        callbacks: called after each step and at the end, in this order.
        sum_over_processes: sums a tensor over the processes that train together; None for one process.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        compute_loss: Callable[[Any], tuple[Tensor, Any]],
        *,
        learning_rate: Callable[[int, float], float],
        clip_gradients: Callable[[], Tensor] | None = None,
        backward: Callable[[Tensor], Any] = Tensor.backward,
        callbacks: Sequence[Callback] = (),
        sum_over_processes: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.compute_loss = compute_loss
        self.learning_rate = learning_rate
        self.clip_gradients = clip_gradients
        self.backward = backward
        self.callbacks = list(callbacks)
        self.sum_over_processes = sum_over_processes
        self.step = 0
        self.stop_requested = False
        self.all_finite = torch.ones((), dtype=torch.bool, device=optimizer.param_groups[0]["params"][0].device)
        self._gradient_step: Callable[[Any], tuple[Any, Tensor, Tensor | None]] = self.gradient_step

    def run(self, batches: Iterable[Any]) -> None:
        """Make a step for each batch, until there are no more or a callback sets `stop_requested`.

        The next batch is requested after the callbacks of the step before, so they may change it. Raises NonFiniteLossError if a
        loss or gradient was not finite.
        """
        for batch in batches:
            self.update(batch)
            if self.stop_requested:
                break
        self.finish()

    def finish(self) -> None:
        """Call the callbacks' `on_train_end`, unless a loss or gradient was not finite, which raises NonFiniteLossError."""
        self.raise_if_not_finite()
        for callback in self.callbacks:
            callback.on_train_end(self)

    def update(self, batch: Any) -> StepResult:
        """Make one step and call the callbacks' `on_step_end`."""
        self.begin_step()
        return self.end_step(*self._gradient_step(batch))

    def begin_step(self) -> None:
        """Give each parameter group the learning rate of the next step."""
        set_learning_rates(self.optimizer, partial(self.learning_rate, self.step))

    def end_step(self, outputs: Any, loss: Tensor, grad_norm: Tensor | None) -> StepResult:
        """Count a step with these results of `gradient_step` and call the callbacks' `on_step_end`."""
        result = StepResult(outputs, loss, grad_norm, self.learning_rate(self.step, 1.0))
        self.step += 1
        for callback in self.callbacks:
            callback.on_step_end(self, result)
        return result

    def gradient_step(self, batch: Any) -> tuple[Any, Tensor, Tensor | None]:
        """Make a forward pass, a backward pass, clipping and an optimiser step; return outputs, loss and norm of the gradient.

        Reads nothing back to the host, so that it can be captured as a CUDA graph.
        """
        self.optimizer.zero_grad()
        loss, outputs = self.compute_loss(batch)
        # By this thread: it launches the kernels of a GPU sooner than autograd's thread of the device (results/gpu_kernels.md).
        with torch.autograd.set_multithreading_enabled(False):
            self.backward(loss)
        return outputs, loss.detach(), self.apply_gradients(loss)

    def apply_gradients(self, loss: Tensor) -> Tensor | None:
        """Clip the gradients of a loss and make an optimiser step; return the norm of the gradients before clipping."""
        norm = None if self.clip_gradients is None else self.clip_gradients()
        self.all_finite &= torch.isfinite(loss.detach())
        if norm is not None:
            self.all_finite &= torch.isfinite(norm).all()
        self.optimizer.step()
        return norm

    def capture(self, device: torch.device, *, required: bool = True) -> None:
        """Replay further steps as CUDA graphs. Graphs that were captured before are dropped. required: as for `GraphedStep`."""
        make_capturable(self.optimizer, device)
        self._gradient_step = GraphedStep(self.gradient_step, device, required=required)

    def seconds_per_replay(self) -> float | None:
        """Return the time of a captured step on the device, see `GraphedStep.seconds_per_replay`; None without one."""
        return self._gradient_step.seconds_per_replay() if isinstance(self._gradient_step, GraphedStep) else None

    def release_graphs(self) -> None:
        """Free the captured graphs after the last step, and the gradients, which would keep memory of the graphs allocated."""
        if isinstance(self._gradient_step, GraphedStep):
            self.optimizer.zero_grad()
            self._gradient_step.release()

    def raise_if_not_finite(self) -> None:
        """Raise NonFiniteLossError if a loss or gradient so far was not finite, in any process. Waits for the device."""
        failures = (~self.all_finite).float()
        if self.sum_over_processes is not None:
            failures = self.sum_over_processes(failures)
        if failures:
            raise NonFiniteLossError(f"the loss or the norm of its gradient was not finite at step {self.step} or before")

    def log(self, row: dict[str, Any]) -> None:
        """Send a row of values by name to all callbacks; "step", the number of steps made, is added if it is missing."""
        row = {"step": self.step} | row
        for callback in self.callbacks:
            callback.on_log(self, row)


def set_learning_rates(optimizer: Optimizer, rate_of: Callable[[float], float]) -> None:
    """Give each group the rate of its "scale" (1 without one). A rate that is a tensor, as in CUDA graphs, is set in place."""
    for group in optimizer.param_groups:
        rate = rate_of(group.get("scale", 1.0))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
