"""`ssd_scan` against what it generalises: the selective scan, a complex recurrence, and the matrix of a sequence."""

from importlib import import_module

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longscan.ops import dispatch, linear_scan, selective_scan, ssd_scan

B, L, H, P, N = 2, 70, 3, 2, 4


def double(*shape):
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture
def heads():
    """x, dt, A, B, C with one group, and a state."""
    dt = torch.rand(B, L, H, dtype=torch.float64)
    return double(B, L, H, P), dt, -torch.rand(H, dtype=torch.float64), double(B, L, 1, N), double(B, L, 1, N), double(B, H, P, N)


def test_a_head_is_a_selective_scan_whose_channels_share_step_and_decay(heads):
    x, dt, A, into, out, start = heads
    y, final = ssd_scan(x, dt, A, into, out, initial_state=start)
    shared = A.repeat_interleave(P).unsqueeze(1).expand(-1, N)
    wanted, state = selective_scan(
        x.flatten(2), dt.repeat_interleave(P, 2), shared, into[:, :, 0], out[:, :, 0], initial_state=start.flatten(1, 2)
    )
    torch.testing.assert_close(y.flatten(2), wanted)
    torch.testing.assert_close(final.flatten(1, 2), state)


def test_the_outputs_are_a_semiseparable_matrix_times_the_inputs(heads):
    """Equation 3 of the paper: M_ts = C_t^T a_t ... a_{s+1} B_s s_s, entry by entry."""
    x, dt, A, into, out, _ = heads
    steps = (dt * A).cumsum(1)
    for head in range(H):
        decay = (steps[:, :, None, head] - steps[:, None, :, head]).exp().tril()
        matrix = torch.einsum("btn,bsn->bts", out[:, :, 0], into[:, :, 0]) * decay * dt[:, None, :, head]
        torch.testing.assert_close(matrix @ x[:, :, head], ssd_scan(x, dt, A, into, out)[0][:, :, head])


def test_turned_pairs_are_complex_states(heads):
    x, dt, A, into, out, start = heads
    angle = 3 * double(B, L, H, N // 2)
    y, final = ssd_scan(x, dt, A, into, out, initial_state=start, angle=angle)

    def numbers(part):
        return torch.view_as_complex(part.reshape(*part.shape[:-1], N // 2, 2).contiguous())

    factor = torch.polar((dt * A).exp().unsqueeze(-1).expand_as(angle), angle).unsqueeze(3).expand(-1, -1, -1, P, -1)
    drive = (dt.unsqueeze(-1) * x).unsqueeze(-1) * numbers(into).unsqueeze(3)
    states, last = linear_scan(factor, drive, numbers(start))
    torch.testing.assert_close(y, (states * numbers(out).unsqueeze(3).conj()).real.sum(-1))
    torch.testing.assert_close(numbers(final), last)


def test_input_scale_replaces_the_step_as_the_weight_of_an_input(heads):
    x, dt, A, into, out, start = heads
    scale = double(B, L, H)
    y, final = ssd_scan(x, dt, A, into, out, initial_state=start, input_scale=scale)
    wanted, last = ssd_scan(x * (scale / dt).unsqueeze(-1), dt, A, into, out, initial_state=start)
    torch.testing.assert_close((y, final), (wanted, last))


def test_own_scale_weighs_an_input_in_the_output_of_its_own_step_alone(heads):
    x, dt, A, into, out, start = heads
    own = double(B, L, H)
    options = {"initial_state": start, "angle": double(B, L, H, 1)}
    y, final = ssd_scan(x, dt, A, into, out, own_scale=own, **options)
    wanted, last = ssd_scan(x, dt, A, into, out, **options)
    torch.testing.assert_close(y, wanted + ((own - dt) * (into * out).sum(-1)).unsqueeze(-1) * x)
    torch.testing.assert_close(final, last)


def test_heads_add_their_biases_to_the_maps_of_their_group(heads):
    x, dt, A, into, out, _ = heads
    biases = double(2, H, N)
    found = ssd_scan(x, dt, A, into, out, B_bias=biases[0], C_bias=biases[1])
    torch.testing.assert_close(found, ssd_scan(x, dt, A, into + biases[0], out + biases[1]))


def test_groups_serve_heads_in_order():
    into, out = double(1, L, 2, N), double(1, L, 2, N)
    x, dt, A = double(1, L, 4, P), torch.rand(1, L, 4, dtype=torch.float64), -torch.rand(4, dtype=torch.float64)
    y, _ = ssd_scan(x, dt, A, into, out)
    for group in (0, 1):
        part = slice(2 * group, 2 * group + 2)
        alone, _ = ssd_scan(x[:, :, part], dt[:, :, part], A[part], into[:, :, group : group + 1], out[:, :, group : group + 1])
        torch.testing.assert_close(y[:, :, part], alone)


def test_decays_beyond_the_range_of_float32():
    """No form divides by a running product: a state that is forgotten is zero, not a NaN, and so are its gradients."""
    x, dt = torch.randn(1, 200, 1, 2), torch.full((1, 200, 1), 90.0, requires_grad=True)
    y, final = ssd_scan(x, dt, -torch.ones(1), torch.ones(1, 200, 1, 2), torch.ones(1, 200, 1, 2), backend="eager")
    torch.testing.assert_close(y, 180 * x)
    (y.sum() + final.sum()).backward()
    assert dt.grad.isfinite().all()


class Calls(TorchDispatchMode):
    """Counts the operations of torch."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_matrix_products_take_the_place_of_the_loop():
    x, dt, A = torch.randn(1, 512, 4, 32), torch.rand(1, 512, 4), -torch.rand(4)
    into, out = torch.randn(1, 512, 1, 64), torch.randn(1, 512, 1, 64)
    counts = {}
    for backend in ("eager", "reference"):
        with Calls() as calls:
            ssd_scan(x, dt, A, into, out, backend=backend)
        counts[backend] = calls.count
    assert 10 * counts["eager"] < counts["reference"]
    assert counts["reference"] > 512


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"B": torch.ones(1, 5, 3, 2)}, "the groups of `B` must be a divisor of the 4 heads of x, got 3"),
        ({"angle": torch.ones(1, 5, 4, 2)}, r"the angles of `angle` must be at most 1 \(pairs of the 2 states\), got 2"),
        ({"C_bias": torch.ones(2, 2)}, r"`C_bias` must be of shape \(4, 2\), got \(2, 2\)"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    inputs = {"x": torch.ones(1, 5, 4, 1), "dt": torch.ones(1, 5, 4), "A": torch.ones(4)}
    inputs |= {"B": torch.ones(1, 5, 2, 2), "C": torch.ones(1, 5, 2, 2)}
    with pytest.raises(ValueError, match=message):
        ssd_scan(**(inputs | change))


@pytest.mark.parametrize(("states", "dtype", "taken"), [(128, torch.float32, 1), (129, torch.float32, 0), (4, torch.float64, 0)])
def test_auto_takes_the_kernel_where_it_was_measured(monkeypatch, states, dtype, taken):
    module = import_module("longscan.ops.ssd_scan")
    monkeypatch.setattr(dispatch, "AUTO", {"cpu": "triton"})
    monkeypatch.setattr(dispatch, "unsupported_reason", lambda *_: None)
    called = []
    monkeypatch.setattr(module, "_native", lambda *args: called.append(args[-1]) or (args[0], args[11], None))
    maps = torch.randn(1, 3, 1, states, dtype=dtype)
    ssd_scan(torch.randn(1, 3, 2, 4, dtype=dtype), torch.rand(1, 3, 2, dtype=dtype), -torch.ones(2, dtype=dtype), maps, maps)
    assert called == ["triton"] * taken
