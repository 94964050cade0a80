"""Properties of layers and blocks: each function takes a module and generated inputs, and asserts one property.

If a module declares that it lacks the property, the function asserts that the property is violated.
"""

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from longscan.layers import SequenceModule, parameter_options
from longscan.layers.base import SequenceInfo
from longscan.layers.state import State, map_state, state_tensors
from longscan.ops.dispatch import Recording, recorded_choices
from tolerances import assert_as_accurate, assert_as_accurate_as_neighbours, perturb

TIGHT = {"rtol": 1e-8, "atol": 1e-9}  # float64, sums of a thousand terms, FFTs included


@dataclass
class Inputs:
    """A batch for a module: x (B, L, D) and the optional inputs (B, L)."""

    x: Tensor
    elapsed: Tensor | None = None
    valid: Tensor | None = None
    seq_idx: Tensor | None = None

    def between(self, start: int, stop: int) -> "Inputs":
        return Inputs(*(None if part is None else part[:, start:stop] for part in vars(self).values()))

    def rows(self, index: slice) -> "Inputs":
        return Inputs(*(None if part is None else part[index] for part in vars(self).values()))

    def run(self, module: SequenceModule, state: State = None) -> tuple[Tensor, State]:
        return module(self.x, state, elapsed=self.elapsed, valid=self.valid, seq_idx=self.seq_idx, return_state=True)


def assert_close(got: State, wanted: State, **tolerance: float) -> None:
    """Assert that two results (tensors, states, tuples of them) agree in every tensor."""
    got_leaves, wanted_leaves = state_tensors(got), state_tensors(wanted)
    assert len(got_leaves) == len(wanted_leaves)
    for left, right in zip(got_leaves, wanted_leaves, strict=True):
        torch.testing.assert_close(left, right, **(tolerance or TIGHT))


def settled(state: State) -> State:
    """Return the state without the part of its tensors that is for longer rows."""
    return state.trimmed() if hasattr(state, "trimmed") else state


def with_backend(module: SequenceModule, backend: str) -> SequenceModule:
    """Set the backend of every op in the module, and return the module."""
    for part in module.modules():
        if hasattr(part, "backend"):
            part.backend = backend
    return module


def warm_state(module: SequenceModule, batch: int) -> State:
    """Return the state after a random sequence, which is not zero."""
    x = torch.randn(batch, 5, module.d_model, dtype=next(module.parameters()).dtype)
    return map_state(lambda leaf: leaf.detach(), module(x, return_state=True)[1])


@contextlib.contextmanager
def expect(declared: bool, what: str) -> Iterator[None]:
    """Pass if the assertions in the block pass, or if they fail and the property is not declared."""
    if declared:
        yield
        return
    try:
        yield
    except (AssertionError, ValueError):
        return
    pytest.fail(f"declared not to be {what}, but the property holds", pytrace=False)


def steps_equal_whole(module: SequenceModule, inputs: Inputs, recorded: bool = True) -> None:
    """Assert that steps, with rows active where valid, give the outputs and the state of one call, with or without autograd."""
    with expect(module.streaming, "streaming"), torch.set_grad_enabled(recorded):
        state = start = warm_state(module, len(inputs.x))
        y, final = inputs.run(module, start)
        outputs = []
        for t in range(inputs.x.shape[1]):
            elapsed = None if inputs.elapsed is None else inputs.elapsed[:, t]
            active = None if inputs.valid is None else inputs.valid[:, t]
            x_t = inputs.x[:, t] if active is None else torch.where(active.unsqueeze(-1), inputs.x[:, t], 0)
            y_t, state = module.step(x_t, state, elapsed=elapsed, active=active)
            outputs.append(y_t)
        assert_close((torch.stack(outputs, 1) if outputs else y[:, :0], state), (y, final))


def chunks_equal_whole(module: SequenceModule, inputs: Inputs, cuts: list[int]) -> None:
    """Assert that consecutive calls, each with the state of the one before, give the outputs and the state of one call."""
    with expect(module.streaming, "streaming"):
        start = warm_state(module, len(inputs.x))
        y, final = inputs.run(module, start)
        state, outputs = start, []
        for first, last in zip([0, *cuts], [*cuts, inputs.x.shape[1]], strict=True):
            y_chunk, state = inputs.between(first, last).run(module, state)
            outputs.append(y_chunk)
        assert_close((torch.cat(outputs, 1), state), (y, final))


def packed_equals_padded_equals_alone(module: SequenceModule, sequences: list[Inputs]) -> None:
    """Assert that sequences packed in one row, in rows padded on either side with NaN, and alone give the same results."""
    alone = [sequence.run(module) for sequence in sequences]
    lengths = [sequence.x.shape[1] for sequence in sequences]
    longest = max(lengths)
    timed = sequences[0].elapsed is not None

    def padded(parts: list[Tensor], left: bool) -> Tensor:
        rows = []
        for part in parts:
            filler = part.new_full((1, longest - part.shape[1] + 2, *part.shape[2:]), float("nan"))
            rows.append(torch.cat([filler, part] if left else [part, filler], 1))
        return torch.nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)

    for left in (False, True):
        steps = torch.arange(longest + 2)
        sizes = torch.tensor(lengths).unsqueeze(1)
        valid = steps >= longest + 2 - sizes if left else steps < sizes
        x = padded([sequence.x for sequence in sequences], left)
        elapsed = padded([sequence.elapsed for sequence in sequences], left) if timed else None
        y, final = Inputs(x, elapsed, valid).run(module)
        kept = module.shorten_info(SequenceInfo(valid=valid)).valid
        assert torch.equal(torch.where(kept.unsqueeze(-1), 0, y), torch.zeros_like(y)), "padding does not give zeros"
        for row, (y_alone, final_alone) in enumerate(alone):
            assert_close(y[row : row + 1, kept[row]], y_alone)
            assert_close(settled(map_state(lambda part, row=row: part[row : row + 1], final)), settled(final_alone))

    seq_idx = torch.cat([torch.full((1, length), index) for index, length in enumerate(lengths)], 1)
    x = torch.cat([sequence.x for sequence in sequences], 1)
    elapsed = torch.cat([sequence.elapsed for sequence in sequences], 1) if timed else None
    if module.changes_length:
        with pytest.raises(ValueError, match="seq_idx"):
            Inputs(x, elapsed, seq_idx=seq_idx).run(module)
        return
    y, final = Inputs(x, elapsed, seq_idx=seq_idx).run(module)
    assert_close(y, torch.cat([y_alone for y_alone, _ in alone], 1))
    last = [index for index, length in enumerate(lengths) if length]
    if last:
        assert_close(_without_seq_idx(settled(final)), _without_seq_idx(settled(alone[last[-1]][1])))


def _without_seq_idx(state: State) -> list[Tensor]:
    return [leaf for leaf in state_tensors(state) if leaf.is_floating_point()]


def is_causal(module: SequenceModule, inputs: Inputs, t: int) -> None:
    """Assert that steps from t on do not change y before t (of a module with windows, y of windows that end before t)."""
    with expect(module.causal, "causal"):
        y, _ = inputs.run(module)
        changed = Inputs(inputs.x.clone(), inputs.elapsed, inputs.valid, inputs.seq_idx)
        changed.x[:, t:] += 1
        y_changed, _ = changed.run(module)
        before = torch.arange(inputs.x.shape[1]).expand(inputs.x.shape[:2]) < t
        if module.changes_length and inputs.valid is not None:
            before = before & inputs.valid
        kept = module.shorten_info(SequenceInfo(valid=before)).valid
        assert_close(y_changed[kept], y[kept])


def rows_are_independent(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that a row alone gives the same results as in its batch."""
    with expect(module.batch_independent, "independent of the batch"):
        y, final = inputs.run(module)
        for row in range(len(inputs.x)):
            index = slice(row, row + 1)
            alone = inputs.rows(index).run(module)
            assert_close(alone, (y[index], map_state(lambda part, index=index: part[index], final)))


def length_is_kept(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that y is as long as x, unless the module changes lengths."""
    y = module(inputs.x)
    assert (y.shape == inputs.x.shape) == (not module.changes_length or not inputs.x.shape[1])


def elapsed_ones_change_nothing(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that elapsed times of 1 are the same as None, and that modules which do not support elapsed times refuse them."""
    ones = torch.ones(inputs.x.shape[:2], dtype=inputs.x.dtype)
    if not module.irregular:
        with pytest.raises(ValueError, match="elapsed"):
            module(inputs.x, elapsed=ones)
        return
    with_ones = Inputs(inputs.x, ones, inputs.valid, inputs.seq_idx).run(module)
    assert_close(with_ones, Inputs(inputs.x, None, inputs.valid, inputs.seq_idx).run(module))


def padding_reaches_no_gradient(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that values in the padding do not change the gradients of the parameters."""
    assert inputs.valid is not None
    results = []
    for filler in (0.0, float("nan")):
        x = torch.where(inputs.valid.unsqueeze(-1), inputs.x, filler).requires_grad_()
        elapsed = None if inputs.elapsed is None else torch.where(inputs.valid, inputs.elapsed, filler)
        y, final = Inputs(x, elapsed, inputs.valid, inputs.seq_idx).run(module)
        loss = y.square().sum() + sum(leaf.square().sum() for leaf in _without_seq_idx(final))
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        results.append(torch.autograd.grad(loss, [x, *parameters], allow_unused=True, materialize_grads=True))
    assert_close(results[1], results[0])
    assert not results[1][0].isnan().any()


def outputs_and_gradients(module: SequenceModule, inputs: Inputs, state: State, cotangent_seed: int) -> dict[str, Tensor]:
    """Return by name y, the final state, and the gradients of x, of the state and of every parameter for random cotangents."""
    x = inputs.x.detach().clone().requires_grad_()
    starts = [leaf.requires_grad_() for leaf in state_tensors(state) if leaf.is_floating_point()]
    y, final = Inputs(x, inputs.elapsed, inputs.valid, inputs.seq_idx).run(module, state)
    ends = _without_seq_idx(final)
    generator = torch.Generator("cpu").manual_seed(cotangent_seed)
    cotangents = [torch.randn(part.shape, generator=generator, dtype=torch.float64, device="cpu").to(part) for part in (y, *ends)]
    sources = {"x": x, **{f"state {i}": start for i, start in enumerate(starts)}, **dict(module.named_parameters())}
    grads = torch.autograd.grad((y, *ends), list(sources.values()), cotangents, allow_unused=True, materialize_grads=True)
    results = {"y": y, **{f"final {i}": end for i, end in enumerate(ends)}}
    results |= {f"gradient of {name}": grad for name, grad in zip(sources, grads, strict=True)}
    return {name: result.detach() for name, result in results.items()}


def float32_is_as_good_as_eager(module: SequenceModule, inputs: Inputs, seed: int) -> None:
    """Assert that outputs, states and gradients in float32 err no more than plain arithmetic, against the loop in float64."""
    assert next(module.parameters()).dtype == torch.float64
    state = warm_state(module, len(inputs.x))

    def evaluate(dtype: torch.dtype, backend: str, shaker: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, Tensor]:
        twin = with_backend(copy.deepcopy(module).to(dtype), backend)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.copy_(shaker(parameter))
        elapsed = None if inputs.elapsed is None else shaker(inputs.elapsed.to(dtype))
        moved = Inputs(shaker(inputs.x.to(dtype)), elapsed, inputs.valid, inputs.seq_idx)
        start = map_state(lambda leaf: shaker(leaf.clone()) if leaf.is_floating_point() else leaf, state.to(dtype))
        return outputs_and_gradients(twin, moved, start, seed)

    def shaken(dtype: torch.dtype, offset: int) -> dict[str, Tensor]:
        generator = torch.Generator("cpu").manual_seed(seed + offset)
        return evaluate(dtype, "reference", lambda x: perturb(x, torch.finfo(torch.float32).eps, generator))

    with recorded_choices() as fast:
        results = evaluate(torch.float32, "auto")
    plain = {}
    for backend in ("eager", "reference"):
        with recorded_choices() as other:
            found = evaluate(torch.float32, backend)
        # The error of plain arithmetic must come from other code than the tested one, unless a layer has no ops.
        if not fast.choices or what_ran(other) != what_ran(fast):
            plain[backend] = found
    truth = evaluate(torch.float64, "reference")
    operations = 1 if "eager" in plain else 2  # the scans of eager update every element twice

    def neighbours(count: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        moved = [shaken(torch.float64, 1 + i) for i in range(count)]
        return moved, [shaken(torch.float32, 1 + i) for i in range(count)] if "reference" in plain else []

    assert_as_accurate_as_neighbours(results, list(plain.values()), truth, neighbours, operations)


def what_ran(recording: Recording) -> set[tuple[str, str | None]]:
    """Return the pairs of op and backend that were called."""
    return {(choice.op, choice.backend) for choice in recording.choices}


def half_precision_is_as_good_as_eager(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that in bfloat16 `auto` errs at most twice as much as eager, both against float64 with the same parameters.

    Where `auto` runs eager code, its first 200 steps are compared with the reference.
    """
    half = copy.deepcopy(module).to(torch.bfloat16)
    x = inputs.x.to(torch.bfloat16)
    with recorded_choices() as recording:
        fast = with_backend(copy.deepcopy(half), "auto")(x)
    same = all(choice.backend == "eager" for choice in recording.choices)
    other = "reference" if same and x.shape[1] <= 1024 else "eager"
    if other == "reference":
        x, fast = x[:, :200], with_backend(copy.deepcopy(half), "auto")(x[:, :200])
    truth = with_backend(copy.deepcopy(half).to(torch.float64), other)(x.double())
    plain = with_backend(half, other)(x)
    assert fast.dtype == torch.bfloat16
    assert_as_accurate({"y": fast}, [{"y": plain}], {"y": truth}, [{"y": truth}])


def mixed_precision_is_as_good_as_bfloat16(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that under autocast with bfloat16 inputs a module errs at most twice as much as its bfloat16 copy.

    The state can be passed on, and float32 inputs with padding, which the first block of a model gets, are accepted.
    """
    x = inputs.x.to(torch.bfloat16)
    valid = x.new_ones(x.shape[:2], dtype=torch.bool)
    valid[0, 5:] = False
    truth = copy.deepcopy(module).to(torch.float64)(x.double())
    half = copy.deepcopy(module).to(torch.bfloat16)(x)
    with torch.autocast(x.device.type, torch.bfloat16):
        y, state = module(x, return_state=True)
        later, _ = module.step(x[:, 0], state) if module.streaming else module(x, state, return_state=True)
        padded = module(inputs.x, valid=valid)
    assert padded.isfinite().all()
    assert y.dtype == torch.bfloat16
    assert later.isfinite().all()
    assert_as_accurate({"y": y}, [{"y": half}], {"y": truth}, [{"y": truth}])


def casts_keep_what_they_should(module: SequenceModule) -> None:
    """Assert that a cast to bfloat16 leaves parameters with `keep_float32` unchanged, and that parameter options are preserved.

    Options are preserved by deepcopy, casts and `load_state_dict`, which restores the values.
    """
    before = {name: (parameter_options(parameter), parameter.detach().clone()) for name, parameter in module.named_parameters()}
    half = copy.deepcopy(module).to(torch.bfloat16)
    for name, parameter in half.named_parameters():
        mark, value = before[name]
        assert parameter_options(parameter) == mark, name
        assert parameter.dtype == (torch.float32 if mark.keep_float32 else torch.bfloat16), name
        assert torch.equal(parameter, value if mark.keep_float32 else value.to(torch.bfloat16)), name
    fresh = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict(module.state_dict(), assign=True)
    for name, parameter in fresh.named_parameters():
        assert torch.equal(parameter, before[name][1]), name
        assert parameter_options(parameter) == before[name][0], name


def same_bits_twice(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that two runs give the same bits of outputs, states and gradients."""
    first, second = (outputs_and_gradients(module, inputs, module.initial_state(len(inputs.x)), 3) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def forwards_leave_nothing_behind(module: nn.Module, inputs: Inputs) -> None:
    """Assert that the number of live tensors is the same after the third training step and after the tenth."""

    def live_after(count: int) -> int:
        for _ in range(count):
            inputs.run(module)[0].sum().backward()
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    gc.collect()
    gc.freeze()  # count only the objects made from here on
    live_after(3)
    assert live_after(1) == live_after(7)
