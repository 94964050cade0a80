import copy
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from longscan.models import LanguageModel, masked_tokens, next_tokens, token_loss


def make_model(spec: str = "m") -> LanguageModel:
    return LanguageModel.from_spec(spec, d_model=8, vocab_size=12, d_state=4)


def test_next_tokens_are_shifted_and_masked():
    tokens = torch.tensor([[1, 2, 3, 4], [9, 5, 6, 9]])
    valid = torch.tensor([[True] * 4, [False, True, True, False]])
    batch = next_tokens(tokens, valid)
    assert batch.inputs.tolist() == [[1, 2, 3], [9, 5, 6]]
    assert batch.targets.tolist() == [[2, 3, 4], [5, 6, 9]]
    assert batch.scored.tolist() == [[True] * 3, [False, True, False]]
    reverse = next_tokens(tokens, valid, reverse=True)
    assert reverse.inputs.tolist() == [[4, 3, 2], [9, 6, 5]]
    assert reverse.targets.tolist() == [[3, 2, 1], [6, 5, 9]]
    assert reverse.scored.tolist() == batch.scored.tolist()


def test_loss_is_the_mean_over_scored_targets():
    net, tokens = make_model(), torch.randint(0, 12, (2, 6))
    valid = torch.arange(6) < torch.tensor([[6], [3]])
    batch = next_tokens(tokens, valid)
    logits = net(tokens[:, :-1])
    expected = [cross_entropy(logits[row, t], tokens[row, t + 1]) for row, end in ((0, 5), (1, 2)) for t in range(end)]
    torch.testing.assert_close(token_loss(net, batch), torch.stack(expected).mean())
    torch.testing.assert_close(token_loss(net, batch, "sum"), torch.stack(expected).sum())
    unscored = next_tokens(tokens, torch.zeros(2, 6, dtype=torch.bool))
    assert token_loss(net, unscored) == 0


def test_masked_tokens_have_the_frequencies_of_the_paper():
    """15 % of the ordinary tokens are chosen; 80 % of these are masked, 10 % random and 10 % unchanged."""
    tokens = torch.randint(0, 12, (1000, 1000))
    batch = masked_tokens(tokens, mask_token=3, vocab_size=12, special=range(7), generator=torch.Generator().manual_seed(0))
    ordinary = tokens >= 7
    assert not (batch.scored & ~ordinary).any()
    assert (batch.scored.sum() / ordinary.sum()).item() == pytest.approx(0.15, abs=0.002)
    chosen, original = batch.inputs[batch.scored], tokens[batch.scored]
    masked = (chosen == 3).float().mean().item()
    unchanged = (chosen == original).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.005)
    assert unchanged == pytest.approx(0.1 + 0.1 / 5, abs=0.005)  # one in five random tokens is the original one
    assert set(chosen.unique().tolist()) == {3, 7, 8, 9, 10, 11}
    assert torch.equal(batch.inputs[~batch.scored], tokens[~batch.scored])
    assert torch.equal(batch.targets, tokens)
    any_random = masked_tokens(tokens, mask_token=3, vocab_size=12, special=range(7), random_special=True, split=(0.0, 1.0))
    assert len(any_random.inputs[any_random.scored].unique()) == 12


def test_next_token_prediction_has_seven_times_the_targets():
    """Thesis, section 4.3.2: 6.67 times as many predictions as masking 15 %."""
    tokens = torch.randint(7, 12, (64, 4097))
    masked = masked_tokens(tokens, mask_token=3, vocab_size=12).scored.sum()
    assert (next_tokens(tokens).scored.sum() / masked).item() == pytest.approx(1 / 0.15, rel=0.02)


def test_padding_is_not_masked_and_the_generator_decides():
    tokens, valid = torch.randint(7, 12, (50, 40)), torch.arange(40) < torch.randint(1, 40, (50, 1))
    first, second = (
        masked_tokens(tokens, mask_token=3, vocab_size=12, valid=valid, share=0.5, generator=torch.Generator().manual_seed(4))
        for _ in range(2)
    )
    assert torch.equal(first.inputs, second.inputs)
    assert not (first.scored & ~valid).any()


def train_on_counting(net: LanguageModel, objective, steps: int) -> list[float]:
    """Train on sequences that count up modulo 5, so that every token determines its neighbours; return the losses."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-2)
    losses = []
    for _ in range(steps):
        tokens = (torch.arange(16) + torch.randint(0, 5, (16, 1))) % 5 + 7
        loss = token_loss(net, objective(tokens))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("spec", "objective"),
    [
        ("m", next_tokens),
        ("m", lambda tokens: next_tokens(tokens, reverse=True)),
        ("bidirectional", lambda tokens: masked_tokens(tokens, mask_token=3, vocab_size=12, special=range(7))),
    ],
    ids=["next", "reversed", "masked"],
)
def test_pretraining_reduces_the_loss(spec, objective):
    losses = train_on_counting(make_model(spec), objective, 60)
    assert losses[0] > 1.5
    assert sum(losses[-5:]) / 5 < 0.3


def test_reverse_loss_equals_the_forward_loss_of_reversed_tokens():
    """Reverse pretraining (R1) starts from the weights of the forward model (F1)."""
    forward = make_model()
    reverse = copy.deepcopy(forward)
    tokens = torch.randint(0, 12, (2, 9))
    torch.testing.assert_close(
        token_loss(reverse, next_tokens(tokens, reverse=True)), token_loss(forward, next_tokens(tokens.flip(1)))
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, "`share` must be .*, got 1.5"),
        ({"split": (0.8, 0.3)}, r"`split` must be .*, got \(0\.8, 0\.3\)"),
        ({"split": (1.1, -0.1)}, "`split` must be"),
        ({"split": (0.8,)}, "`split` must be two probabilities, got 1"),
        ({"split": (0.5, 0.2, 0.1)}, "`split` must be two probabilities, got 3"),
        ({"mask_token": 12}, "`mask_token` must be .*, got 12"),
        ({"mask_token": 1.5}, "`mask_token` must be .*, got 1.5"),
        ({"valid": torch.ones(1, 5, dtype=torch.bool)}, r"`valid` must have shape \(1, 4\), got \(1, 5\)"),
        ({"special": range(12)}, "`special` must .*, got all 12"),
        ({"special": [12]}, r"`special` must be a token below vocab_size \(12\), got 12"),
        ({"special": [-1]}, r"`special` must be a token below vocab_size \(12\), got -1"),
        ({"tokens": torch.zeros(1, 4)}, "`tokens` must be integer tokens .*, got torch.float32"),
        ({"tokens": torch.full((1, 4), 12)}, "`tokens` must be tokens from 0 to 11, got 12"),
    ],
    ids=str,
)
def test_invalid_masking_raises(options, message):
    with pytest.raises(ValueError, match=message):
        masked_tokens(**{"tokens": torch.zeros(1, 4, dtype=torch.int64), "mask_token": 3, "vocab_size": 12, **options})


def test_next_token_loss_of_a_model_that_is_not_causal_raises():
    tokens = torch.randint(0, 12, (1, 5))
    with pytest.raises(ValueError, match="`model` must be causal"):
        token_loss(make_model("mamba bidirectional"), next_tokens(tokens))
    with pytest.raises(ValueError, match=r"`tokens` must have shape .*, got \(1, 1\)"):
        next_tokens(tokens[:, :1])
    with pytest.raises(ValueError, match=r"`tokens` must be integer tokens .*, got torch\.float32 \(1, 5\)"):
        next_tokens(tokens.float())
    with pytest.raises(TypeError, match="`batch` must be the TokenTargets of next_tokens or masked_tokens, got a Tensor"):
        token_loss(make_model("mamba"), tokens)


def test_valid_of_another_shape_or_dtype_raises():
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"`valid` must have shape \(1, 4\), got \(1, 5\)"):
        next_tokens(tokens, torch.ones(1, 5, dtype=torch.bool))
    for batch_of in (next_tokens, partial(masked_tokens, mask_token=3, vocab_size=12)):
        with pytest.raises(TypeError, match=r"`valid` must have dtype torch\.bool, got torch\.int64"):
            batch_of(tokens, valid=torch.ones(1, 4, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_tokens_of_short_integers_have_the_loss_of_int64(dtype):
    model, tokens = make_model("mamba"), torch.randint(0, 12, (2, 5))
    assert torch.equal(token_loss(model, next_tokens(tokens.to(dtype))), token_loss(model, next_tokens(tokens)))
