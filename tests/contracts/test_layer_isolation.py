"""No value of one sequence changes a bit of another in any layer or block; test_op_isolation.py asserts the same of ops.

Every entry of both registries is called twice in evaluation mode: with normal numbers, and with one sequence of a packed row, the
padding or one row of the batch full of NaN, infinities or 1e30, its initial state and its cotangents included. All other outputs,
states and gradients must have the same bits. Gradients of parameters must do so for padding only.
"""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isolation import POISON_VALUES, assert_same_bits, fill_where, find_state_rows
from layer_properties import Inputs
from test_layers import DEVICE, ENTRIES, WIDTH, build, draw_module, every_entry, get_options
from torch import Tensor

from longscan.layers import SequenceModule
from longscan.layers.state import State, map_state, state_tensors

true_or_false = st.sampled_from([True, False])  # True in the first example, the only one of a short run
fewer_examples = settings(max_examples=max(1, settings().max_examples // 10))
PACKABLE = [entry for entry in ENTRIES if any(not build(entry, options).changes_length for options in get_options(entry))]
every_packable_entry = pytest.mark.parametrize("entry", PACKABLE)


@pytest.fixture(autouse=True)
def _device() -> Any:
    torch.set_default_device(None if DEVICE.type == "cpu" else DEVICE)
    yield
    torch.set_default_device(None)


class Results(NamedTuple):
    """Results of a module and of its backward pass by name."""

    steps: dict[str, Tensor]  # y and the gradient of x, (B, L, ...)
    gradients: dict[str, Tensor]  # of the initial state, (B, ...), and of the parameters
    final_state: dict[str, Tensor]  # (B, ...)

    @property
    def state_gradients(self) -> dict[str, Tensor]:
        return {name: grad for name, grad in self.gradients.items() if name.startswith("gradient of state")}


def run(module: SequenceModule, inputs: Inputs, state: State, steps: Tensor, value: float | None) -> Results:
    """Return the results for inputs and cotangents with `value` at the steps (B, L), and in the states that belong to them.

    value: None leaves inputs and cotangents unchanged.
    """
    valid = torch.ones_like(steps) if inputs.valid is None else inputs.valid
    initial_rows, final_rows = find_state_rows(steps, valid)
    generator = torch.Generator("cpu").manual_seed(5)

    def poison(x: Tensor, where: Tensor) -> Tensor:
        return x if value is None or not x.is_floating_point() else fill_where(x, where, value)

    x = poison(inputs.x, steps).requires_grad_()
    state = map_state(lambda part: poison(part, initial_rows).clone(), state)
    initial = [part.requires_grad_() for part in state_tensors(state) if part.is_floating_point()]
    elapsed = inputs.elapsed
    if elapsed is not None and value == 1e30:
        elapsed = poison(elapsed, steps)
    y, final_state = Inputs(x, elapsed, inputs.valid, inputs.seq_idx).run(module, state)
    final = [part for part in state_tensors(final_state) if part.is_floating_point()]
    cotangents = [torch.randn(part.shape, generator=generator, device="cpu").to(part) for part in (y, *final)]
    if y.shape[:2] == steps.shape:
        cotangents = [poison(cotangents[0], steps), *(poison(part, final_rows) for part in cotangents[1:])]
    sources = {"x": x, **{f"state {i}": part for i, part in enumerate(initial)}, **dict(module.named_parameters())}
    used = [pair for pair in zip((y, *final), cotangents, strict=True) if pair[0].requires_grad]
    outputs, weights = zip(*used, strict=True)
    grads = torch.autograd.grad(outputs, list(sources.values()), weights, allow_unused=True, materialize_grads=True)
    gradients = {f"gradient of {name}": grad for name, grad in zip(sources, grads, strict=True)}
    step_results = {"y": y.detach(), "gradient of x": gradients.pop("gradient of x")}
    return Results(step_results, gradients, {f"final {i}": part.detach() for i, part in enumerate(final)})


def draw_inputs(data: st.DataObject, module: SequenceModule) -> tuple[Inputs, State]:
    """Return inputs without masks and, for a module that streams, None or the state after steps of the sequence 0."""
    dtype = next(module.parameters()).dtype
    batch, length = data.draw(st.sampled_from([2, 1, 3]), label="B"), data.draw(st.sampled_from([9, 2, 40]), label="L")
    inputs, state = Inputs(torch.randn(batch, length, WIDTH, dtype=dtype)), None
    if module.irregular and data.draw(true_or_false, label="elapsed"):
        inputs.elapsed = torch.rand(batch, length, dtype=dtype)
    if module.streaming and data.draw(true_or_false, label="state"):
        earlier_x = torch.randn(batch, 3, WIDTH, dtype=dtype)
        state = module(earlier_x, seq_idx=torch.zeros(batch, 3, dtype=torch.long), return_state=True)[1]
        state = map_state(Tensor.detach, state)
    return inputs, state


def draw_call(data: st.DataObject, entry: str) -> tuple[SequenceModule, Inputs, State, float]:
    module = draw_module(data, entry).to(data.draw(st.sampled_from([torch.float64, torch.float32]), label="dtype"))
    inputs, state = draw_inputs(data, module)
    if getattr(module, "discretisation", getattr(getattr(module, "layer", None), "discretisation", None)) == "imex":
        inputs.elapsed = None  # IMEX raises an error for long elapsed times
    return module, inputs, state, data.draw(POISON_VALUES, label="value")


@every_packable_entry
@fewer_examples
@given(data=st.data())
def test_packed_sequences_do_not_affect_each_other(entry: str, data: st.DataObject) -> None:
    """The initial state is that of sequence 0, with which a row begins or not."""
    module, inputs, state, value = draw_call(data, entry)
    if module.changes_length:
        return
    batch, length = inputs.x.shape[:2]
    ids = (torch.rand(batch, length) < data.draw(st.sampled_from([0.5, 0.1]), label="probability")).cumsum(1)
    if state is not None:
        ids = ids + data.draw(st.integers(0, 1), label="first")
    if data.draw(true_or_false, label="padding"):
        inputs.valid = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
    inputs.seq_idx, valid = ids, torch.ones_like(ids, dtype=torch.bool) if inputs.valid is None else inputs.valid
    sequence, other = data.draw(st.permutations(range(int(ids.max()) + 2)), label="sequences")[:2]
    expected, poisoned = (run(module, inputs, state, ids == sequence, filler) for filler in (None, value))
    initial_rows, final_rows = find_state_rows(ids == sequence, valid)
    assert_same_bits(expected.steps, poisoned.steps, valid & (ids != sequence))
    assert_same_bits(expected.state_gradients, poisoned.state_gradients, (ids[:, 0] == 0) & ~initial_rows)
    assert_same_bits(expected.final_state, poisoned.final_state, ~final_rows)
    x = inputs.x.clone().requires_grad_()
    y = Inputs(fill_where(x, ids == other, value), inputs.elapsed, inputs.valid, ids).run(module, state)[0]
    (grad,) = torch.autograd.grad(y, x, fill_where(torch.zeros_like(y), (ids == sequence) & valid, 1.0))
    assert not grad[(ids != sequence) & (ids != other)].count_nonzero(), "a gradient crosses into another sequence"
    assert grad[ids == sequence].isfinite().all()


@every_packable_entry
@fewer_examples
@given(data=st.data())
def test_state_of_another_sequence_is_not_used(entry: str, data: st.DataObject) -> None:
    """A row that begins a new sequence has the same results for any initial state, whose gradient is 0."""
    module, inputs, state, value = draw_call(data, entry)
    if module.changes_length or state is None:
        return
    inputs.seq_idx = torch.ones(inputs.x.shape[:2], dtype=torch.long)
    poisoned_state = map_state(lambda part: torch.full_like(part, value) if part.is_floating_point() else part, state)
    no_steps = torch.zeros_like(inputs.seq_idx, dtype=torch.bool)
    expected, actual = (run(module, inputs, initial_state, no_steps, None) for initial_state in (state, poisoned_state))
    assert_same_bits(expected.steps, actual.steps)
    assert_same_bits(expected.final_state, actual.final_state)
    for name, grad in actual.state_gradients.items():
        assert not grad.count_nonzero(), name


@every_entry
@fewer_examples
@given(data=st.data())
def test_padding_values_change_no_bit(entry: str, data: st.DataObject) -> None:
    """Gradients of the parameters are the same, too. The gradients of the padding are exactly 0."""
    module, inputs, state, value = draw_call(data, entry)
    batch, length = inputs.x.shape[:2]
    count, steps = torch.randint(0, length, (batch, 1)), torch.arange(length).expand(batch, -1)
    inputs.valid = steps >= length - count if data.draw(st.booleans(), label="left") else steps < count
    expected, poisoned = (run(module, inputs, state, ~inputs.valid, filler) for filler in (None, value))
    for results in zip(expected, poisoned, strict=True):
        assert_same_bits(*results)
    assert not poisoned.steps["gradient of x"][~inputs.valid].count_nonzero()


@every_entry
@fewer_examples
@given(data=st.data())
def test_batch_rows_do_not_affect_each_other(entry: str, data: st.DataObject) -> None:
    module, inputs, state, value = draw_call(data, entry)
    row = data.draw(st.integers(0, len(inputs.x) - 1), label="row")
    other_rows = torch.arange(len(inputs.x)) != row
    steps = ~other_rows.unsqueeze(1).expand(inputs.x.shape[:2])
    expected, poisoned = (run(module, inputs, state, steps, filler) for filler in (None, value))
    assert_same_bits(expected.steps, poisoned.steps, other_rows)
    assert_same_bits(expected.state_gradients, poisoned.state_gradients, other_rows)
    assert_same_bits(expected.final_state, poisoned.final_state, other_rows)
