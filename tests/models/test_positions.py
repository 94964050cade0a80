"""Absolute positions of a model, and padding that is read like other steps."""

import math

import pytest
import torch

from longscan.models import SequenceModel
from longscan.models.sequence_model import Padding
from longscan.training import parse_settings
from longscan.training.run import build_model

KINDS = ("sinusoidal", "learned", "blocks", "tied")
SIZES = {"d_model": 5, "d_state": 2, "d_output": 3, "vocab_size": 7}


def build(kind: str, spec: str = "mamba gru", **options: object) -> SequenceModel:
    length = None if kind == "sinusoidal" else 9
    return SequenceModel.from_spec(spec, **SIZES, positions=kind, max_length=length, pooling="none", **options).double()


def features_before(model: SequenceModel, tokens: torch.Tensor) -> list[torch.Tensor]:
    """The input of each block."""
    seen: list[torch.Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for block in model.blocks]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


def test_sinusoids_follow_the_equations() -> None:
    model, tokens = build("sinusoidal"), torch.randint(0, 7, (2, 9))
    found = features_before(model, tokens)[0] - model.encoder(tokens)
    for t in range(9):
        for i in range(5):
            angle = t / 10_000 ** (2 * (i // 2) / 6)  # the width 5, rounded up to pairs
            expected = math.cos(angle) if i % 2 else math.sin(angle)
            torch.testing.assert_close(found[:, t, i], torch.full((2,), expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["learned", "blocks", "tied"])
def test_learned_tables_are_added_where_the_kind_says(kind: str) -> None:
    model, tokens = build(kind), torch.randint(0, 7, (2, 8))
    assert model.positions is not None
    table = model.positions.table
    assert table is not None
    assert table.shape == ((2 if kind == "blocks" else 1), 9, 5)
    bound = math.sqrt(6 / (9 + 5))
    assert table.abs().max() <= bound
    assert table.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.3)
    plain = SequenceModel.from_spec("mamba gru", **SIZES, pooling="none").double()
    plain.load_state_dict(model.state_dict(), strict=False)
    first, second = features_before(model, tokens)
    torch.testing.assert_close(first, model.encoder(tokens) + table[0, :8])
    before = plain.stack[0](first)
    torch.testing.assert_close(second, before if kind == "learned" else before + table[-1, :8])


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_steps_equal_the_whole(kind: str) -> None:
    """With padding on the left and on the right positions count the valid steps."""
    model, tokens = build(kind), torch.randint(0, 7, (2, 9))
    whole, final = model(tokens, return_state=True)
    first, state = model(tokens[:, :4], return_state=True)
    second, after = model(tokens[:, 4:], state, return_state=True)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(after.position, final.position)
    state = model.initial_state(2)
    for t in range(9):
        y, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(y, whole[:, t])
    _, idle = model.step(tokens[:, 0], model.initial_state(2), active=torch.tensor([True, False]))
    assert idle.position.tolist() == [1, 0]
    valid = (torch.arange(9) >= 2) & (torch.arange(9) < 7)
    part = model(tokens, valid=valid.expand(2, 9))
    torch.testing.assert_close(part[:, 2:7], model(tokens[:, 2:7]))
    assert not part[:, 7:].any()


def test_unsuitable_positions_raise() -> None:
    with pytest.raises(ValueError, match="`inputs` must have at most 9 steps"):
        build("tied")(torch.zeros(1, 10, dtype=torch.int64))
    with pytest.raises(ValueError, match="`seq_idx` must be None with positions"):
        build("learned")(torch.zeros(1, 4, dtype=torch.int64), seq_idx=torch.zeros(1, 4, dtype=torch.int64))
    for kind, length in (("learned", None), ("sinusoidal", 4), ("none", 4)):
        with pytest.raises(ValueError, match="`max_length` must be"):
            SequenceModel.from_spec("gru", **SIZES, positions=kind, max_length=length)


def test_positions_from_a_recipe() -> None:
    words = ["--task", "pathfinder", "--model.spec", "gru", "--model.d_model", "4"]
    model = build_model(parse_settings([*words, "--model.positions", "blocks"]))
    assert model.positions is not None
    assert model.positions.table is not None
    assert model.positions.table.shape == (1, 1024, 4)
    assert build_model(parse_settings([*words, "--model.positions", "sinusoidal"])).positions is not None


def pooled(padding: Padding, pooling: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs for a short row of a padded batch, for the same steps alone, and for all steps of the batch as valid ones."""
    torch.manual_seed(0)
    model = SequenceModel.from_spec("mamba", **SIZES, pooling=pooling, padding=padding).double()
    tokens = torch.randint(0, 7, (1, 9))
    return model(tokens, valid=torch.arange(9).unsqueeze(0) < 4), model(tokens[:, :4]), model(tokens)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_padding_is_read_only_if_asked_for(pooling: str) -> None:
    masked, alone, _ = pooled("masked", pooling)
    torch.testing.assert_close(masked, alone)
    read, _, whole = pooled("read", pooling)
    torch.testing.assert_close(read, whole)
    assert not torch.allclose(read, alone)
    with pytest.raises(ValueError, match="`padding` must be 'masked' without pooling"):
        SequenceModel.from_spec("mamba", **SIZES, pooling="none", padding="read")
