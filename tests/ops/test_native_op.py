"""The custom ops around native kernels, tested with the compiled kernels, or with PyTorch functions where they are missing."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from longscan.ops import OPS, _custom_op, _native_op, dispatch, linear_scan, selective_scan, short_conv, unitary_scan
from longscan.ops._native_op import NativeOp
from longscan.ops.block2_scan import eager as block2_eager
from longscan.ops.linear_scan import eager as linear_eager
from longscan.ops.selective_scan import eager as selective_eager
from longscan.ops.short_conv import eager as short_eager
from longscan.ops.ssd_scan import eager as ssd_eager
from longscan.ops.unitary_scan import eager as unitary_eager
from op_examples import example, floats, record_calls, with_gradients

# The first native backend of each op: cpu, where there is one.
BACKEND = {name: op.native[0] for name, op in OPS.items() if op.native and op.native_gradients}
NATIVE = list(BACKEND)


def linear(a, b, initial_state, flags, reverse, is_complex):
    if reverse:
        a, b, flags = a.flip(1) if a.ndim == b.ndim else a, b.flip(1), None if flags is None else flags.flip(1)
    x, final = linear_eager.linear_scan(a, b, initial_state, flags, is_complex=is_complex)
    return x.flip(1) if reverse else x, final


def block2(*args):
    return block2_eager.block2_scan(*args)


def selective(*args):
    *tensors, dt_softplus, paired = args
    return selective_eager.selective_scan(*tensors, dt_softplus=dt_softplus, paired=paired)


def unitary(*args):
    return unitary_eager.unitary_scan(*args[:-1], phase_dt=args[-1])


def short(*args):
    return short_eager.short_conv(*args[:-1], apply_silu=args[-1])


def ssd(x, dt, input_scale, own_scale, A, B, C, D, B_bias, C_bias, angle, initial_state, flags, *_):
    return ssd_eager.ssd_scan(x, dt, A, B, C, D, None, initial_state, input_scale, own_scale, angle, B_bias, C_bias, flags)


def make_backend(scan, n_inputs, saves_states):
    """Return an object with the functions of a native backend that calls a function of PyTorch.

    n_inputs: number of differentiable arguments; saves_states: whether `forward` returns states for the backward pass.
    """

    def forward(*args):
        y, final = scan(*(args[:-1] if saves_states else args))
        y, final = y.contiguous(), final.contiguous()
        return (y, final, y.new_zeros(y.shape[0] if args[-1] else 0)) if saves_states else (y, final)

    def backward(grad_y, grad_final, *args):
        if saves_states:
            args = (*args[: n_inputs + 1], *args[n_inputs + 2 :])
        elif scan in (linear, block2):
            factor, x, *rest = args
            args = (factor, torch.zeros_like(x), *rest)
        with ThreadPoolExecutor(1) as executor:  # autograd is switched off inside a custom op, but not in a new thread
            return executor.submit(differentiate, (grad_y, grad_final), args).result()

    def differentiate(weights, args):
        leaves = [None if x is None else x.detach().requires_grad_() for x in args[:n_inputs]]
        results = scan(*leaves, *args[n_inputs:])
        present = [x for x in leaves if x is not None]
        grads = iter(torch.autograd.grad(results, present, weights, allow_unused=True, materialize_grads=True))
        contiguous = torch.contiguous_format
        return tuple(weights[0].new_empty(0) if x is None else next(grads).clone(memory_format=contiguous) for x in leaves)

    def chunk_states_shape(first, *_):
        return (len(first) if isinstance(first, torch.Tensor) else first,)

    return SimpleNamespace(forward=forward, backward=backward, chunk_states_shape=chunk_states_shape)


TORCH_BACKENDS = {
    "linear_scan": make_backend(linear, 3, False),
    "block2_scan": make_backend(block2, 3, False),
    "selective_scan": make_backend(selective, 10, True),
    "unitary_scan": make_backend(unitary, 9, True),
    "short_conv": make_backend(short, 4, False),
    "ssd_scan": make_backend(ssd, 12, True),
}


def unsupported_reason(op):
    return dispatch.unsupported_reason(op, BACKEND[op], torch.device("cpu"), torch.float32, OPS[op].native)


@pytest.fixture
def kernels(monkeypatch):
    """Make the first native backend of every op available: a PyTorch function takes the place of kernels that cannot run."""
    missing = {op for op in NATIVE if unsupported_reason(op)}
    module, original = NativeOp.module, dispatch.unsupported_reason
    monkeypatch.setattr(dispatch, "unsupported_reason", lambda op, *args: None if op in missing else original(op, *args))
    for module_of in (_custom_op, _native_op):
        monkeypatch.setattr(module_of, "GROUPED", ())  # the functions of PyTorch accept no groups of parameters
    if find_spec("triton") is not None:  # nor can a compiler trace them as kernels, like those of Triton's interpreter
        monkeypatch.setattr("longscan.ops._gpu.INTERPRETED", True)
    monkeypatch.setattr(
        NativeOp, "module", lambda self, backend: TORCH_BACKENDS[self._name] if self._name in missing else module(self, backend)
    )


@pytest.mark.parametrize("optional", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", NATIVE)
def test_custom_ops_pass_opcheck(kernels, op, optional):
    calls = record_calls(op, example(op, optional=optional, masked=optional, is_complex=optional), BACKEND[op])
    assert len(calls) == 2
    (forward_op, forward_args), (backward_op, backward_args) = calls
    torch.library.opcheck(forward_op.overload, detach_tensors(forward_args, grads=True))
    torch.library.opcheck(backward_op.overload, detach_tensors(backward_args, grads=False))


def detach_tensors(args, grads):
    return tuple(
        x.detach().clone().requires_grad_(grads and x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in args
    )


@pytest.mark.parametrize("op", NATIVE)
def test_second_derivative_raises(kernels, op):
    inputs = with_gradients(example(op))
    leaves = list(floats(inputs).values())
    y, _ = OPS[op].function(**inputs, backend=BACKEND[op])
    grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=True, allow_unused=True)
    with pytest.raises(RuntimeError, match=f"{op}: the {BACKEND[op]} backend has no second derivative; use backend='eager'"):
        sum(g.square().sum() for g in grads if g is not None).backward()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("op", NATIVE)
def test_forward_mode_raises(kernels, op):
    inputs = example(op, masked=False)
    name = next(iter(floats(inputs)))
    with torch.autograd.forward_ad.dual_level():
        inputs[name] = torch.autograd.forward_ad.make_dual(inputs[name], torch.ones_like(inputs[name]))
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            OPS[op].function(**inputs, backend=BACKEND[op])


@pytest.mark.parametrize("op", NATIVE)
def test_forward_mode_of_a_gradient_raises(kernels, op):
    inputs = example(op, masked=False)
    name = next(iter(floats(inputs)))

    def loss(x):
        return OPS[op].function(**inputs | {name: x}, backend=BACKEND[op])[0].square().sum()

    with pytest.raises(RuntimeError, match=f"{op}: the {BACKEND[op]} backend has no forward-mode .*; use backend='eager'"):
        torch.func.hessian(loss)(inputs[name])


@pytest.mark.parametrize("op", NATIVE)
def test_call_without_gradients_equals_custom_op(kernels, op):
    """The kernel is called directly if no input requires a gradient."""
    inputs = example(op)
    direct = OPS[op].function(**inputs, backend=BACKEND[op])
    recorded = OPS[op].function(**with_gradients(inputs), backend=BACKEND[op])
    for result, expected in zip(direct, recorded, strict=True):
        assert expected.requires_grad
        assert torch.equal(result, expected)


def sum_of_squares(op, inputs, backend):
    y, final = OPS[op].function(**inputs, backend=backend)
    return y.square().sum() + final.square().sum()


@pytest.mark.parametrize("mapped", ["steps", "parameters", "everything"])
@pytest.mark.parametrize("op", NATIVE)
def test_vmap_and_grad_equal_a_loop(kernels, op, mapped):
    """vmap, vmap of grad and grad of vmap equal a loop, whether or not the mapped axis can become part of the batch axis."""
    size = 3
    examples = [example(op, torch.float64) for _ in range(size)]
    chosen = [
        name for name in floats(examples[0]) if mapped == "everything" or (name in OPS[op].shared) == (mapped == "parameters")
    ]
    if op == "linear_scan" and mapped != "steps":
        chosen = ["b"]
    for inputs in examples[1:]:
        inputs.update({name: x for name, x in examples[0].items() if name not in chosen})
    stacked = {name: torch.stack([inputs[name] for inputs in examples]) for name in chosen}

    def loss(chosen_inputs):
        return sum_of_squares(op, examples[0] | chosen_inputs, BACKEND[op])

    rows = [{name: inputs[name] for name in chosen} for inputs in examples]
    values = torch.stack([loss(inputs) for inputs in rows])
    torch.testing.assert_close(torch.func.vmap(loss)(stacked), values)
    grads = [torch.func.grad(loss)(inputs) for inputs in rows]
    per_example = torch.func.vmap(torch.func.grad(loss))(stacked)
    summed = torch.func.grad(lambda inputs: torch.func.vmap(loss)(inputs).sum())(stacked)
    for name in chosen:
        expected = torch.stack([grad[name] for grad in grads])
        torch.testing.assert_close(per_example[name], expected)
        torch.testing.assert_close(summed[name], expected)


def test_vmap_over_a_constant_factor_equals_a_loop(kernels):
    """A constant `a` has no batch axis, so that the mapped axis cannot become part of it."""
    a, b = torch.rand(3, 2, dtype=torch.float64), torch.randn(1, 4, 2, dtype=torch.float64)
    mapped = torch.func.vmap(lambda a: linear_scan(a, b, backend="cpu")[0])(a)
    torch.testing.assert_close(mapped, torch.stack([linear_scan(row, b, backend="eager")[0] for row in a]))


def test_backward_over_models_one_by_one_joins_their_gradients_once(kernels):
    """A gradient of the size of all models for each of them would make the cost grow with the square of their number."""
    a, b = torch.rand(5, 2, dtype=torch.float64, requires_grad=True), torch.randn(1, 4, 2, dtype=torch.float64)
    loss = torch.func.vmap(lambda a: linear_scan(a, b, backend="cpu")[0])(a).sum()
    with torch.profiler.profile() as profile:
        loss.backward()
    assert "aten::select_backward" not in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("call", [selective_scan, unitary_scan, short_conv])
def test_call_outside_of_transforms_uses_no_custom_op(kernels, call, requires_grad):
    """The kernel is called directly, with gradients and without, because dispatching a custom op takes time."""
    inputs = example(call.__name__, length=1, masked=False)
    inputs["u"].requires_grad_(requires_grad)
    with torch.profiler.profile() as profile:
        y, _ = call(**inputs, backend="cpu")
        if requires_grad:
            y.sum().backward()
    assert not [event.key for event in profile.key_averages() if event.key.startswith("longscan::")]
    assert y.shape == (2, 1, 3)


def test_gradients_of_a_lazily_negated_input_equal_those_of_a_negated_one(kernels):
    """The backward pass gets the input as it was saved, with the negation still to be done."""
    inputs = torch.rand(2, 5, 3), torch.rand(2, 5, 3)
    gradients = []
    for negate in (torch.neg, torch._neg_view):
        a, b = (x.clone().requires_grad_() for x in inputs)
        y, _ = linear_scan(negate(a), b, backend=BACKEND["linear_scan"])
        gradients.append(torch.autograd.grad(y, (a, b), torch.ones_like(y)))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("op", NATIVE)
def test_custom_ops_check_meta_tensors(kernels, op):
    """The meta kernel raises for mixed devices, a missing tensor and an unknown backend, like the other kernels."""
    calls = record_calls(op, example(op, length=3), BACKEND[op])
    assert len(calls) == 2  # forward and backward
    for custom_op, recorded_args in calls:
        call, args = custom_op.overload, [x.detach().to("meta") if isinstance(x, torch.Tensor) else x for x in recorded_args]
        assert all(x.is_meta for x in call(*args))
        with pytest.raises(ValueError, match=rf"`backend` must be one of .*, the native backends of {op}, got 'gpu'"):
            call(*args[:-1], "gpu")
        names = [argument.name for argument in call._schema.arguments]
        for i, (name, x) in enumerate(zip(names, args, strict=True)):
            if not isinstance(x, torch.Tensor):
                continue
            mixed = [*args[:i], torch.zeros(x.shape, dtype=x.dtype), *args[i + 1 :]]
            # the devices of the other arguments are compared with that of initial_state
            message = "on cpu like initial_state" if name == "initial_state" else f"{name}(` must be on|: is on)"
            with pytest.raises(ValueError, match=message):
                call(*mixed)
            if call._schema.arguments[i].type.kind() == "TensorType":
                with pytest.raises(TypeError, match=rf"{name}(` must be a tensor|: got None, expected a tensor), which {op}"):
                    call(*args[:i], None, *args[i + 1 :])
