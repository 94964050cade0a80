"""Look inside a model: the layers' inputs and outputs, effective attention matrices, states, eigenvalues, and changed states.

A layer that is linear in its state computes y = M x + b, where M (L, D, L, D) and b depend on the inputs only through the
coefficients of the recurrence: step sizes, decays, input and output maps, attention weights, gates and norms. With these held
fixed (`SequenceLayer.map_values`), row (t, c) of M is the gradient of y_{t, c} with respect to the values. This is exact, and
takes the memory of one backward pass of the layer for each row.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from longscan._types import PositiveInt, checked_value, matches_type
from longscan.layers import S6, PhaseState, SequenceLayer, SequenceModule
from longscan.layers.base import SequenceInfo, mask_padding
from longscan.layers.heads import Heads
from longscan.layers.state import State, map_state, state_tensors
from longscan.models import LanguageModel, SequenceModel

MAX_STATES = 16_384  # real numbers of one sequence's state whose transition matrix is computed
ROUNDING = 1e-12  # entries of this matrix below this, relative to the state after a step from zeros, are rounding errors
UNIT_STATES = 256  # number of columns of the matrix that one call computes
MAX_LOG_MODULUS = 1e-9  # |log|a|| of eigenvalues that count as |a| = 1, which have rounding errors


class SelectedS6(nn.Module):
    """An S6 whose step sizes, B and C a block computes from two sequences, with the interface of `Heads`.

    Blocks call it with rotary positions: some of the three come from rotated features, the others from plain ones.
    """

    def __init__(self, layer: S6) -> None:
        super().__init__()
        self.layer = layer

    @staticmethod
    def join(selected: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return step sizes (B, L, D), B and C (B, L, N[, 2]) as one tensor (B, L, S)."""
        return torch.cat([part.flatten(2) for part in selected], -1)

    def _split(self, selected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layer = self.layer
        shape = (layer.d_state, 2) if layer.complex_state else (layer.d_state,)
        dt, maps = torch.split(selected, [layer.d_model, selected.shape[-1] - layer.d_model], -1)
        B, C = (part.reshape(*part.shape[:-1], *shape) for part in maps.chunk(2, -1))
        return dt, B, C

    def initial_state(self, batch: int) -> State:
        """Return the state of the layer before a sequence."""
        return self.layer.initial_state(batch)

    def forward(self, x: Tensor, selected: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        """Return the outputs (B, L, D) and the state after the last step."""
        return self.layer.scan(x, self._split(selected), state, info)

    def map_values(self, x: Tensor, selected: Tensor, values: Tensor, state: State, info: SequenceInfo) -> Tensor:
        """See `Heads.map_values`; of SiLU, x sigmoid(x), the sigmoid is a coefficient."""
        u = values * torch.sigmoid(x) if self.layer.activates_input else values
        return self.layer.scan_activated(u, self._split(selected), state, info)[0]


def _check_index(name: str, index: object, size: int) -> None:
    """Raise IndexError naming an argument unless it is a whole number from -size to size - 1."""
    if not matches_type(index, int) or not -size <= cast("int", index) < size:
        raise IndexError(f"`{name}` must be a whole number from {-size} to {size - 1}, got {index!r}")


class InspectedLayer(NamedTuple):
    """One call of a layer inside a model.

    Attributes:
        name: of the module in the model, such as "blocks.0.block.layer"; "" for the model itself.
        layer: the layer, or what a block calls with features that it computes: the heads of Mamba-2, Mamba-3 or Gated DeltaNet,
            an S6 with rotary positions.
        x: (B, L, D), the input of the call.
        y: (B, L, D), its output, with zeros at padding.
        state: the state before the first step; None at the start of the sequences.
        info: the other arguments of the call.
        selected: (B, L, S), the selected features, the second argument of `Heads` and `SelectedS6`; None for layers.
    """

    name: str
    layer: SequenceLayer | Heads | SelectedS6
    x: Tensor
    y: Tensor
    state: State = None
    info: SequenceInfo = SequenceInfo()
    selected: Tensor | None = None

    def attention_row(self, step: int, channel: int, row: int = 0) -> Tensor:
        """Return row (step, channel) of the effective attention matrix of one sequence, (L, D).

        The sum of this row times the sequence's x, plus `bias`, is y[row, step, channel].

        Args:
            step: output step, from 0, or from the end if negative.
            channel: output channel.
            row: sequence of the batch.

        Raises TypeError if the layer is not linear in its state, IndexError if there is no such output.
        """
        call = self._select(row)
        _check_index("step", step, call.y.shape[1])
        _check_index("channel", channel, call.y.shape[2])
        values = call.x.clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(call._map_values(values)[0, step, channel], values)
        return gradient[0].detach()

    @torch.no_grad()
    def attention_map(self, segments: int = 64, row: int = 0) -> Tensor:
        """Return how much each segment of the input steps adds to the outputs of each segment, (S, S).

        Entry (i, j) is the mean over the steps t of segment i of |sum of M[t, :, s, :] x_s over the steps s of segment j|, the
        Euclidean norm over the output channels. The sequence is cut into S = min(L, `segments`) segments, equal up to one step;
        so with L <= `segments` each of them is one step. One call of the layer computes one column.

        Raises TypeError if the layer is not linear in its state, ValueError if `segments` is below 1.
        """
        checked_value(segments, PositiveInt, "segments")
        call = self._select(row)
        length = call.x.shape[1]
        count = min(length, segments)
        segment = torch.arange(length, device=call.x.device) * count // max(length, 1)
        sizes = torch.bincount(segment, minlength=count)
        bias = call._map_values(torch.zeros_like(call.x))
        columns = []
        for index in range(count):
            own = (segment == index)[:, None]
            norms = (call._map_values(torch.where(own, call.x, 0)) - bias)[0].norm(dim=-1)
            columns.append(norms.new_zeros(count).index_add(0, segment, norms) / sizes)
        return torch.stack(columns, 1) if columns else bias.new_zeros(0, 0)

    @torch.no_grad()
    def bias(self, row: int = 0) -> Tensor:
        """Return the part of one sequence's outputs that does not depend on the values, (L, D): the output for values of 0.

        It comes from the biases of the layer and from the state before the first step.

        Raises TypeError if the layer is not linear in its state.
        """
        call = self._select(row)
        return call._map_values(torch.zeros_like(call.x))[0]

    @torch.no_grad()
    def states(self, row: int = 0, every: int = 1) -> Iterator[tuple[int, State]]:
        """Yield (number of steps, state after them) of one sequence, after each `every` steps and after the last one.

        Raises ValueError if the outputs of the layer depend on later steps or `every` is below 1.
        """
        if isinstance(self.layer, SequenceLayer):
            _require_streaming(self.layer)
        call = self._select(row)
        state = call.state
        for steps in _pieces(call.x.shape[1], every):
            _, state = call._run(steps, state)
            yield steps.stop, state

    @torch.no_grad()
    def eigenvalues(self, step: int = 0, row: int = 0) -> Tensor:
        """Return the eigenvalues of the map from the state `ssm` before a step to that after it, complex128 (S,), in any order.

        S is the number of real numbers in the state of one sequence; a complex state has each eigenvalue and its conjugate. The
        eigenvalues of a time-invariant layer are the same at every step; those of padding, where the state stays as it is, are
        1. They are computed in float64 from the columns of the transition matrix, which calls of the layer with unit vectors as
        states return.

        Args:
            step: step of the input, from 0, or from the end if negative.
            row: sequence of the batch.

        Raises TypeError if the layer is not linear in its state or keeps its state in another form (attention, mLSTM, AUSSM with
        a phase grid), ValueError if S is above 16,384, IndexError if there is no such step.
        """
        self._require_linear_state()
        layer = copy.deepcopy(self.layer).double()
        empty = layer.initial_state(1)
        if not hasattr(empty, "ssm") or isinstance(empty, PhaseState):
            kind = f"{type(layer).__name__} with {type(empty).__name__}"
            raise TypeError(f"the state of the layer must be the vector or matrix of a recurrence, got {kind}")
        shape, size = empty.ssm.shape[1:], empty.ssm.numel()
        if size > MAX_STATES:
            raise ValueError(f"the state of a sequence must have at most {MAX_STATES} numbers, got {size}")
        call = self._select(row)
        call = call._replace(
            layer=layer,
            x=call.x.double(),
            selected=None if call.selected is None else call.selected.double(),
            info=SequenceInfo(call.info.elapsed, call.info.valid),
        )
        _check_index("step", step, call.x.shape[1])

        def next_states(states: Tensor) -> Tensor:
            """Return the states (n, S) after the step from states (n, S)."""
            count = len(states)
            others = map_state(lambda part: part.expand(count, *part.shape[1:]), empty)
            steps = slice(step, step + 1 or None)
            after: Tensor = call._run(steps, others._replace(ssm=states.view(count, *shape)))[1].ssm
            return after.flatten(1)

        origin = next_states(torch.zeros_like(empty.ssm).flatten(1))  # PD-SSM starts from another state
        unit = torch.eye(UNIT_STATES, dtype=origin.dtype, device=origin.device)
        rows, columns, values = [], [], []
        for start in range(0, size, UNIT_STATES):
            count = min(UNIT_STATES, size - start)
            states = origin.new_zeros(count, size)
            states[:, start : start + count] = unit[:count, :count]
            change = next_states(states) - origin
            change = torch.where(change.abs() > ROUNDING * origin.abs(), change, 0)
            column, entry = change.nonzero(as_tuple=True)
            rows.append(entry)
            columns.append(column + start)
            values.append(change[column, entry])
        return _sparse_eigenvalues(torch.cat(rows), torch.cat(columns), torch.cat(values), size)

    def _select(self, row: int) -> "InspectedLayer":
        """Return the call with one sequence of the batch. Raises IndexError if there is no such sequence."""
        _check_index("row", row, self.x.shape[0])
        elapsed, valid, seq_idx, gate = (None if value is None else value[row].unsqueeze(0) for value in self.info[:4])
        return self._replace(
            x=self.x[row].unsqueeze(0),
            y=self.y[row].unsqueeze(0),
            state=map_state(lambda part: part[row].unsqueeze(0), self.state),
            info=SequenceInfo(elapsed, valid, seq_idx, gate),
            selected=None if self.selected is None else self.selected[row].unsqueeze(0),
        )

    def _require_linear_state(self) -> None:
        if isinstance(self.layer, SequenceLayer):
            self.layer.require_linear_state()

    def _map_values(self, values: Tensor) -> Tensor:
        """Return the outputs for other values, with zeros at padding."""
        self._require_linear_state()
        values = mask_padding(values, self.info.valid)
        if isinstance(self.layer, Heads | SelectedS6):
            x = mask_padding(self.x, self.info.valid)
            y = self.layer.map_values(x, cast("Tensor", self.selected), values, self.state, self.info)
        else:
            x, info = self.layer.validate_inputs(self.x, self.info)
            y = self.layer.map_values(x, values, self.state, info)
        return mask_padding(y, self.info.valid)

    def _run(self, steps: slice, state: State) -> tuple[Tensor, State]:
        """Return the outputs and the state of some steps from a state whose rows all take the inputs of this one sequence."""
        batch = 1 if state is None else len(state_tensors(state)[0])
        x, selected, elapsed, valid, seq_idx, gate = (
            None if part is None else part[:, steps].expand(batch, *part[:, steps].shape[1:])
            for part in (self.x, self.selected, *self.info[:4])
        )
        if isinstance(self.layer, Heads | SelectedS6):
            return self.layer(x, selected, state, SequenceInfo(elapsed, valid, seq_idx, gate))
        return cast(
            "tuple[Tensor, State]",
            self.layer(x, state, gate=gate, elapsed=elapsed, valid=valid, seq_idx=seq_idx, return_state=True),
        )


def inspect(
    model: nn.Module,
    x: Tensor,
    *,
    elapsed: Tensor | None = None,
    valid: Tensor | None = None,
) -> Mapping[str, InspectedLayer]:
    """Run a model or a layer and return the calls of its layers by their names, in the order of the calls.

    Dropout is off during the call. Of a layer that is called twice, the first call is returned.

    Args:
        model: a `SequenceModel`, a block or a layer.
        x: its input, tokens (B, L) or vectors (B, L, d_input).
        elapsed: (B, L), time since the previous step; None for 1 at every step.
        valid: (B, L) bool, False for padding; None if all steps are valid.

    Raises ValueError if the call enters no layer.

    Example:
        >>> import longscan, torch
        >>> model = longscan.SequenceModel.from_spec("s4d*2", d_model=8, d_output=3, d_input=1)
        >>> layer = longscan.inspect(model, torch.randn(1, 50, 1))["blocks.0.block.layer"]
        >>> layer.attention_row(step=-1, channel=0).shape
        torch.Size([50, 8])
    """
    calls: dict[str, InspectedLayer] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(layer: SequenceLayer | Heads, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if name in calls and not isinstance(calls[name].layer, SelectedS6):
                return
            if isinstance(layer, Heads):
                given, selected, state, info = args
            else:
                given, state, selected = args[0], args[1] if len(args) > 1 else kwargs.get("state"), None
                info = SequenceInfo(**{key: value for key, value in kwargs.items() if key in SequenceInfo._fields})
            y = mask_padding(output[0] if isinstance(output, tuple) else output, info.valid)
            calls[name] = InspectedLayer(name, layer, given, y, state, info, selected)

        return hook

    def record_scan(name: str, layer: S6) -> Callable[..., tuple[Tensor, State]]:
        scan = layer.scan

        def recorded(
            x: Tensor, selected: tuple[Tensor, Tensor, Tensor], state: State, info: SequenceInfo
        ) -> tuple[Tensor, State]:
            y, after = scan(x, selected, state, info)
            if name not in calls:  # in a call of the layer itself, the hook replaces this
                joined = SelectedS6.join(selected)
                calls[name] = InspectedLayer(name, SelectedS6(layer), x, mask_padding(y, info.valid), state, info, joined)
            return y, after

        return recorded

    scanned = [(name, module) for name, module in model.named_modules() if isinstance(module, S6)]
    handles = [
        module.register_forward_hook(record(name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, SequenceLayer | Heads)
    ]
    arguments = {name: value for name, value in (("elapsed", elapsed), ("valid", valid)) if value is not None}
    try:
        for name, layer in scanned:
            vars(layer)["scan"] = record_scan(name, layer)
        with torch.no_grad(), _evaluating(model):
            model(x, **arguments)
    finally:
        for handle in handles:
            handle.remove()
        for _, layer in scanned:
            vars(layer).pop("scan", None)
    if not calls:
        raise ValueError(f"`model` must call a layer of longscan, got {type(model).__name__}, which calls none")
    return calls


def gradient_times_input(
    model: nn.Module,
    x: Tensor,
    score: Callable[[Any], Tensor],
    *,
    elapsed: Tensor | None = None,
    valid: Tensor | None = None,
    seq_idx: Tensor | None = None,
) -> Tensor:
    """Return the gradient of a score times the input (Shrikumar et al. 2016, arXiv:1605.01713).

    It is, to first order, how much smaller the score would be if this input were zero. Dropout is off during the call.

    Args:
        model: a `LanguageModel`, or a model with the module `encoder`, as `SequenceModel`; for vectors also any other module.
        x: tokens (B, L) or vectors (B, L, C).
        score: function of the model's output, such as `lambda y: y[:, 2]`; the sum of what it returns is differentiated.
        elapsed: (B, L), time since the previous step; None for 1 at every step.
        valid: (B, L) bool, False for padding; None if all steps are valid.
        seq_idx: (B, L), number of the sequence that a step belongs to; None for one sequence per row.

    Returns (B, L, C) for vectors. For tokens, whose embeddings are the input, the sum over the channels of an embedding, (B, L).
    """
    if not callable(score):
        raise TypeError(f"`score` must be a function of the model's output, got a {type(score).__name__}")
    given = {"elapsed": elapsed, "valid": valid, "seq_idx": seq_idx}
    arguments = {name: value for name, value in given.items() if value is not None}
    encoded: list[Tensor] = []
    with torch.enable_grad(), _evaluating(model):
        if x.is_floating_point():
            source = x.detach().clone().requires_grad_()
            output = model(source, **arguments)
        else:
            encoder = cast("nn.Module", model.backbone.encoder if isinstance(model, LanguageModel) else model.encoder)
            hook = encoder.register_forward_hook(lambda module, args, result: encoded.append(result))  # noqa: ARG005
            try:
                output = model(x, **arguments)
            finally:
                hook.remove()
            source = encoded[0]
        (gradient,) = torch.autograd.grad(score(output).sum(), source)
    products = (gradient * source).detach()
    return products if x.is_floating_point() else products.sum(-1)


def time_scales(eigenvalues: Tensor) -> Tensor:
    """Return -1 / log|a| for eigenvalues a (...): the number of steps in which a state decays to 1/e.

    It is 0 where a = 0, infinite where |a| = 1 up to 1e-9, and negative where the state grows.
    """
    log_modulus = eigenvalues.abs().log()
    return torch.where(log_modulus.abs() < MAX_LOG_MODULUS, torch.inf, -1 / log_modulus)


@torch.no_grad()
def states_over_time(
    module: SequenceModule | SequenceModel,
    x: Tensor,
    every: int = 1,
    elapsed: Tensor | None = None,
    valid: Tensor | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield (number of steps, state after them) after each `every` steps and after the last one.

    The sequence runs in pieces, so that memory does not grow with its length.

    Args:
        module: a streaming layer, block or model in evaluation mode.
        x: its input, tokens (B, L) or vectors (B, L, D).
        every: number of steps of a piece, at least 1.
        elapsed: (B, L), time since the previous step; None for 1 at every step.
        valid: (B, L) bool, False for padding; None if all steps are valid.

    Raises ValueError if the module's outputs depend on later steps or `every` is below 1.
    """
    _require_streaming(module)
    state = module.initial_state(x.shape[0])
    for steps in _pieces(x.shape[1], every):
        _, state = _run(module, x, steps, state, elapsed, valid)
        yield steps.stop, state


@torch.no_grad()
def patch_state(
    module: SequenceModule | SequenceModel,
    x: Tensor,
    step: int,
    change: Callable[[Any], Any],
    *,
    elapsed: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Run `step` steps, replace the state by `change(state)`, and return the outputs of the other steps.

    With `change=lambda state: module.initial_state(batch)` the result is the output of a module that has forgotten the first
    steps, so its difference from the usual output shows what the state contributed. For a model, `state._replace(blocks=...)`
    changes the state of one block.

    Args:
        module: a streaming layer, block or model in evaluation mode.
        x: its input, tokens (B, L) or vectors (B, L, D).
        step: number of steps before the change, from 0 to L - 1.
        change: function of the state that returns a state of the same form.
        elapsed: (B, L), time since the previous step; None for 1 at every step.
        valid: (B, L) bool, False for padding; None if all steps are valid.

    Returns y (B, L - step, D), or (B, d_output) for a model with pooling.

    Raises ValueError if the module's outputs depend on later steps or `step` is not in the sequence, and TypeError if `change`
    is no function or returns None.
    """
    _require_streaming(module)
    if not matches_type(step, int) or not 0 <= step < x.shape[1]:
        raise ValueError(f"`step` must be a whole number from 0 to {x.shape[1] - 1}, got {step!r}")
    if not callable(change):
        raise TypeError(f"`change` must be a function of the state, got a {type(change).__name__}")
    state = module.initial_state(x.shape[0])
    if step:
        _, state = _run(module, x, slice(0, step), state, elapsed, valid)
    changed = change(state)
    if changed is None:  # the module would take it for the start of a sequence
        raise TypeError("`change` must return a state of the same form, got None")
    y, _ = _run(module, x, slice(step, None), changed, elapsed, valid)
    return y


def ablate_state(
    module: SequenceModule | SequenceModel,
    x: Tensor,
    step: int,
    *,
    block: int | None = None,
    elapsed: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Run `step` steps, reset the state to that before a sequence, and return the outputs of the other steps.

    The other arguments, the result and its shape are those of `patch_state`.

    block: number of the block of a model whose state is reset; None for all blocks. The state of the pooling is not reset.
    """
    if not isinstance(module, SequenceModel):
        if block is not None:
            raise ValueError(f"`block` must be None for a {type(module).__name__}, which has no blocks, got {block}")
        return patch_state(module, x, step, lambda _: module.initial_state(x.shape[0]), elapsed=elapsed, valid=valid)
    model = module
    if block is not None and not 0 <= block < len(model.stack):
        raise ValueError(f"`block` must be from 0 to {len(model.stack) - 1}, got {block}")

    def forget(state: Any) -> Any:
        start = model.initial_state(x.shape[0]).blocks
        kept = enumerate(zip(state.blocks, start, strict=True))
        return state._replace(blocks=tuple(new if block in (None, index) else old for index, (old, new) in kept))

    return patch_state(model, x, step, forget, elapsed=elapsed, valid=valid)


def _run(
    module: SequenceModule | SequenceModel, x: Tensor, steps: slice, state: Any, elapsed: Tensor | None, valid: Tensor | None
) -> tuple[Tensor, Any]:
    """Return the outputs and the state of some steps of x, from a state."""
    given = {"elapsed": elapsed, "valid": valid}
    arguments = {name: value[:, steps] for name, value in given.items() if value is not None}
    y, state = module(x[:, steps], state, return_state=True, **arguments)
    return y, state


def _require_streaming(module: SequenceModule | SequenceModel) -> None:
    if not module.streaming:
        raise ValueError(f"`module` must run in pieces, got {type(module).__name__}, whose outputs depend on later steps")


def _pieces(length: int, every: int) -> Iterator[slice]:
    """Yield the slices of `every` steps that make up a sequence; the last one may be shorter."""
    checked_value(every, PositiveInt, "every")
    for start in range(0, length, every):
        yield slice(start, min(start + every, length))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode, and each of its modules back to its own mode at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _sparse_eigenvalues(rows: Tensor, columns: Tensor, values: Tensor, size: int) -> Tensor:
    """Return the eigenvalues (size,) of a square matrix with given entries, block by block of its independent parts.

    Two indices belong to one block if a chain of entries connects them; the smallest index of each block is found by passing the
    smaller one along all entries until nothing changes.
    """
    labels = torch.arange(size, device=rows.device)
    while True:
        least = torch.minimum(labels[rows], labels[columns])
        passed = labels.scatter_reduce(0, rows, least, "amin").scatter_reduce(0, columns, least, "amin")
        if torch.equal(passed, labels):
            break
        labels = passed
    _, block, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    order = block.argsort(stable=True)
    place = torch.empty_like(order)  # position of an index inside its block
    place[order] = torch.arange(size, device=rows.device) - (counts.cumsum(0) - counts)[block[order]]
    found = []
    for width in counts.unique().tolist():
        chosen = counts == width
        number = chosen.cumsum(0) - 1  # number of a block among those of this width
        own = chosen[block[rows]]
        matrices = values.new_zeros(int(chosen.sum()), width, width)
        matrices[number[block[rows[own]]], place[rows[own]], place[columns[own]]] = values[own]
        found.append(torch.linalg.eigvals(matrices).flatten())
    return torch.cat(found)
