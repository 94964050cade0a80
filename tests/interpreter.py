"""Triton's interpreter, made fast enough to test with."""

from dataclasses import replace
from typing import Any

element_by_element: list[Any] = []  # the interpreter's own way to scan, once it is replaced
column_by_column: Any = None  # what multiplies tiles in the kernel, once it is replaced


def interpret_quickly() -> None:
    """Let programs be few and large: an operation on a tile takes the interpreter a tenth of a millisecond, whatever the tile.

    But tiles stay below 128 KiB, beyond which every array costs a call to the system. How the work is divided among programs is
    the matter of tests of their own.
    """
    from longscan.ops import _triton_launch

    patch_language_once()
    allow_overflow()
    scan_slices_at_once()
    multiply_at_once()
    round_to_bfloat16()
    _triton_launch.PROGRAMS = 2
    for name, launch in _triton_launch.TABLE.items():
        steps = 128 if name in ("elementwise", "short_conv") else 64
        _triton_launch.TABLE[name] = replace(launch, lanes=128, steps=steps)


def patch_language_once() -> None:
    """Patch `triton.language` once per launch and module of functions.

    The interpreter does it again in every call of a device function, which takes longer than the call itself.
    """
    from triton.runtime import interpreter

    patch, patched = interpreter._patch_lang, set()  # the globals of functions whose language is patched in this launch

    class Scope(interpreter._LangPatchScope):
        def restore(self) -> None:
            super().restore()
            patched.clear()

    def patch_lang(fn: Any) -> Any:
        scope = Scope()
        if id(fn.__globals__) not in patched:
            patched.add(id(fn.__globals__))
            scope._changes = patch(fn)._changes
        return scope

    interpreter._patch_lang = patch_lang


def allow_overflow() -> None:
    """Let integers overflow, as on a GPU: the interpreter checks every sum and product, and no test has an index near 2**31."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def multiply_at_once() -> None:
    """Let products of float64 be numpy's, not a column after another; `column_by_column` is the kernel's own way.

    And let those of bfloat16 be products of numbers: the interpreter multiplies the integers that it holds them as.
    """
    from longscan.ops.ssd_scan import triton as kernels

    global column_by_column
    column_by_column = kernels._dot

    def dot(a: Any, b: Any, sums: Any, PRECISION: Any) -> Any:
        import triton.language as tl

        if a.dtype == tl.bfloat16:
            a, b = a.to(tl.float32), b.to(tl.float32)
        return tl.dot(a, b, sums, input_precision=PRECISION)

    kernels._dot = dot


def round_to_bfloat16() -> None:
    """Let numbers become bfloat16 as on a GPU, to the nearest: the interpreter cuts digits off, and spoils integers."""
    import numpy
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast_others, convert_others = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp

    def cast(self: Any, source: Any, dtype: Any) -> Any:
        old, new = source.dtype.scalar, dtype.scalar
        if old == tl.bfloat16 and new != old:
            single = (source.data.astype(numpy.uint32) << 16).view(numpy.float32)
            return cast(self, TensorHandle(single, tl.float32), dtype)
        if new == tl.bfloat16 and new != old:
            rounded = torch.from_numpy(source.data.astype(numpy.float32)).to(torch.bfloat16)
            return TensorHandle(rounded.view(torch.int16).numpy().view(numpy.uint16), tl.bfloat16)
        return cast_others(self, source, dtype)

    def convert(self: Any, source: Any, dtype: Any, rounding_mode: Any) -> Any:
        narrow = tl.bfloat16 in (source.dtype.scalar, dtype.scalar)
        return cast(self, source, dtype) if narrow else convert_others(self, source, dtype, rounding_mode)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp = cast, convert


def scan_slices_at_once() -> None:
    """Let the interpreter apply the operator of an associative scan to whole slices, not to one element after another.

    The order along the scanned axis is the same, so are the bits. Operators of plain arithmetic get numpy arrays, which is
    faster still; those that call other functions get tensors.
    """
    import numpy
    from triton.runtime.interpreter import ScanOps

    def generic_scan(self: Any, inputs: Any) -> list[Any]:
        plain = not self.combine_fn.fn.__code__.co_names
        arrays = [numpy.moveaxis(x.handle.data, self.axis, 0) for x in inputs]
        results = [array.copy() for array in arrays]
        for i in range(1, len(arrays[0])):
            slices = [*(result[i - 1] for result in results), *(array[i] for array in arrays)]
            if not plain:
                slices = [self.to_tensor(x, like.dtype) for x, like in zip(slices, (*inputs, *inputs), strict=True)]
            so_far = self.combine_fn.fn(*slices)
            for result, value in zip(results, so_far if isinstance(so_far, tuple) else (so_far,), strict=True):
                result[i] = value if plain else value.handle.data
        whole = [numpy.ascontiguousarray(numpy.moveaxis(result, 0, self.axis)) for result in results]
        return [self.to_tensor(result, x.dtype) for result, x in zip(whole, inputs, strict=True)]

    element_by_element.append(ScanOps.generic_scan)
    ScanOps.generic_scan = generic_scan
