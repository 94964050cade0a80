"""No value of one sequence changes a bit of another in any layer or block, as test_op_isolation.py asserts it for ops.

Every entry of both registries, in evaluation mode, is called with ordinary numbers and with one sequence of a packed row, the
padding, or one row of the batch full of NaN, infinities or 1e30, the states before the row and the gradients that come in among
them. Outputs, states and gradients of everything else must be the same bits. Exempt are gradients of parameters, but for padding.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_properties import Inputs
from test_layers import DEVICE, ENTRIES, WIDTH, build, draw_module, options_of
from torch import Tensor

from longscan.layers import SequenceModule
from longscan.layers.state import State, map_state, state_tensors

# The first choices make up the first case, the only one in a short run.
EITHER = st.sampled_from([True, False])
POISONS = [float("nan"), float("inf"), -float("inf"), 1e30]
FEW = settings(max_examples=max(1, settings().max_examples // 10))
every_entry = pytest.mark.parametrize("entry", ENTRIES)
PACKABLE = [entry for entry in ENTRIES if any(not build(entry, options).changes_length for options in options_of(entry))]


@pytest.fixture(autouse=True)
def _device() -> Any:
    torch.set_default_device(None if DEVICE.type == "cpu" else DEVICE)
    yield
    torch.set_default_device(None)


def spread(where: Tensor, x: Tensor) -> Tensor:
    return where.view(*where.shape, *(1,) * (x.ndim - where.ndim))


def outcome(
    module: SequenceModule, inputs: Inputs, state: State, theirs: Tensor, value: float | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """What has steps, what belongs to the state before and what to the state after the rows, each with its gradient.

    theirs: (B, L), the steps that hold `value`, with the states before and after them where these are theirs; None: nothing does.
    """
    valid = torch.ones_like(theirs) if inputs.valid is None else inputs.valid
    first, last = starts_and_ends(theirs, valid)
    generator = torch.Generator("cpu").manual_seed(5)

    def put(x: Tensor, where: Tensor) -> Tensor:
        return x if value is None or not x.is_floating_point() else torch.where(spread(where, x), value, x)

    x = put(inputs.x, theirs).requires_grad_()
    state = map_state(lambda part: put(part, first).clone(), state)
    before = [part.requires_grad_() for part in state_tensors(state) if part.is_floating_point()]
    elapsed = inputs.elapsed
    if elapsed is not None and value == 1e30:
        elapsed = put(elapsed, theirs)
    y, final = Inputs(x, elapsed, inputs.valid, inputs.seq_idx).run(module, state)
    after = [part for part in state_tensors(final) if part.is_floating_point()]
    weights = [torch.randn(part.shape, generator=generator, device="cpu").to(part) for part in (y, *after)]
    if y.shape[:2] == theirs.shape:
        weights = [put(weights[0], theirs), *(put(part, last) for part in weights[1:])]
    wanted = {"x": x, **{f"state {i}": part for i, part in enumerate(before)}, **dict(module.named_parameters())}
    used = [(part, weight) for part, weight in zip((y, *after), weights, strict=True) if part.requires_grad]
    grads = torch.autograd.grad(
        [part for part, _ in used], list(wanted.values()), [weight for _, weight in used],
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    found = dict(zip(wanted, grads, strict=True))
    steps = {"y": y.detach(), "gradient of x": found.pop("x")}
    return (
        steps,
        {f"gradient of {name}": grad for name, grad in found.items()},
        {f"final {i}": part.detach() for i, part in enumerate(after)},
    )


def starts_and_ends(theirs: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The rows (B,) whose first, and whose last, valid step is among `theirs`; none without a valid step."""
    rows, length = torch.arange(len(valid)), valid.shape[1]
    first, last = valid.to(torch.int8).argmax(1), length - 1 - valid.flip(1).to(torch.int8).argmax(1)
    some = valid.any(1)
    return theirs[rows, first] & some, theirs[rows, last] & some


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor], kept: Tensor) -> None:
    for name, part in one.items():
        assert torch.equal(part[kept], other[name][kept]), f"{name}: {(part != other[name])[kept].sum()} numbers differ"


def of_states(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: part for name, part in parts.items() if name.startswith("gradient of state")}


def draw_inputs(data: st.DataObject, module: SequenceModule) -> tuple[Inputs, State]:
    """Inputs without masks, and what an earlier call has left, of the sequence with the number 0, where modules stream."""
    dtype = next(module.parameters()).dtype
    batch, length = data.draw(st.sampled_from([2, 1, 3]), label="B"), data.draw(st.sampled_from([9, 2, 40]), label="L")
    inputs, state = Inputs(torch.randn(batch, length, WIDTH, dtype=dtype)), None
    if module.irregular and data.draw(EITHER, label="elapsed"):
        inputs.elapsed = torch.rand(batch, length, dtype=dtype)
    if module.streaming and data.draw(EITHER, label="state"):
        earlier = torch.randn(batch, 3, WIDTH, dtype=dtype)
        state = module(earlier, seq_idx=torch.zeros(batch, 3, dtype=torch.long), return_state=True)[1]
        state = map_state(Tensor.detach, state)
    return inputs, state


def draw(data: st.DataObject, entry: str) -> tuple[SequenceModule, Inputs, State, float]:
    module = draw_module(data, entry).to(data.draw(st.sampled_from([torch.float64, torch.float32]), label="dtype"))
    inputs, state = draw_inputs(data, module)
    if getattr(module, "discretisation", getattr(getattr(module, "layer", None), "discretisation", None)) == "imex":
        inputs.elapsed = None  # long times are refused there
    return module, inputs, state, data.draw(st.sampled_from(POISONS), label="value")


@pytest.mark.parametrize("entry", PACKABLE)
@FEW
@given(data=st.data())
def test_sequences_of_a_packed_row_share_nothing(entry: str, data: st.DataObject) -> None:
    """The state before the row is that of sequence 0, with which a row may begin or not."""
    module, inputs, state, value = draw(data, entry)
    if module.changes_length:
        return
    batch, length = inputs.x.shape[:2]
    ids = (torch.rand(batch, length) < data.draw(st.sampled_from([0.5, 0.1]), label="often")).cumsum(1)
    if state is not None:
        ids = ids + data.draw(st.integers(0, 1), label="first")
    if data.draw(EITHER, label="padding"):
        inputs.valid = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
    inputs.seq_idx, present = ids, torch.ones_like(ids, dtype=torch.bool) if inputs.valid is None else inputs.valid
    one, other = data.draw(st.permutations(range(int(ids.max()) + 2)), label="sequences")[:2]
    plain, spoiled = (outcome(module, inputs, state, ids == one, filler) for filler in (None, value))
    first, last = starts_and_ends(ids == one, present)
    assert_same_bits(plain[0], spoiled[0], present & (ids != one))
    continued = (ids[:, 0] == 0) & ~first
    assert_same_bits(of_states(plain[1]), of_states(spoiled[1]), continued)
    assert_same_bits(plain[2], spoiled[2], ~last)
    x = inputs.x.clone().requires_grad_()
    y = Inputs(torch.where(spread(ids == other, x), value, x), inputs.elapsed, inputs.valid, ids).run(module, state)[0]
    (grad,) = torch.autograd.grad(y, x, spread((ids == one) & present, y).to(y).expand_as(y))
    assert not grad[(ids != one) & (ids != other)].count_nonzero(), "a gradient crosses into another sequence"
    assert grad[ids == one].isfinite().all()


@pytest.mark.parametrize("entry", PACKABLE)
@FEW
@given(data=st.data())
def test_a_sequence_that_has_ended_leaves_nothing(entry: str, data: st.DataObject) -> None:
    """Where a row begins another sequence than that of the state it is given, the state changes no bit and gets no gradient."""
    module, inputs, state, value = draw(data, entry)
    if module.changes_length or state is None:
        return
    inputs.seq_idx = torch.ones(inputs.x.shape[:2], dtype=torch.long)
    everything, nothing = (torch.full(inputs.x.shape[:2], fill) for fill in (True, False))
    spoiled = map_state(lambda part: torch.full_like(part, value) if part.is_floating_point() else part, state)
    plain, found = (outcome(module, inputs, given, nothing, None) for given in (state, spoiled))
    assert_same_bits(plain[0], found[0], everything)
    assert_same_bits(plain[2], found[2], everything[:, 0])
    for name, grad in of_states(found[1]).items():
        assert not grad.count_nonzero(), name


@every_entry
@FEW
@given(data=st.data())
def test_padding_reaches_nothing(entry: str, data: st.DataObject) -> None:
    """Gradients of the parameters included; those of the padding are exactly 0."""
    module, inputs, state, value = draw(data, entry)
    batch, length = inputs.x.shape[:2]
    count, steps = torch.randint(0, length, (batch, 1)), torch.arange(length).expand(batch, -1)
    inputs.valid = steps >= length - count if data.draw(st.booleans(), label="left") else steps < count
    plain, spoiled = (outcome(module, inputs, state, ~inputs.valid, filler) for filler in (None, value))
    for one, other in zip(plain, spoiled, strict=True):
        for name, part in one.items():
            assert torch.equal(part, other[name]), name
    assert not spoiled[0]["gradient of x"][~inputs.valid].count_nonzero()


@every_entry
@FEW
@given(data=st.data())
def test_rows_of_a_batch_share_nothing(entry: str, data: st.DataObject) -> None:
    module, inputs, state, value = draw(data, entry)
    row = data.draw(st.integers(0, len(inputs.x) - 1), label="row")
    kept = torch.arange(len(inputs.x)) != row
    theirs = ~kept.unsqueeze(1).expand(inputs.x.shape[:2])
    plain, spoiled = (outcome(module, inputs, state, theirs, filler) for filler in (None, value))
    assert_same_bits(plain[0], spoiled[0], kept)
    assert_same_bits(of_states(plain[1]), of_states(spoiled[1]), kept)
    assert_same_bits(plain[2], spoiled[2], kept)
