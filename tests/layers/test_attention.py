import math

import pytest
import torch
from torch.nn.functional import linear

from longscan import SequenceModel
from longscan.layers import Attention, SequenceInfo, attention
from longscan.numerics.rotary import frequencies, rotate_pairs


def apply_equations(layer: Attention, u: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Apply the equation at the top of the layer's file to one query after the other."""
    q, k, v = (part.unflatten(-1, (layer.heads, layer.head_dim)) for part in linear(u, layer.in_proj, layer.in_bias).chunk(3, -1))
    rates = torch.tensor(frequencies(layer.rotary_dim, layer.base), dtype=u.dtype)
    q, k = (rotate_pairs(part, (position.unsqueeze(-1) * rates).unsqueeze(2)) for part in (q, k))
    y = torch.zeros_like(v)
    for t in range(u.shape[1]):
        first = 0 if layer.window is None else max(0, t + 1 - layer.window)
        last = t + 1 if layer.causal else u.shape[1]
        scores = torch.einsum("bhp,bshp->bhs", q[:, t], k[:, first:last]) / math.sqrt(layer.head_dim)
        y[:, t] = torch.einsum("bhs,bshp->bhp", scores.softmax(-1), v[:, first:last])
    return linear(y.flatten(2), layer.out_proj, layer.out_bias)


@pytest.mark.parametrize("has_elapsed", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"head_dim": 2, "base": 50.0}, {"window": 4}, {"rotary_dim": 2}, {"bias": True}, {"causal": False}], ids=str
)
def test_outputs_follow_the_equations(options, has_elapsed):
    layer = Attention(6, **{"head_dim": 3, **options}).double()
    if layer.in_bias is not None:
        with torch.no_grad():
            layer.in_bias.normal_()
            layer.out_bias.normal_()
    u = torch.randn(2, 11, 6, dtype=torch.float64)
    elapsed = torch.rand(2, 11, dtype=torch.float64) * 4 if has_elapsed else torch.ones(2, 11, dtype=torch.float64)
    y = layer(u, elapsed=elapsed if has_elapsed else None)
    torch.testing.assert_close(y, apply_equations(layer, u, elapsed.cumsum(1)))


@pytest.mark.parametrize("causal", [False, True])
def test_without_a_rotation_nothing_depends_on_times(causal):
    layer = Attention(6, rotary_dim=0, causal=causal).double()
    u = torch.randn(2, 11, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(u), apply_equations(layer, u, torch.zeros(2, 11, dtype=torch.float64)))
    with pytest.raises(ValueError, match="`elapsed` must be None"):
        layer(u, elapsed=torch.ones(2, 11))


@pytest.mark.parametrize("seq_idx", [None, torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]])])
def test_all_steps_of_a_sequence_and_no_padding_are_attended_to(seq_idx):
    layer = Attention(6, causal=False).double()
    u, valid = torch.randn(1, 11, 6, dtype=torch.float64), torch.arange(11).unsqueeze(0) < 9
    y = layer(u, valid=valid, seq_idx=seq_idx)
    parts = [slice(0, 9)] if seq_idx is None else [slice(0, 4), slice(4, 7), slice(7, 9)]
    for part in parts:
        torch.testing.assert_close(y[:, part], layer(u[:, part]))
    assert not y[:, 9:].any()


def test_window_over_several_chunks_follows_the_equations():
    layer = Attention(4, window=5).double()
    u = torch.randn(1, 300, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(u), apply_equations(layer, u, torch.arange(300.0, dtype=torch.float64).unsqueeze(0)))


def test_window_beyond_the_sequence_needs_no_memory_without_the_state():
    """Only the state has a slot for each step of the window."""
    whole, x = Attention(8), torch.randn(2, 5, 8)
    layer = Attention(8, window=2**40)
    layer.load_state_dict(whole.state_dict())
    torch.testing.assert_close(layer(x), whole(x))
    short = Attention(8, window=3)
    for info in (SequenceInfo(return_state=False), SequenceInfo(valid=torch.ones(2, 5, dtype=torch.bool), return_state=False)):
        assert short.forward_impl(x, None, info)[1] is None


def test_memory_with_window_is_linear_in_the_length():
    """Four times the steps need about four times the memory, not sixteen times."""

    def largest_tensor(length: int) -> int:
        layer, u = Attention(4, window=8), torch.randn(1, length, 4)
        sizes = []

        class SizeRecorder(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                result = func(*args, **(kwargs or {}))
                sizes.extend(part.nbytes for part in torch.utils._pytree.tree_leaves(result) if isinstance(part, torch.Tensor))
                return result

        with torch.no_grad(), SizeRecorder():
            layer(u)
        return max(sizes)

    assert largest_tensor(4000) <= 4.5 * largest_tensor(1000)


def test_scores_of_packed_rows_are_computed_in_parts_of_bounded_size(monkeypatch):
    """Queries are taken together up to the number of scores allowed, and one at a time if one has more."""
    layer, u = Attention(4, head_dim=2, causal=False), torch.randn(3, 20, 4)
    seq_idx = torch.arange(20).expand(3, -1) // 7
    whole, sizes, masked = layer(u, seq_idx=seq_idx), [], attention.masked_products

    def record(queries, keys, mask):
        sizes.append(queries.shape[2])
        return masked(queries, keys, mask)

    def run(function, given):
        checkpointed.append(given[0].shape[2])
        return function(*given)

    checkpointed: list[int] = []
    monkeypatch.setattr(attention, "run_chunk", run)
    monkeypatch.setattr(attention, "masked_products", record)
    for limit, expected in ((3 * 2 * 20 * 6, [6, 6, 6, 2]), (3 * 2 * 20 * 6 - 1, [5] * 4), (7, [1] * 20), (2400, [20])):
        monkeypatch.setattr(attention, "SCORES", limit)
        sizes.clear()
        checkpointed.clear()
        with torch.no_grad():
            torch.testing.assert_close(layer(u, seq_idx=seq_idx), whole)
        assert sizes == expected
        assert checkpointed == ([] if len(expected) == 1 else expected), "scores that fit are kept for the backward pass"


def test_cache_grows_by_one_entry_a_step_without_window_only():
    full, windowed = Attention(8, head_dim=4), Attention(8, head_dim=4, window=6)
    sizes = {}
    for name, layer in (("full", full), ("windowed", windowed)):
        state = layer.initial_state(2)
        sizes[name] = [state.nbytes]
        for _ in range(9):
            _, state = layer.step(torch.randn(2, 8), state)
            sizes[name].append(state.nbytes)
    per_step = 2 * 4 * (2 * 8 + 1)  # two rows of float32
    assert [after - before for before, after in zip(sizes["full"], sizes["full"][1:], strict=False)] == [per_step] * 9
    assert len(set(sizes["windowed"])) == 1
    assert windowed(torch.randn(2, 40, 8), return_state=True)[1].nbytes == sizes["windowed"][0]


def test_trimmed_state_has_no_padding_and_gives_the_same_outputs():
    layer = Attention(4).double()
    u, valid = torch.randn(2, 9, 4, dtype=torch.float64), torch.arange(9) < torch.tensor([[4], [3]])
    _, state = layer(u, valid=valid, return_state=True)
    assert state.age.shape == (2, 9)
    trimmed = state.trimmed()
    assert trimmed.age.shape == (2, 4)
    assert trimmed.age[0].tolist() == [3, 2, 1, 0]
    next_inputs = torch.randn(2, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(next_inputs, trimmed), layer(next_inputs, state))


def test_outputs_after_a_million_steps_are_accurate():
    """Scores depend only on differences of positions, so an elapsed time of 1e6 before the window does not change them."""
    layer = Attention(4, window=4)
    u = torch.randn(1, 6, 4)
    _, state = layer(u[:, :3], elapsed=torch.tensor([[1e6, 1.0, 1.0]]), return_state=True)
    torch.testing.assert_close(layer(u[:, 3:], state), layer(u)[:, 3:], rtol=1e-5, atol=1e-6)


def test_steps_of_a_hybrid_model_equal_the_whole_sequence():
    sizes = {"d_model": 8, "d_output": 3, "vocab_size": 5, "d_state": 4}
    model = SequenceModel.from_spec("(mamba attention)*2", **sizes, pooling="none").double().eval()
    assert [entry["layer"] for entry in model.entries] == ["s6", "attention"] * 2
    tokens = torch.randint(0, 5, (2, 12))
    whole, final = model(tokens, return_state=True)
    state = model.initial_state(2)
    for t in range(12):
        y, state = model.step(tokens[:, t], state)
    torch.testing.assert_close(y, whole[:, -1])
    assert state.nbytes == final.nbytes


@pytest.mark.parametrize(
    ("d_model", "options", "message"),
    [
        (6, {"rotary_dim": 3}, "`rotary_dim` must .*got 3"),
        (6, {"rotary_dim": -2}, "`rotary_dim` must .*got -2"),
        (6, {"window": 2, "causal": False}, "`window` must .*got 2"),
        (6, {"head_dim": 2, "rotary_dim": 4}, "`rotary_dim` must .*got 4"),
        (6, {"head_dim": 4}, "`head_dim` must .*got 4"),
        (6, {"head_dim": 1}, "`head_dim` must .*got 1"),
        (67, {}, "`head_dim` must .*got 1"),
        (6, {"window": 0}, "`window` must .*got 0"),
        (6, {"base": 0.0}, "`base` must .*got 0"),
    ],
)
def test_invalid_setting_raises(d_model, options, message):
    with pytest.raises(ValueError, match=message):
        Attention(d_model, **options)
