"""The custom-op layer around native kernels: on the compiled kernels, or on stand-ins written in torch where there are none."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from longscan.ops import OPS, _native_op, dispatch, linear_scan, selective_scan, short_conv, unitary_scan
from longscan.ops._native_op import NativeOp
from longscan.ops.block2_scan import eager as block2_eager
from longscan.ops.linear_scan import eager as linear_eager
from longscan.ops.selective_scan import eager as selective_eager
from longscan.ops.short_conv import eager as short_eager
from longscan.ops.ssd_scan import eager as ssd_eager
from longscan.ops.unitary_scan import eager as unitary_eager
from op_examples import example, floats, with_gradients

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


def stand_in(scan, inputs, keeps):
    """A module like a native backend's, from a torch function: `inputs` differentiable arguments, `keeps` chunk states or not."""

    def forward(*args):
        y, final = scan(*(args[:-1] if keeps else args))
        y, final = y.contiguous(), final.contiguous()
        return (y, final, y.new_zeros(y.shape[0] if args[-1] else 0)) if keeps else (y, final)

    def backward(grad_y, grad_final, *args):
        if keeps:
            args = (*args[: inputs + 1], *args[inputs + 2 :])
        elif scan in (linear, block2):
            factor, x, *rest = args
            args = (factor, torch.zeros_like(x), *rest)
        with ThreadPoolExecutor(1) as fresh:  # a custom op runs below autograd; a new thread stands above it again
            return fresh.submit(differentiate, (grad_y, grad_final), args).result()

    def differentiate(weights, args):
        leaves = [None if x is None else x.detach().requires_grad_() for x in args[:inputs]]
        results = scan(*leaves, *args[inputs:])
        given = [x for x in leaves if x is not None]
        found = iter(torch.autograd.grad(results, given, weights, allow_unused=True, materialize_grads=True))
        dense = torch.contiguous_format
        return tuple(weights[0].new_empty(0) if x is None else next(found).clone(memory_format=dense) for x in leaves)

    return SimpleNamespace(forward=forward, backward=backward, chunk_states_shape=lambda batch, *_: (batch,))


STAND_INS = {
    "linear_scan": stand_in(linear, 3, False),
    "block2_scan": stand_in(block2, 3, False),
    "selective_scan": stand_in(selective, 10, True),
    "unitary_scan": stand_in(unitary, 9, True),
    "short_conv": stand_in(short, 4, False),
    "ssd_scan": stand_in(ssd, 12, True),
}


def unusable(op):
    return dispatch.unsupported_reason(op, BACKEND[op], torch.device("cpu"), torch.float32, OPS[op].native)


@pytest.fixture
def kernels(monkeypatch):
    """The first native backend of every op: the compiled kernels, or a stand-in where they cannot run."""
    missing = {op for op in NATIVE if unusable(op)}
    module, unsupported_reason = NativeOp._module, dispatch.unsupported_reason
    monkeypatch.setattr(
        dispatch, "unsupported_reason", lambda op, *args: None if op in missing else unsupported_reason(op, *args)
    )
    monkeypatch.setattr(_native_op, "GROUPED", ())  # no stand-in takes groups of parameters
    monkeypatch.setattr(
        NativeOp, "_module", lambda self, backend: STAND_INS[self._name] if self._name in missing else module(self, backend)
    )


def recorded_calls(monkeypatch, op, inputs):
    """The arguments with which the custom ops of `op` are called, forward and backward."""
    calls = []
    original = _native_op._CustomOp.__call__
    monkeypatch.setattr(_native_op._CustomOp, "__call__", lambda self, *args: calls.append((self, args)) or original(self, *args))
    y, final = OPS[op].function(**with_gradients(inputs), backend=BACKEND[op])
    (y.sum() + final.sum()).backward()
    monkeypatch.setattr(_native_op._CustomOp, "__call__", original)
    return calls


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("op", NATIVE)
def test_custom_ops_pass_opcheck(kernels, op, optional, monkeypatch):
    calls = recorded_calls(monkeypatch, op, example(op, optional=optional, masked=optional, is_complex=optional))
    assert len(calls) == 2
    (first, forward), (second, backward) = calls
    torch.library.opcheck(first.overload, leaves(forward, grads=True))
    torch.library.opcheck(second.overload, leaves(backward, grads=False))


def leaves(args, grads):
    return tuple(
        x.detach().clone().requires_grad_(grads and x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in args
    )


@pytest.mark.parametrize("op", NATIVE)
def test_second_derivative_is_refused(kernels, op):
    inputs = with_gradients(example(op))
    leaves = list(floats(inputs).values())
    y, _ = OPS[op].function(**inputs, backend=BACKEND[op])
    grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=True, allow_unused=True)
    with pytest.raises(RuntimeError, match=f"{op}: the {BACKEND[op]} backend has no second derivative; use backend='eager'"):
        sum(g.square().sum() for g in grads if g is not None).backward()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in forward mode
@pytest.mark.parametrize("op", NATIVE)
def test_forward_mode_is_refused(kernels, op):
    inputs = example(op, masked=False)
    name = next(iter(floats(inputs)))
    with torch.autograd.forward_ad.dual_level():
        inputs[name] = torch.autograd.forward_ad.make_dual(inputs[name], torch.ones_like(inputs[name]))
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            OPS[op].function(**inputs, backend=BACKEND[op])


@pytest.mark.parametrize("op", NATIVE)
def test_direct_call_equals_custom_op(kernels, op):
    """Where no gradient is asked for, the kernel is called directly, with the same result."""
    inputs = example(op)
    direct = OPS[op].function(**inputs, backend=BACKEND[op])
    recorded = OPS[op].function(**with_gradients(inputs), backend=BACKEND[op])
    for one, other in zip(direct, recorded, strict=True):
        assert other.requires_grad
        assert torch.equal(one, other)


def loss(op, inputs, backend):
    y, final = OPS[op].function(**inputs, backend=backend)
    return y.square().sum() + final.square().sum()


@pytest.mark.parametrize("mapped", ["steps", "parameters", "everything"])
@pytest.mark.parametrize("op", NATIVE)
def test_vmap_and_gradients_under_it(kernels, op, mapped):
    """vmap, vmap of grad and grad of vmap equal a loop, whether the mapped axis folds into the batch or not."""
    size = 3
    many = [example(op, torch.float64) for _ in range(size)]
    chosen = [name for name in floats(many[0]) if mapped == "everything" or (name in OPS[op].shared) == (mapped == "parameters")]
    if op == "linear_scan" and mapped != "steps":
        chosen = ["b"]
    for inputs in many[1:]:
        inputs.update({name: x for name, x in many[0].items() if name not in chosen})
    stacked = {name: torch.stack([inputs[name] for inputs in many]) for name in chosen}

    def of(chosen_inputs):
        return loss(op, many[0] | chosen_inputs, BACKEND[op])

    each = [{name: inputs[name] for name in chosen} for inputs in many]
    values = torch.stack([of(inputs) for inputs in each])
    torch.testing.assert_close(torch.func.vmap(of)(stacked), values)
    grads = [torch.func.grad(of)(inputs) for inputs in each]
    per_example = torch.func.vmap(torch.func.grad(of))(stacked)
    summed = torch.func.grad(lambda inputs: torch.func.vmap(of)(inputs).sum())(stacked)
    for name in chosen:
        expected = torch.stack([grad[name] for grad in grads])
        torch.testing.assert_close(per_example[name], expected)
        torch.testing.assert_close(summed[name], expected)


def test_constant_factor_is_not_folded(kernels):
    """A constant a has no batch axis: mapping it goes through the loop."""
    a, b = torch.rand(3, 2, dtype=torch.float64), torch.randn(1, 4, 2, dtype=torch.float64)
    mapped = torch.func.vmap(lambda a: linear_scan(a, b, backend="cpu")[0])(a)
    torch.testing.assert_close(mapped, torch.stack([linear_scan(row, b, backend="eager")[0] for row in a]))


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("call", [selective_scan, unitary_scan, short_conv])
def test_a_plain_call_costs_no_custom_op(kernels, call, trains):
    """Nothing but the kernel runs between the checks, with gradients and without."""
    inputs = example(call.__name__, length=1, masked=False)
    inputs["u"].requires_grad_(trains)
    with torch.profiler.profile() as profile:
        y, _ = call(**inputs, backend="cpu")
        if trains:
            y.sum().backward()
    assert not [event.key for event in profile.key_averages() if event.key.startswith("longscan::")]
    assert y.shape == (2, 1, 3)


@pytest.mark.parametrize("op", NATIVE)
def test_meta_tensors_are_checked_where_values_are_absent(kernels, op, monkeypatch):
    """The kernel for shapes alone refuses mixed devices, an absent tensor and an unknown backend as the others do."""
    calls = recorded_calls(monkeypatch, op, example(op, length=3))
    assert len(calls) == 2  # forward and backward
    for custom_op, given in calls:
        call, args = custom_op.overload, [x.detach().to("meta") if isinstance(x, torch.Tensor) else x for x in given]
        assert all(x.is_meta for x in call(*args))
        with pytest.raises(ValueError, match=rf"`backend` must be one of .*, the native backends of {op}, got 'gpu'"):
            call(*args[:-1], "gpu")
        names = [argument.name for argument in call._schema.arguments]
        for i, (name, x) in enumerate(zip(names, args, strict=True)):
            if not isinstance(x, torch.Tensor):
                continue
            mixed = [*args[:i], torch.zeros(x.shape, dtype=x.dtype), *args[i + 1 :]]
            # the others are compared with initial_state
            message = "on cpu like initial_state" if name == "initial_state" else f"{name}(` must be on|: is on)"
            with pytest.raises(ValueError, match=message):
                call(*mixed)
            if call._schema.arguments[i].type.kind() == "TensorType":
                with pytest.raises(TypeError, match=rf"{name}(` must be a tensor|: got None, expected a tensor), which {op}"):
                    call(*args[:i], None, *args[i + 1 :])
