"""The contract suite of layers and blocks: one set of properties over both registries, options drawn by hypothesis.

A new entry in LAYERS or BLOCKS is tested by being registered; settings that matter for it are added to OPTIONS, and
`test_every_setting_is_turned_on` fails until they are. LONGSCAN_EXAMPLES sets the number of cases per property and entry.
Everything is on the CPU, or on the GPU that LONGSCAN_DEVICE names, where `auto` takes the Triton kernels.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layer_properties import (
    Inputs,
    assert_close,
    casts_keep_what_they_should,
    chunks_equal_whole,
    elapsed_ones_change_nothing,
    float32_is_as_good_as_eager,
    forwards_leave_nothing_behind,
    half_precision_is_as_good_as_eager,
    is_causal,
    length_is_kept,
    mixed_precision_is_as_good_as_bfloat16,
    packed_equals_padded_equals_alone,
    padding_reaches_no_gradient,
    rows_are_independent,
    same_bits_twice,
    steps_equal_whole,
    with_backend,
)
from torch import Tensor

from longscan.blocks import BLOCKS
from longscan.blocks.feed_forward import Stateless
from longscan.layers import LAYERS, ScanState, SequenceLayer, SequenceModule
from longscan.layers.base import SequenceInfo, mask_padding
from longscan.layers.state import State, map_state, restarted_rows, state_tensors, zero_rows
from longscan.numerics.discretisation import discretise
from longscan.numerics.pairs import divide, multiply
from longscan.numerics.timescales import inverse_softplus
from longscan.ops import chunks
from longscan.ops.arguments import step_flags
from longscan.ops.linear_scan import eager

DEVICE = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))
LENGTHS = [0, 1, 2, 3, 63, 65]
WIDTH = 4

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "layer aussm": [
        {"d_state": 3},
        {"d_state": 2, "dt_rank": 1, "phase_dt": True, "dt_bias_twice": False},
        {"d_state": 2, "phase_scale": "one", "shared": False, "angle_spread": 3.0},
        {"d_state": 2, "phase_grid": 12, "angle_spread": 3.0},
    ],
    "layer s6": [
        {"d_state": 3},
        {"d_state": 2, "dt_rank": 2, "dt_min": 0.01, "dt_max": 0.5},
        {"d_state": 2, "dt_init": "linear", "dt_bias_twice": True, "activates_input": True},
        {"d_state": 2, "complex_state": True},
        {"d_state": 2, "complex_state": "A"},
    ],
    "layer s4": [{"d_state": 4}, {"d_state": 4, "n_ssm": 2, "dt_min": 0.01, "dt_max": 0.5}],
    "layer s4d": [
        {"d_state": 4, "init": "lin"},
        {"d_state": 4, "init": "inv", "dt_min": 0.01, "dt_max": 0.5},
        {"d_state": 4, "init": "legs", "discretisation": "bilinear"},
        {"d_state": 4, "init": "real"},
        {"d_state": 4, "init": "legs", "trained_B": True},
    ],
    "layer lru": [{"d_state": 5}, {"d_state": 5, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3}],
    "layer s5": [
        {"d_state": 4},
        {"d_state": 4, "blocks": 2, "discretisation": "bilinear", "c_init": "complex_normal"},
        {"d_state": 3, "conjugate": False, "discretisation": "dirac", "clip": False},
        {"d_state": 4, "discretisation": "async", "dt_min": 0.01, "dt_max": 0.5},
    ],
    "layer mamba2": [
        {"d_state": 3, "head_dim": 2},
        {"d_state": 2, "head_dim": 1, "groups": 2, "dt_min": 0.01, "dt_max": 0.5},
        {"d_state": 3, "dt_limit": (0.0, 0.05)},
    ],
    "layer linoss": [{"d_state": 3}, {"d_state": 3, "discretisation": "imex"}],
    "layer mamba3": [
        {"d_state": 4, "head_dim": 2},
        {"d_state": 2, "rope_fraction": 1.0, "head_dim": 1, "groups": 2, "dt_min": 0.01, "dt_max": 0.5},
    ],
    "layer attention": [
        {},
        {"head_dim": 2, "window": 3, "base": 100.0},
        {"rotary_dim": 2, "window": 2, "bias": True},
    ],
    "layer s7": [
        {"d_state": 3},
        {"d_state": 3, "rank": 2, "reparam": (0.5, 1.0), "dt_min": 0.01, "dt_max": 0.5},
        {"d_state": 3, "reparam": None, "selects": ("A", "C")},
        {"d_state": 3, "reparam": "exponential", "selects": ("B", "C", "D")},
    ],
    "layer mlstm": [{}, {"head_dim": 2}],
    "layer slstm": [{}, {"head_dim": 2}],
    "layer gru": [{}],
    "layer lstm": [{}],
    "block mamba": [
        {"layer_options": {"d_state": 3}},
        {"variant": "aussm", "layer_options": {"d_state": 2}},
        {"expand": 1, "d_conv": 2, "recompute": True, "layer_options": {"d_state": 2, "complex_state": True}},
        {"d_conv": 0, "layer": "s4d", "layer_options": {"d_state": 4}},
        {"layer": "gru", "d_conv": 0},
        {"dropout": 0.2, "rotary": {"base": 10.0, "targets": ["B", "C", "dt"]}, "layer_options": {"d_state": 2}},
    ],
    "block aussm": [
        {"layer_options": {"d_state": 3}},
        {"dropout": 0.2, "rotary": {"learned": True, "length": 50, "repeat": 7}, "layer_options": {"d_state": 2}},
        {"expand": 2, "d_conv": 0, "recompute": True, "layer_options": {"d_state": 2, "phase_dt": True}},
        {"d_conv": 2, "layer": "aussm", "activation": "silu", "layer_options": {"d_state": 2, "shared": False}},
    ],
    "block mamba2": [
        {"layer_options": {"d_state": 3, "head_dim": 4}},
        {"expand": 1, "d_conv": 2, "layer_options": {"d_state": 2, "head_dim": 1, "groups": 2}},
        {"layer": "mamba2", "d_conv": 0, "norm": False, "layer_options": {"d_state": 2}},
    ],
    "block mamba3": [
        {"layer_options": {"d_state": 4, "head_dim": 4}},
        {"layer": "mamba3", "expand": 1, "layer_options": {"d_state": 3, "rope_fraction": 1.0, "groups": 2, "head_dim": 2}},
    ],
    "block simple": [
        {"layer_options": {"d_state": 4}},
        {"layer": "lru", "dropout": 0.3, "rotary": {"base": 10.0, "repeat": 7}, "layer_options": {"d_state": 4}},
        {"layer": "lstm", "dropout": 0.3, "shared_dropout": True},
    ],
    "block bidirectional": [
        {"layer_options": {"d_state": 3}},
        {"variant": "own", "layer": "s4d", "expand": 1, "d_conv": 2, "layer_options": {"d_state": 4}},
        {"variant": "tied", "dropout": 0.2, "layer_options": {"d_state": 2}},
        {"variant": "own placebo", "activation": "silu", "layer": "aussm", "layer_options": {"d_state": 2}},
        {"variant": "shared placebo", "d_conv": 0, "layer": "gru"},
        {"rotary": {"base": 10.0, "targets": ["B", "C", "dt"]}, "layer_options": {"d_state": 2}},
        {"variant": "own", "rotary": {"learned": True, "length": 50}, "layer": "lru", "layer_options": {"d_state": 2}},
        {"variant": "tied", "rotary": {"base": 10.0, "repeat": 7, "targets": ["x", "dt"]}, "layer_options": {"d_state": 2}},
        {"variant": "tied placebo", "rotary": {"base": 10.0, "repeat": 7}, "layer_options": {"d_state": 2}},
    ],
    "block s5": [
        {"layer_options": {"d_state": 4}},
        {"layer": "s7", "glu": "half1", "output_norm": True, "dropout": 0.2, "layer_options": {"d_state": 3}},
        {"layer": "lru", "glu": "full", "stride": 3, "pooling": "time", "layer_options": {"d_state": 3}},
        {"stride": 3, "pooling": "last", "layer_options": {"d_state": 2, "discretisation": "async"}},
    ],
    "block linoss": [
        {"layer_options": {"d_state": 3}},
        {"layer": "lru", "dropout": 0.1, "layer_options": {"d_state": 3}},
    ],
    "block feed_forward": [{}, {"d_hidden": 6, "gated": True, "dropout": 0.2}],
}
ENTRIES: dict[str, type[SequenceModule]] = {f"layer {name}": LAYERS[name] for name in LAYERS}
ENTRIES |= {f"block {name}": BLOCKS[name] for name in BLOCKS}
every_entry = pytest.mark.parametrize("entry", ENTRIES)


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    torch.set_default_device(None if DEVICE.type == "cpu" else DEVICE)
    yield
    torch.set_default_device(None)


def build(entry: str, options: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float64) -> SequenceModule:
    """A module in evaluation mode, its parameters those of `seed`."""
    torch.manual_seed(seed)
    factory: Callable[..., SequenceModule] = ENTRIES[entry]
    return factory(WIDTH, **options).to(dtype).eval()


def options_of(entry: str) -> list[dict[str, Any]]:
    return OPTIONS.get(entry, [{}])


every_case = pytest.mark.parametrize(
    ("entry", "options"), [(entry, options) for entry in ENTRIES for options in options_of(entry)], ids=str
)


def draw_module(data: st.DataObject, entry: str) -> SequenceModule:
    seed = data.draw(st.integers(0, 10_000), label="seed")
    module = build(entry, data.draw(st.sampled_from(options_of(entry)), label="options"), seed)
    return with_backend(module, data.draw(st.sampled_from(["auto", "eager"]), label="backend"))


def draw_length(data: st.DataObject) -> int:
    rare = data.draw(st.integers(0, 39), label="rare") == 39
    return 1000 if rare else data.draw(st.sampled_from(LENGTHS), label="L")


def draw_inputs(data: st.DataObject, module: SequenceModule, *, length: int | None = None, segments: bool = True) -> Inputs:
    """Random values; perhaps elapsed times, one run of valid steps a row (it may be empty), and sequence numbers."""
    batch = data.draw(st.integers(1, 3), label="B")
    length = draw_length(data) if length is None else length
    x = torch.randn(batch, length, WIDTH, dtype=torch.float64)
    elapsed = valid = seq_idx = None
    if module.irregular and data.draw(st.booleans(), label="elapsed"):
        elapsed = 2 * torch.rand(batch, length, dtype=torch.float64)
    if data.draw(st.booleans(), label="valid"):
        ends = torch.randint(0, length + 1, (batch, 2)).sort(1).values
        steps = torch.arange(length)
        valid = (steps >= ends[:, :1]) & (steps < ends[:, 1:])
    if segments and not module.changes_length and data.draw(st.booleans(), label="seq_idx"):
        seq_idx = (torch.rand(batch, length) < 0.2).cumsum(1)
    return Inputs(x, elapsed, valid, seq_idx)


def telling_inputs() -> Inputs:
    """One whole sequence, in which a module that is not causal, or that does not stream, cannot but show it."""
    return Inputs(torch.randn(2, 9, WIDTH, dtype=torch.float64))


def test_every_setting_is_turned_on() -> None:
    for entry, factory in ENTRIES.items():
        named = set(inspect.signature(factory.__init__).parameters) - {"self", "d_model", "backend"}
        assert len(named) + 2 <= 10, f"{entry} has too many settings"
        used = {name for options in options_of(entry) for name in options}
        assert named == used, f"{entry}: settings without a test, or tests of settings that are not there: {named ^ used}"


@every_entry
@given(data=st.data())
def test_step_by_step_equals_whole(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    length = min(draw_length(data), 130)  # a call for each step
    inputs = draw_inputs(data, module, length=length, segments=False) if module.streaming else telling_inputs()
    steps_equal_whole(module, inputs, data.draw(st.booleans(), label="recorded"))


@every_entry
@given(data=st.data())
def test_random_chunks_equal_whole(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    inputs = draw_inputs(data, module) if module.streaming else telling_inputs()
    cuts = data.draw(st.lists(st.integers(0, inputs.x.shape[1]), max_size=4), label="cuts")
    chunks_equal_whole(module, inputs, sorted(cuts) if module.streaming else [4])


@every_entry
@given(data=st.data())
def test_packed_equals_padded_equals_alone(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    timed = module.irregular and data.draw(st.booleans(), label="elapsed")
    sequences = []
    for length in data.draw(st.lists(st.sampled_from([*LENGTHS[:4], 17, 65]), min_size=1, max_size=4), label="lengths"):
        x = torch.randn(1, length, WIDTH, dtype=torch.float64)
        sequences.append(Inputs(x, 2 * torch.rand(1, length, dtype=torch.float64) if timed else None))
    packed_equals_padded_equals_alone(module, sequences)


@every_entry
@given(data=st.data())
def test_causality(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    length = data.draw(st.sampled_from([2, 3, 63, 65]), label="L")
    inputs = draw_inputs(data, module, length=length) if module.causal else telling_inputs()
    is_causal(module, inputs, data.draw(st.integers(1, inputs.x.shape[1] - 1), label="t"))


@every_entry
@given(data=st.data())
def test_rows_are_independent(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    inputs = draw_inputs(data, module)
    rows_are_independent(module, inputs)
    length_is_kept(module, inputs)


@every_entry
@given(data=st.data())
def test_gradients_and_outputs_in_float32(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    length = data.draw(st.sampled_from([*LENGTHS[:4], 33]), label="L")
    float32_is_as_good_as_eager(module, draw_inputs(data, module, length=length), seed=7)


@every_entry
@given(data=st.data())
def test_elapsed_of_one_is_none(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    elapsed_ones_change_nothing(module, draw_inputs(data, module))


@every_entry
@given(data=st.data())
def test_padding_reaches_no_gradient(entry: str, data: st.DataObject) -> None:
    module = draw_module(data, entry)
    inputs = draw_inputs(data, module, length=data.draw(st.sampled_from([1, 3, 33]), label="L"))
    if inputs.valid is None:
        inputs.valid = torch.rand(len(inputs.x), 1) < torch.ones(inputs.x.shape[1])
        inputs.valid[:, 1:] = False
    padding_reaches_no_gradient(module, inputs)


RESCALED: dict[str, Callable[[Any, float], None]] = {}  # layer -> change its parameters as if time ran `factor` times slower


def rescales(name: str) -> Callable[[Callable[[Any, float], None]], Callable[[Any, float], None]]:
    def enter(change: Callable[[Any, float], None]) -> Callable[[Any, float], None]:
        RESCALED[name] = change
        return change

    return enter


@rescales("aussm")
def _(layer: Any, factor: float) -> None:
    magnitude = torch.nn.functional.softplus(layer.B[..., 0]) / factor
    layer.B[..., 0] = magnitude.expm1().log()
    if layer.phase_dt:
        layer.angle_proj /= factor
        layer.angle_bias /= factor


@rescales("s6")
def _(layer: Any, factor: float) -> None:
    layer.A_log -= math.log(factor)
    if layer.A_imag is not None:
        layer.A_imag /= factor
    layer.x_proj[layer.dt_rank : layer.dt_rank + (layer.x_proj.shape[0] - layer.dt_rank) // 2] /= factor  # the rows of B


@rescales("attention")
def _(layer: Any, factor: float) -> None:
    frequencies = layer.rotary_frequencies
    layer.rotary_frequencies = lambda like: frequencies(like) / factor


@rescales("mamba3")
def _(layer: Any, factor: float) -> None:
    step_sizes = layer.heads.step_sizes
    layer.heads.step_sizes = lambda dt: step_sizes(dt) / factor  # the rates are functions of the input


@rescales("mamba2")
def _(layer: Any, factor: float) -> None:
    heads = layer.heads
    heads.A_log -= math.log(factor)
    layer.x_proj[: heads.groups * heads.d_state] /= factor  # the rows of B


@rescales("s4")
@rescales("s4d")
def _(layer: Any, factor: float) -> None:
    layer.log_dt -= math.log(factor)


@rescales("lru")
def _(layer: Any, factor: float) -> None:
    layer.nu -= math.log(factor)
    layer.phi -= math.log(factor)


@rescales("s5")
def _(layer: Any, factor: float) -> None:
    if layer.discretisation == "async":  # the input is held over dt, which does not change with the unit of elapsed times
        held = [discretise(layer.eigenvalues(), (layer.log_dt - shift).exp())[1] for shift in (0, math.log(factor))]
        layer.B.copy_(multiply(divide(held[0], held[1]).unsqueeze(1), layer.B))
    layer.log_dt -= math.log(factor)


@rescales("linoss")
def _(layer: Any, factor: float) -> None:
    layer.dt.copy_(torch.logit(layer.dt.sigmoid() / factor))


@rescales("s7")
def _(layer: Any, factor: float) -> None:
    layer.w.copy_(inverse_softplus(torch.nn.functional.softplus(layer.w) / factor))


IRREGULAR = [(name, options) for name in LAYERS for options in options_of(f"layer {name}")]
IRREGULAR = [(name, options) for name, options in IRREGULAR if build(f"layer {name}", options).irregular]


@pytest.mark.parametrize(("name", "options"), IRREGULAR, ids=str)
def test_time_has_no_unit(name: str, options: dict[str, Any]) -> None:
    """Times in a unit `factor` times smaller, and rates as much smaller, give the same outputs."""
    factor = 1.25
    layer = build(f"layer {name}", options)
    x, elapsed = torch.randn(2, 20, WIDTH, dtype=torch.float64), 2 * torch.rand(2, 20, dtype=torch.float64)
    y = layer(x, elapsed=elapsed)
    assert not torch.allclose(layer(x, elapsed=factor * elapsed), y)
    with torch.no_grad():
        RESCALED[name](layer, factor)
        assert_close(layer(x, elapsed=factor * elapsed), y)


@every_case
def test_bfloat16_at_1k(entry: str, options: dict[str, Any]) -> None:
    module = build(entry, options, dtype=torch.float32)
    half_precision_is_as_good_as_eager(module, Inputs(torch.randn(1, 1024, WIDTH)))


@every_case
def test_mixed_precision(entry: str, options: dict[str, Any]) -> None:
    module = build(entry, options, dtype=torch.float32)
    mixed_precision_is_as_good_as_bfloat16(module, Inputs(torch.randn(2, 64, WIDTH)))


@pytest.mark.slow
@pytest.mark.parametrize("length", [4096, 16384])
@every_case
def test_bfloat16_at_4k_and_16k(entry: str, options: dict[str, Any], length: int) -> None:
    module = build(entry, options, dtype=torch.float32)
    half_precision_is_as_good_as_eager(module, Inputs(torch.randn(1, length, WIDTH)))


@every_case
def test_casts_and_state_dict(entry: str, options: dict[str, Any]) -> None:
    casts_keep_what_they_should(build(entry, options, dtype=torch.float32))


@every_case
def test_gradients_of_half_precision_keep_the_dtypes_of_their_parameters(entry: str, options: dict[str, Any]) -> None:
    module = build(entry, options, dtype=torch.float32)
    module(torch.randn(2, 5, WIDTH)).sum().backward()
    module.to(torch.bfloat16)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == parameter.dtype, name


@every_case
def test_everything_is_on_the_device_of_the_inputs(entry: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which mixes with no other: nothing that a module makes on its way is made on the CPU."""
    monkeypatch.setattr(chunks, "CHUNK", 4)  # two chunks and a part of a third: an operation takes a millisecond here
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)
    factory: Callable[..., SequenceModule] = ENTRIES[entry]
    with torch.device("meta"):
        module = factory(WIDTH, **options).eval()
        x, ones = torch.randn(2, 10, WIDTH), torch.ones(2, 10)
    module.checks_inputs = False  # there are no values to check
    given: list[dict[str, Tensor]] = [{}, {"valid": ones.bool()} | ({"elapsed": ones} if module.irregular else {})]
    for extra in given if module.changes_length else [*given, {"seq_idx": ones.long()}]:
        y, state = module(x, module.initial_state(2), return_state=True, **extra)
        y.sum().backward()
        y_t, state = module.step(x[:, 0], state) if module.streaming else (y, state)
        assert {leaf.device.type for leaf in (y, y_t, *state_tensors(state))} == {"meta"}


@every_case
def test_same_bits_twice(entry: str, options: dict[str, Any]) -> None:
    module = build(entry, options, dtype=torch.float32)
    same_bits_twice(module, Inputs(torch.randn(2, 70, WIDTH), valid=torch.arange(70).expand(2, 70) < 60))


@every_entry
def test_memory_does_not_grow(entry: str) -> None:
    forwards_leave_nothing_behind(build(entry, options_of(entry)[0]), Inputs(torch.randn(2, 9, WIDTH, dtype=torch.float64)))


def compiled_equals_eager(entry: str, options: dict[str, Any], compiler: str) -> None:
    """One graph, no breaks, with a state and padding; outputs, state and gradients as without compiling."""
    torch._dynamo.reset()
    module = build(entry, options)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    valid = torch.arange(5) < torch.tensor([[5], [3]])
    torch.set_default_device(None)  # dynamo does not see through a default

    def run(x: Tensor, state: State, valid: Tensor) -> tuple[Tensor, State]:
        return module(x, state, valid=valid, return_state=True)

    compiled = torch.compile(run, fullgraph=True, backend=compiler)
    results = []
    for function in (run, compiled):
        given = x.clone().requires_grad_()
        y, state = function(given, module.initial_state(2), valid)
        module.zero_grad()
        y.square().sum().backward()
        results.append((y.detach(), map_state(torch.Tensor.detach, state), given.grad, [p.grad for p in module.parameters()]))
    assert_close(results[1], results[0])


@every_entry
def test_one_graph(entry: str) -> None:
    compiled_equals_eager(entry, options_of(entry)[0], "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, when inductor is loaded
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex:UserWarning")  # long_conv's FFT
@every_case
def test_compiled_by_inductor(entry: str, options: dict[str, Any]) -> None:
    compiled_equals_eager(entry, options, "inductor")


@every_entry
def test_states_select_move_and_tell_their_size(entry: str) -> None:
    module = build(entry, options_of(entry)[0])
    x = torch.randn(3, 4, WIDTH, dtype=torch.float64)
    y, state = module(x, return_state=True)
    assert state.nbytes == sum(leaf.nbytes for leaf in state_tensors(state))
    assert (state.nbytes > 0) == (not isinstance(state, Stateless))
    later = torch.randn(3, 4, WIDTH, dtype=torch.float64)
    rows = torch.tensor([2, 0])
    assert_close(module(later[rows], state.select_rows(rows)), module(later, state)[rows])
    half = state.to(torch.bfloat16)
    assert {leaf.dtype for leaf in state_tensors(half)} <= {torch.bfloat16, torch.int64}
    assert {leaf.dtype for leaf in state_tensors(build(entry, {}, dtype=torch.float32).initial_state(2))} <= {
        torch.float32,
        torch.int64,
    }
    assert y.shape == x.shape


@every_case
def test_no_rows(entry: str, options: dict[str, Any]) -> None:
    module = build(entry, options)
    for length in (1, 70):
        y, state = module(torch.randn(0, length, WIDTH, dtype=torch.float64), return_state=True)
        assert y.shape[0] == 0
        assert all(len(leaf) == 0 for leaf in state_tensors(state))


@every_entry
def test_wrong_arguments_are_named(entry: str) -> None:
    module = build(entry, options_of(entry)[0])
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    with pytest.raises(ValueError, match="`x` must have shape"):
        module(x[..., 1:])
    with pytest.raises(TypeError, match=r"`x` must have the dtype of the parameters, torch\.float64, got torch\.float32"):
        module(x.float())
    with pytest.raises(TypeError, match=r"`x` must have the dtype .*, got torch\.int64"):
        module(x.long())
    with pytest.raises(ValueError, match=r"`valid` must have one run .*, got more in row 1"):
        module(x, valid=torch.tensor([[True] * 4, [True, False, True, True]]))
    with pytest.raises(ValueError, match="`valid` must have shape"):
        module(x, valid=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match="`valid` must have dtype"):
        module(x, valid=torch.ones(2, 4))
    with pytest.raises(TypeError, match="`seq_idx` must have an integer dtype"):
        module(x, seq_idx=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="`seq_idx` must be numbers of at least 0, got a negative"):
        module(x, seq_idx=torch.full((2, 4), -1))
    with pytest.raises(ValueError, match="elapsed"):
        module(x, elapsed=-torch.ones(2, 4))
    with pytest.raises(TypeError, match="unexpected keyword"):
        build(entry, {"no_such_setting": 1})
    with pytest.raises(TypeError, match="`state` must be a "):
        module(x, (x,))
    if not isinstance(module.initial_state(2), Stateless):
        with pytest.raises(ValueError, match="`state` must have tensors of shapes"):
            module(x, module.initial_state(3))
    if not module.streaming:
        with pytest.raises(ValueError, match="step: "):
            module.step(x[:, 0], module.initial_state(2))


@pytest.mark.parametrize("name", LAYERS)
def test_gates(name: str) -> None:
    """A gate multiplies y by its SiLU, whether the op or the base class does it."""
    layer = build(f"layer {name}", options_of(f"layer {name}")[0])
    assert isinstance(layer, SequenceLayer)
    x, gate = torch.randn(2, 2, 7, WIDTH, dtype=torch.float64)
    assert_close(layer(x, gate=gate), layer(x) * torch.nn.functional.silu(gate))
    with pytest.raises(ValueError, match="`gate` must have shape"):
        layer(x, gate=gate[:, :3])


@every_entry
def test_many_models_at_once(entry: str) -> None:
    """`torch.func` trains several sets of parameters in one call."""
    modules = [build(entry, options_of(entry)[0], seed).requires_grad_(False) for seed in (0, 1)]
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    parameters, buffers = torch.func.stack_module_state(modules)
    together = torch.func.vmap(lambda p, b: torch.func.functional_call(modules[0], (p, b), (x,)))(parameters, buffers)
    assert_close(together, torch.stack([module(x) for module in modules]))


class Leaky(SequenceModule):
    """What goes wrong in layers: each fault breaks one property of a running sum."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.d_model, self.fault = WIDTH, fault
        self.checks_inputs = fault != "gradient"  # what stands in the padding is not cleaned away
        self.scale = torch.nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward_impl(self, x: Tensor, state: State, info: SequenceInfo) -> tuple[Tensor, State]:
        state = self.initial_state(len(x)) if state is None else state
        valid = None if self.fault == "padding" else info.valid
        flags = step_flags(*x.shape[:2], valid, None if self.fault == "packing" else info.seq_idx, x)
        elapsed = 1.0 if info.elapsed is None else 2 * info.elapsed if self.fault == "elapsed" else info.elapsed
        entering = x + 1 if self.fault == "padding" else x  # zeros in the padding would leave a running sum as it is
        drive = self.scale * entering * (elapsed if isinstance(elapsed, float) else elapsed.unsqueeze(-1))
        rows, last = restarted_rows(state.last_seq_idx, valid, info.seq_idx)
        start = torch.zeros_like(state.ssm) if self.fault == "state" else zero_rows(rows, state.ssm)
        y, final = eager.linear_scan(torch.ones_like(drive), drive, start, flags, is_complex=False)
        if self.fault == "causal":
            y = y + mask_padding(y.flip(1), valid)
        if self.fault == "batch":
            y = mask_padding(y + y.sum(0, keepdim=True) - y, valid)
        return y, ScanState(final, last)

    def initial_state(self, batch: int) -> ScanState:
        return ScanState(torch.zeros(batch, WIDTH, dtype=torch.float64), torch.full((batch,), -1))


def faults_found(module: Leaky) -> set[str]:
    """The properties that fail for a module."""
    x = torch.randn(3, 9, WIDTH, dtype=torch.float64)
    valid = torch.arange(9) < torch.tensor([[9], [4], [7]])
    checks = {
        "causal": lambda: is_causal(module, Inputs(x), 4),
        "batch": lambda: rows_are_independent(module, Inputs(x, valid=valid)),
        "state": lambda: chunks_equal_whole(module, Inputs(x), [2, 5]),
        "step": lambda: steps_equal_whole(module, Inputs(x)),
        "elapsed": lambda: elapsed_ones_change_nothing(module, Inputs(x)),
        "packing": lambda: packed_equals_padded_equals_alone(module, [Inputs(x[:1]), Inputs(x[1:2, :4])]),
        "padding": lambda: padding_reaches_no_gradient(module, Inputs(x, valid=valid)),
    }
    found = set()
    for name, check in checks.items():
        try:
            check()
        except (AssertionError, pytest.fail.Exception):
            found.add(name)
    return found


FAULTS = {  # fault -> the property that finds it
    "causal": "causal",
    "batch": "batch",
    "state": "state",
    "elapsed": "elapsed",
    "packing": "packing",
    "padding": "packing",
    "gradient": "padding",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_suite_finds_faults(fault: str) -> None:
    assert FAULTS[fault] in faults_found(Leaky(fault))


def test_the_suite_finds_no_fault_where_there_is_none() -> None:
    assert not faults_found(Leaky("none"))


@pytest.mark.parametrize(("declared", "fault"), [("causal", "causal"), ("batch_independent", "batch"), ("streaming", "state")])
def test_denied_properties_must_be_violated(declared: str, fault: str) -> None:
    """A module that denies a property passes where it lacks it, and fails where it has it after all."""
    for has_fault in (True, False):
        module = Leaky(fault if has_fault else "none")
        setattr(module, declared, False)
        assert (fault in faults_found(module)) == (not has_fault)
