"""Checks of arguments that the ops share (type, layout, shape, dtype, device), and complex numbers as real pairs.

Errors name the argument, the value that was given and the value that is needed.
"""

import torch
from torch import Tensor

_DENSE = torch.strided


def _spell(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join("*" if size == -1 else str(size) for size in shape) + ")"


def _matches(value: Tensor, shape: tuple[int, ...]) -> bool:
    if value.shape == shape:
        return True
    return value.ndim == len(shape) and all(want in (-1, got) for got, want in zip(value.shape, shape, strict=True))


def check_tensor(name: str, value: object, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """Raise unless `value` is a dense tensor of this shape on the device of `like`; -1 in `shape` matches any size."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a tensor")
    if value.layout is not _DENSE:
        raise TypeError(f"{name}: got layout {value.layout}, expected torch.strided, a dense tensor")
    if not _matches(value, shape):
        raise ValueError(f"{name}: got shape {tuple(value.shape)}, expected {_spell(shape)}")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name}: is on {value.device}, expected {like.device} like the other inputs")


def check_real(name: str, value: object, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """Raise unless `value` passes `check_tensor` and has a real floating-point dtype."""
    check_tensor(name, value, shape, like)
    if not value.is_floating_point():  # type: ignore[attr-defined]
        raise TypeError(f"{name}: got dtype {value.dtype}, expected a real floating-point dtype")  # type: ignore[attr-defined]


def check_complex(name: str, value: object, shape: tuple[int, ...], like: Tensor | None = None) -> None:
    """Raise unless `value` holds complex numbers of this shape: a complex tensor, or real pairs (*shape, 2)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a tensor")
    if value.layout is not _DENSE:
        raise TypeError(f"{name}: got layout {value.layout}, expected torch.strided, a dense tensor")
    if not _matches(value, shape if value.is_complex() else (*shape, 2)):
        kind = "complex" if value.is_complex() else "real"
        wanted = f"{_spell(shape)} complex or {_spell((*shape, 2))} real pairs"
        raise ValueError(f"{name}: got shape {tuple(value.shape)} {kind}, expected {wanted}")
    if not value.is_complex():
        check_real(name, value, (*shape, 2), like)
    elif like is not None and value.device != like.device:
        raise ValueError(f"{name}: is on {value.device}, expected {like.device} like the other inputs")


def to_pairs(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a complex tensor as real pairs (..., 2) of `dtype`; a real tensor is cast only, as it holds pairs already."""
    if x.dtype == dtype:
        return x
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).to(dtype)


def in_form_of(pairs: Tensor, like: Tensor) -> Tensor:
    """Return pairs (..., 2) as complex numbers if `like` is complex, unchanged if it is real."""
    return torch.view_as_complex(pairs) if like.is_complex() else pairs
