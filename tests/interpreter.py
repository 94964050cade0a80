"""Patches of Triton's interpreter that make it fast enough for tests, and exact in float64 and bfloat16."""

from dataclasses import replace
from importlib import import_module
from typing import Any

original_scans: list[Any] = []  # the interpreter's implementation of associative scans, after it was replaced
original_dot: Any = None  # the kernel's function for products of tiles, after it was replaced
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

    Triton computes the names of types, tuples of sizes and a table of NumPy's dtypes for each operation. Tiles of equal shapes
    need no broadcasting.
    """
    from triton.language import core, semantic
    from triton.runtime import interpreter

    make_block_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    broadcast, find_dtype = semantic.TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype
    block_types: dict[Any, dict[str, Any]] = {}
    tensors: dict[Any, dict[str, Any]] = {}
    dtypes: dict[str, Any] = {}

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in block_types:
            make_block_type(self, element_ty, shape)
            block_types[key] = vars(self).copy()
        vars(self).update(block_types[key], element_ty=element_ty)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  as in Triton
        key = tuple(type.shape) if type.is_block() else ()
        if key not in tensors:
            make_tensor(self, handle, type)
            tensors[key] = {name: value for name, value in vars(self).items() if name not in ("handle", "type", "dtype")}
        vars(self).update(tensors[key], handle=handle, type=type, dtype=type.scalar)

    def broadcast_tiles(self: Any, first: Any, second: Any) -> tuple[Any, Any]:
        if first.type.is_block() and second.type.is_block() and [*first.type.shape] == [*second.type.shape]:
            return first, second
        return broadcast(self, first, second)

    def dtype_of(type: Any) -> Any:  # noqa: A002
        element = type.scalar
        if element.name not in dtypes:
            dtypes[element.name] = find_dtype(element)
        return dtypes[element.name]

    core.block_type.__init__, core.tensor.__init__ = init_block_type, init_tensor
    semantic.TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype = broadcast_tiles, dtype_of


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
