"""Plain calls: an op as one node of the autograd graph. Functions of PyTorch take the place of kernels."""

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

pytest.importorskip("triton", reason="Triton is not installed")
from longscan.ops import _plain_calls, short_conv
from longscan.ops._plain_calls import PlainCall
from longscan.ops.dispatch import Choice, recorded_choices

Results = tuple[Tensor, ...]


def general(x: Tensor, weight: Tensor | None, power: int) -> tuple[Tensor, Tensor]:
    """Return w x^power and its sum over the last axis."""
    y = x**power * (1 if weight is None else weight)
    return y, y.sum(-1)


def forward(x: Tensor, weight: Tensor | None, power: int, keep: bool) -> Results:
    y, final = general(x, weight, power)
    return (y, final, x ** (power - 1)) if keep else (y, final)


def backward(
    grad_y: Tensor | None, grad_final: Tensor | None, x: Tensor, weight: Tensor | None, kept: Tensor, power: int
) -> Results:
    grad = torch.zeros_like(x) if grad_y is None else grad_y
    grad = grad if grad_final is None else grad + grad_final[..., None]
    dx = power * kept * grad * (1 if weight is None else weight)
    return (dx,) if weight is None else (dx, (grad * x * kept).sum(0))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> PlainCall:
    """The call of `general`, which every machine seems to have a kernel for."""
    monkeypatch.setattr(_plain_calls, "resolve", lambda *_: "triton")
    return PlainCall("general", ("triton",), 2, forward, backward, general)


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.rand(3, 4, generator=generator), torch.rand(4, generator=generator)
    return x.double().requires_grad_(), weight.double().requires_grad_()


@pytest.mark.parametrize("results", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("weighted", [True, False])
def test_gradients_are_those_of_the_general_call(call: PlainCall, weighted: bool, results: tuple[int, ...]) -> None:
    """Also where one of the results has no gradient, and where an input is None."""
    x, weight = inputs()
    given = (x, weight if weighted else None, 3)
    leaves = [x, weight] if weighted else [x]
    found, expected = call(*given), general(*given)
    assert type(found[0].grad_fn).__name__ == "_NodeBackward"
    vectors = [torch.rand_like(expected[i]) for i in results]
    torch.testing.assert_close(found, expected)
    for x_found, x_expected in zip(
        torch.autograd.grad([found[i] for i in results], leaves, vectors),
        torch.autograd.grad([expected[i] for i in results], leaves, vectors),
        strict=True,
    ):
        torch.testing.assert_close(x_found, x_expected)


def test_nothing_is_kept_without_gradients(call: PlainCall) -> None:
    x, weight = inputs()
    with torch.no_grad():
        assert call(x, weight, 2)[0].grad_fn is None
    assert call(x.detach(), weight.detach(), 2)[0].grad_fn is None


def test_derivatives_of_gradients_are_those_of_the_general_call(call: PlainCall) -> None:
    x, weight = inputs()
    second = []
    for function in (call, general):
        (dx,) = torch.autograd.grad(function(x, weight, 3)[0].square().sum(), x, create_graph=True)
        second.append(torch.autograd.grad(dx.square().sum(), [x, weight]))
    torch.testing.assert_close(second[0], second[1])


def test_gradients_of_several_vectors_together(call: PlainCall) -> None:
    x, weight = inputs()
    vectors = torch.rand(5, 3, 4, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad(function(x, weight, 3)[0], [x, weight], vectors, is_grads_batched=True)
        for function in (call, general)
    )
    torch.testing.assert_close(found, expected)


def test_input_that_is_changed_before_the_backward_pass_raises(call: PlainCall) -> None:
    x, weight = inputs()
    y, _ = call(x, weight, 2)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class Observed(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_only_ordinary_tensors_make_a_plain_call(call: PlainCall) -> None:
    x = torch.ones(3, 4)
    assert call.runs([x, None], "triton")
    assert not call.runs([x, None], "auto"), "the kernels of the CPU run there"
    assert not call.runs([x, None], "eager")
    assert not call.runs([x[:0], None], "triton")
    assert not call.runs([x, [1.0]], "triton")
    assert not call.runs([None, x], "triton")
    assert not call.runs([torch.nn.Buffer(x).as_subclass(type("Other", (Tensor,), {})), None], "triton")
    assert not call.runs([x, torch._neg_view(x)], "triton")
    with Observed():
        assert not call.runs([x, None], "triton")
    with torch.autograd.forward_ad.dual_level():
        assert not call.runs([x, None], "triton")
    seen = []
    torch.func.vmap(lambda x: seen.append(call.runs([x, None], "triton")) or x)(x)
    torch.func.grad(lambda x: seen.append(call.runs([x, None], "triton")) or x.sum())(x)
    assert seen == [False, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensors_that_must_be_copied_make_no_plain_call(call: PlainCall, dtype: torch.dtype) -> None:
    """A call that casts a tensor is never repeated; the kernels of the general call are."""
    x = torch.ones(3, 4)
    assert not call.runs([x, x[0].to(dtype)], "triton")
    assert not call.runs([x.to(dtype), None], "triton")
    reads_x = PlainCall("general", ("triton",), 2, forward, backward, general, reduced=(0,))
    assert reads_x.runs([x.to(dtype), x[0]], "triton")
    assert not reads_x.runs([x.to(dtype), x[0].to(dtype)], "triton")


@pytest.mark.parametrize(
    ("op", "n_tensors", "read"), [("unitary_scan", 9, ()), ("selective_scan", 10, (0, 1, 3, 4, 6, 9)), ("short_conv", 4, (0,))]
)
def test_inputs_in_half_precision_that_kernels_read_make_a_plain_call(
    op: str, n_tensors: int, read: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_plain_calls, "resolve", lambda *_: "triton")
    call = import_module(f"longscan.ops.{op}")._plain_call
    for i in range(n_tensors):
        tensors = [torch.ones(2, dtype=torch.bfloat16 if i == j else torch.float32) for j in range(n_tensors)]
        assert call.runs(tensors, "triton") == (i in read), i


def test_activation_of_another_type_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded calls are found by their arguments, which a list cannot be."""
    monkeypatch.setattr(_plain_calls, "resolve", lambda *_: "triton")
    with pytest.raises(ValueError, match="`activation` must be one of"):
        short_conv(torch.ones(1, 2, 3), torch.ones(3, 4), activation=["silu"], backend="triton")  # type: ignore[arg-type]


def test_choice_of_the_backend_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longscan.ops.dispatch.unsupported_reason", lambda *_: None)
    call = PlainCall("linear_scan", ("triton",), 2, forward, backward, general)
    with recorded_choices() as recording:
        assert call.runs([torch.ones(3), None], "triton")
    assert recording.choices == [Choice("linear_scan", "triton", "triton", "asked for")]
