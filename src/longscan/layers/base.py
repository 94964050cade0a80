"""The contract of everything that maps a sequence (B, L, D) to a sequence (B, L, D): layers, and the blocks around them."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import silu

from longscan.layers.checks import check_steps
from longscan.layers.parameters import Marked, parameter_options
from longscan.layers.state import PhaseState, ScanState, State, no_sequence, restarted_rows, state_tensors, zero_rows
from longscan.ops.tracing import is_compiled_or_transformed

Child = TypeVar("Child", bound="SequenceModule")


class SequenceInfo(NamedTuple):
    """What accompanies a batch of inputs (B, L, D): `elapsed`, `valid` and `seq_idx` (B, L), `gate` (B, L, D); None: absent.

    return_state: whether the caller uses the state after the last step. If False, a module may return None instead of a
    state that is expensive to compute.
    """

    elapsed: Tensor | None = None
    valid: Tensor | None = None
    seq_idx: Tensor | None = None
    gate: Tensor | None = None
    return_state: bool = True


class SequenceModule(Marked, ABC):
    """Base of layers and blocks. Subclasses write `forward_impl` and `initial_state`.

    Attributes say what holds, on the class or, for a module made of others, on the instance; the tests check it both ways:
        causal: y_t depends on steps up to t only. streaming: states carry a sequence across calls, down to single steps.
        irregular: `elapsed` has a meaning (else it raises). changes_length: y is shorter than x.
        batch_independent: no row influences another.
        op_names: the ops of `longscan.ops` that the module itself calls, those of its parts not included; an explicit native
            backend must have a kernel for each of them that has native kernels at all.
    """

    causal: bool = True
    streaming: bool = True
    irregular: bool = True
    changes_length: bool = False
    batch_independent: bool = True
    op_names: tuple[str, ...] = ()

    d_model: int

    def __init__(self) -> None:
        super().__init__()
        # False inside a block or a model, which has checked and cleaned its inputs: see `inherit_properties`.
        self.checks_inputs = True
        self._form_of_states: tuple[type, list[tuple[int, ...]]] | None = None  # what an initial state is, once one was asked for

    @abstractmethod
    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """y and the state after the last step, for inputs that are checked; `state` is None at a sequence's start."""

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state before the first step of `batch` sequences, on the parameters' device."""

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
        """Run over a batch of sequences.

        Args:
            x: (B, L, d_model).
            state: from `initial_state` or an earlier call; None starts afresh.
            elapsed: (B, L), time since the previous step in units of the usual step; None means 1 everywhere.
            valid: (B, L) bool, one contiguous run of real steps per row; the rest is padding: ignored, and y is 0 there.
            seq_idx: (B, L) integers >= 0, a new sequence starts wherever it changes, also against the state's last one.
            return_state: also return the state after the last valid step.

        Returns y (B, L, d_model), or (y, state). Raises ValueError where an argument has the wrong shape or no meaning here,
        TypeError where it has the wrong dtype.
        """
        if self.checks_inputs:
            x, elapsed = self.validate_inputs(x, elapsed, valid, seq_idx)
            self.check_state(state, x.shape[0])
        y, state = self.forward_impl(x, state, SequenceInfo(elapsed, valid, seq_idx, return_state=return_state))
        y = self._mask_output(y, valid)
        return (y, state) if return_state else y

    def call_unchecked(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Call the module with `info` and return (y, state), for the module that contains it.

        Forward hooks run, as in any call. The state is None unless `info.return_state`.
        """
        found = self(x, state, elapsed=info.elapsed, valid=info.valid, seq_idx=info.seq_idx, return_state=info.return_state)
        return found if info.return_state else (found, None)

    def step(
        self, x_t: Tensor, state: State, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """One step: x_t (B, d_model), elapsed (B,), active (B,) bool; rows that are not active keep their state and give 0.

        ValueError where steps depend on those to come.
        """
        if not self.streaming:
            raise ValueError(f"step: {type(self).__name__} needs the steps to come, too")
        y, state = self(
            x_t.unsqueeze(1),
            state,
            elapsed=None if elapsed is None else elapsed.unsqueeze(1),
            valid=None if active is None else active.unsqueeze(1),
            return_state=True,
        )
        return y.squeeze(1), state

    def shorten(self, x: Tensor, info: SequenceInfo) -> Tensor:  # noqa: ARG002 - modules that change lengths need them
        """x (B, L, D) as it stands beside y, in a residual path: itself, where lengths are kept."""
        return x

    def shorten_info(self, info: SequenceInfo) -> SequenceInfo:
        """`steps` as they are for y: themselves, where lengths are kept."""
        return info

    def validate_inputs(
        self, x: Tensor, elapsed: Tensor | None, valid: Tensor | None, seq_idx: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Check the arguments of `forward`; return x and elapsed with 0 and 1 in the padding."""
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected (batch, length, {self.d_model})")
        self._check_dtype(x)
        if elapsed is not None and not self.irregular:
            raise ValueError(f"elapsed: {type(self).__name__} has no notion of elapsed time; leave it None")
        check_steps((x.shape[0], x.shape[1]), elapsed, valid, seq_idx)
        if valid is None:
            return x, elapsed
        # Also keeps a NaN in the padding out of the gradients of the weights that see it.
        return torch.where(valid.unsqueeze(-1), x, 0), None if elapsed is None else torch.where(valid, elapsed, 1)

    def _mask_output(self, y: Tensor, valid: Tensor | None) -> Tensor:
        """Return y with zeros in the padding; y itself inside a module that masks its own output."""
        if valid is None or not self.checks_inputs:
            return y
        return mask_padding(y, self.shorten_info(SequenceInfo(valid=valid)).valid)

    def check_state(self, state: State, batch: int) -> None:
        """TypeError or ValueError unless a state is None, or of this module and of `batch` rows; not looked at in transforms."""
        if state is None or is_compiled_or_transformed():
            return
        if self._form_of_states is None:
            blank = self.initial_state(1)
            self._form_of_states = type(blank), [tuple(part.shape[1:]) for part in state_tensors(blank)]
        kind, shapes = self._form_of_states
        if type(state) is not kind:
            raise TypeError(f"state: got a {type(state).__name__}, expected the {kind.__name__} of a {type(self).__name__}")
        found, wanted = [tuple(part.shape) for part in state_tensors(state)], [(batch, *shape) for shape in shapes]
        if found == wanted:
            return
        if (
            len(found) != len(wanted)
            or any(  # an axis that starts without a size grows with the steps
                len(got) != len(shape)
                or got[0] != batch
                or any(0 != size != of for size, of in zip(shape[1:], got[1:], strict=True))
                for got, shape in zip(found, wanted, strict=False)
            )
        ):
            raise ValueError(f"state: got tensors of shapes {found}, expected {wanted}")

    def _check_dtype(self, x: Tensor) -> None:
        """TypeError unless x is of the parameters' dtype, or of half precision where all of these keep float32."""
        dtypes = {parameter.dtype for parameter in self.parameters()}
        if x.dtype in dtypes or torch.is_autocast_enabled(x.device.type):
            return
        half = x.dtype in (torch.bfloat16, torch.float16)
        if not (half and all(parameter_options(parameter).keep_float32 for parameter in self.parameters())):
            raise TypeError(f"x: got dtype {x.dtype}, expected that of the parameters, {' or '.join(sorted(map(str, dtypes)))}")

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
        """float64 for float64 parameters, otherwise float32."""
        return torch.float64 if next(self.parameters()).dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device


class SequenceLayer(SequenceModule):
    """A sequence primitive: its own projections and one op.

    fuses_gate: the op multiplies y by silu(gate) itself. activates_input: the layer applies SiLU to what it scans, so that a
    block must not do it before.
    """

    fuses_gate: bool = False
    activates_input: bool = False

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
        """As `SequenceModule.forward`; `gate` (B, L, d_model) multiplies y by silu(gate)."""
        if self.checks_inputs:
            x, elapsed = self.validate_inputs(x, elapsed, valid, seq_idx)
            self.check_state(state, x.shape[0])
            if gate is not None and gate.shape != x.shape:
                raise ValueError(f"gate: got shape {tuple(gate.shape)}, expected {tuple(x.shape)}")
            if gate is not None and valid is not None:
                gate = torch.where(valid.unsqueeze(-1), gate, 0)
        y, state = self.forward_impl(
            x, state, SequenceInfo(elapsed, valid, seq_idx, gate if self.fuses_gate else None, return_state)
        )
        if gate is not None and not self.fuses_gate:
            y = y * silu(gate)
        y = self._mask_output(y, valid)
        return (y, state) if return_state else y

    def call_unchecked(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """As `SequenceModule.call_unchecked`, with the gate."""
        elapsed, valid, seq_idx, gate, return_state = info
        found = self(x, state, gate=gate, elapsed=elapsed, valid=valid, seq_idx=seq_idx, return_state=return_state)
        return found if return_state else (found, None)


def start_state(
    state: ScanState | PhaseState | None, batch: int, info: SequenceInfo, device: torch.device
) -> tuple[Tensor | None, Tensor]:
    """Return the initial state of a scan and the `last_seq_idx` (B,) of the state after it.

    The initial state is `state.ssm` with zeros in the rows whose first valid step starts a new sequence, or None, which means
    zero, if `state` is None.
    """
    last = no_sequence(batch, device) if state is None else state.last_seq_idx
    rows, last = restarted_rows(last, info.valid, info.seq_idx)
    return None if state is None else zero_rows(rows, state.ssm), last


def mask_padding(y: Tensor, valid: Tensor | None) -> Tensor:
    """y (B, L, ...) with zeros at the steps that are not valid."""
    return y if valid is None else torch.where(valid.view(*valid.shape, *(1,) * (y.ndim - 2)), y, 0)
