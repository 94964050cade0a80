"""Errors of wrong arguments, the forms and dtypes that ops accept, flags of steps, and the choice of the backend."""

import inspect
import logging
from importlib import import_module

import pytest
import torch

from longscan.blocks import BLOCKS
from longscan.ops import OPS, dispatch, explain, linear_scan, long_conv, selective_scan, short_conv, unitary_scan
from longscan.ops._examples import ARGUMENTS
from longscan.ops.arguments import (
    INVALID,
    RESET,
    carry_dtype,
    flag_masks,
    last_valid,
    reset_mask,
    state_dtype,
    step_flags,
    zero_invalid,
)
from native import usable_backends
from op_examples import example, floats


@pytest.mark.parametrize("op", OPS)
def test_wrong_tensor_argument_raises(op):
    """Each tensor argument is replaced by a string, a wrong shape, integers, and a tensor on another device."""
    inputs = example(op)
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            continue
        with pytest.raises(TypeError, match=f"`{name}` must be a tensor, got str"):
            OPS[op].function(**(inputs | {name: "tensor"}))
        is_lead = name in ("u", "b", "f", "x", "v")  # other shapes are compared with it, so the error may name one of them
        with pytest.raises(
            ValueError, match=r"` must be .*of shape .*, got" if is_lead else rf"`{name}` must be .*of shape .*, got"
        ):
            OPS[op].function(**(inputs | {name: value[..., None, None]}))
        if value.is_floating_point():
            with pytest.raises(TypeError, match=f"`{name}` must be of a .*dtype.*, got torch.int64"):
                OPS[op].function(**(inputs | {name: value.long()}))
        if not is_lead:
            with pytest.raises(ValueError, match=f"`{name}` must be on cpu like the other inputs, got a tensor on meta"):
                OPS[op].function(**(inputs | {name: value.to("meta")}))


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("op", OPS)
def test_sparse_tensor_raises(op, backend):
    inputs = example(op)
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            with pytest.raises(
                TypeError, match=rf"`{name}` must be dense, of layout torch\.strided, got layout torch\.sparse_coo"
            ):
                OPS[op].function(**inputs | {name: value.to_sparse()}, backend=backend)


def test_sparse_complex_tensor_raises():
    inputs = example("selective_scan", is_complex=True)
    for name in ("A", "B", "C", "initial_state"):
        for value in (inputs[name], torch.view_as_complex(inputs[name])):
            with pytest.raises(
                TypeError, match=rf"`{name}` must be dense, of layout torch\.strided, got layout torch\.sparse_coo"
            ):
                selective_scan(**inputs | {name: value.to_sparse()})


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")  # torch's own
@pytest.mark.parametrize("op", OPS)
def test_nested_tensor_raises(op):
    inputs = example(op)
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            nested = torch.nested.nested_tensor(list(value.detach()))
            with pytest.raises(TypeError, match=f"`{name}` must be dense, .*, got a nested tensor"):
                OPS[op].function(**inputs | {name: nested})


@pytest.mark.parametrize("op", OPS)
def test_unavailable_backend_raises(op):
    with pytest.raises(ValueError, match="`backend` must be one of auto, reference, eager, cpu, triton, got 'cuda'"):
        OPS[op].function(**example(op), backend="cuda")
    with pytest.raises(ValueError, match=f"`backend` must be 'auto', 'eager' or another that can run {op} here, got 'triton'"):
        OPS[op].function(**example(op), backend="triton")


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.stateful])
def test_wrong_mask_raises(op):
    inputs = example(op, masked=False)
    with pytest.raises(TypeError, match=r"`valid` must be of dtype torch\.bool, got torch\.uint8"):
        OPS[op].function(**inputs, valid=torch.ones(2, 5, dtype=torch.uint8))
    for dtype in (torch.float32, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=rf"`seq_idx` must be of an integer dtype, got {dtype}"):
            OPS[op].function(**inputs, seq_idx=torch.ones(2, 5, dtype=dtype))
    with pytest.raises(ValueError, match=r"`valid` must be of shape \(2, 5\), got \(2, 4\)"):
        OPS[op].function(**inputs, valid=torch.ones(2, 4, dtype=torch.bool))


def test_errors_of_single_ops():
    x = torch.ones(1, 3, 2)
    with pytest.raises(ValueError, match=r"`b` must be of shape \(B, L, \.\.\.\), got \(3,\)"):
        linear_scan(x, torch.ones(3))
    with pytest.raises(ValueError, match=r"`b` must be of shape \(B, L, \.\.\., 2\), got \(1, 3, 3\)"):
        linear_scan(torch.ones(3), torch.ones(1, 3, 3), pairs=True)
    with pytest.raises(TypeError, match=r"`initial_state` must be of a complex dtype like a and b together, got torch\.float32"):
        linear_scan(x.to(torch.complex64), x, torch.ones(1, 2))
    with pytest.raises(TypeError, match=r"`a` must be of a real floating-point dtype, got torch\.complex64"):
        linear_scan(x.to(torch.complex64), x, pairs=True)
    with pytest.raises(ValueError, match=r"`f` must be of shape \(B, L, \.\.\., 2\), got \(1, 3, 3\)"):
        OPS["block2_scan"].function(torch.ones(2, 2), torch.ones(1, 3, 3))
    with pytest.raises(ValueError, match=r"`f` must be of shape \(B, L, \.\.\., 2\), got \(1, 3, 1\)"):
        OPS["block2_scan"].function(torch.ones(2, 2), torch.ones(1, 3, 1))
    with pytest.raises(ValueError, match=r"`f` must be of shape \(B, L, \.\.\., 2, 2\), got \(1, 3, 2\)"):
        OPS["block2_scan"].function(torch.ones(2, 2), torch.ones(1, 3, 2), pairs=True)
    real, pairs = torch.ones(2, 4), torch.ones(2, 4, 2)
    expected = r"complex of shape \(1, 3, 4\) or real pairs of shape \(1, 3, 4, 2\)"
    with pytest.raises(ValueError, match=rf"`B` must be {expected}, got a real tensor of shape \(1, 3, 4\)"):
        selective_scan(x, x, pairs, torch.ones(1, 3, 4), torch.ones(1, 3, 4))
    with pytest.raises(ValueError, match=r"`B` must be of shape \(1, 3, 4\), got \(1, 3, 4, 2\)"):
        selective_scan(x, x, real, torch.ones(1, 3, 4, 2), torch.ones(1, 3, 4, 2))
    with pytest.raises(
        ValueError,
        match=r"`B` must be complex of shape \(4\) or real pairs of shape \(4, 2\), got a real tensor of shape \(2, 4\)",
    ):
        unitary_scan(x, x, torch.ones(2, 4, 2), real, real, pairs)
    with pytest.raises(ValueError, match=r"`weight` must be of shape \(2, K\) with K of at least 1, got \(2, 0\)"):
        short_conv(x, torch.ones(2, 0))
    with pytest.raises(ValueError, match=r"`activation` must be one of .*, got 'relu'"):
        short_conv(x, torch.ones(2, 3), activation="relu")
    with pytest.raises(ValueError, match=r"`k` must be of shape \(2, 3\), got \(2, 4\)"):
        long_conv(x, torch.ones(2, 4))


def test_final_state_has_the_complex_form_of_the_parameters():
    """Complex tensors and pairs of real numbers give the same results, and so do lazily conjugated tensors."""
    u, dt, W, bias = torch.randn(1, 4, 3), torch.rand(1, 4, 3), torch.randn(3, 2, 3), torch.randn(3, 2)
    B, C, h = torch.randn(2, dtype=torch.complex64), torch.randn(3, 2, dtype=torch.complex64), torch.randn(1, 3, 2, 2)
    y, final = unitary_scan(u, dt, W, bias, B, C, initial_state=h)
    assert final.dtype == torch.complex64
    as_pairs = (torch.view_as_real(B), torch.view_as_real(C))
    y_pairs, pairs = unitary_scan(u, dt, W, bias, *as_pairs, initial_state=torch.view_as_complex(h))
    assert torch.equal(y, y_pairs)
    assert torch.equal(torch.view_as_real(final), pairs)
    conjugate, _ = unitary_scan(u, dt, W, bias, B.conj(), C.conj())
    resolved, _ = unitary_scan(u, dt, W, bias, B.conj().resolve_conj(), C.conj().resolve_conj())
    assert torch.equal(conjugate, resolved)


@pytest.mark.parametrize("op", OPS)
def test_meta_tensors_give_results_of_the_same_shape(op):
    inputs = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in example(op).items()}
    results, expected = OPS[op].function(**inputs), OPS[op].function(**example(op))
    for result, reference in zip(results, expected, strict=True):
        assert result.shape == reference.shape
        assert result.is_meta


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_strides_of_inputs_do_not_change_results(op, is_complex):
    """Transposed inputs and inputs with an offset into their storage give the same results, also for pairs."""
    inputs = example(op, is_complex=is_complex)
    swapped = inputs | {name: x.mT.contiguous().mT for name, x in floats(inputs).items() if x.ndim > 1}
    shifted = inputs | {name: torch.cat([x[..., :1], x], -1)[..., 1:] for name, x in floats(inputs).items()}
    for backend in usable_backends(op):
        expected = OPS[op].function(**inputs, backend=backend)
        torch.testing.assert_close(OPS[op].function(**swapped, backend=backend), expected)
        torch.testing.assert_close(OPS[op].function(**shifted, backend=backend), expected)


@pytest.mark.parametrize("op", OPS)
def test_registry_agrees_with_the_signature(op):
    """`OPS` names only parameters of the function of an op, and only stateful ops have a state and masks."""
    parameters = inspect.signature(OPS[op].function).parameters
    assert {*OPS[op].per_step, *OPS[op].shared} <= set(parameters)
    assert ("initial_state" in parameters) == ("valid" in parameters) == ("seq_idx" in parameters) == OPS[op].stateful
    assert not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.stateful])
def test_vmap_over_masks_equals_a_loop(op):
    """`valid` and `seq_idx` can be mapped like any other argument."""
    inputs = example(op, masked=False)
    valid, ids = torch.rand(3, 2, 5) < 0.7, torch.randint(0, 2, (3, 2, 5))
    for backend in usable_backends(op):

        def call(valid, ids, backend=backend):
            return OPS[op].function(**inputs, valid=valid, seq_idx=ids, backend=backend)

        each = [call(*masks) for masks in zip(valid, ids, strict=True)]
        for mapped, *expected in zip(torch.func.vmap(call)(valid, ids), *each, strict=True):
            torch.testing.assert_close(mapped, torch.stack(expected))


def test_step_flags_mark_invalid_steps_and_resets():
    """Segments start at valid steps whose id differs from that of the last valid step."""
    like = torch.zeros(1)
    valid = torch.tensor([[False, True, False, True, True, False, True]])
    ids = torch.tensor([[5, 1, 9, 1, 2, 2, 3]])
    expected = torch.tensor([[INVALID, 0, INVALID, 0, RESET, INVALID, RESET]], dtype=torch.uint8)
    assert torch.equal(step_flags(1, 7, valid, ids, like), expected)
    assert step_flags(1, 7, None, None, like) is None
    without_mask = torch.tensor([[0, RESET, RESET, RESET, RESET, 0, RESET]], dtype=torch.uint8)
    assert torch.equal(step_flags(1, 7, None, ids, like), without_mask)


def test_last_valid_gives_the_last_valid_step_before_each():
    flags = torch.tensor([[INVALID, INVALID, 0, RESET, INVALID, INVALID, 0], [0, 0, INVALID, 0, 0, RESET, INVALID]])
    expected = torch.tensor([[-1, -1, -1, 2, 3, 3, 3], [-1, 0, 1, 1, 3, 4, 5]])
    assert torch.equal(last_valid(flags.to(torch.uint8)), expected)


def test_flags_split_into_masks_and_zero_invalid_steps():
    """Each bit of the flags is a separate mask; `zero_invalid` writes zeros at invalid steps only."""
    flags = torch.tensor([[INVALID, 0, RESET]], dtype=torch.uint8)
    invalid, reset = flag_masks(flags, 4)
    assert (invalid.shape, reset.shape) == ((1, 3, 1, 1), (1, 3, 1, 1))
    assert (invalid.flatten().tolist(), reset.flatten().tolist()) == ([True, False, False], [False, False, True])
    assert reset_mask(flags, True, 3).flatten().tolist() == [False, False, True]
    assert reset_mask(flags, False, 3) is None
    assert reset_mask(None, True, 3) is None
    x = torch.ones(1, 3, 2)
    masked, none = zero_invalid(flags, x, None)
    assert masked[0, :, 0].tolist() == [0, 1, 1]
    assert none is None
    assert zero_invalid(None, x)[0] is x


def test_states_are_at_least_float32_and_carries_float64():
    half, single, double = (torch.zeros(1, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64))
    assert state_dtype(half, None) == state_dtype(half, single) == torch.float32
    assert state_dtype(half, double) == state_dtype(single, double.to(torch.complex128)) == torch.float64
    assert state_dtype(single.to(torch.complex64)) == torch.float32
    assert carry_dtype(single) == torch.float64


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [((), ("x", "B", "C")), (("x",), ()), (("B",), ()), (("C",), ()), (("dt", "A"), ("x", "B", "C"))],
    ids=str,
)
def test_ssd_scan_calls_its_kernel_with_bfloat16_only_where_all_maps_have_it(wide, narrow, monkeypatch):
    """x, B and C stay in bfloat16 if all three have it; everything else is converted to float32."""
    dtypes = {}

    def record_dtypes(*args):
        names = ("x", "dt", "input_scale", "own_scale", "A", "B", "C", "D", "B_bias", "C_bias", "angle", "initial_state")
        dtypes.update({name: x.dtype for name, x in zip(names, args, strict=False)} | {"backend": args[-1]})
        return args[0], args[11], None

    module = import_module("longscan.ops.ssd_scan")
    monkeypatch.setattr(module, "_native", record_dtypes)
    monkeypatch.setattr(module, "INTERPRETER_MULTIPLIES_BFLOAT16", True)  # as on a GPU
    monkeypatch.setattr(module, "resolve", lambda *_: "triton")
    inputs = example("ssd_scan", torch.bfloat16, masked=False)
    y, _ = OPS["ssd_scan"].function(**inputs | {name: inputs[name].float() for name in wide})
    assert dtypes.pop("backend") == "triton"
    assert dtypes == dict.fromkeys(dtypes, torch.float32) | dict.fromkeys(narrow, torch.bfloat16)
    assert y.dtype == (torch.float32 if "x" in wide else torch.bfloat16)


def test_auto_logs_its_fallback_once_and_explain_gives_the_reason(monkeypatch, caplog):
    """`auto` logs once why it does not use the native backend; `explain` returns the reason in every call."""
    assert explain("linear_scan", "meta") == "linear_scan on meta, torch.float32: eager (no native kernel for this device)"
    assert explain("long_conv") == "long_conv on cpu, torch.float32: eager (long_conv has no native kernel)"
    monkeypatch.setattr(dispatch, "_unusable", {"linear_scan": "no compiler for this test"})
    assert explain("linear_scan") == "linear_scan on cpu, torch.float32: eager (no compiler for this test)"
    with pytest.raises(ValueError, match="that can run linear_scan here, got 'cpu': no compiler for this test"):
        linear_scan(torch.ones(1), torch.ones(1, 2, 1), backend="cpu")
    with caplog.at_level(logging.WARNING, "longscan"):
        for _ in range(2):
            linear_scan(torch.ones(1), torch.ones(1, 2, 1))
    assert [record.message for record in caplog.records] == [
        "linear_scan runs on the eager backend, not cpu: no compiler for this test"
    ]
    with pytest.raises(KeyError, match="no op is called 'scan'; there are: block2_scan, delta_scan, linear_scan"):
        explain("scan")


def test_fallbacks_are_logged_while_tracing_and_in_steps(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "_unusable", dict.fromkeys(("short_conv", "linear_scan", "mamba_step"), "no compiler here"))
    a, b, u = torch.rand(1, 4, 3), torch.randn(1, 4, 3), torch.randn(1, 4, 3)
    fallback_message = "{} runs on the eager backend, not cpu: no compiler here".format

    def scan_and_convolve(a, b, u):
        return linear_scan(a, b)[0] + short_conv(u, b[0].T)[0]

    with caplog.at_level(logging.WARNING, "longscan"):
        for _ in range(2):
            torch.testing.assert_close(
                torch.compile(scan_and_convolve, fullgraph=True, backend="eager")(a, b, u), scan_and_convolve(a, b, u)
            )
        assert [record.message for record in caplog.records] == [fallback_message("linear_scan"), fallback_message("short_conv")]
        caplog.clear()
        block = BLOCKS["mamba"](4)
        with torch.no_grad():
            state = block.step(torch.randn(1, 4), block.initial_state(1))[1]
            block.step(torch.randn(1, 4), state)
        assert [record.message for record in caplog.records] == [fallback_message("mamba_step")]
    with dispatch.recorded_choices() as recording:
        torch.compile(lambda a, b: linear_scan(a, b)[0], fullgraph=True, backend="eager")(a, b)
    assert recording.choices == [dispatch.Choice("linear_scan", "auto", "eager", "no compiler here")]


@pytest.fixture(autouse=True)
def clear_logged_messages():
    """Forget which messages have been logged, so that each test sees those that are logged only once."""
    dispatch._log_once.cache_clear()


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.stateful])
def test_default_dtype_does_not_change_results(op):
    """A missing initial state is float32 whatever torch's default dtype is."""
    inputs = example(op, optional=False)
    inputs.pop("initial_state", None)
    expected = OPS[op].function(**inputs)
    torch.set_default_dtype(torch.float64)
    try:
        results = OPS[op].function(**inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(results, expected, rtol=0, atol=0)


def test_real_factor_of_linear_scan_multiplies_both_parts_of_complex_inputs():
    a, b = torch.rand(2, 6, 3), torch.randn(2, 6, 3, dtype=torch.complex64)
    for real, wide in zip(linear_scan(a, b), linear_scan(a.to(torch.complex64), b), strict=True):
        torch.testing.assert_close(real, wide)


@pytest.mark.parametrize("op", OPS)
def test_optional_arguments_of_examples_are_those_with_a_default(op):
    """The arguments are those in `ARGUMENTS`, by which doctor, tests and benchmarks call an op; any may get an initial state."""
    parameters = inspect.signature(OPS[op].function).parameters
    for name, argument in ARGUMENTS[op].items():
        has_default = parameters[name].default is not inspect.Parameter.empty
        assert argument.optional == has_default or (name == "initial_state" and has_default), name


@pytest.mark.parametrize("op", OPS)
def test_each_optional_argument_has_its_effect_alone_and_without_each_other(op):
    """All backends agree if one is given, and if one is left out; and the argument changes the result."""
    everything = example(op, torch.float64, masked=False)
    optional = [name for name, argument in ARGUMENTS[op].items() if argument.optional]
    required = {name: value for name, value in everything.items() if name not in optional}
    plain = OPS[op].function(**required, backend="reference")
    for name in optional:
        alone, others = required | {name: everything[name]}, {key: value for key, value in everything.items() if key != name}
        expected = OPS[op].function(**alone, backend="reference")
        changed = [not torch.equal(x, y) for x, y in zip(tuple(expected), tuple(plain), strict=True)]
        assert any(changed), name
        for inputs in (alone, others):
            expected = OPS[op].function(**inputs, backend="reference")
            for backend in usable_backends(op):
                torch.testing.assert_close(OPS[op].function(**inputs, backend=backend), expected)
