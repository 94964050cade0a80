"""The base classes of layers and blocks: modules that map a sequence (B, L, D) to a sequence (B, L, D) and carry a state."""

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

    The attributes are set on the class or, for a module that contains others, on the instance. The contract tests check that each
    property holds where it is True and is violated where it is False.

    Attributes:
        causal: y_t depends on steps up to t only.
        streaming: states carry a sequence across calls, down to single steps.
        irregular: `elapsed` has a meaning; otherwise passing it raises ValueError.
        changes_length: y is shorter than x.
        batch_independent: no row of a batch influences another.
        op_names: the ops of `longscan.ops` that the module itself calls, without those of its submodules. An explicit native
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
        # False inside a block or a model, which has already validated and masked the inputs: see `inherit_properties`.
        self.checks_inputs = True
        self._state_form: tuple[type, list[tuple[int, ...]]] | None = None  # type and shapes of a state, cached by `check_state`

    @abstractmethod
    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return y (B, L, D) and the state after the last step, for validated inputs x (B, L, D).

        `state` is None at the start of a sequence.
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
        """Return y_t (B, d_model) and the new state for one step x_t (B, d_model); elapsed (B,), active (B,) bool.

        Rows that are not active keep their state and give 0. Raises ValueError if the module is not `streaming`.
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

    def shorten(self, x: Tensor, info: SequenceInfo) -> Tensor:  # noqa: ARG002 - used by modules that change lengths
        """Return x (B, L, D) at the length of y, for the residual path; x itself unless the module changes lengths."""
        return x

    def shorten_info(self, info: SequenceInfo) -> SequenceInfo:
        """Return `info` for the steps of y; `info` itself unless the module changes lengths."""
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
        """Raise TypeError or ValueError unless `state` is None or a state of this module with `batch` rows.

        Not checked in compiled or transformed calls.
        """
        if state is None or is_compiled_or_transformed():
            return
        if self._state_form is None:
            blank = self.initial_state(1)
            self._state_form = type(blank), [tuple(part.shape[1:]) for part in state_tensors(blank)]
        kind, shapes = self._state_form
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
        """Raise TypeError unless x has the dtype of a parameter, or is fp16 or bf16 and all parameters stay float32."""
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
        """The dtype of states: float64 for float64 parameters, otherwise float32."""
        return torch.float64 if next(self.parameters()).dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


class SequenceLayer(SequenceModule):
    """Base of sequence primitives: a layer owns its projections and calls one op.

    fuses_gate: whether the op itself multiplies y by silu(gate).
    activates_input: whether the layer applies SiLU to the input of its scan; a block then applies none before it.
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
        """Map a batch of sequences x to y as in `SequenceModule.forward`, times silu(gate) for a `gate` (B, L, d_model)."""
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
    """Return y (B, L, ...) with zeros at the steps where `valid` (B, L) is False; y itself if `valid` is None."""
    return y if valid is None else torch.where(valid.view(*valid.shape, *(1,) * (y.ndim - 2)), y, 0)
