"""Assertions of properties of layers and blocks, each for a module and generated inputs.

If a module declares that it lacks a property, the assertion is that the property is violated.
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

TOLERANCE = {"rtol": 1e-8, "atol": 1e-9}  # in float64, for sums of a thousand terms and FFTs


@dataclass
class Inputs:
    """A batch for a module: x (B, L, D) and the optional inputs (B, L)."""

    x: Tensor
    elapsed: Tensor | None = None
    valid: Tensor | None = None
    seq_idx: Tensor | None = None

    def select_steps(self, start: int, stop: int) -> "Inputs":
        return Inputs(*(None if part is None else part[:, start:stop] for part in vars(self).values()))

    def select_rows(self, index: slice) -> "Inputs":
        return Inputs(*(None if part is None else part[index] for part in vars(self).values()))

    def run(self, module: SequenceModule, state: State = None) -> tuple[Tensor, State]:
        return module(self.x, state, elapsed=self.elapsed, valid=self.valid, seq_idx=self.seq_idx, return_state=True)


def assert_close(actual: State, expected: State, **tolerance: float) -> None:
    """Assert that two results (tensors, states or tuples of them) are close in every tensor."""
    actual_leaves, expected_leaves = state_tensors(actual), state_tensors(expected)
    assert len(actual_leaves) == len(expected_leaves)
    for left, right in zip(actual_leaves, expected_leaves, strict=True):
        torch.testing.assert_close(left, right, **(tolerance or TOLERANCE))


def trim_state(state: State) -> State:
    """Return the state without the parts of its tensors that are only for longer rows of the same batch."""
    return state.trimmed() if hasattr(state, "trimmed") else state


def set_backend(module: SequenceModule, backend: str) -> SequenceModule:
    """Set the backend of every op in the module, and return the module."""
    for part in module.modules():
        if hasattr(part, "backend"):
            part.backend = backend
    return module


def make_nonzero_state(module: SequenceModule, batch: int) -> State:
    """Return the state after a random sequence."""
    x = torch.randn(batch, 5, module.d_model, dtype=next(module.parameters()).dtype)
    return map_state(lambda leaf: leaf.detach(), module(x, return_state=True)[1])


@contextlib.contextmanager
def expect_property(declared: bool, name: str) -> Iterator[None]:
    """Expect the assertions in the block to pass if the property is declared, and to fail if it is not."""
    if declared:
        yield
        return
    try:
        yield
    except (AssertionError, ValueError):
        return
    pytest.fail(f"declared not to be {name}, but has the property", pytrace=False)


def assert_steps_equal_whole(module: SequenceModule, inputs: Inputs, grad_enabled: bool = True) -> None:
    """Assert that steps, with rows active where valid, give the outputs and the state of one call."""
    with expect_property(module.streaming, "streaming"), torch.set_grad_enabled(grad_enabled):
        state = start = make_nonzero_state(module, len(inputs.x))
        y, final = inputs.run(module, start)
        outputs = []
        for t in range(inputs.x.shape[1]):
            elapsed = None if inputs.elapsed is None else inputs.elapsed[:, t]
            active = None if inputs.valid is None else inputs.valid[:, t]
            x_t = inputs.x[:, t] if active is None else torch.where(active.unsqueeze(-1), inputs.x[:, t], 0)
            y_t, state = module.step(x_t, state, elapsed=elapsed, active=active)
            outputs.append(y_t)
        assert_close((torch.stack(outputs, 1) if outputs else y[:, :0], state), (y, final))


def assert_chunks_equal_whole(module: SequenceModule, inputs: Inputs, cuts: list[int]) -> None:
    """Assert that consecutive calls, each with the state of the one before, give the outputs and the state of one call."""
    with expect_property(module.streaming, "streaming"):
        start = make_nonzero_state(module, len(inputs.x))
        y, final = inputs.run(module, start)
        state, outputs = start, []
        for first, last in zip([0, *cuts], [*cuts, inputs.x.shape[1]], strict=True):
            y_chunk, state = inputs.select_steps(first, last).run(module, state)
            outputs.append(y_chunk)
        assert_close((torch.cat(outputs, 1), state), (y, final))


def assert_packed_and_padded_equal_separate(module: SequenceModule, sequences: list[Inputs]) -> None:
    """Assert that sequences in one packed row, and in rows padded on either side with NaN, give the results of separate calls."""
    separate = [sequence.run(module) for sequence in sequences]
    lengths = [sequence.x.shape[1] for sequence in sequences]
    longest = max(lengths)
    has_elapsed = sequences[0].elapsed is not None

    def pad(parts: list[Tensor], left: bool) -> Tensor:
        rows = []
        for part in parts:
            filler = part.new_full((1, longest - part.shape[1] + 2, *part.shape[2:]), float("nan"))
            rows.append(torch.cat([filler, part] if left else [part, filler], 1))
        return torch.nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)

    for left in (False, True):
        steps = torch.arange(longest + 2)
        sizes = torch.tensor(lengths).unsqueeze(1)
        valid = steps >= longest + 2 - sizes if left else steps < sizes
        x = pad([sequence.x for sequence in sequences], left)
        elapsed = pad([sequence.elapsed for sequence in sequences], left) if has_elapsed else None
        y, final = Inputs(x, elapsed, valid).run(module)
        valid_outputs = module.shorten_info(SequenceInfo(valid=valid)).valid
        assert torch.equal(torch.where(valid_outputs.unsqueeze(-1), 0, y), torch.zeros_like(y)), "padding does not give zeros"
        for row, (y_separate, final_separate) in enumerate(separate):
            assert_close(y[row : row + 1, valid_outputs[row]], y_separate)
            assert_close(trim_state(map_state(lambda part, row=row: part[row : row + 1], final)), trim_state(final_separate))

    seq_idx = torch.cat([torch.full((1, length), index) for index, length in enumerate(lengths)], 1)
    x = torch.cat([sequence.x for sequence in sequences], 1)
    elapsed = torch.cat([sequence.elapsed for sequence in sequences], 1) if has_elapsed else None
    if module.changes_length:
        with pytest.raises(ValueError, match="seq_idx"):
            Inputs(x, elapsed, seq_idx=seq_idx).run(module)
        return
    y, final = Inputs(x, elapsed, seq_idx=seq_idx).run(module)
    assert_close(y, torch.cat([y_separate for y_separate, _ in separate], 1))
    nonempty = [index for index, length in enumerate(lengths) if length]
    if nonempty:
        assert_close(_floating_point_tensors(trim_state(final)), _floating_point_tensors(trim_state(separate[nonempty[-1]][1])))


def _floating_point_tensors(state: State) -> list[Tensor]:
    return [leaf for leaf in state_tensors(state) if leaf.is_floating_point()]


def assert_causal(module: SequenceModule, inputs: Inputs, t: int) -> None:
    """Assert that x from step t on does not change y before t (y of windows that end before t, if the module has windows)."""
    with expect_property(module.causal, "causal"):
        y, _ = inputs.run(module)
        changed = Inputs(inputs.x.clone(), inputs.elapsed, inputs.valid, inputs.seq_idx)
        changed.x[:, t:] += 1
        y_changed, _ = changed.run(module)
        before = torch.arange(inputs.x.shape[1]).expand(inputs.x.shape[:2]) < t
        if module.changes_length and inputs.valid is not None:
            before = before & inputs.valid
        valid_outputs = module.shorten_info(SequenceInfo(valid=before)).valid
        assert_close(y_changed[valid_outputs], y[valid_outputs])


def assert_rows_independent(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that a row has the same results in a batch of one row."""
    with expect_property(module.batch_independent, "independent of the batch"):
        y, final = inputs.run(module)
        for row in range(len(inputs.x)):
            index = slice(row, row + 1)
            separate = inputs.select_rows(index).run(module)
            assert_close(separate, (y[index], map_state(lambda part, index=index: part[index], final)))


def assert_length_unchanged(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that y is as long as x, unless the module changes lengths."""
    y = module(inputs.x)
    assert (y.shape == inputs.x.shape) == (not module.changes_length or not inputs.x.shape[1])


def assert_elapsed_ones_equal_none(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that elapsed times of 1 equal None, or that they raise an error if the module does not support elapsed times."""
    ones = torch.ones(inputs.x.shape[:2], dtype=inputs.x.dtype)
    if not module.irregular:
        with pytest.raises(ValueError, match="elapsed"):
            module(inputs.x, elapsed=ones)
        return
    with_ones = Inputs(inputs.x, ones, inputs.valid, inputs.seq_idx).run(module)
    assert_close(with_ones, Inputs(inputs.x, None, inputs.valid, inputs.seq_idx).run(module))


def assert_padding_does_not_change_gradients(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that values in the padding do not change the gradients of the parameters."""
    assert inputs.valid is not None
    results = []
    for filler in (0.0, float("nan")):
        x = torch.where(inputs.valid.unsqueeze(-1), inputs.x, filler).requires_grad_()
        elapsed = None if inputs.elapsed is None else torch.where(inputs.valid, inputs.elapsed, filler)
        y, final = Inputs(x, elapsed, inputs.valid, inputs.seq_idx).run(module)
        loss = y.square().sum() + sum(leaf.square().sum() for leaf in _floating_point_tensors(final))
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        results.append(torch.autograd.grad(loss, [x, *parameters], allow_unused=True, materialize_grads=True))
    assert_close(results[1], results[0])
    assert not results[1][0].isnan().any()


def compute_outputs_and_gradients(module: SequenceModule, inputs: Inputs, state: State, cotangent_seed: int) -> dict[str, Tensor]:
    """Return by name y, the final state, and the gradients of x, of the state and of all parameters for random cotangents."""
    x = inputs.x.detach().clone().requires_grad_()
    initial = [leaf.requires_grad_() for leaf in state_tensors(state) if leaf.is_floating_point()]
    y, final_state = Inputs(x, inputs.elapsed, inputs.valid, inputs.seq_idx).run(module, state)
    final = _floating_point_tensors(final_state)
    outputs = (y, *final)
    generator = torch.Generator("cpu").manual_seed(cotangent_seed)
    cotangents = [torch.randn(part.shape, generator=generator, dtype=torch.float64, device="cpu").to(part) for part in outputs]
    sources = {"x": x, **{f"state {i}": start for i, start in enumerate(initial)}, **dict(module.named_parameters())}
    grads = torch.autograd.grad(outputs, list(sources.values()), cotangents, allow_unused=True, materialize_grads=True)
    results = {"y": y, **{f"final {i}": end for i, end in enumerate(final)}}
    results |= {f"gradient of {name}": grad for name, grad in zip(sources, grads, strict=True)}
    return {name: result.detach() for name, result in results.items()}


def assert_float32_as_accurate_as_plain_arithmetic(module: SequenceModule, inputs: Inputs, seed: int) -> None:
    """Assert that float32 outputs, states and gradients have at most the errors of plain arithmetic, against float64."""
    assert next(module.parameters()).dtype == torch.float64
    state = make_nonzero_state(module, len(inputs.x))

    def evaluate(dtype: torch.dtype, backend: str, change: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, Tensor]:
        converted = set_backend(copy.deepcopy(module).to(dtype), backend)
        with torch.no_grad():
            for parameter in converted.parameters():
                parameter.copy_(change(parameter))
        elapsed = None if inputs.elapsed is None else change(inputs.elapsed.to(dtype))
        changed = Inputs(change(inputs.x.to(dtype)), elapsed, inputs.valid, inputs.seq_idx)
        start = map_state(lambda leaf: change(leaf.clone()) if leaf.is_floating_point() else leaf, state.to(dtype))
        return compute_outputs_and_gradients(converted, changed, start, seed)

    def run_perturbed(dtype: torch.dtype, offset: int) -> dict[str, Tensor]:
        generator = torch.Generator("cpu").manual_seed(seed + offset)
        return evaluate(dtype, "reference", lambda x: perturb(x, torch.finfo(torch.float32).eps, generator))

    with recorded_choices() as fast_run:
        results = evaluate(torch.float32, "auto")
    plain = {}
    for backend in ("eager", "reference"):
        with recorded_choices() as plain_run:
            plain_results = evaluate(torch.float32, backend)
        # The error of plain arithmetic must come from other code than the tested code, unless a layer has no ops.
        if not fast_run.choices or list_op_calls(plain_run) != list_op_calls(fast_run):
            plain[backend] = plain_results
    truth = evaluate(torch.float64, "reference")
    operations = 1 if "eager" in plain else 2  # the scans of eager update every element twice

    def run_neighbours(count: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        moved = [run_perturbed(torch.float64, 1 + i) for i in range(count)]
        return moved, [run_perturbed(torch.float32, 1 + i) for i in range(count)] if "reference" in plain else []

    assert_as_accurate_as_neighbours(results, list(plain.values()), truth, run_neighbours, operations)


def list_op_calls(recording: Recording) -> set[tuple[str, str | None]]:
    """Return the ops that were called, with their backends."""
    return {(choice.op, choice.backend) for choice in recording.choices}


def assert_bfloat16_as_accurate_as_eager(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that in bfloat16 the error of `auto` is at most twice that of eager, against float64 with the same parameters.

    If `auto` runs eager code, its first 200 steps are compared with the reference.
    """
    half = copy.deepcopy(module).to(torch.bfloat16)
    x = inputs.x.to(torch.bfloat16)
    with recorded_choices() as recording:
        fast = set_backend(copy.deepcopy(half), "auto")(x)
    auto_is_eager = all(choice.backend == "eager" for choice in recording.choices)
    plain_backend = "reference" if auto_is_eager and x.shape[1] <= 1024 else "eager"
    if plain_backend == "reference":
        x, fast = x[:, :200], set_backend(copy.deepcopy(half), "auto")(x[:, :200])
    truth = set_backend(copy.deepcopy(half).to(torch.float64), plain_backend)(x.double())
    plain = set_backend(half, plain_backend)(x)
    assert fast.dtype == torch.bfloat16
    assert_as_accurate({"y": fast}, [{"y": plain}], {"y": truth}, [{"y": truth}])


def assert_autocast_as_accurate_as_bfloat16(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that under autocast with bfloat16 inputs the error of a module is at most twice that of its copy in bfloat16.

    Also assert that its state can be passed to the next call, and that float32 inputs with padding, which the first block of a
    model gets, raise no error.
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
    assert y.dtype == x.dtype, f"outputs must have the dtype of the inputs also under autocast, got {y.dtype}"
    assert later.isfinite().all()
    assert_as_accurate({"y": y}, [{"y": half}], {"y": truth}, [{"y": truth}])


def assert_casts_preserve_parameters_and_options(module: SequenceModule) -> None:
    """Assert that a cast to bfloat16 leaves parameters with `keep_float32` unchanged, and that parameter options are preserved.

    Options are preserved by deepcopy, casts and `load_state_dict`, which restores the values.
    """
    before = {name: (parameter_options(parameter), parameter.detach().clone()) for name, parameter in module.named_parameters()}
    half = copy.deepcopy(module).to(torch.bfloat16)
    for name, parameter in half.named_parameters():
        options, value = before[name]
        assert parameter_options(parameter) == options, name
        assert parameter.dtype == (torch.float32 if options.keep_float32 else torch.bfloat16), name
        assert torch.equal(parameter, value if options.keep_float32 else value.to(torch.bfloat16)), name
    loaded = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.load_state_dict(module.state_dict(), assign=True)
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, before[name][1]), name
        assert parameter_options(parameter) == before[name][0], name


def assert_runs_have_same_bits(module: SequenceModule, inputs: Inputs) -> None:
    """Assert that two runs give the same bits of outputs, states and gradients."""
    first, second = (compute_outputs_and_gradients(module, inputs, module.initial_state(len(inputs.x)), 3) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def assert_training_steps_leak_no_tensors(module: nn.Module, inputs: Inputs) -> None:
    """Assert that the number of live tensors is the same after the third training step and after the tenth."""

    def count_live_tensors(count: int) -> int:
        for _ in range(count):
            inputs.run(module)[0].sum().backward()
        gc.collect()
        return sum(issubclass(type(item), Tensor) for item in gc.get_objects())

    gc.collect()
    gc.freeze()  # count only objects that are created from here on
    count_live_tensors(3)
    assert count_live_tensors(1) == count_live_tensors(7)
