"""`SequenceModel`: an encoder, a stack of residual blocks, pooling, a norm and a head."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, SupportsIndex, cast

import torch
from torch import Tensor, nn

from longscan._types import NonNegativeInt, PositiveInt, checked_value
from longscan.blocks.residual import Norm, Residual, layer_norm, rms_norm
from longscan.blocks.rotary import positions as count_positions
from longscan.distributed.context import current_split
from longscan.layers._settings import building_parts, check_backend
from longscan.layers.base import SequenceInfo, mask_padding
from longscan.layers.checks import check_step_arguments, check_steps, require_tensor, values_unavailable
from longscan.layers.parameters import mark
from longscan.layers.state import State, layer_state, map_state, state_rows, state_tensors
from longscan.models.base import PretrainedModel
from longscan.models.encoders import ImageEncoder, ImageShape
from longscan.models.pooling import Pooling, PoolState, pool
from longscan.models.positions import PositionKind, Positions
from longscan.models.spec import block_label, build_block
from longscan.ops.dispatch import Backend
from longscan.ops.tracing import is_compiled_or_transformed


@layer_state
class ModelState(NamedTuple):
    """The state of a model after some steps.

    Attributes:
        blocks: the state of each block.
        pooled: the state of the pooling; None without pooling.
        position: (B,), the position of the next step; None without absolute positions.
    """

    blocks: tuple[State, ...]
    pooled: PoolState | None
    position: Tensor | None = None


Head = Literal["linear", "affine", "mlp", "none"]
Padding = Literal["masked", "read"]
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch finds no extremes of these


class SequenceModel(PretrainedModel):
    """A stack of blocks that maps a batch of sequences to one output for each sequence or for each step.

    The inputs are encoded, pass through the blocks, x + block(RMSNorm(x)) for each block, and are pooled, normalised and mapped
    by the head. `from_spec` builds a model from the names of its blocks.

    Args:
        blocks: the stack as a list of `{"layer", "block", "options"}`, see `longscan.models.parse_spec`.
        d_model: width of the stack.
        d_output: size of an output.
        vocab_size: number of tokens, for inputs (B, L) of integers from 0 to vocab_size - 1, which an embedding encodes.
        d_input: size of the input vectors, for inputs (B, L, d_input), which a linear map encodes. Exactly one of vocab_size and
            d_input is given.
        image_shape: channels, height and width of the image in the first values of each input vector, which two
            convolutions encode (`longscan.models.encoders`); None for the linear map.
        pooling: "mean" over the valid steps, "last" for the last valid step, or "none" for an output at every step.
        head: "linear" without bias, "affine" with bias, "mlp" for two linear maps with GELU between them, or "none", for which
            d_output is d_model.
        initial_state: state in which each block starts a sequence, "zero", or "learned", a parameter.
        positions: absolute positions that are added to the input of the first block ("sinusoidal", "learned") or of every block
            ("blocks", "tied"), see `longscan.models.positions`.
        max_length: the largest number of steps for learned positions; otherwise None.
        padding: "masked": invalid steps are ignored; "read": they are read and pooled like valid ones, as in implementations that
            do not pass lengths, so that the output depends on the amount of padding. "read" requires pooling.
        norm: of the residual branches, see `longscan.blocks.Residual`. The norm before the head is of the same kind; there is
            none with "batch" and "post".
        backend: backend of every op, "auto" to choose for each call.

    Raises ValueError naming an argument that does not fit.

    Attributes:
        causal: whether no output depends on later steps.
        streaming: whether the model can run step by step.
    """

    def __init__(
        self,
        blocks: Sequence[Mapping[str, Any]],
        *,
        d_model: PositiveInt,
        d_output: PositiveInt,
        vocab_size: PositiveInt | None = None,
        d_input: PositiveInt | None = None,
        image_shape: ImageShape | None = None,
        pooling: Pooling = "mean",
        head: Head = "linear",
        initial_state: Literal["zero", "learned"] = "zero",
        norm: Norm = "rms",
        positions: PositionKind = "none",
        max_length: PositiveInt | None = None,
        padding: Padding = "masked",
        backend: Backend = "auto",
    ) -> None:
        super().__init__(blocks)
        if (vocab_size is None) == (d_input is None):
            raise ValueError(f"exactly one of `vocab_size` and `d_input` must be given, got {vocab_size} and {d_input}")
        if image_shape is not None and d_input is None:
            raise ValueError(f"`image_shape` must be None for tokens, got {image_shape}")
        if head == "none" and d_output != d_model:
            raise ValueError(f"`d_output` must be d_model ({d_model}) without a head, got {d_output}")
        if padding == "read" and pooling == "none":
            raise ValueError("`padding` must be 'masked' without pooling, where padding has no output, got 'read'")
        self.d_model, self.d_output, self.vocab_size, self.d_input = d_model, d_output, vocab_size, d_input
        self.pooling, self.padding, self.backend = pooling, padding, backend
        self.has_learned_state = initial_state == "learned"
        if vocab_size is not None:
            embedding = nn.Embedding(vocab_size, d_model)
            mark(embedding.weight, "embedding", decay=False)
            self.encoder: nn.Embedding | nn.Linear | ImageEncoder = embedding
        elif d_input is not None:
            image = None if image_shape is None else ImageEncoder(image_shape, d_input, d_model)
            self.encoder = nn.Linear(d_input, d_model) if image is None else image
        with building_parts():
            stack = [Residual(build_block(entry, d_model, backend), norm) for entry in self.entries]
        for block in stack:
            block.checks_inputs = False
        self.blocks = nn.ModuleList(stack)
        self.causal = all(block.causal for block in stack)
        self.streaming = all(block.streaming for block in stack)
        self.norm: nn.Module = rms_norm(d_model) if norm == "rms" else layer_norm(d_model) if norm == "layer" else nn.Identity()
        self.head: nn.Module = nn.Identity()
        if head in ("linear", "affine"):
            self.head = nn.Linear(d_model, d_output, bias=head == "affine")
        elif head == "mlp":
            self.head = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), nn.Linear(d_model, d_output))
        self.positions: Positions | None = None
        if positions != "none":
            self.positions = Positions(positions, d_model, len(stack), max_length)
        elif max_length is not None:
            raise ValueError(f"`max_length` must be None without positions, got {max_length}")
        if positions in ("blocks", "tied"):
            self.require_same_length("positions")
        self.start = nn.ParameterList()  # learned initial states: one row for each floating-point tensor of the blocks' states
        if self.has_learned_state:
            self.start.extend(
                mark(nn.Parameter(x[0].clone()), "ssm", decay=False, keep_float32=True)
                for x in state_tensors([block.initial_state(1) for block in stack])
                if x.is_floating_point()
            )
        check_backend(self, backend)

    @property
    def stack(self) -> list[Residual]:
        """The blocks, each with its residual branch and norm."""
        return [cast("Residual", block) for block in self.blocks]

    def forward(
        self,
        inputs: Tensor,
        state: ModelState | None = None,
        *,
        elapsed: Tensor | None = None,
        valid: Tensor | None = None,
        seq_idx: Tensor | None = None,
        return_state: bool = False,
    ) -> Any:
        """Run the model on a batch of sequences.

        Args:
            inputs: tokens (B, L), or vectors (B, L, d_input) of real numbers, which are cast to the dtype of the encoder.
            state: state before the first step, from `initial_state` or an earlier call; None for the start of the sequences. It
                includes the state of the pooling, so that the output depends on all steps so far.
            elapsed: (B, L), time since the previous step; None for 1 at every step.
            valid: (B, L) bool, False for padding. Each row has one contiguous run of valid steps.
            seq_idx: (B, L), number of the sequence that a step belongs to, for rows of several sequences. Requires pooling "none"
                and initial_state "zero".
            return_state: also return the state after the last valid step.

        Returns y, or (y, state) with return_state. y is (B, d_output), or (B, L, d_output) without pooling, with zeros at
        padding; where blocks shorten the sequence, L is the length of the last block's output.

        Raises ValueError or TypeError naming an argument that does not fit.
        """
        self.check_inputs(inputs, elapsed, valid, seq_idx)
        if self.padding == "read":
            valid = None
        batch = inputs.shape[0]
        if state is not None:
            state = self._checked_state(state)
        elif self.has_learned_state:
            state = self.initial_state(batch)
        else:  # None is the initial state, which blocks then need not read
            state = ModelState((None,) * len(self.stack), self._initial_pool_state(batch), self._initial_position(batch))
        for block, before in zip(self.stack, state.blocks, strict=True):
            block.check_state(before, inputs.shape[0])
        x = self._encode(inputs, valid)
        elapsed = elapsed if elapsed is None or valid is None else torch.where(valid, elapsed, 1)
        info, after = SequenceInfo(elapsed, valid, seq_idx, return_state=return_state), []
        position, next_position = self._positions(state.position, (batch, inputs.shape[1]), info)
        for index, (block, before) in enumerate(zip(self.stack, state.blocks, strict=True)):
            if self.positions is not None:
                x = mask_padding(self.positions(x, position, index), info.valid)
            x, block_state = block.call_unchecked(x, before, info)
            info = block.shorten_info(info)._replace(return_state=return_state)
            after.append(block_state)
        pooled = state.pooled
        if pooled is not None:
            x, pooled = pool(self.pooling, x, info.valid, pooled)
        y = self.head(self.norm(x))
        if pooled is None:
            y = mask_padding(y, info.valid)
        return (y, ModelState(tuple(after), pooled, next_position)) if return_state else y

    def step(
        self, inputs: Tensor, state: ModelState, *, elapsed: Tensor | None = None, active: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """Run the model on one step of each sequence.

        Args:
            inputs: tokens (B,), or vectors (B, d_input). The range of tokens is only checked on the CPU: a check would wait for
                a GPU at every step. There the embedding fails for a token that it has no row for.
            state: state before the step, from `initial_state` or an earlier call.
            elapsed: (B,), time since the previous step; None for 1.
            active: (B,) bool, False for rows without a step, whose state does not change; None if all rows have one.

        Returns (y, state): y is (B, d_output), the output for all steps so far, or that of this step without pooling. Raises
        ValueError if a block needs later steps.
        """
        self.require_streaming("`step`")
        if current_split() is not None:
            raise ValueError("`step` must be called outside of `context_parallel`, whose processes share the steps, got a step")
        check_step_arguments("inputs", inputs, self.d_input, elapsed, active)
        valid = None if active is None else active.unsqueeze(1)
        inputs = inputs.unsqueeze(1)
        self.check_inputs(inputs, None if elapsed is None else elapsed.unsqueeze(1), valid, is_step=True)
        x = self._encode(inputs, valid).squeeze(1)
        after, before_step = [], self._checked_state(state)
        self._check_rows(before_step, inputs.shape[0])
        position, next_position = self._positions(before_step.position, (inputs.shape[0], 1), SequenceInfo(valid=valid))
        for index, (block, before) in enumerate(zip(self.stack, before_step.blocks, strict=True)):
            if self.positions is not None:
                x = mask_padding(self.positions(x.unsqueeze(1), position, index), valid).squeeze(1)
            x, block_state = block.step(x, before, elapsed=elapsed, active=active)
            after.append(block_state)
        pooled = state.pooled
        if pooled is not None:
            x, pooled = pool(self.pooling, x.unsqueeze(1), valid, pooled)
        y = self.head(self.norm(x))
        if pooled is None and active is not None:
            y = torch.where(active.unsqueeze(-1), y, 0)
        return y, ModelState(tuple(after), pooled, next_position)

    def initial_state(self, batch: int) -> ModelState:
        """Return the state before the first step of `batch` sequences. Raises ValueError unless it is a whole number from 0."""
        if not is_compiled_or_transformed():
            batch = checked_value(batch, NonNegativeInt, "batch")
        blocks: tuple[State, ...] = tuple(block.initial_state(batch) for block in self.stack)
        if self.has_learned_state:
            learned = iter(self.start)
            blocks = map_state(lambda x: next(learned).expand_as(x) if x.is_floating_point() else x, blocks)
        return ModelState(blocks, self._initial_pool_state(batch), self._initial_position(batch))

    def _initial_position(self, batch: int) -> Tensor | None:
        """Return position 0 of each row, (B,); None without absolute positions."""
        return None if self.positions is None else torch.zeros(batch, dtype=torch.int64, device=self.encoder.weight.device)

    def _positions(self, carried: Tensor | None, shape: tuple[int, int], info: SequenceInfo) -> tuple[Any, Tensor | None]:
        """Return the positions (B, L) of steps and that of the next one, (B,), after `carried`; None without positions."""
        return (None, None) if carried is None else count_positions(carried, None, shape, info)

    def _initial_pool_state(self, batch: int) -> PoolState | None:
        if self.pooling == "none":
            return None
        device = self.encoder.weight.device
        dtype = torch.float64 if self.encoder.weight.dtype == torch.float64 else torch.float32
        count = torch.zeros(batch, dtype=torch.int64, device=device)
        return PoolState(torch.zeros(batch, self.d_model, dtype=dtype, device=device), count)

    def require_streaming(self, caller: str) -> None:
        """Raise ValueError, whose message names the caller, unless every block can run step by step."""
        if name := self._find_block(lambda block: not block.streaming):
            raise ValueError(f"each block must run step by step for {caller}, got {name}, which cannot")

    def require_same_length(self, caller: str) -> None:
        """Raise ValueError, whose message names the caller, unless the blocks keep the length of the sequence."""
        if name := self._find_block(lambda block: block.changes_length):
            raise ValueError(f"each block must keep the length of the sequence for {caller}, got {name}, which shortens it")

    def block_without_times(self) -> str | None:
        """Return the position and name of the first block that takes no elapsed times; None if all take them."""
        return self._find_block(lambda block: not block.irregular)

    def _find_block(self, has_property: Callable[[Residual], bool]) -> str | None:
        """Return the position and name of the first block with a property, such as "block 1 (s5)"; None if no block has it."""
        found = [index for index, block in enumerate(self.stack) if has_property(block)]
        return f"block {found[0]} ({block_label(self.entries[found[0]])})" if found else None

    def _checked_state(self, state: ModelState) -> ModelState:
        if not isinstance(state, ModelState):
            raise TypeError(f"`state` must be the ModelState of an earlier call, got a {type(state).__name__}")
        if len(state.blocks) != len(self.stack):
            raise ValueError(f"`state` must have the states of {len(self.stack)} blocks, got {len(state.blocks)}")
        for part, has_part, needed in (
            ("pooling", state.pooled is not None, self.pooling != "none"),
            ("absolute positions", state.position is not None, self.positions is not None),
        ):
            if has_part != needed:
                words = ("with", "without") if needed else ("without", "with")
                raise ValueError(f"`state` must be that of a model {words[0]} {part}, got one {words[1]}")
        return state

    def _check_rows(self, state: ModelState, batch: int) -> None:
        """Raise ValueError unless a state has `batch` rows; not checked in compiled or transformed calls.

        Only one tensor is checked, because `check_state` for each block would take 3 % of the time of a step of Mamba on a CPU.
        """
        if not is_compiled_or_transformed() and (rows := state_rows(state)) not in (None, batch):
            raise ValueError(f"`state` must have {batch} rows, as many as the inputs, got {rows}")

    def check_inputs(
        self,
        inputs: Tensor,
        elapsed: Tensor | None,
        valid: Tensor | None,
        seq_idx: Tensor | None = None,
        *,
        name: str = "inputs",
        suffix: str = "",
        is_step: bool = False,
    ) -> None:
        """Raise ValueError or TypeError unless `forward` takes these arguments.

        name: of the inputs in messages. suffix: of the names of the other arguments in messages. is_step: the arguments are those
        of one step, whose tokens are only checked on the CPU.
        """
        require_tensor(name, inputs)
        if self.vocab_size is not None:
            check_tokens(inputs, valid, self.vocab_size, name, only_on_cpu=is_step)
        if self.d_input is not None and (inputs.ndim != 3 or inputs.shape[-1] != self.d_input):
            raise ValueError(f"`{name}` must have shape (batch, length, {self.d_input}), got {tuple(inputs.shape)}")
        if self.d_input is not None and inputs.is_complex():
            raise TypeError(f"`{name}` must be real numbers, got {inputs.dtype}")
        if elapsed is not None and (block := self.block_without_times()):
            raise ValueError(f"`elapsed{suffix}` must be None, as {block} takes no elapsed times, got a tensor")
        if seq_idx is not None:
            for is_wrong, setting in (
                (self.pooling != "none", f"pooling={self.pooling!r}"),
                (self.has_learned_state, "initial_state='learned'"),
                (self.positions is not None, "positions"),
            ):
                if is_wrong:
                    needed = f"None with {setting}, with one sequence per row"
                    raise ValueError(f"`seq_idx{suffix}` must be {needed}, got a tensor")
        check_steps((inputs.shape[0], inputs.shape[1]), elapsed, valid, seq_idx, suffix=suffix)

    def _encode(self, inputs: Tensor, valid: Tensor | None) -> Tensor:
        """Return the encoded inputs (B, L, d_model), zeros at padding, in the dtype of the weights.

        The residual stream, a sum of the outputs of all blocks, has this dtype under autocast, too.
        """
        dtype = self.encoder.weight.dtype
        if self.vocab_size is None:
            inputs = inputs.to(dtype)
        elif inputs.dtype != torch.int32:  # the embedding takes no shorter integers, such as bytes
            inputs = inputs.long()
        x: Tensor = self.encoder(mask_padding(inputs, valid)).to(dtype)
        return mask_padding(x, valid)


def checked_token(name: str, token: SupportsIndex, vocab_size: int) -> int:
    """Return a token as an int. Raises ValueError naming the argument unless it is a whole number from 0 to vocab_size - 1."""
    try:
        number = operator.index(token)
    except TypeError:
        number = -1
    if not 0 <= number < vocab_size:
        raise ValueError(f"`{name}` must be a token below vocab_size ({vocab_size}), got {token}")
    return number


def require_tokens(name: str, inputs: Tensor) -> None:
    """Raise TypeError or ValueError naming the argument unless inputs are integers of shape (B, L)."""
    require_tensor(name, inputs)
    if inputs.ndim != 2 or inputs.is_floating_point() or inputs.is_complex() or inputs.dtype == torch.bool:
        raise ValueError(f"`{name}` must be integer tokens of shape (batch, length), got {inputs.dtype} {tuple(inputs.shape)}")


def check_tokens(
    inputs: Tensor, valid: Tensor | None, vocab_size: int, name: str = "inputs", *, only_on_cpu: bool = False
) -> None:
    """Raise ValueError unless inputs are integer tokens (B, L) and, where valid, from 0 to vocab_size - 1.

    Values are not checked inside compiled graphs and transforms. name: of the inputs in the message. only_on_cpu: check values
    only on the CPU, for calls that must not wait for a GPU.
    """
    require_tokens(name, inputs)
    if only_on_cpu and inputs.device.type != "cpu":
        return
    if inputs.numel() and not values_unavailable(inputs, valid):
        is_mask = isinstance(valid, Tensor) and valid.dtype == torch.bool and valid.shape == inputs.shape
        inputs = inputs.long() if inputs.dtype in WIDE_UNSIGNED else inputs
        checked = torch.where(valid, inputs, 0) if valid is not None and is_mask else inputs
        low, high = (int(extreme) for extreme in torch.aminmax(checked))
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"`{name}` must be tokens from 0 to {vocab_size - 1}, got {wrong}")
