"""Triton kernels in graphs of torch.compile, traced without a GPU: kernels are built up to Triton's own code, and not run."""

import ast
import builtins
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longscan.ops import OPS, _native_op, block2_scan, dispatch, linear_scan, selective_scan, short_conv, ssd_scan, unitary_scan
from op_examples import example, record_calls, with_gradients

pytest.importorskip("triton", reason="Triton is not installed")
from longscan.ops import _gpu

pytestmark = pytest.mark.skipif(_gpu.INTERPRETED, reason="kernels of the interpreter cannot be traced")
SEQ_IDX = (torch.arange(70) // 9)[None]
VALID = SEQ_IDX != 2


class DriverWithoutGPU:
    """The part of Triton's driver that a trace needs."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


WRITTEN: dict[tuple[Any, str], list[str]] = {}  # a kernel and its arguments -> the tensors that it writes


def reuse_written_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the tensors that a kernel writes once for each dtype of its tensors and each value of its other arguments.

    torch compiles the kernel to Triton's code for it, in half of the time of these tests. It asks several times in each trace,
    and the tests trace the same kernels.
    """
    from torch._higher_order_ops import triton_kernel_wrap

    find, table = triton_kernel_wrap.get_mutated_tensors, triton_kernel_wrap.kernel_side_table

    def find_once(kernel: int, constants: int, given: dict[str, Any], *others: Any) -> list[str]:
        arguments = {**given, **table.get_constant_args(constants)}
        described = {name: describe_argument(x) for name, x in arguments.items()}
        function = table.get_kernel(kernel)
        while hasattr(function, "fn"):  # torch puts a new autotuner around the kernel of each launch
            function = function.fn
        key = function, f"{described} {others}"
        if key not in WRITTEN:
            WRITTEN[key] = find(kernel, constants, given, *others)
        return WRITTEN[key]

    monkeypatch.setattr(triton_kernel_wrap, "get_mutated_tensors", find_once)


def describe_argument(x: Any) -> Any:
    """Return what torch compiles a kernel for: the dtype of a tensor, and the value of a number that is known."""
    if isinstance(x, Tensor):
        return x.dtype
    return "open" if isinstance(x, torch.SymInt) else x


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """Graphs that were traced, on a machine that seems to have a GPU."""
    from triton.runtime import JITFunction, driver

    monkeypatch.setattr(dispatch, "unsupported_reason", lambda *_: None)
    monkeypatch.setattr(_gpu, "multiprocessors", lambda _: 100)
    # bfloat16 stays bfloat16, as on a GPU
    monkeypatch.setattr(import_module("longscan.ops.ssd_scan"), "INTERPRETER_MULTIPLIES_BFLOAT16", True)
    monkeypatch.setattr(driver, "_active", DriverWithoutGPU())
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is unset
    reuse_written_tensors(monkeypatch)
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


def trace(function: Any, graphs: list[torch.fx.GraphModule]) -> Any:
    """Return `function`, compiled by a backend that appends the graphs of the forward and the backward pass to `graphs`."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]

    def record(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    return torch.compile(function, backend=aot_autograd(fw_compiler=record, bw_compiler=record))


def written_arguments(graph: torch.fx.GraphModule) -> list[set[str]]:
    """Return the arguments that each Triton kernel in a graph writes, as the compiler has found them in the kernel's code.

    Raises AssertionError if a written tensor is another argument, too: the graph would have a copy of it for each of the two.
    """
    found = []
    for node in graph.graph.nodes:
        if "triton_kernel_wrapper" in str(node.target):
            written = node.kwargs["tensors_to_clone"]
            given = list(node.kwargs["kwargs"].values())
            assert all(given.count(node.kwargs["kwargs"][name]) == 1 for name in written), (node, written)
            found.append(set(written))
    return found


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(shape, requires_grad=True) for shape in shapes]


UNITARY = [(1, 70, 5), (1, 70, 5), (5, 7, 5), (5, 7), (5, 7, 2), (5, 7, 2)]
MORE_STATES = [(1, 70, 5), (1, 70, 5), (5, 26, 5), (5, 26), (5, 26, 2), (5, 26, 2)]
SEQUENCES, W_PARTS = {"u_hi", "u_lo", "x"}, {"W_hi", "W_lo"}
CHUNK_GRADIENTS = {"d_rotated", "d_initial", "d_theta", "d_theta_lo", "dx", "inverse", "sums"}
PARAMETER_GRADIENTS = {"dB", "dC", "dW", "d_bias"}
SELECTIVE = [(1, 70, 5), (1, 70, 5), (5, 7), (1, 70, 7), (1, 70, 7), (5,), (1, 70, 5), (5,)]
SELECTIVE_MAP, SELECTIVE_RESULTS = {"maps"}, {"y", "final_state", "checkpoints"}
SELECTIVE_GRADIENTS = {"du", "ddt", "dB", "dC", "d_initial", "sums", "tile_states"}
CONVOLUTION, STEPS = [(1, 70, 5), (5, 4), (5,)], {"order", "starts", "counts"}
HEADS = [(1, 70, 4, 3), (1, 70, 4), (4,), (1, 70, 2, 6), (1, 70, 2, 6), (4,)]
ROTATING = [*HEADS, (1, 70, 4), (1, 70, 4), (1, 70, 4, 2), (4, 6), (4, 6)]
HEADS_MAP, HEADS_D_MAP = {"split_decay", "local_states"}, {"split_decay", "d_local_states"}
HEADS_RESULTS, HEADS_GRADIENTS = {"y", "final", "chunk_states"}, {"dx", "d_steps", "dB", "dC", "d_initial", "sums"}
PHASES = [{"sums"}, {"restarts"}, {"before", "total"}]
MAP = {"mult", "local"}
PACKED_MAP = MAP | {"restarted"}
CASES: dict[str, Any] = {
    "linear_scan": (lambda a, b: linear_scan(a, b, backend="triton"), [(1, 70, 5)] * 2, [MAP, {"x", "final_state"}],
                    [MAP, {"da", "db", "d_initial_state"}]),
    "linear_scan, complex, constant, packed, reversed": (
        lambda a, b: linear_scan(a, b, pairs=True, reverse=True, valid=VALID, seq_idx=SEQ_IDX, backend="triton"),
        [(5, 2), (1, 70, 5, 2)],
        [PACKED_MAP, {"x", "final_state"}], [{"previous"}, PACKED_MAP, {"da", "db", "d_initial_state"}]),
    "block2_scan, packed": (
        lambda M, f: block2_scan(M, f, valid=VALID, seq_idx=SEQ_IDX, backend="triton"), [(1, 70, 5, 2, 2), (1, 70, 5, 2)],
        [PACKED_MAP, {"x", "final_state"}], [{"previous"}, PACKED_MAP, {"dM", "df", "d_initial_state"}]),
    "unitary_scan": (
        lambda *inputs: unitary_scan(*inputs, backend="triton"), UNITARY,
        [SEQUENCES | {"valid"}, {"local"}, {"chunk_states"}, {"y", "final_state", "chunk_states"}, {"y", "raw"}],
        [SEQUENCES | W_PARTS | {"valid", "g"}, {"local"}, {"d_rotated"}, CHUNK_GRADIENTS, {"du", "dW"}, {"du", "ddt"},
         PARAMETER_GRADIENTS]),
    "unitary_scan, products in the backward scan": (
        lambda *inputs: unitary_scan(*inputs, backend="triton"), MORE_STATES,
        [SEQUENCES | {"valid"}, {"local"}, {"chunk_states"}, {"y", "final_state", "chunk_states"}, {"y", "raw"}],
        [SEQUENCES | {"valid", "g", "u_parts"}, {"local"}, {"d_rotated"},
         {"d_rotated", "d_initial", "dx", "sums", "du", "dW"}, {"du", "ddt"}, PARAMETER_GRADIENTS]),
    "unitary_scan, packed": (
        lambda *inputs: unitary_scan(*inputs, phase_dt=True, valid=VALID, seq_idx=SEQ_IDX, backend="triton"), UNITARY,
        [SEQUENCES | {"step_sizes"}, {"local"}, {"chunk_states"}, {"y", "final_state", "chunk_states"}, {"y", "raw"}],
        [SEQUENCES | {"step_sizes"}, {"tile_states"}, SEQUENCES | W_PARTS | {"step_sizes", "g"}, {"local"}, {"d_rotated"},
         CHUNK_GRADIENTS | {"d_dt"}, {"du", "dW"}, {"du", "ddt"}, PARAMETER_GRADIENTS]),
    "selective_scan": (
        lambda *inputs: selective_scan(*inputs, dt_softplus=True, backend="triton"), SELECTIVE,
        [SELECTIVE_MAP, SELECTIVE_RESULTS], [SELECTIVE_MAP, SELECTIVE_GRADIENTS | {"dz"}, {"dA", "dD", "d_bias"}]),
    "selective_scan, packed": (
        lambda u, dt, A, B, C: selective_scan(u, dt, A, B, C, valid=VALID, seq_idx=SEQ_IDX, backend="triton"), SELECTIVE[:5],
        [SELECTIVE_MAP, {"restarts"}, {"out"}, SELECTIVE_RESULTS],
        [SELECTIVE_MAP, {"restarts"}, {"out"}, SELECTIVE_GRADIENTS, {"dA"}]),
    "selective_scan, scaled steps": (
        lambda u, dt, A, B, C, scale: selective_scan(u, dt, A, B, C, dt_scale=scale, backend="triton"), [*SELECTIVE[:5], (1, 70)],
        [SELECTIVE_MAP, SELECTIVE_RESULTS], [SELECTIVE_MAP, SELECTIVE_GRADIENTS | {"d_scale"}, {"dA"}, {"dB"}]),
    "short_conv": (
        lambda u, weight, bias: short_conv(u, weight, bias, activation="silu", backend="triton"), CONVOLUTION,
        [{"y", "final_state"}], [{"du", "d_initial", "sums"}, {"d_weight", "d_bias"}]),
    "short_conv, packed": (
        lambda u, weight, bias: short_conv(u, weight, bias, valid=VALID, seq_idx=SEQ_IDX, backend="triton"), CONVOLUTION,
        # The compiler takes the table of rows that are written for a tensor that is written.
        [STEPS, {"y", "final_state", "order"}], [STEPS, {"du", "d_initial", "sums", "order"}, {"d_weight", "d_bias"}]),
    "ssd_scan": (
        lambda *inputs: ssd_scan(*inputs, backend="triton"), HEADS,
        [HEADS_MAP, {"out"}, HEADS_RESULTS], [HEADS_D_MAP, {"out"}, HEADS_GRADIENTS]),
    "ssd_scan, bfloat16": (
        lambda x, dt, A, B, C, D: ssd_scan(x.bfloat16(), dt, A, B.bfloat16(), C.bfloat16(), D, backend="triton"), HEADS,
        [HEADS_MAP, {"out"}, HEADS_RESULTS], [HEADS_D_MAP, {"out"}, HEADS_GRADIENTS]),
    "ssd_scan, rotating, packed": (
        lambda x, dt, A, B, C, D, scale, own, angle, B_bias, C_bias: ssd_scan(
            x, dt, A, B, C, D, input_scale=scale, own_scale=own, angle=angle, B_bias=B_bias, C_bias=C_bias, valid=VALID,
            seq_idx=SEQ_IDX, backend="triton"),
        ROTATING,
        # The compiler takes the flags, on which the masks of the stores depend, for a tensor that is written.
        [*PHASES, {"rotated_B", "rotated_C", "flags"}, HEADS_MAP, {"restarts"}, {"out"}, HEADS_RESULTS, {"out"}],
        [*PHASES, {"out", "d_phase"}, {"rotated_B", "rotated_C", "flags"}, HEADS_D_MAP, {"restarts"}, {"out"},
         HEADS_GRADIENTS | {"d_end_phase"}, {"dB", "dC", "dB_bias", "dC_bias", "d_angle", "sums", "flags"}, {"restarts"},
         {"x", "flags"}]),
}  # fmt: skip


# test_graph_exported_without_gradients_is_compiled_with_gradients traces the kernels of these cases, too.
ALSO_EXPORTED = ("selective_scan", "ssd_scan", "unitary_scan")


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in ALSO_EXPORTED else ()) for case in CASES])
def test_compiled_graph_contains_the_kernels(case: str, graphs: list[torch.fx.GraphModule]) -> None:
    """The graphs have no opaque node, and of each kernel exactly its results count as written."""
    function, shapes, forward, backward = CASES[case]
    y, final = trace(function, graphs)(*leaves(*shapes))
    (y.sum() + final.sum()).backward()
    assert [written_arguments(graph) for graph in graphs] == [forward, backward]
    assert not [node for graph in graphs for node in graph.graph.nodes if "longscan" in str(node.target)]


@pytest.mark.slow  # test_open_batches_and_lengths_stay_open traces its forward pass, test_lengths_share_one_graph another op
@pytest.mark.parametrize(("shapes", "most"), [(UNITARY, 3001), (MORE_STATES, 1200)])  # chunks of 256 steps have another graph
def test_lengths_of_unitary_scan_share_a_graph(
    shapes: list[tuple[int, ...]], most: int, graphs: list[torch.fx.GraphModule]
) -> None:
    """While all gradients of the angles, or all parts of the gradient of u, are in memory at the same time."""
    compiled = trace(lambda *inputs: unitary_scan(*inputs, backend="triton")[0], graphs)
    for length in (500, 640, 1000, 1023, most):
        compiled(*leaves((2, length, 5), (2, length, 5), *shapes[2:])).sum().backward()
    assert len(graphs) == 4


def test_lengths_share_one_graph(graphs: list[torch.fx.GraphModule]) -> None:
    compiled = trace(lambda x, other: linear_scan(x, other, backend="triton")[0], graphs)
    for length in (20, 64, 1000, 1023, 70001):
        given = leaves((2, length, 5), (2, length, 5))
        compiled(*given).sum().backward()
    assert len(graphs) == 4  # forward and backward, of the first length and of all others


SHORT_TRACES = ("linear_scan", "block2_scan", "short_conv")  # a trace of the backward pass of the other ops takes ten seconds


# With masks an op runs the code that it runs without them, and more.
@pytest.mark.parametrize(
    ("op", "masked", "trained"),
    [
        pytest.param(op, masked, trained, marks=() if masked and trained == (op in SHORT_TRACES) else pytest.mark.slow)
        for op in _native_op.TRACED_OPS
        for masked in (False, True)
        for trained in (False, True)
    ],
)
def test_open_batches_and_lengths_stay_open(op: str, masked: bool, trained: bool, graphs: list[torch.fx.GraphModule]) -> None:
    """A size that became a constant is an error of `mark_dynamic`."""
    scan = OPS[op].function
    inputs = example(op, length=1000, batch=5, masked=masked)
    inputs = (with_gradients(inputs) if trained else inputs) | {"backend": "triton"}
    for name in (*OPS[op].per_step, *(("valid", "seq_idx") if masked else ())):
        for axis in (0, 1):
            torch._dynamo.mark_dynamic(inputs[name], axis)
    torch._dynamo.mark_dynamic(inputs["initial_state"], 0)
    y = trace(lambda: scan(**inputs)[0], graphs)()
    if trained:
        y.sum().backward()
    assert len(graphs) == 1 + trained


@pytest.mark.slow
@pytest.mark.parametrize("op", _native_op.TRACED_OPS)
def test_graph_exported_without_gradients_is_compiled_with_gradients(op: str, graphs: list[torch.fx.GraphModule]) -> None:
    """The exported graph keeps no states between chunks. A backward pass over it computes them again."""
    function, shapes, forward, backward = CASES[op if op in CASES else f"{op}, packed"]

    class Module(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Any:
            return function(*inputs)

    with torch.no_grad():
        exported = torch.export.export(Module(), tuple(torch.rand(shape) for shape in shapes)).module()
    assert any(f"longscan.{op}" in str(node.target) for node in exported.graph.nodes)  # type: ignore[union-attr]
    y, final = trace(exported, graphs)(*leaves(*shapes))
    (y.sum() + final.sum()).backward()
    again = forward[: forward.index({"chunk_states"}) + 1] if {"chunk_states"} in forward else []
    written = written_arguments(graphs[-1])
    assert written[: len(again)] == again
    assert written[-len(backward) :] == backward
    assert not [node for graph in graphs for node in graph.graph.nodes if "longscan" in str(node.target)]


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one fault", "both faults"])
@pytest.mark.parametrize("op", _native_op.TRACED_OPS)
def test_traced_backward_kernels_check_every_tensor(
    op: str, both: bool, graphs: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that no compiler traces are tested in test_signature.py.

    A trace takes a third of a second: without `both` the tensors take turns with a wrong shape and a wrong dtype.
    """
    with monkeypatch.context() as patch:
        patch.setattr(_gpu, "INTERPRETED", True)  # kernels are then launched without being compiled
        [_, (second, args)] = record_calls(op, example(op, length=70), "triton")
    args = [x.detach() if isinstance(x, Tensor) else x for x in args]
    for i, name in enumerate(argument.name for argument in second.overload._schema.arguments):
        if not isinstance(args[i], Tensor):
            continue
        faults = args[i].new_zeros(args[i].shape[0] + 1, *args[i].shape[1:]), args[i].to(torch.int32)
        for wrong in faults if both else faults[i % 2 : i % 2 + 1]:
            torch._dynamo.reset()
            with pytest.raises(Exception, match=rf"(Value|Type)Error: [^\n]*\b{name}\b"), torch.no_grad():
                trace(second.overload, graphs)(*args[:i], wrong, *args[i + 1 :])


def undefined_names(text: str) -> set[str]:
    """Return the names that functions of a module read and that neither they, nor the module, nor Python define."""
    tree = ast.parse(text)
    known = {*dir(builtins), "tl", "triton"}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            known |= {name.asname or name.name for name in statement.names}
        known |= {statement.name} if isinstance(statement, ast.FunctionDef) else stored_names(statement)
    undefined = set()
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            read = {x.id for x in ast.walk(function) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)}
            undefined |= read - stored_names(function) - {x.arg for x in function.args.args} - known
    return undefined


def stored_names(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


@pytest.mark.parametrize("op", _native_op.TRACED_OPS)
def test_text_of_kernels_in_compiled_graphs_defines_all_names(op: str) -> None:
    """Inductor copies the text of a kernel and of the functions that it calls into a module, but not that of classes."""
    from torch._inductor.codegen.wrapper import user_defined_triton_kernel_transitive_closure_source_code
    from triton.runtime import JITFunction

    launch = vars(import_module(f"longscan.ops.{op}.triton.launch"))
    kernels = {name: x for name, x in launch.items() if isinstance(x, JITFunction)}
    assert kernels
    for name, kernel in kernels.items():
        assert not undefined_names(user_defined_triton_kernel_transitive_closure_source_code(kernel)), name


def test_kernels_call_no_method_of_an_integer_argument() -> None:
    """torch 2.11 replaces an argument that is 1 by a number of Python, which has no `to`; `tl.cast` takes both."""
    for path in Path(_gpu.__file__).parent.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef) or not function.name.endswith("_kernel"):
                continue
            names = {x.arg for x in function.args.args if x.annotation is None}
            called = {ast.unparse(x.value) for x in ast.walk(function) if isinstance(x, ast.Attribute) and x.attr == "to"}
            assert not {x for x in names & called if not x.startswith("p_")}, f"{path.name}, {function.name}"
