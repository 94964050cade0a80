"""Ops inside torch.compile(fullgraph=True), torch.export and autocast."""

import pytest
import torch

from longscan.ops import OPS, chunks, dispatch
from longscan.ops.masked_products import masked_products
from native import usable_backends
from op_examples import example, run_with_gradients, with_gradients

BACKENDS = [(op, name) for op in OPS for name in usable_backends(op)[: None if OPS[op].native_gradients else 2]]
# warnings of torch's compiler that do not concern this package
IGNORED = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning",
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:Torchinductor does not support code generation for complex:UserWarning",
)


def assert_all_close(results, expected):
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)


# The references are loops over the steps, all of which compile in the same way.
ALIKE = [pair for pair in BACKENDS if pair[1] == "reference"][1:]


@IGNORED
@pytest.mark.parametrize(
    ("op", "backend"), [pytest.param(*pair, marks=pytest.mark.slow if pair in ALIKE else ()) for pair in BACKENDS]
)
def test_compiled_op_has_no_graph_breaks_and_equals_direct_call(op, backend, monkeypatch):
    """Forward and backward of every backend, with several chunks, are one graph without breaks."""
    monkeypatch.setattr(chunks, "CHUNK", 2)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)
    inputs = example(op, length=3, is_complex=op == "selective_scan")

    def function(inputs):
        return OPS[op].function(**inputs, backend=backend)

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_all_close(run_with_gradients(compiled, inputs), run_with_gradients(function, inputs))


@pytest.mark.slow
@IGNORED
@pytest.mark.parametrize(
    "op",
    # block2_scan has the chunks of linear_scan
    ["linear_scan", pytest.param("block2_scan", marks=pytest.mark.slow), "unitary_scan", "ssd_scan", "delta_scan"],
)
def test_compiled_graph_with_an_open_batch_has_fewer_operations_than_steps(op, monkeypatch):
    """Chunks of few numbers are long, or computed together, so that few operations, or none, are repeated for each chunk."""
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 2**20)
    counts, inputs = [], example(op, length=1024, batch=5, masked=False)

    def count(graph, _):
        counts.append(sum(len(part.graph.nodes) for part in graph.modules() if isinstance(part, torch.fx.GraphModule)))
        return graph.forward

    for name in (*OPS[op].per_step, "initial_state"):
        torch._dynamo.mark_dynamic(inputs[name], 0)
    torch.compiler.reset()
    torch.compile(lambda inputs: OPS[op].function(**inputs, backend="eager"), fullgraph=True, backend=count)(inputs)
    assert max(counts) < 800


@IGNORED
def test_no_tensor_that_needs_a_gradient_is_passed_twice_to_a_compiled_autograd_function():
    """The rule of CONTRIBUTING.md for new ops, which torch may make unnecessary: two tensors of the same values compile."""
    mask, keys = torch.ones(3, 3, dtype=torch.bool).tril(), torch.randn(3, 2, requires_grad=True)

    def square(other):
        torch.compiler.reset()
        return torch.compile(lambda k: masked_products(k, other(k), mask), fullgraph=True, backend="eager")

    assert_all_close(square(lambda k: 1 * k)(keys), masked_products(keys, keys, mask))
    assert_all_close(square(lambda k: k)(keys.detach()), masked_products(keys, keys, mask))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="duplicate tensor input"):
        square(lambda k: k)(keys)


@IGNORED
@pytest.mark.slow
@pytest.mark.parametrize(("op", "backend"), [pair for pair in BACKENDS if pair[1] != "reference"])
def test_code_of_inductor_equals_direct_call(op, backend, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", 1)
    inputs = example(op)

    def function(inputs):
        return OPS[op].function(**inputs, backend=backend)

    torch.compiler.reset()
    assert_all_close(
        run_with_gradients(torch.compile(function, fullgraph=True), inputs),
        run_with_gradients(function, inputs),
    )


@pytest.mark.parametrize(("op", "backend"), [pair for pair in BACKENDS if pair[1] != "reference"])
def test_exported_op_has_the_results_and_gradients_of_the_direct_call(op, backend, monkeypatch):
    """The inputs are packed rows of several chunks."""
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
    expected = run_with_gradients(lambda inputs: OPS[op].function(**inputs, **constants, backend=backend), tensors)
    assert_all_close(run_with_gradients(lambda inputs: program(**inputs), tensors), expected)


@pytest.mark.parametrize("op", ["linear_scan", "block2_scan"])
def test_exported_op_with_constant_factors_takes_a_batch_of_as_many_rows_as_states(op):
    class Module(torch.nn.Module):
        def forward(self, drive, factors):
            return OPS[op].function(factors, drive, backend="eager")

    states, pair = 3, (2,) * (op == "block2_scan")
    factors, drive = torch.rand(states, *pair, *pair), torch.randn(5, 4, states, *pair)
    program = torch.export.export(Module(), (drive, factors), dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, None))
    for rows in (2, states, 5):
        assert_all_close(program.module()(drive[:rows], factors), Module()(drive[:rows], factors))


# mamba_step is left out because it contains the projections of a block, to which autocast applies.
@pytest.mark.parametrize(("op", "backend"), [pair for pair in BACKENDS if OPS[pair[0]].per_step])
def test_autocast_does_not_change_results(op, backend):
    inputs = example(op, length=70 if backend == "eager" else 5)

    def function(inputs):
        return OPS[op].function(**inputs, backend=backend)

    expected = run_with_gradients(function, inputs)

    def under_autocast(inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return function(inputs)

    torch.testing.assert_close(run_with_gradients(under_autocast, inputs), expected, rtol=0, atol=0)


def test_decide_is_marked_as_a_constant_function_for_torch_compile():
    assert vars(dispatch._decide) == vars(torch.compiler.assume_constant_result(lambda: None))
