"""Ops inside torch.compile(fullgraph=True), torch.export and autocast."""

import pytest
import torch

from longscan.ops import OPS, chunks, dispatch
from op_examples import example, floats, with_gradients

BACKENDS = [
    (op, backend)
    for op in OPS
    for backend in ("reference", "eager", *(OPS[op].native if OPS[op].native_gradients else ()))
    if dispatch.unsupported_reason(op, backend, torch.device("cpu"), torch.float32, OPS[op].native) is None
]
# torch's own remarks while it compiles; none of them is about this package
IGNORED = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning",
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:Torchinductor does not support code generation for complex:UserWarning",
)


def results_and_gradients(function, inputs):
    inputs = with_gradients(inputs)
    results = function(inputs)
    results = results if isinstance(results, tuple) else (results,)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in results]
    return [*results, *torch.autograd.grad(results, list(floats(inputs).values()), weights)]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


REFERENCES = [pair for pair in BACKENDS if pair[1] == "reference"]  # loops over the steps, all compiled in one way


@IGNORED
@pytest.mark.parametrize(
    ("op", "backend"), [pytest.param(*pair, marks=pytest.mark.slow if pair in REFERENCES[1:] else ()) for pair in BACKENDS]
)
def test_compiles_without_graph_breaks(op, backend, monkeypatch):
    """Forward and backward are captured whole, the chunks of eager included."""
    monkeypatch.setattr(chunks, "CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)
    inputs = example(op, is_complex=op == "selective_scan")

    def function(inputs):
        return OPS[op].function(**inputs, backend=backend)

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    close(results_and_gradients(compiled, inputs), results_and_gradients(function, inputs))


@IGNORED
@pytest.mark.slow
@pytest.mark.parametrize(("op", "backend"), [pair for pair in BACKENDS if pair[1] != "reference"])
def test_generated_code_gives_the_same(op, backend, monkeypatch):
    """As above, through the code generator."""
    monkeypatch.setattr(chunks, "CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)
    inputs = example(op)

    def function(inputs):
        return OPS[op].function(**inputs, backend=backend)

    torch.compiler.reset()
    close(results_and_gradients(torch.compile(function, fullgraph=True), inputs), results_and_gradients(function, inputs))


@pytest.mark.parametrize(("op", "backend"), [pair for pair in BACKENDS if pair[1] != "reference"])
def test_exports_with_gradients(op, backend, monkeypatch):
    """The graph has the results and the gradients of the plain call, through several chunks and through packed rows."""
    monkeypatch.setattr(chunks, "CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)
    inputs = example(op)

    class Module(torch.nn.Module):
        def forward(self, **inputs):
            return OPS[op].function(**inputs, backend=backend)

    constants = {name: x for name, x in inputs.items() if not isinstance(x, torch.Tensor)}
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    module = Module()
    module.forward = lambda **tensors: Module.forward(module, **tensors, **constants)
    program = torch.export.export(module, (), with_gradients(tensors)).module()
    expected = results_and_gradients(lambda inputs: OPS[op].function(**inputs, **constants, backend=backend), tensors)
    close(results_and_gradients(lambda inputs: program(**inputs), tensors), expected)


# mamba_step holds the projections of a block, which autocast applies to.
@pytest.mark.parametrize(("op", "backend"), [pair for pair in BACKENDS if OPS[pair[0]].per_step])
def test_autocast_changes_nothing(op, backend):
    inputs = example(op, length=70 if backend == "eager" else 5)

    def function(inputs):
        return OPS[op].function(**inputs, backend=backend)

    expected = results_and_gradients(function, inputs)

    def under_autocast(inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return function(inputs)

    for one, other in zip(results_and_gradients(under_autocast, inputs), expected, strict=True):
        assert torch.equal(one, other)


def test_verdicts_are_marked_as_torch_marks_constants():
    assert vars(dispatch._decide) == vars(torch.compiler.assume_constant_result(lambda: None))
