"""Batches whose sequences are split over processes in training: padding, and models that are refused."""

from typing import Any, cast

import pytest
import torch
from torch import distributed

from longscan.models import SequenceModel, SiameseModel
from longscan.tasks import Batch
from longscan.training import SettingError
from longscan.training.context import PiecePredictor, check_model, pad_steps


def test_padding_on_the_right_reaches_a_multiple_of_the_processes() -> None:
    valid = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    batch = Batch(torch.randn(2, 5, 3), torch.arange(2), valid, None, torch.rand(2, 5), torch.zeros(2, 5, dtype=torch.int64))
    assert pad_steps(batch, 5) is batch
    padded = pad_steps(batch, 4)
    for name in ("inputs", "valid", "elapsed", "seq_idx"):
        before, after = getattr(batch, name), getattr(padded, name)
        assert after.shape == (2, 8, *before.shape[2:])
        assert torch.equal(after[:, :5], before)
        assert not after[:, 5:].any()
    assert padded.targets is batch.targets
    tokens = pad_steps(Batch(torch.ones(2, 3, dtype=torch.int64)), 2)
    assert tokens.inputs.tolist() == [[1, 1, 1, 0]] * 2
    assert tokens.valid is not None
    assert tokens.valid.tolist() == [[True, True, True, False]] * 2
    assert tokens.elapsed is None
    assert tokens.seq_idx is None


def make_model(spec: str, **arguments: Any) -> SequenceModel:
    return SequenceModel.from_spec(spec, d_state=2, **{"d_model": 4, "d_output": 2, "vocab_size": 5, **arguments})


def test_models_that_cannot_run_on_pieces_raise_before_training() -> None:
    check_model(make_model("mamba attention"), 2)
    with pytest.raises(SettingError, match=r"^`training\.context` must be 1, as GRU cannot compute pieces of sequences, got 2"):
        check_model(make_model("mamba gru"), 2)
    pairs = SiameseModel.from_spec("mamba", d_state=2, d_model=4, d_output=2, vocab_size=5)
    with pytest.raises(SettingError, match=r"^`training\.context` must be 1 for a task of pairs of sequences, got 2"):
        check_model(pairs, 2)


def test_padding_that_a_model_reads_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_world_size", lambda _: 2)
    model = make_model("mamba", padding="read")
    batch = Batch(torch.ones(1, 5, dtype=torch.int64))
    message = r"^`training\.context` must be a divisor of the length of each batch \(5\) with model\.padding=read, got 2"
    with pytest.raises(SettingError, match=message):
        PiecePredictor(cast("Any", None), model)(model, batch)
