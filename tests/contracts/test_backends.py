"""An explicit backend runs every op that has native kernels, the one-token step included, or is refused by name.

The functions of the backends are replaced by functions that record the call, so that what runs does not depend on what the
dispatcher reports. `explain` must report the same.
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
NATIVE_OPS = {op: entry.native for op, entry in OPS.items() if entry.native}
AUTO = "eager" if native_cpu_missing() else "cpu"
every_backend = pytest.mark.parametrize("backend", ["auto", *BACKENDS])
Ran = set[tuple[str, str]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Return the set of pairs of op and backend whose functions were called since its last `clear`."""
    called: Ran = set()

    def recorded(op: str, backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            called.add((op, backend))
            return function(*args, **options)

        return call

    for op in OPS:
        for backend in BACKENDS:
            path = f"longscan.ops.{op}.{backend}"
            if not find_spec(path) or (backend in NATIVE and backend not in NATIVE_OPS.get(op, ())):
                continue
            if (backend == "cpu" and native_cpu_missing()) or backend == "triton":  # not called for tensors on the CPU
                continue
            module = import_module(path)
            name = "forward" if hasattr(module, "forward") else op
            monkeypatch.setattr(module, name, recorded(op, backend, getattr(module, name)))
    return called


def calls(module: SequenceModule | SequenceModel) -> Iterator[Callable[[], object]]:
    """Yield calls of every kind that the module supports: a row, a packed row and a step."""
    torch.manual_seed(0)
    x, ids = torch.randn(2, 6, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    yield lambda: module(x)
    yield lambda: module(x, seq_idx=ids)
    if module.streaming:
        yield lambda: module.step(x[:, 0], module.initial_state(2))


def wanted(op: str, backend: str) -> str:
    """Return the backend that must run an op on the CPU."""
    if backend == "auto":
        return AUTO if "cpu" in NATIVE_OPS.get(op, ()) else "eager"
    if op in NATIVE_OPS:
        return backend
    return backend if backend in ("reference", "eager") else "eager"


def refused(names: set[str], backend: str) -> bool:
    """Return whether a module that calls these ops must refuse a backend on the CPU: a kernel is missing, or no op has any."""
    native = {name for name in names if OPS[name].native}
    if backend not in NATIVE:
        return False
    return backend == "triton" or AUTO != "cpu" or not native or any(backend not in OPS[name].native for name in native)


def run_all(module: Any, ran: Ran) -> Ran:
    """Return what ran in calls of every kind, with autograd and without; assert that the dispatcher reports the same."""
    seen: Ran = set()
    for call in calls(module):
        for records in (True, False):
            ran.clear()
            with recorded_choices() as recording, torch.set_grad_enabled(records):
                call()
            assert {(choice.op, choice.backend) for choice in recording.choices} == ran
            seen |= ran
    return seen


def check(build: Callable[[str], Any], backend: str, ran: Ran) -> None:
    """Assert that a module runs its ops on the backend that it is built with, or raises an error that names others."""
    names = {name for part in build("auto").modules() for name in getattr(part, "op_names", ())}
    if refused(names, backend):
        with pytest.raises(ValueError, match=rf"^`backend` must be 'auto'(,| or) 'eager'.*, got '{backend}'"):
            run_all(build(backend), ran)
        return
    seen = run_all(build(backend), ran)
    assert {op for op, _ in seen} - {"mamba_step"} == names, "op_names is what a module calls"
    assert seen == {(op, wanted(op, backend)) for op, _ in seen}


@every_backend
@pytest.mark.parametrize("name", LAYERS)
def test_layers_run_on_their_backend_or_refuse_it(name: str, backend: str, ran: Ran) -> None:
    layer = LAYERS[name]
    if "backend" not in inspect.signature(layer).parameters:  # no op to choose a backend for: asking for one is refused
        with pytest.raises(TypeError, match="backend"):
            layer(WIDTH, backend=backend)
        check(lambda _: layer(WIDTH), "auto", ran)
    else:
        check(lambda chosen: layer(WIDTH, backend=chosen), backend, ran)


@every_backend
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_run_on_their_backend_or_refuse_it(name: str, backend: str, ran: Ran) -> None:
    """With their default layers, with attention, which calls no op, and with S4D, some of whose ops have no kernel."""
    block = BLOCKS[name]
    if "backend" not in inspect.signature(block).parameters:
        with pytest.raises(TypeError, match="backend"):
            block(WIDTH, backend=backend)
        check(lambda _: block(WIDTH), "auto", ran)
        return
    check(lambda chosen: block(WIDTH, backend=chosen), backend, ran)
    if name in ("mamba", "bidirectional", "simple", "s5"):
        for layer in ("attention", "s4d"):
            check(lambda chosen, layer=layer: block(WIDTH, layer=layer, backend=chosen), backend, ran)


@every_backend
@pytest.mark.parametrize("spec", [*STANDARD_BLOCKS, "mamba attention", "gru s4 aussm"])
def test_models_run_on_their_backend_or_refuse_it(spec: str, backend: str, ran: Ran) -> None:
    options = {"d_model": WIDTH, "d_input": WIDTH, "d_output": 2, "d_state": 4, "pooling": "none"}
    check(lambda chosen: SequenceModel.from_spec(spec, **options, backend=chosen), backend, ran)


def test_parts_without_ops_do_not_refuse_the_backend_of_a_model(ran: Ran) -> None:
    """Attention and GRU next to Mamba, which runs on the explicit backend; a model of them alone refuses it."""
    options = {"d_model": WIDTH, "backend": "cpu"}
    if native_cpu_missing() is None:
        LanguageModel.from_spec("attention gru mamba", vocab_size=5, **options)(torch.zeros(1, 4, dtype=torch.long))
        assert ran == {("short_conv", "cpu"), ("selective_scan", "cpu")}
    for build in (
        lambda: LanguageModel.from_spec("attention gru", vocab_size=5, **options),
        lambda: SiameseModel.from_spec("attention gru", vocab_size=5, d_output=2, **options),
        lambda: Forecaster.from_spec("attention gru", d_input=1, horizon=2, **options),
    ):
        with pytest.raises(ValueError, match=r"`backend` must be 'auto' or 'eager', as \w+ uses no op .*, got 'cpu'"):
            build()


def test_a_part_of_a_module_is_not_refused_alone() -> None:
    """S4 has no native kernel: a model with S4 and Mamba accepts a native backend, and S4 alone refuses it."""
    if native_cpu_missing() is None:
        assert isinstance(SequenceModel.from_spec("s4 mamba", d_model=4, d_input=2, d_output=2, backend="cpu"), nn.Module)
    with pytest.raises(ValueError, match=r"`backend` must be .* S4 .*, got 'cpu'"):
        make_layer("s4", 4, {}, "cpu")


def test_a_step_that_the_fused_kernel_does_not_support_stays_on_the_backend(ran: Ran) -> None:
    """Under autocast the convolution and the scan of a step run on separate CPU kernels."""
    if native_cpu_missing() is not None:
        pytest.skip("no CPU kernels here")
    block = BLOCKS["mamba"](WIDTH, backend="cpu")
    state = block.initial_state(2)
    with torch.no_grad():
        block.step(torch.randn(2, WIDTH), state)
        assert ran == {("mamba_step", "cpu")}
        ran.clear()
        with torch.autocast("cpu", torch.bfloat16):
            block.step(torch.randn(2, WIDTH), state)
    assert ran == {("short_conv", "cpu"), ("selective_scan", "cpu")}


def explained(module: nn.Module, calls: set[str] | None = None) -> Ran:
    """Return the ops of a module and their backends as `explain` reports them, in these calls."""
    rows = explain(module).rows
    return {(row.part, row.backend or "none") for row in rows if row.backend != "torch" and (not calls or calls & set(row.calls))}


@pytest.mark.parametrize("build", [*LAYERS.values(), *BLOCKS.values()], ids=lambda kind: kind.__name__)
def test_explain_reports_the_ops_that_run(build: Callable[..., SequenceModule], ran: Ran) -> None:
    """Also the functions of torch that a layer or block calls, in 100 columns; the module is not changed."""
    module = build(WIDTH)
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = explain(module)
    ran.clear()
    seen = {name: set() for name in ("whole", "packed", "step")}
    with torch.no_grad():
        x, ids = torch.zeros(1, 6, WIDTH), torch.tensor([[0, 0, 0, 1, 1, 1]])
        for name, call in (("whole", lambda: module(x)), ("packed", lambda: module(x, seq_idx=ids))):
            call()
            seen[name] = set(ran)
            ran.clear()
        if module.streaming:
            module.step(x[:, 0], module.initial_state(1))
            seen["step"] = set(ran)
    for name, ops in seen.items():
        assert explained(module, {name}) == ops
    parts = {row.module for row in found.rows}
    own = {name for name, part in module.named_modules() if any(x is not None for x in part._parameters.values())}
    torchs = {name for name in own if type(module.get_submodule(name)).__module__.startswith("torch.")}
    assert own - torchs <= parts | {name for name in own if name == "rotary"}
    assert max(map(len, str(found).splitlines())) <= 100
    assert all(part.training for part in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("name", STANDARD_BLOCKS)
def test_explain_lists_the_parts_of_models(name: str) -> None:
    """Equal blocks share a row; models of every kind are supported."""
    options = {"d_model": WIDTH, "d_state": 4}
    model = SequenceModel.from_spec(f"{name}*3", **options, d_input=2, d_output=2)
    found = explain(model)
    assert "blocks.0-2" in str(found)
    assert {row.module.removeprefix("backbone.") for row in explain(wrapped(name, options)).rows} >= {
        row.module for row in found.rows if "blocks.0" in row.module
    }
    half = explain(LanguageModel.from_spec(name, **options, vocab_size=4).to(torch.bfloat16))
    assert "torch.bfloat16" in half.title


def wrapped(name: str, options: dict[str, Any]) -> nn.Module:
    if STANDARD_BLOCKS[name][1] == "bidirectional":
        return SiameseModel.from_spec(name, **options, d_output=2, vocab_size=4)
    return Forecaster.from_spec(name, **options, d_input=2, horizon=2)


def test_explain_names_functions_of_torch_refusals_and_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
            found = explain(LAYERS["lru"](WIDTH))
        finally:
            failed_doctor.cache_clear()
        (row,) = (row for row in found.rows if row.part == "linear_scan")
        assert (row.backend, row.by_doctor) == ("eager", True)
        assert row.reason == "`longscan doctor` found y: error 1, allowed 0"
        assert f"Verdicts of `longscan doctor`: {tmp_path}" in str(found)


def test_the_command_explain_reads_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(__file__).parents[1] / "saved" / "v0.1" / "runs" / "finished"
    assert main(["explain", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "SequenceModel on cpu, torch.float32" in printed
    assert "calls: whole, rows of several steps" in printed
    assert main(["explain", str(run), "--device", "cuda:77"]) == 2
    assert "`--device` must be one of the devices" in capsys.readouterr().err
