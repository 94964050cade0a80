"""The transform of S4's kernel: equations, sums in torch, C++ and Triton kernels give the same numbers and gradients.

The C++ kernels run on the CPU if they are installed, the Triton kernels in Triton's interpreter (TRITON_INTERPRET=1) or on the
GPU that LONGSCAN_DEVICE names. LONGSCAN_BACKEND chooses one of the two.
"""

import math
import os
from importlib import import_module

import pytest
import torch

from longscan.layers import S4, s4
from longscan.ops import long_conv
from longscan.ops._tolerances import PERTURBED_COPIES, allowed_error, largest_error, largest_value, perturb
from longscan.ops.dispatch import AUTO, NATIVE, plain_backend, recorded_choices, unsupported_reason
from longscan.ops.dplr_spectrum import dplr_spectrum, eager
from op_examples import run_with_gradients, with_gradients

DEVICE = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))
ONLY_BACKEND = os.environ.get("LONGSCAN_BACKEND")  # the only native backend to test, if it is set
UNUSABLE = {name: unsupported_reason("dplr_spectrum", name, DEVICE, torch.float64, NATIVE) for name in NATIVE}
needs_triton = pytest.mark.skipif(UNUSABLE["triton"] is not None, reason="needs TRITON_INTERPRET=1 or a GPU")
native = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.skipif(why is not None, reason=str(why)))
        for name, why in UNUSABLE.items()
        if ONLY_BACKEND in (None, name)
    ],
)
NAMES = ("eigenvalues", "P", "B", "C", "dt")
EPS = torch.finfo(torch.float32).eps


def make_inputs(channels=2, states=3, length=10, dtype=torch.float64):
    """Return the arguments of a call, on DEVICE: oscillating states whose poles are near some of the angles."""
    parts = torch.randn(4, channels, states, 2, dtype=torch.float64)
    parts[0, ..., 0] = -parts[0, ..., 0].abs() - 0.1
    parts[0, ..., 1] *= 10
    tensors = [*parts, 0.01 + 0.2 * torch.rand(channels, dtype=torch.float64)]
    inputs = {name: x.to(DEVICE, dtype) for name, x in zip(NAMES, tensors, strict=True)}
    return inputs, (torch.arange(length // 2 + 1, dtype=torch.float64) * (2 * math.pi / length)).to(DEVICE, dtype)


def run(inputs, angle, backend, damping=0.0):
    """Return the results and gradients of a call for random cotangents, on the CPU."""
    found = run_with_gradients(lambda inputs: dplr_spectrum(angle, **inputs, damping=damping, backend=backend), inputs)
    return [x.detach().cpu() for x in found]


def assert_equal_by_size(found, expected, tolerance=1e-11):
    """Assert that the errors of tensors are small compared with their largest entries."""
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance * largest_value(y))


@pytest.mark.parametrize(("length", "damping"), [(9, 0.0), (10, 0.3), (1, 0.1)])
def test_eager_equals_the_equations(length, damping):
    inputs, angle = make_inputs(length=length)
    assert_equal_by_size(run(inputs, angle, "eager", damping), run(inputs, angle, "reference", damping))


def test_eager_in_chunks_equals_the_equations(monkeypatch):
    monkeypatch.setattr(eager, "MAX_ELEMENTS", 1)
    monkeypatch.setattr(eager, "CHUNK", 4)
    sizes, spectrum = set(), eager.spectrum
    monkeypatch.setattr(eager, "spectrum", lambda angle, *args: sizes.add(len(angle)) or spectrum(angle, *args))
    inputs, angle = make_inputs(length=21)
    assert_equal_by_size(run(inputs, angle, "eager", 0.1), run(inputs, angle, "reference", 0.1))
    assert sizes == {4, 3}


@pytest.mark.parametrize("backend", ["reference", "eager", *(name for name in NATIVE if UNUSABLE[name] is None)])
def test_no_frequencies_or_channels_give_empty_results(backend):
    inputs, angle = make_inputs()
    assert dplr_spectrum(angle[:0], **inputs, backend=backend).shape == (2, 0, 2)
    none = {name: x[:0] for name, x in inputs.items()}
    assert dplr_spectrum(angle, **none, backend=backend).shape == (0, 6, 2)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("angle", torch.zeros(2, 2), r"`angle` must be of shape \(\*\), got \(2, 2\)"),
        ("eigenvalues", torch.zeros(2, 3), r"`eigenvalues` must be of shape \(\*, \*, 2\), got \(2, 3\)"),
        ("B", torch.zeros(2, 4, 2), r"`B` must be of shape \(2, 3, 2\), got \(2, 4, 2\)"),
        ("dt", torch.zeros(3), r"`dt` must be of shape \(2\), got \(3,\)"),
    ],
)
def test_wrong_shape_raises(name, wrong, message):
    inputs, angle = make_inputs()
    with pytest.raises(ValueError, match=message):
        dplr_spectrum(**{"angle": angle, **inputs, name: wrong.to(DEVICE)})


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_angles_get_no_gradient(backend):
    inputs, angle = make_inputs()
    assert not dplr_spectrum(angle.requires_grad_(), **inputs, backend=backend).requires_grad


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_dtype_of_the_result(backend):
    """Arguments of half precision are computed in float32, and all in float64 if one of them is."""
    inputs, angle = make_inputs(dtype=torch.bfloat16)
    assert dplr_spectrum(angle, **inputs, backend=backend).dtype == torch.float32
    found = dplr_spectrum(angle.double(), **inputs, backend=backend)
    expected = dplr_spectrum(angle.double(), **{name: x.double() for name, x in inputs.items()}, backend=backend)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_autocast_changes_nothing(backend):
    inputs, angle = make_inputs(dtype=torch.float32)
    results = []
    for enabled in (False, True):
        leaves = with_gradients(inputs)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=enabled):
            spectrum = dplr_spectrum(angle, **leaves, backend=backend)
        results.append([spectrum, *torch.autograd.grad(spectrum.square().sum(), list(leaves.values()))])
    assert all(map(torch.equal, *results))


@native
@pytest.mark.parametrize(
    ("channels", "states", "length", "damping"),
    [(2, 3, 10, 0.0), (1, 1, 1, 0.1), (3, 5, 301, 0.05), (2, 40, 30, 0.5), (1, 32, 1100, 0.0157)],
)
def test_kernels_equal_eager(backend, channels, states, length, damping):
    """Odd numbers of states and angles, several blocks of both, and several chunks of partial sums."""
    inputs, angle = make_inputs(channels, states, length)
    assert_equal_by_size(run(inputs, angle, backend, damping), run(inputs, angle, "eager", damping))


@native
def test_kernels_equal_the_equations(backend):
    inputs, angle = make_inputs()
    assert_equal_by_size(run(inputs, angle, backend), run(inputs, angle, "reference"))


@native
def test_kernels_compute_no_poles_that_eager_does_not(backend):
    """Eigenvalue 1 / dt is a pole at a = cosh(w), which is no frequency, but could be a filling of the last vector or tile."""
    inputs, angle = make_inputs(1, 2, 8)
    inputs["eigenvalues"][0, 0] = torch.tensor([2.0, 0.0])
    inputs["dt"].fill_(0.5)
    assert_equal_by_size(run(inputs, angle, backend, 2.0), run(inputs, angle, "eager", 2.0))


@native
def test_steps_of_size_zero_have_gradients(backend):
    inputs, angle = make_inputs()
    inputs["dt"].zero_()
    assert_equal_by_size(run(inputs, angle, backend, 0.1), run(inputs, angle, "eager", 0.1))


@needs_triton
def test_number_of_partial_sums_is_limited(monkeypatch):
    """Also with more blocks of frequencies than one tile of their sum has."""
    launcher = import_module("longscan.ops.dplr_spectrum.triton.launch")
    monkeypatch.setattr(launcher, "CHUNK", 1)
    monkeypatch.setattr(launcher, "MAX_CHUNKS", 3)
    monkeypatch.setattr(launcher, "TILE", 8)
    monkeypatch.setattr(launcher, "FREQUENCIES", {"BLOCK_F": 4, "num_warps": 1})
    monkeypatch.setattr(launcher, "SUMS", {"BLOCK_CHUNKS": 4, "BLOCK": 2})
    shapes, launch = [], launcher.launch

    def record(kernel, *args, **kwargs):
        if kernel is launcher.dplr_spectrum_bwd_parameters_kernel:
            shapes.append(args[1].shape)
        launch(kernel, *args, **kwargs)

    monkeypatch.setattr(launcher, "launch", record)
    inputs, angle = make_inputs(2, 4, 30)
    assert_equal_by_size(run(inputs, angle, "triton"), run(inputs, angle, "eager"))
    assert set(shapes) == {(2, 3, 9, 4)}


@native
def test_float32_errors_are_those_of_plain_float32(backend):
    """With poles next to the unit circle, float32 results are as near to float64 as those of the sums in torch."""
    inputs, angle = make_inputs(3, 8, 64, dtype=torch.float32)
    inputs["eigenvalues"][..., 0] *= 0.05
    plain, found = (run(inputs, angle, name, 0.01) for name in ("eager", backend))
    inputs, angle = {name: x.double() for name, x in inputs.items()}, angle.double()
    exact, perturbed = run(inputs, angle, "eager", 0.01), []
    for seed in range(PERTURBED_COPIES):
        generator = torch.Generator().manual_seed(seed)
        changed = {name: perturb(x.cpu(), EPS, generator).to(DEVICE) for name, x in inputs.items()}
        perturbed.append(run(changed, angle, "eager", 0.01))
    for i, (x, truth) in enumerate(zip(found, exact, strict=True)):
        assert largest_error(x, truth) <= allowed_error(x.dtype, [plain[i]], truth, [copy[i] for copy in perturbed]), i


@native
def test_two_calls_give_the_same_bits(backend):
    inputs, angle = make_inputs(3, 5, 300)
    assert all(map(torch.equal, run(inputs, angle, backend, 0.1), run(inputs, angle, backend, 0.1)))


@pytest.mark.skipif(UNUSABLE["cpu"] is not None, reason=str(UNUSABLE["cpu"]))
def test_number_of_threads_changes_no_bit(set_num_threads):
    inputs, angle = make_inputs(16, 32, 1100)
    found = []
    for threads in (1, 3, 3, 3):  # more than once: another process on this machine may leave one thread all of the channels
        set_num_threads(threads)
        found.append(run(inputs, angle, "cpu", 0.1))
    assert all(torch.equal(x, first) for again in found for x, first in zip(again, found[0], strict=True))


@native
def test_strided_tensors_give_the_same_results(backend):
    inputs, angle = make_inputs()
    strided = {name: torch.stack([x, x], -1)[..., 0] for name, x in inputs.items()}
    assert not any(x.is_contiguous() for x in strided.values())
    spread = torch.stack([angle, angle], -1)[..., 0]
    assert all(map(torch.equal, run(strided, spread, backend), run(inputs, angle, backend)))


@native
def test_vmap_is_one_kernel_call(backend, monkeypatch):
    """The channels of all models form one axis, also where some parameters are those of all models."""
    kernels, calls = import_module(f"longscan.ops.dplr_spectrum.{backend}"), []
    for name in ("forward", "backward"):
        kernel = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *args, kernel=kernel, name=name: calls.append(name) or kernel(*args))
    models, angle = [make_inputs()[0] for _ in range(2)], make_inputs()[1]
    stacked = {name: torch.stack([inputs[name] for inputs in models]) for name in NAMES}

    def gradients(backend):
        def loss(inputs):
            return dplr_spectrum(angle, **(models[0] | inputs), damping=0.1, backend=backend).square().sum()

        return torch.func.grad(loss)

    for names in (NAMES, ("C", "dt")):
        mapped = torch.func.vmap(gradients(backend))
        mapped({name: stacked[name] for name in names})  # on a GPU, the first call calls both to compile their kernels
        calls.clear()
        found = mapped({name: stacked[name] for name in names})
        assert calls == ["forward", "backward"]
        for i, inputs in enumerate(models):
            expected = gradients("eager")({name: inputs[name] for name in names})
            assert_equal_by_size([found[name][i] for name in names], [expected[name] for name in names])


@native
def test_vmap_over_angles_equals_single_calls(backend):
    inputs, angle = make_inputs()
    angles = torch.stack([angle, angle / 2, angle / 3])

    def loss(C, angle):
        return dplr_spectrum(angle, **inputs | {"C": C}, damping=0.1, backend=backend).square().sum()

    def gradient(angle, C):
        return torch.func.grad(loss)(C, angle)

    found = torch.func.vmap(gradient, in_dims=(0, None))(angles, inputs["C"])
    torch.testing.assert_close(found, torch.stack([gradient(x, inputs["C"]) for x in angles]))
    found = torch.func.vmap(lambda x: dplr_spectrum(x, **inputs, backend=backend))(angles)
    torch.testing.assert_close(found, torch.stack([dplr_spectrum(x, **inputs, backend=backend) for x in angles]))


@native
def test_batched_cotangents_equal_single_ones(backend):
    inputs, angle = make_inputs()
    leaves = with_gradients(inputs)
    spectrum = dplr_spectrum(angle, **leaves, backend=backend)
    cotangents = torch.randn(3, *spectrum.shape, dtype=spectrum.dtype, device=DEVICE)
    batched = torch.autograd.grad(spectrum, list(leaves.values()), cotangents, is_grads_batched=True, retain_graph=True)
    for i, cotangent in enumerate(cotangents):
        single = torch.autograd.grad(spectrum, list(leaves.values()), cotangent, retain_graph=True)
        torch.testing.assert_close([x[i] for x in batched], list(single))


@native
def test_compiled_call_equals_plain_call(backend):
    inputs, angle = make_inputs()
    torch._dynamo.reset()

    def function(inputs):
        return dplr_spectrum(angle, **inputs, damping=0.1, backend=backend)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found, expected = (run_with_gradients(call, inputs) for call in (compiled, function))
    assert all(map(torch.equal, found, expected))


@native
def test_custom_ops_pass_the_checks_of_torch(backend):
    module = import_module("longscan.ops.dplr_spectrum")
    inputs, angle = make_inputs()
    table = module.bilinear_frequencies(angle, 0.1)
    given = table, *(x.requires_grad_() for x in inputs.values())
    torch.library.opcheck(module._forward_op.overload, (*given, backend))
    grad = torch.randn(2, 6, 2, dtype=torch.float64, device=DEVICE)
    torch.library.opcheck(module._backward_op.overload, (grad, *(x.detach() for x in given), backend))


@native
def test_derivatives_without_kernels_raise(backend):
    inputs, angle = make_inputs()
    leaves = with_gradients(inputs)
    spectrum = dplr_spectrum(angle, **leaves, backend=backend)
    (first,) = torch.autograd.grad(spectrum.square().sum(), leaves["C"], create_graph=True)
    with pytest.raises(RuntimeError, match=f"dplr_spectrum: the {backend} backend has no second derivative; use backend='eager'"):
        first.sum().backward()
    with pytest.raises(RuntimeError, match="no forward-mode derivative; use backend='eager'"):
        torch.func.jvp(lambda dt: dplr_spectrum(angle, **inputs | {"dt": dt}, backend=backend), (inputs["dt"],), (inputs["dt"],))


@pytest.mark.parametrize("backend", ["reference", "eager", "auto"])
def test_layer_passes_its_backend(backend):
    layer, u = S4(3, d_state=8, backend=backend).to(DEVICE), torch.randn(2, 30, 3, device=DEVICE)
    with recorded_choices() as choices:
        layer(u)
    preferred = AUTO.get(DEVICE.type)
    expected = backend if backend != "auto" else "eager" if preferred is None or UNUSABLE[preferred] else preferred
    assert [x.backend for x in choices.choices if x.op == "dplr_spectrum"] == [expected]


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layer_with_kernels_equals_layer_without(backend, dtype, monkeypatch):
    """S4 in float32 damps its kernel; in float64 it truncates it."""
    layer, u = S4(3, d_state=8).to(DEVICE, dtype), torch.randn(2, 30, 3, device=DEVICE, dtype=dtype)
    results = []
    for name in ("eager", backend):
        monkeypatch.setattr(s4, "plain_backend", lambda _, name=name: name)
        monkeypatch.setattr(s4, "long_conv", lambda *args, backend: long_conv(*args, backend=plain_backend(backend)))
        y = layer(u)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    assert_equal_by_size(*results, tolerance=1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU that LONGSCAN_DEVICE names")
def test_layer_on_a_gpu_calls_the_kernels_in_a_graph(monkeypatch):
    """A recorded step of S4 with `auto` gives the gradients of a plain one, and launches the kernels."""
    launcher = import_module("longscan.ops.dplr_spectrum.triton.launch")
    kernels, launch = [], launcher.launch
    layer, u = S4(5, d_state=16).to(DEVICE), torch.randn(2, 100, 5, device=DEVICE)
    parameters = list(layer.parameters())

    def step():
        return torch.autograd.grad(layer(u).square().sum(), parameters)

    expected = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)

    def record(kernel, *args, **kwargs):
        kernels.append(kernel)
        launch(kernel, *args, **kwargs)

    monkeypatch.setattr(launcher, "launch", record)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    assert len(kernels) == 4
    torch.testing.assert_close(found, expected)
