"""The base classes of layers and blocks: modules that map a sequence (B, L, D) to a sequence (B, L, D) and carry a state."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.distributed.context import check_piece_lengths, current_split, use_split
from longscan.layers.checks import (
    StateForm,
    check_input,
    check_is_tensor,
    check_state_form,
    check_step_arguments,
    check_steps,
    state_form,
)
from longscan.layers.parameters import Marked
from longscan.layers.state import PhaseState, ScanState, State, no_sequence, restarted_rows, zero_rows
from longscan.ops.tracing import is_compiled_or_transformed

Child = TypeVar("Child", bound="SequenceModule")


class SequenceInfo(NamedTuple):
    """The optional arguments of `SequenceModule.forward` for one batch of B sequences with L steps.

    Attributes:
        elapsed: (B, L), time since the previous step; None means 1 everywhere.
        valid: (B, L) bool, False for padding; None means that all steps are valid.
        seq_idx: (B, L) integers, the number of the sequence that a step belongs to; None means one sequence per row.
        gate: (B, L, D), gate of a layer's output; None means no gate.
        return_state: whether the caller uses the state after the last step. If False, a module may return None instead of a
            state that is expensive to compute.
    """

    elapsed: Tensor | None = None
    valid: Tensor | None = None
    seq_idx: Tensor | None = None
    gate: Tensor | None = None
    return_state: bool = True


class SequenceModule(Marked, ABC):
    """Base of layers and blocks. Subclasses implement `forward_impl` and `initial_state`.

    The attributes are set on the class or, for a module that contains others, on the instance. The contract tests check that each
    property holds where it is True and is violated where it is False.

    Attributes:
        causal: y_t depends on steps up to t only. This holds for finite inputs: attention, mLSTM, Gated DeltaNet, Mamba-2,
            Mamba-3, S4 and S4D multiply later steps by zeros or transform whole sequences, so that a NaN reaches earlier outputs.
        streaming: states carry a sequence across calls, down to single steps.
        irregular: `elapsed` has a meaning; otherwise passing it raises ValueError.
        changes_length: y is shorter than x.
        batch_independent: no row of a batch influences another.
        context_parallel: the module can run inside `longscan.distributed.context_parallel`, on pieces of sequences.
        fuses_gate: the op of a layer multiplies y by silu(gate) itself.
        activates_input: a layer applies SiLU to the input of its scan; a block then applies none before it.
        op_names: the ops of `longscan.ops` that the module itself calls, without those of its submodules. An explicit native
            backend must have a kernel for each of them that has native kernels at all.
    """

    causal: bool = True
    streaming: bool = True
    irregular: bool = True
    changes_length: bool = False
    batch_independent: bool = True
    context_parallel: bool = False
    fuses_gate: bool = False
    activates_input: bool = False
    op_names: tuple[str, ...] = ()

    d_model: int

    def __init__(self) -> None:
        super().__init__()
        # False inside a block or a model, which has already validated and masked the inputs: see `inherit_properties`.
        self.checks_inputs = True
        self._state_form: StateForm | None = None  # form of this module's states, stored by the first `check_state`

    @abstractmethod
    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return y (B, L, D), in the dtype of x, and the state after the last step, for validated inputs x (B, L, D).

        `state` is None at the start of a sequence. Under autocast x may be bfloat16 while the parameters are float32.
        """

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """Return the state before the first step of `batch` sequences, on the parameters' device."""

    def forward(
        self,
        x: Tensor,
        state: State = None,
        *,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        seq_idx: Tensor | None = None,
        return_state: bool = False,
    ) -> Any:
        """Map a batch of sequences x to y.

        Args:
            x: (B, L, d_model).
            state: from `initial_state` or an earlier call; None starts a new sequence in every row.
            elapsed: (B, L), time since the previous step in units of the usual step; None means 1 everywhere.
            valid: (B, L) bool, one contiguous run of valid steps per row. The other steps are padding: ignored, and y is 0 there.
            seq_idx: (B, L) integers >= 0. A new sequence starts where it changes, and where it differs from the state's last one.
            return_state: also return the state after the last valid step.

        Returns y (B, L, d_model), or (y, state). Raises ValueError if an argument has the wrong shape or does not apply to this
        module, TypeError if it has the wrong dtype.
        """
        return self._checked_forward(x, state, SequenceInfo(elapsed, valid, seq_idx, return_state=return_state))

    def _checked_forward(self, x: Tensor, state: State, info: SequenceInfo) -> Any:
        """Check and mask the inputs, call `forward_impl`, apply a gate that the layer does not fuse, and mask the output."""
        if not self.context_parallel and current_split() is not None:
            raise ValueError(
                f"each module inside `context_parallel` must compute pieces of sequences, got {type(self).__name__}, which cannot"
            )
        if self.checks_inputs:
            x, info = self.validate_inputs(x, info)
            self.check_state(state, x.shape[0])
        check_piece_lengths(x)
        if current_split() is not None and not x.shape[1]:  # all pieces are empty, and so are the whole sequences
            with use_split(None):
                result = self.forward_impl(x, state, info)
        else:
            result = self.forward_impl(x, state, info)
        if not isinstance(result, tuple) or len(result) != 2:
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise TypeError(f"`forward_impl` of {type(self).__name__} must return the outputs and the state, got {found}")
        y, state = result
        if not self.changes_length and not is_compiled_or_transformed() and y.shape != x.shape:
            needed = f"outputs of the shape of its inputs, {tuple(x.shape)}"
            raise ValueError(f"`forward_impl` of {type(self).__name__} must return {needed}, got {tuple(y.shape)}")
        if info.gate is not None and not self.fuses_gate:
            y = y * silu(info.gate)
        if info.valid is not None and self.checks_inputs:  # otherwise the containing module masks its own output
            y = mask_padding(y, self.shorten_info(SequenceInfo(valid=info.valid)).valid)
        return (y, state) if info.return_state else y

    def call_unchecked(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return (y, state) of a call with the fields of `info` as arguments, for the module that contains this one.

        Forward hooks run, as in any call. The state is None unless `info.return_state`.
        """
        arguments = {name: value for name, value in info._asdict().items() if value is not None}
        result = self(x, state, **arguments)
        return result if info.return_state else (result, None)

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return y_t (B, d_model) and the new state for one step x_t (B, d_model); elapsed (B,), active (B,) bool.

        In rows that are not active the state is unchanged and y_t is 0. Raises ValueError if the module is not `streaming`.
        """
        if not self.streaming:
            raise ValueError(f"{type(self).__name__} cannot run step by step, as its outputs depend on later steps")
        if current_split() is not None:
            raise ValueError("`step` must be called outside of `context_parallel`, whose processes share the steps, got a step")
        if self.checks_inputs:
            check_step_arguments("x_t", x_t, self.d_model, elapsed, active)
        y, state = self(
            x_t.unsqueeze(1),
            state,
            elapsed=None if elapsed is None else elapsed.unsqueeze(1),
            valid=None if active is None else active.unsqueeze(1),
            return_state=True,
        )
        return y.squeeze(1), state

    def shorten(self, x: Tensor, info: SequenceInfo) -> Tensor:  # noqa: ARG002 - used by modules that change lengths
        """Return x (B, L, D) at the length of y, for the residual path; x itself unless the module changes lengths."""
        return x

    def shorten_info(self, info: SequenceInfo) -> SequenceInfo:
        """Return `info` for the steps of y; `info` itself unless the module changes lengths."""
        return info

    def validate_inputs(self, x: Tensor, info: SequenceInfo) -> tuple[Tensor, SequenceInfo]:
        """Check the inputs of `forward`; return them with zeros in the padding of x and gate, and ones in that of elapsed."""
        check_input(x, self)
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"`x` must have shape (batch, length, {self.d_model}), got {tuple(x.shape)}")
        if info.elapsed is not None and not self.irregular:
            raise ValueError(f"`elapsed` must be None, as {type(self).__name__} takes no elapsed times, got a tensor")
        check_steps((x.shape[0], x.shape[1]), info.elapsed, info.valid, info.seq_idx)
        check_is_tensor("gate", info.gate)
        if info.gate is not None and info.gate.shape != x.shape:
            raise ValueError(f"`gate` must have shape {tuple(x.shape)}, got {tuple(info.gate.shape)}")
        if info.gate is not None and not info.gate.is_floating_point():
            raise TypeError(f"`gate` must have a floating-point dtype, got {info.gate.dtype}")
        if info.valid is None:
            return x, info
        elapsed = None if info.elapsed is None else torch.where(info.valid, info.elapsed, 1)
        gate = None if info.gate is None else mask_padding(info.gate, info.valid)
        # A NaN in the padding would reach the gradients of the weights that are multiplied by it.
        return mask_padding(x, info.valid), info._replace(elapsed=elapsed, gate=gate)

    def validate_step(
        self, x_t: Tensor, state: State, elapsed: Tensor | None, active: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Check the arguments of `step`; return x_t with zeros and elapsed with ones in the rows that are not active."""
        check_step_arguments("x_t", x_t, self.d_model, elapsed, active)
        times, valid = (None if part is None else part.unsqueeze(1) for part in (elapsed, active))
        x, info = self.validate_inputs(x_t.unsqueeze(1), SequenceInfo(times, valid))
        self.check_state(state, x_t.shape[0])
        return x.squeeze(1), None if info.elapsed is None else info.elapsed.squeeze(1)

    def check_state(self, state: State, batch: int) -> None:
        """Raise TypeError or ValueError unless `state` is None or a state of this module with `batch` rows.

        Not checked in compiled or transformed calls.
        """
        if state is None or is_compiled_or_transformed():
            return
        if self._state_form is None:
            self._state_form = state_form(self.initial_state(1))
        check_state_form(state, self._state_form, batch)

    def inherit_properties(self, child: Child) -> Child:
        """Return `child`, a submodule whose inputs this module has checked, and combine its properties with this module's.

        A module is causal, streaming, irregular and batch_independent only if all its children are, and changes lengths if
        one of them does.
        """
        child.checks_inputs = False
        for name in ("causal", "streaming", "irregular", "batch_independent"):
            setattr(self, name, getattr(self, name) and getattr(child, name))
        self.changes_length = self.changes_length or child.changes_length
        return child

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of states: float64 for float64 parameters, otherwise float32."""
        return torch.float64 if next(self.parameters()).dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


class SequenceLayer(SequenceModule):
    """Base of sequence layers: a layer has the parameters of one paper's recurrence and calls one op of `longscan.ops`.

    Attributes:
        time_invariant: y is a linear map of x that does not depend on x.
    """

    time_invariant: bool = False

    def forward(
        self,
        x: Tensor,
        state: State = None,
        *,
        gate: Tensor | None = None,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        seq_idx: Tensor | None = None,
        return_state: bool = False,
    ) -> Any:
        """Map a batch of sequences x to y as in `SequenceModule.forward`, times silu(gate) for a `gate` (B, L, d_model)."""
        return self._checked_forward(x, state, SequenceInfo(elapsed, valid, seq_idx, gate, return_state))

    def require_linear_state(self) -> None:
        """Raise TypeError unless the next state and the output are linear in the state and the values (`map_values`)."""
        if not self.time_invariant and type(self).map_values is SequenceLayer.map_values:
            raise TypeError(
                f"the layer must be linear in its state, got {type(self).__name__}, "
                "whose next state is a nonlinear function of the last one"
            )

    def map_values(self, x: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:  # noqa: ARG002 - see subclasses
        """Return the outputs (B, L, D) for other values, with the coefficients that the layer computes from x.

        The coefficients are all that multiplies a state or a value: step sizes, decays, input and output maps, attention
        weights, gates and norms. The result is affine in `values` and equals the layer's output where values = x.

        Args:
            x: (B, L, D), the inputs from which the coefficients are computed.
            values: (B, L, D), which take the place of x as the input of the state and of the skip.
            state: the state before the first step; None at the start of the sequences.
            info: the other arguments of the call.

        Raises TypeError if the layer is not linear in its state.
        """
        self.require_linear_state()
        y, _ = self.forward_impl(values, state, info)
        return y if info.gate is None else y * silu(info.gate)


def start_state(
    state: ScanState | PhaseState | None, batch: int, info: SequenceInfo, device: torch.device
) -> tuple[Tensor | None, Tensor]:
    """Return the initial state of a scan, and the `last_seq_idx` (B,) of the state after it.

    The initial state is `state.ssm` with zeros in the rows whose first valid step starts a new sequence; None, which stands for
    zeros, if `state` is None. `last_seq_idx` is -1 without a state in a call that returns none: to compute it, processes that
    share sequences exchange numbers.
    """
    if state is None and not info.return_state:
        return None, no_sequence(batch, device)
    last = no_sequence(batch, device) if state is None else state.last_seq_idx
    rows, last = restarted_rows(last, info.valid, info.seq_idx)
    return None if state is None else zero_rows(rows, state.ssm), last


def mask_padding(y: Tensor, valid: Tensor | None) -> Tensor:
    """Return y (B, L, ...) with zeros at the steps where `valid` (B, L) is False; y itself if `valid` is None."""
    return y if valid is None else torch.where(valid.view(*valid.shape, *(1,) * (y.ndim - 2)), y, 0)
