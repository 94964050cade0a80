"""Patches of Triton's interpreter that make it fast enough for tests, and exact in float64 and bfloat16."""

from dataclasses import replace
from importlib import import_module
from typing import Any

original_scans: list[Any] = []  # the interpreter's implementation of associative scans, after it was replaced
original_dot: Any = None  # the kernel's function for products of tiles, after it was replaced
original_operands: list[Any] = []  # the method of Triton that converts the operands of a binary operator, after it was replaced
shipped_tables: dict[tuple[str, str], Any] = {}  # module and name -> launch table of the package, after it was replaced


def speed_up_interpreter() -> None:
    """Apply all patches of this file, and launch few programs with large tiles.

    The interpreter takes about 0.1 ms for an operation on a tile of any size. Tiles stay below 128 KiB, because NumPy requests
    larger arrays from the operating system one by one. Other tests cover how the work is divided among programs, and one runs the
    launch tables of the package (`shipped_tables`).
    """
    from longscan.ops import _triton_launch
    from longscan.ops.unitary_scan.triton import launch as unitary

    patch_language_once_per_launch()
    call_builtins_directly()
    reuse_types_and_shapes()
    convert_operands_once()
    allow_tensors_as_bounds_of_loops()
    allow_overflow()
    replace_scan()
    replace_dot()
    replace_bfloat16_casts()
    for module, name in ((_triton_launch, "TABLE"), (unitary, "SCAN_TILES"), (unitary, "ELEMENTWISE")):
        shipped_tables.setdefault((module.__name__, name), getattr(module, name))
    # Kernels of rotations scan their tiles row by row, so that large tiles are slow where there are few steps.
    _triton_launch.TABLE = {
        name: replace(launch, lanes=128, steps=launch.steps if name == "rotation" else 64)
        for name, launch in _triton_launch.TABLE.items()
    }
    unitary.SCAN_TILES = {most: tile._replace(lanes=128, steps=64) for most, tile in unitary.SCAN_TILES.items()}
    unitary.ELEMENTWISE = unitary.ELEMENTWISE._replace(steps=128, channels=128)


def patch_language_once_per_launch() -> None:
    """Make the interpreter patch `triton.language` once per launch and module.

    Without this patch it does so in every call of a device function, which takes longer than the call.
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


def call_builtins_directly() -> None:
    """Replace two functions around each function of `triton.language`, which add and check the argument `_semantic`, by one."""
    from triton.language import core
    from triton.runtime import interpreter

    checks_semantic = core.builtin(call_builtins_directly).__code__

    def patch_attr(owner: Any, name: str, member: Any, builder: Any, *scope: Any) -> None:
        function = member.__wrapped__ if getattr(member, "__code__", None) is checks_semantic else member

        def call(*args: Any, **options: Any) -> Any:
            options["_semantic"] = interpreter.interpreter_semantic
            return function(*args, **options)

        (scope[0].set_attr if scope else setattr)(owner, name, call)

    interpreter._patch_attr = patch_attr


def reuse_types_and_shapes() -> None:
    """Keep what only the types and shapes of tiles determine, which took a third of the time of the interpreter.

    Triton computes the names of types, tuples of sizes and a table of NumPy's dtypes for each operation, and for two tiles of
    different shapes the common one.
    """
    import numpy
    from triton.language import core, semantic
    from triton.runtime import interpreter

    make_block_type, make_tensor, unwrap = core.block_type.__init__, core.tensor.__init__, core._unwrap_if_constexpr
    broadcast, find_dtype = semantic.TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype
    block_types: dict[Any, dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    common_types: dict[tuple[str, str], list[Any]] = {}  # names of two types -> the types to broadcast to, None for no change
    dtypes: dict[str, Any] = {}

    def unwrap_constant(x: Any) -> Any:
        kind = type(x)
        if kind is core.constexpr:
            return x.value
        return x if kind is core.tensor or kind is int or kind is core.dtype else unwrap(x)

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in block_types:
            make_block_type(self, element_ty, shape)
            block_types[key] = vars(self).copy()
        vars(self).update(block_types[key], element_ty=element_ty)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  as in Triton
        if type.name not in tensors:
            make_tensor(self, handle, type)
            tensors[type.name] = {name: value for name, value in vars(self).items() if name not in ("handle", "type", "dtype")}
        vars(self).update(tensors[type.name], handle=handle, type=type, dtype=type.scalar)

    def broadcast_tiles(self: Any, first: Any, second: Any) -> tuple[Any, Any]:
        names = first.type.name, second.type.name
        if names in common_types:
            one, other = common_types[names]
            return (first if one is None else repeat(first, one)), (second if other is None else repeat(second, other))
        results = broadcast(self, first, second)
        common_types[names] = [None if new is old else new.type for new, old in zip(results, (first, second), strict=True)]
        return results

    def repeat(x: Any, type: Any) -> Any:  # noqa: A002
        data = numpy.empty([getattr(size, "value", size) for size in type.shape], x.handle.data.dtype)
        data[...] = x.handle.data
        return core.tensor(interpreter.TensorHandle(data, x.handle.dtype), type)

    def dtype_of(type: Any) -> Any:  # noqa: A002
        element = type.scalar
        if element.name not in dtypes:
            dtypes[element.name] = find_dtype(element)
        return dtypes[element.name]

    core.block_type.__init__, core.tensor.__init__, core._unwrap_if_constexpr = init_block_type, init_tensor, unwrap_constant
    semantic.TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype = broadcast_tiles, dtype_of


def convert_operands_once() -> None:
    """Convert operands of binary operators by Triton only where that changes them. It took half of the time of the interpreter.

    Two tensors of a type below, or one and a number of Python that it can represent, have this type as their common type. That of
    int32 and int64 is int64. A pointer is added to integers as it is.
    """
    from triton.language import core, semantic

    convert = semantic.TritonSemantic.binary_op_type_checking_impl
    kinds = {"fp32": (float, int), "fp64": (float, int), "int32": (int,), "int64": (int,), "int1": ()}

    def keeps_type(x: Any, number: Any) -> bool:
        """Return whether the common type of a tensor and a number is that of the tensor."""
        return type(number) in kinds.get(x.dtype.name, ()) and (type(number) is float or -(2**31) <= number < 2**31)

    def convert_operands(
        self: Any,
        first: Any,
        second: Any,
        allow_first_pointer: bool = False,
        allow_second_pointer: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[Any, Any]:
        if type(first) is core.tensor and type(second) is core.tensor:
            name, other = first.dtype.name, second.dtype.name
            is_offset = allow_first_pointer and first.dtype.is_ptr() and other in ("int32", "int64")
            if is_offset or (name == other and name in kinds):
                return self.broadcast_impl_value(first, second)
            if arithmetic_check and {name, other} == {"int32", "int64"}:
                return self.broadcast_impl_value(self.cast(first, core.int64), self.cast(second, core.int64))
        elif arithmetic_check and type(first) is core.tensor and keeps_type(first, second):
            return self.broadcast_impl_value(first, self.scalar_constant(second, first.dtype))
        elif arithmetic_check and type(second) is core.tensor and keeps_type(second, first):
            return self.broadcast_impl_value(self.scalar_constant(first, second.dtype), second)
        return convert(self, first, second, allow_first_pointer, allow_second_pointer, arithmetic_check, div_or_mod)

    original_operands.append(convert)
    semantic.TritonSemantic.binary_op_type_checking_impl = convert_operands


def allow_tensors_as_bounds_of_loops() -> None:
    """Let tensors of one element be bounds of loops. Triton 3.6 converts them by `int`, which NumPy 2.4 refuses for arrays."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())  # what `patch` replaced is restored after the launch

    interpreter._patch_lang_tensor = patch_tensor


def allow_overflow() -> None:
    """Switch off the interpreter's check of integer sums and products for overflow. No test has an index near 2**31."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def replace_dot() -> None:
    """Replace the products of tiles of ssd_scan by `tl.dot` for all dtypes; the kernel's function stays in `original_dot`.

    The kernel computes float64 products column by column, which is slow in the interpreter. Tiles of bfloat16 are converted to
    float32, because the interpreter multiplies the integers by which it represents them.
    """
    global original_dot
    modules: list[Any] = [import_module(f"longscan.ops.ssd_scan.triton.{name}") for name in ("math", "forward", "backward")]
    original_dot = modules[0].dot

    def dot(a: Any, b: Any, sums: Any, PRECISION: Any) -> Any:
        import triton.language as tl

        if a.dtype == tl.bfloat16:
            a, b = a.to(tl.float32), b.to(tl.float32)
        # Before Triton 3.8 the result is float32 unless a dtype is given, also for products of float64.
        return tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=sums.dtype)

    for module in modules:
        module.dot = dot
    import_module("longscan.ops.ssd_scan").INTERPRETER_MULTIPLIES_BFLOAT16 = True  # type: ignore[attr-defined]


def replace_bfloat16_casts() -> None:
    """Round to the nearest bfloat16, as a GPU does. The interpreter truncates, and converts integers wrongly."""
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


def replace_scan() -> None:
    """Apply the operator of an associative scan to whole slices along the scanned axis instead of single elements.

    The order of the operations along the scanned axis is unchanged, so results have the same bits. Operators that consist of
    arithmetic alone receive NumPy arrays, which is faster; those that call other functions receive Triton tensors.
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

    original_scans.append(ScanOps.generic_scan)
    ScanOps.generic_scan = generic_scan
