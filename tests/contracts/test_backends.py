"""An explicit backend runs every op that has native kernels, including the one-token step, or raises an error that names it.

The functions of the backends are replaced by functions that record their calls; the tests do not rely on the dispatcher's report.
`explain` must report the same calls.
"""

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from longscan.blocks import BLOCKS
from longscan.cli import main
from longscan.layers import LAYERS, make_layer
from longscan.layers.base import SequenceModule
from longscan.models import STANDARD_BLOCKS, Forecaster, LanguageModel, SequenceModel, SiameseModel
from longscan.ops import OPS, explain
from longscan.ops.dispatch import BACKENDS, NATIVE, failed_doctor, native_cpu_missing, recorded_choices, write_verdicts

WIDTH = 8
NOT_PUBLIC = {"dplr_spectrum": ("cpu", "triton")}  # ops of one layer, which do not decide whether it accepts a backend
NATIVE_OPS = {op: entry.native for op, entry in OPS.items() if entry.native} | NOT_PUBLIC
AUTO = "eager" if native_cpu_missing() else "cpu"
every_backend = pytest.mark.parametrize("backend", ["auto", *BACKENDS])
OpCalls = set[tuple[str, str]]


@pytest.fixture
def op_calls(monkeypatch: pytest.MonkeyPatch) -> OpCalls:
    """Return the set of the ops and backends whose functions have been called since its last `clear`."""
    recorded: OpCalls = set()

    def make_recorder(op: str, backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            recorded.add((op, backend))
            return function(*args, **options)

        return call

    for op in (*OPS, *NOT_PUBLIC):
        for backend in BACKENDS:
            path = f"longscan.ops.{op}.{backend}"
            if not find_spec(path) or (backend in NATIVE and backend not in NATIVE_OPS.get(op, ())):
                continue
            if (backend == "cpu" and native_cpu_missing()) or backend == "triton":  # not called for tensors on the CPU
                continue
            module = import_module(path)
            name = "forward" if hasattr(module, "forward") else op
            monkeypatch.setattr(module, name, make_recorder(op, backend, getattr(module, name)))
    return recorded


def list_calls(module: SequenceModule | SequenceModel) -> Iterator[Callable[[], object]]:
    """Yield the calls that a module supports: of a row, of a packed row and of a step."""
    torch.manual_seed(0)
    x, ids = torch.randn(2, 6, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    yield lambda: module(x)
    yield lambda: module(x, seq_idx=ids)
    if module.streaming:
        yield lambda: module.step(x[:, 0], module.initial_state(2))


def expected_backend(op: str, backend: str) -> str:
    """Return the backend that must run an op on the CPU."""
    if backend == "auto":
        return AUTO if "cpu" in NATIVE_OPS.get(op, ()) else "eager"
    if op in NATIVE_OPS:
        return backend
    return backend if backend in ("reference", "eager") else "eager"


def must_raise(names: set[str], backend: str) -> bool:
    """Return whether a module with these ops must raise for a backend on the CPU: a kernel is missing, or no op has one."""
    native = {name for name in names if OPS[name].native}
    if backend not in NATIVE:
        return False
    return backend == "triton" or AUTO != "cpu" or not native or any(backend not in OPS[name].native for name in native)


def run_all(module: Any, op_calls: OpCalls) -> OpCalls:
    """Return the op calls of all `list_calls` with and without autograd; assert that the dispatcher reports the same."""
    all_calls: OpCalls = set()
    for call in list_calls(module):
        for grad_enabled in (True, False):
            op_calls.clear()
            with recorded_choices() as recording, torch.set_grad_enabled(grad_enabled):
                call()
            assert {(choice.op, choice.backend) for choice in recording.choices} == op_calls
            all_calls |= op_calls
    return all_calls


def assert_runs_or_raises(build: Callable[[str], Any], backend: str, op_calls: OpCalls) -> None:
    """Assert that a module runs its ops on the backend that it is built with, or raises an error."""
    names = {name for part in build("auto").modules() for name in getattr(part, "op_names", ())}
    if must_raise(names, backend):
        with pytest.raises(ValueError, match=rf"^`backend` must be 'auto'(,| or) 'eager'.*, got '{backend}'"):
            run_all(build(backend), op_calls)
        return
    calls_made = run_all(build(backend), op_calls)
    assert {op for op, _ in calls_made} - {"mamba_step", *NOT_PUBLIC} == names, "op_names is what a module calls"
    assert calls_made == {(op, expected_backend(op, backend)) for op, _ in calls_made}


@every_backend
@pytest.mark.parametrize("name", LAYERS)
def test_layers_run_on_their_backend_or_raise(name: str, backend: str, op_calls: OpCalls) -> None:
    layer = LAYERS[name]
    if "backend" not in inspect.signature(layer).parameters:  # the layer has no op
        with pytest.raises(TypeError, match="backend"):
            layer(WIDTH, backend=backend)
        assert_runs_or_raises(lambda chosen: make_layer(name, WIDTH, {}, chosen), backend, op_calls)
    else:
        assert_runs_or_raises(lambda chosen: layer(WIDTH, backend=chosen), backend, op_calls)


@every_backend
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_run_on_their_backend_or_raise(name: str, backend: str, op_calls: OpCalls) -> None:
    """Among the layers are attention, which calls no op, and S4D, some of whose ops have no kernel."""
    block = BLOCKS[name]
    if "backend" not in inspect.signature(block).parameters:
        with pytest.raises(TypeError, match="backend"):
            block(WIDTH, backend=backend)
        assert_runs_or_raises(lambda _: block(WIDTH), "auto", op_calls)
        return
    assert_runs_or_raises(lambda chosen: block(WIDTH, backend=chosen), backend, op_calls)
    if name in ("mamba", "bidirectional", "simple", "s5"):
        for layer in ("attention", "s4d"):
            assert_runs_or_raises(lambda chosen, layer=layer: block(WIDTH, layer=layer, backend=chosen), backend, op_calls)


@every_backend
@pytest.mark.parametrize("spec", [*STANDARD_BLOCKS, "mamba attention", "gru s4 aussm"])
def test_models_run_on_their_backend_or_raise(spec: str, backend: str, op_calls: OpCalls) -> None:
    options = {"d_model": WIDTH, "d_input": WIDTH, "d_output": 2, "d_state": 4, "pooling": "none"}
    assert_runs_or_raises(lambda chosen: SequenceModel.from_spec(spec, **options, backend=chosen), backend, op_calls)


def test_model_backend_raises_only_if_no_part_has_ops(op_calls: OpCalls) -> None:
    """Attention and GRU accept the backend next to Mamba, which runs on it; a model of them alone raises."""
    options = {"d_model": WIDTH, "backend": "cpu"}
    if native_cpu_missing() is None:
        LanguageModel.from_spec("attention gru mamba", vocab_size=5, **options)(torch.zeros(1, 4, dtype=torch.long))
        assert op_calls == {("short_conv", "cpu"), ("selective_scan", "cpu")}
    for build in (
        lambda: LanguageModel.from_spec("attention gru", vocab_size=5, **options),
        lambda: SiameseModel.from_spec("attention gru", vocab_size=5, d_output=2, **options),
        lambda: Forecaster.from_spec("attention gru", d_input=1, horizon=2, **options),
    ):
        with pytest.raises(ValueError, match=r"`backend` must be 'auto' or 'eager', as \w+ uses no op .*, got 'cpu'"):
            build()


def test_model_backend_is_valid_if_one_layer_has_kernels() -> None:
    """S4 has no native kernel: a model with S4 and Mamba accepts a native backend, and S4 alone raises."""
    if native_cpu_missing() is None:
        assert isinstance(SequenceModel.from_spec("s4 mamba", d_model=4, d_input=2, d_output=2, backend="cpu"), nn.Module)
    with pytest.raises(ValueError, match=r"`backend` must be .* S4 .*, got 'cpu'"):
        make_layer("s4", 4, {}, "cpu")


def test_step_under_autocast_runs_separate_kernels_of_the_backend(op_calls: OpCalls) -> None:
    """The fused kernel of a step does not support autocast; the convolution and the scan then run on CPU kernels."""
    if native_cpu_missing() is not None:
        pytest.skip("no CPU kernels here")
    block = BLOCKS["mamba"](WIDTH, backend="cpu")
    state = block.initial_state(2)
    with torch.no_grad():
        block.step(torch.randn(2, WIDTH), state)
        assert op_calls == {("mamba_step", "cpu")}
        op_calls.clear()
        with torch.autocast("cpu", torch.bfloat16):
            block.step(torch.randn(2, WIDTH), state)
    assert op_calls == {("short_conv", "cpu"), ("selective_scan", "cpu")}


def list_explained_calls(module: nn.Module, kinds: set[str] | None = None) -> OpCalls:
    """Return the ops and backends that `explain` reports for a module, only those in calls of these kinds if any are given."""
    rows = explain(module).rows
    return {(row.part, row.backend or "none") for row in rows if row.backend != "torch" and (not kinds or kinds & set(row.calls))}


@pytest.mark.parametrize("build", [*LAYERS.values(), *BLOCKS.values()], ids=lambda kind: kind.__name__)
def test_explain_reports_the_ops_that_run(build: Callable[..., SequenceModule], op_calls: OpCalls) -> None:
    """It also reports functions of torch, prints at most 100 columns, and does not change the module."""
    module = build(WIDTH)
    module.train()
    state_dict = {name: value.clone() for name, value in module.state_dict().items()}
    report = explain(module)
    op_calls.clear()
    calls_of_kind = {name: set() for name in ("whole", "packed", "step")}
    with torch.no_grad():
        x, ids = torch.zeros(1, 6, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1]])
        for name, call in (("whole", lambda: module(x)), ("packed", lambda: module(x, seq_idx=ids))):
            call()
            calls_of_kind[name] = set(op_calls)
            op_calls.clear()
        if module.streaming:
            module.step(x[:, 0], module.initial_state(1))
            calls_of_kind["step"] = set(op_calls)
    for name, ops in calls_of_kind.items():
        assert list_explained_calls(module, {name}) == ops
    reported = {row.module for row in report.rows}
    with_parameters = {name for name, part in module.named_modules() if any(x is not None for x in part._parameters.values())}
    torch_modules = {name for name in with_parameters if type(module.get_submodule(name)).__module__.startswith("torch.")}
    assert with_parameters - torch_modules <= reported | {name for name in with_parameters if name == "rotary"}
    assert max(map(len, str(report).splitlines())) <= 100
    assert all(part.training for part in module.modules())
    assert all(torch.equal(value, state_dict[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("name", STANDARD_BLOCKS)
def test_explain_lists_the_parts_of_models(name: str) -> None:
    """Equal blocks have one row together; models of every kind are supported."""
    options = {"d_model": WIDTH, "d_state": 4}
    model = SequenceModel.from_spec(f"{name}*3", **options, d_input=2, d_output=2)
    report = explain(model)
    assert "blocks.0-2" in str(report)
    assert {row.module.removeprefix("backbone.") for row in explain(build_other_model(name, options)).rows} >= {
        row.module for row in report.rows if "blocks.0" in row.module
    }
    half = explain(LanguageModel.from_spec(name, **options, vocab_size=4).to(torch.bfloat16))
    assert "torch.bfloat16" in half.title


def build_other_model(name: str, options: dict[str, Any]) -> nn.Module:
    if STANDARD_BLOCKS[name][1] == "bidirectional":
        return SiameseModel.from_spec(name, **options, d_output=2, vocab_size=4)
    return Forecaster.from_spec(name, **options, d_input=2, horizon=2)


def test_explain_reports_torch_functions_missing_kernels_and_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "scaled_dot_product_attention" in str(explain(LAYERS["attention"](WIDTH)))
    assert "gru" in {row.part for row in explain(LAYERS["gru"](WIDTH)).rows}
    layer = LAYERS["linoss"](WIDTH)
    layer.backend = "cpu"
    (row,) = (row for row in explain(layer).rows if row.part == "block2_scan")
    assert (row.backend, row.reason) == (None, "refused: block2_scan has no cpu kernel")
    with pytest.raises(TypeError, match=r"`subject` must be .*, got a Linear"):
        explain(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"`device` must be None for a model, .*, got 'cpu'"):
        explain(layer, "cpu")
    if native_cpu_missing() is None:
        monkeypatch.setenv("LONGSCAN_CACHE", str(tmp_path))
        write_verdicts(torch.device("cpu"), {"linear_scan": {"cpu": "y: error 1, allowed 0"}})
        try:
            report = explain(LAYERS["lru"](WIDTH))
        finally:
            failed_doctor.cache_clear()
        (row,) = (row for row in report.rows if row.part == "linear_scan")
        assert (row.backend, row.by_doctor) == ("eager", True)
        assert row.reason == "`longscan doctor` found y: error 1, allowed 0"
        assert f"Verdicts of `longscan doctor`: {tmp_path}" in str(report)


def test_explain_command_reads_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(__file__).parents[1] / "saved" / "v0.1" / "runs" / "finished"
    assert main(["explain", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "SequenceModel on cpu, torch.float32" in printed
    assert "calls: whole, rows of several steps" in printed
    assert main(["explain", str(run), "--device", "cuda:77"]) == 2
    assert "`--device` must be one of the devices" in capsys.readouterr().err
