"""`longscan.inspect` on every layer of the registry, with every setting that the contract tests of layers use."""

from typing import Any

import pytest
import torch
from layer_properties import assert_close
from test_layers import OPTIONS, WIDTH, build
from torch import Tensor

import longscan
from longscan._specs import STANDARD_BLOCKS
from longscan.inspection import (
    InspectedLayer,
    SelectedS6,
    ablate_state,
    gradient_times_input,
    patch_state,
    states_over_time,
    time_scales,
)
from longscan.layers import LAYERS, SequenceLayer
from longscan.layers.base import SequenceInfo
from longscan.layers.state import State, map_state, state_tensors
from longscan.models import LanguageModel

NONLINEAR = {"gru", "lstm", "slstm"}
STRAIGHT_THROUGH = {"pdssm"}  # the derivative of its one-hot matrices, which are piecewise constant, is that of a softmax
LENGTH = 7
CASES = [(name, options) for name in sorted(LAYERS) for options in OPTIONS[f"layer {name}"]]
LINEAR = [(name, options) for name, options in CASES if name not in NONLINEAR]


def build_layer(name: str, options: dict[str, Any]) -> SequenceLayer:
    """Return a layer in float64 whose biases are not zero."""
    layer = build(f"layer {name}", options)
    assert isinstance(layer, SequenceLayer)
    with torch.no_grad():
        for parameter_name, parameter in layer.named_parameters():
            if "bias" in parameter_name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def record_call(layer: SequenceLayer, masked: bool, carried: bool = False) -> InspectedLayer:
    """Return a call with random inputs, with a gate, elapsed times, padding and packed sequences if `masked`.

    carried: start with the state after other steps, if the layer has one.
    """
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    info = SequenceInfo()
    if masked:
        elapsed = torch.rand(2, LENGTH, dtype=torch.float64) + 0.2 if layer.irregular else None
        valid, seq_idx = torch.ones(2, LENGTH, dtype=torch.bool), torch.zeros(2, LENGTH, dtype=torch.int64)
        valid[1, -2:], seq_idx[1, 3:] = False, 1
        info = SequenceInfo(elapsed, valid, seq_idx, torch.randn_like(x))
    state = None
    with torch.no_grad():
        if carried and layer.streaming:
            _, state = layer(torch.randn_like(x), return_state=True)
        y = layer(x, state, **{key: value for key, value in info._asdict().items() if isinstance(value, Tensor)})
    return InspectedLayer("", layer, x, y, state, info)


def attention_matrix(call: InspectedLayer, row: int) -> Tensor:
    """Return the effective attention matrix of one sequence, (L, D, L, D), made of all its rows."""
    (length, width) = call.y.shape[1:]
    return torch.stack([torch.stack([call.attention_row(t, c, row) for c in range(width)]) for t in range(length)])


# A row is a backward pass for each output. Without masks, `make test` computes them for the first settings of a layer only.
@pytest.mark.parametrize(
    ("name", "options", "masked"),
    [
        pytest.param(name, options, masked, marks=() if masked or options == OPTIONS[f"layer {name}"][0] else pytest.mark.slow)
        for masked in (False, True)
        for name, options in LINEAR
    ],
    ids=str,
)
def test_rows_of_the_attention_matrix_give_the_output(name: str, options: dict[str, Any], masked: bool) -> None:
    call = record_call(build_layer(name, options), masked)
    row = 1
    matrix = attention_matrix(call, row)
    bias = call.bias(row)
    assert_close(torch.einsum("tcsd,sd->tc", matrix, call.x[row]) + bias, call.y[row])
    parts = torch.einsum("tcsd,sd->tsc", matrix, call.x[row]).norm(dim=-1)
    assert_close(call.attention_map(row=row), parts)
    has_bias = name in ("s7", "mlstm", "pdssm") or bool(options.get("bias"))
    assert bool((bias != 0).any()) == has_bias
    if call.layer.causal:
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        weights = matrix.transpose(1, 2)[later]  # the FFT of S4 and S4D leaves rounding errors of 1e-18
        assert_close(weights, torch.zeros_like(weights))


@pytest.mark.parametrize(("name", "options"), LINEAR, ids=str)
def test_the_state_before_the_first_step_belongs_to_the_bias(name: str, options: dict[str, Any]) -> None:
    call = record_call(build_layer(name, options), masked=True, carried=True)
    row = 0
    total = torch.einsum("csd,sd->c", torch.stack([call.attention_row(-1, c, row) for c in range(WIDTH)]), call.x[row])
    assert_close(total + call.bias(row)[-1], call.y[row, -1])
    if call.layer.streaming:
        start = InspectedLayer("", call.layer, call.x, call.y, None, call.info)
        assert not torch.allclose(call.bias(row), start.bias(row))


def test_attention_map_of_segments() -> None:
    call = record_call(build_layer("s6", {"d_state": 3}), masked=False)
    matrix, x = attention_matrix(call, 0), call.x[0]
    segments = [(0, 3), (3, 5), (5, 7)]  # seven steps in three segments
    for i, (first, last) in enumerate(segments):
        for j, (start, stop) in enumerate(segments):
            added = torch.einsum("tcsd,sd->tc", matrix[first:last, :, start:stop], x[start:stop])
            assert_close(call.attention_map(segments=3)[i, j], added.norm(dim=-1).mean())
    assert call._replace(x=call.x[:, :0]).attention_map().shape == (0, 0)
    for segments in (0, 2.5):
        with pytest.raises(ValueError, match=f"`segments` must be a whole number of at least 1, got {segments}"):
            call.attention_map(segments=segments)


@pytest.mark.parametrize(("name", "options"), LINEAR, ids=str)
def test_outputs_are_affine_in_the_values(name: str, options: dict[str, Any]) -> None:
    layer = build_layer(name, options)
    x, first, second = torch.randn(3, 2, LENGTH, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        mixed, one, other = (layer.map_values(x, v, None, SequenceInfo()) for v in (3 * first - 2 * second, first, second))
    assert_close(mixed, 3 * one - 2 * other)


@pytest.mark.parametrize("name", sorted(NONLINEAR))
def test_nonlinear_layers_refuse_by_name(name: str) -> None:
    call = record_call(build_layer(name, {}), False)
    message = f"linear in its state, got {LAYERS[name].__name__}"
    with pytest.raises(TypeError, match=message):
        call.attention_row(0, 0)
    with pytest.raises(TypeError, match=message):
        call.bias()
    with pytest.raises(TypeError, match=message):
        call.eigenvalues()


HAS_EIGENVALUES = [
    ("s4", {"d_state": 4}), ("s4d", {"d_state": 4}), ("lru", {"d_state": 5}), ("s5", {"d_state": 4}), ("linoss", {"d_state": 3}),
    ("s6", {"d_state": 3}), ("s7", {"d_state": 3}), ("aussm", {"d_state": 3}), ("mamba2", {"d_state": 3, "head_dim": 2}),
    ("gated_deltanet", {"d_state": 3, "head_dim": 2}), ("mamba3", {"d_state": 4, "head_dim": 2}),
    ("pdssm", {"d_state": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), HAS_EIGENVALUES, ids=str)
def test_eigenvalues_are_those_of_the_recurrence(name: str, options: dict[str, Any]) -> None:
    """Their sums of powers are the traces of powers of the state's Jacobian, computed by autograd from any state."""
    call = record_call(build_layer(name, options), False)
    step = 3
    state = call.layer.initial_state(1)
    start = torch.randn_like(state.ssm).requires_grad_()
    after = call.layer.step(call.x[:1, step], state._replace(ssm=start))[1].ssm.flatten()
    jacobian = torch.stack([torch.autograd.grad(value, start, retain_graph=True)[0].flatten() for value in after])
    eigenvalues = call.eigenvalues(step)
    assert len(eigenvalues) == len(jacobian)
    for power in (1, 2, 3):
        total = eigenvalues.pow(power).sum()
        assert_close(torch.stack([total.real, total.imag]), torch.stack([jacobian.matrix_power(power).trace(), torch.zeros(())]))
    assert_close(eigenvalues.abs().square().log().sum(), 2 * torch.linalg.slogdet(jacobian)[1])
    assert (eigenvalues.abs() < 1 + 1e-9).all()
    if name == "aussm":
        assert_close(eigenvalues.abs(), torch.ones(len(eigenvalues), dtype=torch.float64))
    if name == "lru":
        expected = (-call.layer.nu.exp()).exp()  # type: ignore[operator]
        assert_close(eigenvalues.abs().sort()[0], expected.repeat_interleave(2).sort()[0])


def test_eigenvalues_of_padding_are_one_and_those_of_no_step_raise() -> None:
    x = torch.randn(1, 6, 4)
    x[:, 4:] = torch.nan
    call = longscan.inspect(LAYERS["s6"](4, d_state=2), x, valid=torch.arange(6).unsqueeze(0) < 4)[""]
    assert (call.eigenvalues(5) == 1).all()
    assert (call.eigenvalues(3).abs() < 1).all()
    for step in (6, -7, 1.0):
        with pytest.raises(IndexError, match=f"`step` must be a whole number from -6 to 5, got {step}"):
            call.eigenvalues(step)  # type: ignore[arg-type]


def test_outputs_and_sequences_that_do_not_exist_are_named() -> None:
    call = longscan.inspect(LAYERS["s6"](4, d_state=2), torch.randn(2, 6, 4))[""]
    calls: dict[str, Any] = {
        "`step` must be a whole number from -6 to 5, got 6": lambda: call.attention_row(6, 0),
        "`channel` must be a whole number from -4 to 3, got 4": lambda: call.attention_row(0, 4),
        "`row` must be a whole number from -2 to 1, got 2": lambda: call.attention_row(0, 0, row=2),
        "`row` must be a whole number from -2 to 1, got True": lambda: call.bias(True),
    }
    for message, make in calls.items():
        with pytest.raises(IndexError, match=message):
            make()
    with pytest.raises(IndexError, match="`row` must be"):
        next(call.states(row=-3))
    assert call.attention_row(-6, -4, row=-2).equal(call.attention_row(0, 0))


def test_changes_of_the_state_that_are_none_raise() -> None:
    layer, x = LAYERS["s6"](4, d_state=2), torch.randn(2, 6, 4)
    changed: Any
    for changed, got in ((4, "must be a function of the state, got a int"), (lambda _: None, "must return a state .*, got None")):
        with pytest.raises(TypeError, match=f"`change` {got}"):
            patch_state(layer, x, 3, changed)
    with pytest.raises(ValueError, match=r"`step` must be a whole number from 0 to 5, got 2\.5"):
        patch_state(layer, x, 2.5, lambda state: state)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`score` must be a function of the model's output, got a int"):
        gradient_times_input(layer, x, 3)  # type: ignore[arg-type]


def test_rounding_errors_do_not_couple_states() -> None:
    layer = LAYERS["s6"](64, d_state=16)  # type: ignore[call-arg]
    call = longscan.inspect(layer, torch.randn(1, 3, 64))[""]
    eigenvalues = call.eigenvalues(1)
    assert (eigenvalues.imag == 0).all()
    with torch.no_grad():
        dt = torch.nn.functional.softplus(layer.select(call.x)[0][0, 1] + layer.dt_bias)  # type: ignore[operator]
        expected = (dt[:, None] * -layer.A_log.exp()).exp().double().flatten()  # type: ignore[operator]
    torch.testing.assert_close(eigenvalues.real.sort()[0], expected.sort()[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [("attention", {}), ("mlstm", {}), ("aussm", {"phase_grid": 12})], ids=str)
def test_other_states_have_no_eigenvalues(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"vector or matrix of a recurrence, got {LAYERS[name].__name__} with"):
        record_call(build_layer(name, options), False).eigenvalues()


def test_eigenvalues_use_the_elapsed_time_of_the_step() -> None:
    call = record_call(build_layer("s6", {"d_state": 3}), masked=True)
    assert call.info.elapsed is not None
    times = call.info.elapsed.clone()
    times[0, 2] *= 2
    slower = call._replace(info=call.info._replace(elapsed=times))
    assert_close(slower.eigenvalues(2).real.log().sum(), 2 * call.eigenvalues(2).real.log().sum())
    assert_close(slower.eigenvalues(3), call.eigenvalues(3))
    assert_close(call.eigenvalues(-1), call.eigenvalues(LENGTH - 1))


def test_time_scales() -> None:
    values = time_scales(torch.tensor([0.0, 1.0, 0.5j, 2.0], dtype=torch.complex128))
    assert values[0] == 0
    assert values[1] == torch.inf
    assert_close(torch.exp(-1 / values[2]), torch.tensor(0.5, dtype=torch.float64))
    assert values[3] < 0


STREAMING = [(name, OPTIONS[f"layer {name}"][0]) for name in sorted(LAYERS)]


def assert_states_close(found: State, expected: State) -> None:
    for one, other in zip(state_tensors(found), state_tensors(expected), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(("name", "options"), STREAMING, ids=str)
@pytest.mark.parametrize("every", [1, 3])
def test_states_are_those_of_single_steps(name: str, options: dict[str, Any], every: int) -> None:
    call = record_call(build_layer(name, options), masked=False, carried=True)
    assert isinstance(call.layer, SequenceLayer)
    state, expected = call.state.select_rows(slice(1, 2)), {}
    for t in range(LENGTH):
        _, state = call.layer.step(call.x[1:, t], state)
        expected[t + 1] = state
    found = dict(call.states(row=1, every=every))
    assert list(found) == ([1, 2, 3, 4, 5, 6, 7] if every == 1 else [3, 6, 7])
    for steps, one in found.items():
        assert_states_close(one, expected[steps])
    from_start = dict(states_over_time(call.layer, call.x, every=every))
    _, after = call.layer(call.x[:, :6], return_state=True)
    assert_states_close(from_start[6], after)


def test_states_depend_on_elapsed_times_and_skip_padding() -> None:
    layer = build_layer("s4d", {})
    x, elapsed = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64), torch.rand(2, LENGTH, dtype=torch.float64)
    valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])
    found = dict(states_over_time(layer, x, every=3, elapsed=elapsed, valid=valid))
    for steps, state in found.items():
        _, expected = layer(x[:, :steps], elapsed=elapsed[:, :steps], valid=valid[:, :steps], return_state=True)
        assert_states_close(state, expected)
    rest = layer(x[:, 3:], elapsed=elapsed[:, 3:], valid=valid[:, 3:])
    assert_close(ablate_state(layer, x, 3, elapsed=elapsed, valid=valid), rest)


@pytest.mark.parametrize(("name", "options"), STREAMING, ids=str)
def test_changed_states(name: str, options: dict[str, Any]) -> None:
    layer = build_layer(name, options)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    whole = layer(x)
    assert_close(patch_state(layer, x, 4, lambda state: state), whole[:, 4:])
    assert_close(ablate_state(layer, x, 4), layer(x[:, 4:]))
    assert not torch.allclose(ablate_state(layer, x, 4), whole[:, 4:])

    def swap(state: State) -> State:
        return map_state(lambda part: part.flip(0), state)

    swapped = patch_state(layer, x, 4, swap)  # each sequence continues with the past of the other one
    assert_close(swapped, layer(torch.cat([x[:, :4].flip(0), x[:, 4:]], 1))[:, 4:])


@pytest.mark.parametrize("name", sorted(set(LAYERS) - STRAIGHT_THROUGH))
def test_gradient_times_input_is_that_of_finite_differences(name: str) -> None:
    layer = build_layer(name, OPTIONS[f"layer {name}"][0])
    x = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    weights = torch.randn(4, WIDTH, dtype=torch.float64)
    products = gradient_times_input(layer, x, lambda y: (y * weights).sum((1, 2)))
    assert products.shape == x.shape
    size = 1e-5
    with torch.no_grad():
        for t, channel in ((0, 1), (2, 3), (3, 0)):
            change = torch.zeros_like(x)
            change[0, t, channel] = size
            difference = ((layer(x + change) - layer(x - change)) * weights).sum() / (2 * size)
            torch.testing.assert_close(products[0, t, channel], difference * x[0, t, channel], rtol=1e-6, atol=1e-8)


def test_gradient_times_input_of_tokens_is_that_of_their_embeddings() -> None:
    model = longscan.SequenceModel.from_spec("s4d", d_model=8, d_output=3, vocab_size=5).double()
    tokens = torch.tensor([[1, 2, 3, 4, 0]])
    valid = torch.tensor([[True, True, True, True, False]])
    products = gradient_times_input(model, tokens, lambda y: y[:, 2], valid=valid)
    assert products.shape == (1, 5)
    assert products[0, 4] == 0
    assert model.training
    size = 1e-6  # each token occurs once, so that the embedding's change by a small factor is that of one input
    with torch.no_grad():
        for t in range(4):
            row = model.encoder.weight[tokens[0, t]]
            kept = row.clone()
            row *= 1 + size
            above = model(tokens, valid=valid)[0, 2]
            row.copy_(kept * (1 - size))
            difference = (above - model(tokens, valid=valid)[0, 2]) / (2 * size)
            row.copy_(kept)
            torch.testing.assert_close(products[0, t], difference, rtol=1e-6, atol=1e-8)


def test_gradient_times_input_of_a_language_model() -> None:
    model = LanguageModel.from_spec("mamba", d_model=8, vocab_size=5).double().eval()
    tokens = torch.tensor([[1, 2, 3, 4]])
    products = gradient_times_input(model, tokens, lambda y: y[:, 2, 1])
    assert products.shape == (1, 4)
    assert (products[0, :3] != 0).all()
    assert products[0, 3] == 0


@pytest.mark.parametrize("name", sorted(name for name, (layer, _) in STANDARD_BLOCKS.items() if layer is not None))
@pytest.mark.parametrize("initial_state", ["zero", "learned"])
def test_inspect_finds_the_layer_of_each_block(name: str, initial_state: str) -> None:
    model = longscan.SequenceModel.from_spec(name, d_model=8, d_output=3, d_input=2, initial_state=initial_state).double()
    with torch.no_grad():
        for parameter in model.start:
            parameter.add_(torch.randn_like(parameter))
    x = torch.randn(2, LENGTH, 2, dtype=torch.float64)
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[1, 5:] = False
    call = next(iter(longscan.inspect(model, x, valid=valid).values()))
    if STANDARD_BLOCKS[name][0] in NONLINEAR:
        return
    for row, step in ((0, -1), (1, 4), (1, 6)):
        total = (call.attention_row(step, 3, row) * call.x[row]).sum()
        assert_close(total + call.bias(row)[step, 3], call.y[row, step, 3])
    if getattr(call.layer, "streaming", True):
        assert [steps for steps, _ in call.states(every=3)] == [3, 6, 7]
    if name in ("mamba2", "mamba3", "gated_deltanet"):
        assert (call.eigenvalues(2).abs() < 1 + 1e-9).all()


def test_inspect_finds_the_layers_of_a_model() -> None:
    model = longscan.SequenceModel.from_spec("mamba s4d gru", d_model=8, d_output=3, d_input=2, pooling="none").double()
    x = torch.randn(2, LENGTH, 2, dtype=torch.float64)
    model.train()
    calls = longscan.inspect(model, x)
    assert model.training
    assert all(module.training for module in model.modules())
    assert [type(call.layer).__name__ for call in calls.values()] == ["S6", "S4D", "GRU"]
    assert all(model.get_submodule(name) is call.layer for name, call in calls.items())
    first = next(iter(calls.values()))
    assert_close((first.attention_row(-1, 5, 1) * first.x[1]).sum() + first.bias(1)[-1, 5], first.y[1, -1, 5])
    assert [steps for steps, _ in first.states(every=3)] == [3, 6, 7]


@pytest.mark.parametrize("complex_state", [False, True])
@pytest.mark.parametrize("targets", [("x",), ("dt", "C"), ("x", "dt", "B", "C")])
@pytest.mark.parametrize("block", ["mamba", "bidirectional"])
def test_inspect_finds_s6_with_rotary_positions(block: str, targets: tuple[str, ...], complex_state: bool) -> None:
    """y = M x + b, states and eigenvalues of an S6 whose Delta, B and C a block computes from rotated and plain features."""
    torch.manual_seed(0)
    options = {"d_state": 3, "complex_state": complex_state, "rotary": {"targets": targets, "base": 10.0}}
    entry = {"layer": "s6", "block": block, "options": options}
    model = longscan.SequenceModel.from_spec([entry], d_model=4, d_output=2, d_input=2, pooling="none").double()
    x = torch.randn(2, LENGTH, 2, dtype=torch.float64)
    expected = model(x)
    calls = longscan.inspect(model, x)
    assert_close(model(x), expected)
    call = next(iter(calls.values()))
    assert isinstance(call.layer, SelectedS6)
    assert model.get_submodule(call.name) is call.layer.layer
    total = (call.attention_row(-1, 3, 1) * call.x[1]).sum()
    assert_close(total + call.bias(1)[-1, 3], call.y[1, -1, 3])
    states = dict(call.states(row=1))
    assert list(states) == list(range(1, LENGTH + 1))
    moduli = call.eigenvalues(2, row=1).abs()
    assert len(moduli) == states[1].ssm.numel()
    assert (moduli < 1).all()


def test_ablating_one_block_of_a_model() -> None:
    model = longscan.SequenceModel.from_spec("s4d*2", d_model=8, d_output=3, d_input=2, pooling="none").double().eval()
    x = torch.randn(2, LENGTH, 2, dtype=torch.float64)
    everything = ablate_state(model, x, 4)
    assert_close(everything, model(x[:, 4:]))
    one = ablate_state(model, x, 4, block=1)
    assert not torch.allclose(one, everything)
    assert not torch.allclose(one, model(x)[:, 4:])


def test_wrong_arguments_raise() -> None:
    model = longscan.SequenceModel.from_spec("s4d", d_model=8, d_output=3, d_input=2)
    x = torch.randn(1, LENGTH, 2)
    with pytest.raises(ValueError, match="`step` must be a whole number from 0 to 6, got 7"):
        ablate_state(model, x, 7)
    with pytest.raises(ValueError, match="`block` must be from 0 to 0, got 1"):
        ablate_state(model, x, 2, block=1)
    with pytest.raises(ValueError, match="`every` must be a whole number of at least 1, got 0"):
        next(states_over_time(model, x, 0))
    with pytest.raises(ValueError, match="`model` must call a layer"):
        longscan.inspect(torch.nn.Linear(2, 2), x)
    with pytest.raises(ValueError, match="at most 16384 numbers, got"):
        longscan.inspect(LAYERS["s6"](2048), torch.randn(1, 3, 2048))[""].eigenvalues()
