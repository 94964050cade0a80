"""Call every op of `torch.ops.longscan`, and `mamba_step`, with right arguments and with each argument replaced by wrong ones.

Every call of an op is made through the dispatcher of torch ("dispatched") and by the way of plain calls around it ("plain").
The functions that hand addresses to the compiled kernels are called with wrong dtypes, devices and strides, too ("kernel").
test_signature.py runs this file in a separate process, because a wrong address may end a process. The argument is "all", or
"quick" for one backend of each op. Each call writes a line of JSON: "op", "backend", "way", "change", "right" (whether the call
should run), "raised" (the error, or null), "named" (whether the error names the argument). Triton kernels run in the interpreter
where there is no GPU.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import torch  # noqa: E402

from interpreter import speed_up_interpreter  # noqa: E402
from longscan.layers import S4D  # noqa: E402
from longscan.layers.base import SequenceInfo  # noqa: E402
from longscan.ops import OPS, dplr_spectrum, mamba_step  # noqa: E402
from op_examples import example, record_calls  # noqa: E402

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.complex64)


# changes of the shape of one argument that give a right call
ALSO_RIGHT = {
    "longscan::short_conv u axis 1 longer", "longscan::short_conv u axis 1 of 1",  # no other argument has the length
    "longscan::dplr_spectrum table axis 1 longer", "longscan::dplr_spectrum table axis 1 of 1",  # or the number of frequencies
    *(f"longscan::ssd_scan{op} angle axis 3 {change}" for op in ("", "_backward") for change in ("longer", "empty")),
}  # fmt: skip
# changes that give a constant factor for each of several models, which Triton kernels accept
MODELS = dict.fromkeys(("a", "M"), ("axis 1 missing", "axis 2 missing"))


def wrong_tensors(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield descriptions and tensors that differ from `x` in one property on which kernels rely."""
    for axis in range(x.ndim):
        one = x.new_ones([1 if i == axis else size for i, size in enumerate(x.shape)])
        yield f"axis {axis} longer", torch.cat([x, one], axis)
        yield f"axis {axis} empty", x.narrow(axis, 0, 0) if x.shape[axis] else torch.cat([one, one], axis)
        yield f"axis {axis} of 1", one if x.shape[axis] > 1 else torch.cat([one, one, one], axis)
        yield f"axis {axis} missing", one.squeeze(axis)
    yield "one axis more", x.unsqueeze(-1)
    yield "an axis of 3 more", torch.stack([x, x, x])
    yield "no axes", torch.zeros((), dtype=x.dtype)
    yield "no numbers", x.new_zeros(0)
    yield "huge", torch.zeros(1, dtype=x.dtype).expand([size * 1000 for size in x.shape])
    for dtype in DTYPES:
        if dtype != x.dtype:
            yield f"of {dtype}", x.to(dtype)


def strided(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, with another one between each two in memory."""
    return torch.stack([x, x], -1)[..., 0]


def report(op: str, backend: str, change: str, right: bool, name: str, call: Any, way: str = "dispatched") -> None:
    """Make a call and write its outcome to standard output."""
    try:
        call()
        raised = None
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raised = f"{type(error).__name__}: {error}"
    named = raised is not None and not raised.startswith("RuntimeError") and re.search(rf"\b{name}\b", raised) is not None
    sys.stdout.write(
        json.dumps({"op": op, "backend": backend, "way": way, "change": change, "right": right, "raised": raised, "named": named})
    )
    sys.stdout.write("\n")
    sys.stdout.flush()


def fuzz(op: Any, args: tuple[Any, ...], triton: bool) -> None:
    """Call an op with right arguments and with every argument replaced by wrong ones."""
    schema, overload, backend = op.overload._schema, op.overload, args[-1]
    detached = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)

    ways = {"dispatched": overload, "plain": op}

    def call(changed: tuple[Any, ...], way: str, expected: Any = None) -> Any:
        with torch.no_grad():
            results = ways[way](*changed)
        if expected is not None and not all(map(torch.equal, results, expected)):
            raise RuntimeError("other results")
        return results

    expected = call(detached, "dispatched")
    report(schema.name, backend, "none", True, "", lambda: call(detached, "plain", expected), "plain")
    for i, argument in enumerate(schema.arguments):
        value = detached[i]
        changes: dict[str, Any] = {}
        if isinstance(value, torch.Tensor):
            changes = dict(wrong_tensors(value)) | {"None": None, "on meta": value.to("meta")}
        if argument.name == "is_complex":
            changes = {"inverted": not value}
        if argument.name == "backend":
            changes = {other: other for other in ("eager", "nonsense", "") if other != value}
        for change, other in changes.items():
            if triton and change == "of torch.float16":
                continue  # triton accepts float16 for some tensors
            if f"{schema.name} {argument.name} {change}" in ALSO_RIGHT or (triton and change in MODELS.get(argument.name, ())):
                continue
            absent = change == "None" and isinstance(argument.type, torch.OptionalType)
            if absent and triton and sys.argv[1:] != ["all"]:
                continue  # a right call, which is slow in the interpreter
            # the backward pass computes chunk states again if the tensor is empty
            right = absent or (argument.name == "chunk_states" and change == "no numbers")
            changed = (*detached[:i], other, *detached[i + 1 :])
            for way in ways:
                run = partial(call, changed, way)
                report(schema.name, backend, f"{argument.name} {change}", right, argument.name, run, way)
        if isinstance(value, torch.Tensor) and not triton:
            changed = (*detached[:i], strided(value), *detached[i + 1 :])
            for way in ways:
                run = partial(call, changed, way, expected)
                report(schema.name, backend, f"{argument.name} strided", True, argument.name, run, way)
    if backend == "cpu":
        fuzz_kernel(schema, tuple(x.contiguous() if isinstance(x, torch.Tensor) else x for x in detached[:-1]))


def fuzz_kernel(schema: Any, args: tuple[Any, ...]) -> None:
    """Call the function that hands the arguments of an op to its compiled kernel with wrong dtypes, devices and strides."""
    name = schema.name.split("::")[1]
    module = import_module(f"longscan.ops.{name.removesuffix('_backward')}.cpu")
    function = module.backward if name.endswith("_backward") else module.forward
    report(schema.name, "cpu", "none", True, "", lambda: function(*args), "kernel")
    for i, value in enumerate(args):
        if not isinstance(value, torch.Tensor) or schema.arguments[i].name == "flags":
            continue
        changes = {f"of {dtype}": value.to(dtype) for dtype in DTYPES if dtype not in (value.dtype, torch.uint8)}
        for change, other in {**changes, "on meta": value.to("meta"), "strided": strided(value)}.items():
            changed = (*args[:i], other, *args[i + 1 :])
            report(
                schema.name,
                "cpu",
                f"{schema.arguments[i].name} {change}",
                False,
                "tensors",
                partial(function, *changed),
                "kernel",
            )


def fuzz_mamba_step() -> None:
    """Fuzz `mamba_step`, which is not a custom op."""
    optional = ("conv_bias", "D", "norm_weight", "elapsed", "active")
    rows, width, inner, taps, rank, states = 2, 3, 4, 5, 2, 6
    shapes = {
        "x": (rows, width), "conv_state": (rows, inner, taps - 1), "ssm_state": (rows, inner, states),
        "in_proj": (2 * inner, width), "conv_weight": (inner, taps), "conv_bias": (inner,),
        "x_proj": (rank + 2 * states, inner), "dt_proj": (inner, rank),
        "dt_bias": (inner,),
        "A_log": (inner, states), "D": (inner,), "out_proj": (width, inner), "norm_weight": (width,),
        "elapsed": (rows,),
    }  # fmt: skip
    inputs = {name: torch.rand(shape) for name, shape in shapes.items()} | {"active": torch.ones(rows, dtype=torch.bool)}
    report("mamba_step", "cpu", "none", True, "", lambda: mamba_step(**inputs, backend="cpu"))
    for name, value in inputs.items():
        report(
            "mamba_step",
            "cpu",
            f"{name} None",
            name in optional,
            name,
            lambda n=name: mamba_step(**inputs | {n: None}, backend="cpu"),
        )
        for change, other in wrong_tensors(value):
            # the error for a wrong dtype may name the dtype instead of the argument, because it is that of the backend
            pattern = rf"({name}|{other.dtype})" if other.shape == value.shape else r"\w+"
            report(
                "mamba_step",
                "cpu",
                f"{name} {change}",
                False,
                pattern,
                lambda n=name, x=other: mamba_step(**inputs | {n: x}, backend="cpu"),
            )


def fuzz_dplr_spectrum() -> None:
    """Fuzz the custom ops of `dplr_spectrum`, which is not a public op."""
    table, dt = torch.rand(3, 5, 2), torch.rand(3)
    given = table, *torch.rand(4, 3, 4, 2).unbind(), dt
    for backend in dplr_spectrum.NATIVE_BACKENDS if sys.argv[1:] == ["all"] else dplr_spectrum.NATIVE_BACKENDS[:1]:
        fuzz(dplr_spectrum._forward_op, (*given, backend), triton=backend == "triton")
        fuzz(dplr_spectrum._backward_op, (torch.rand(3, 5, 2), *given, backend), triton=backend == "triton")


def fuzz_recurrence() -> None:
    """Hand wrong states to the recurrence of S4D, which calls the kernels of linear_scan without the public function."""
    layer, u, info = S4D(3, d_state=4, backend="cpu"), torch.rand(2, 5, 3), SequenceInfo()
    state = layer.initial_state(2).ssm
    with torch.no_grad():
        report("layer:s4d", "cpu", "none", True, "", lambda: layer.recur(u, state, info, None), "layer")
        for shape in ((1, 3, 2, 2), (3, 3, 2, 2), (0, 3, 2, 2), (2, 4, 2, 2), (2, 3, 4, 2), (2, 3, 2, 3), (2, 3, 2), (2,)):
            report(
                "layer:s4d", "cpu", f"state {shape}", False, "", partial(layer.recur, u, torch.ones(shape), info, None), "layer"
            )


def main() -> None:
    """Fuzz all ops on the native backends that can run here."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    speed_up_interpreter()
    for name, entry in OPS.items():
        if not entry.native_gradients:
            continue
        for backend in entry.native if sys.argv[1:] == ["all"] else entry.native[:1]:
            for everything in (True, False) if backend == "cpu" else (True,):
                is_complex = everything and name == "selective_scan"
                inputs = example(name, length=3, optional=everything, masked=everything, is_complex=is_complex)
                for op, args in record_calls(name, inputs, backend):
                    fuzz(op, args, triton=backend == "triton")
    fuzz_mamba_step()
    fuzz_dplr_spectrum()
    fuzz_recurrence()


if __name__ == "__main__":
    main()
