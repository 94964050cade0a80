"""The scores of a part of a split."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn

from longscan.models import SequenceModel
from longscan.tasks import TASKS, Batch
from longscan.training.evaluate import MIN_ERRORS, _copy_scored_steps, error_quantiles, evaluate, scored_answers, symbol_angles


@pytest.mark.parametrize(
    ("max_batches", "expected"),
    [(0, [*range(10)]), (1, [0]), (3, [0, 3, 6]), (4, [0, 2, 5, 7]), (9, [*range(9)]), (10, [*range(10)]), (99, [*range(10)])],
)
def test_limited_batches_are_evenly_spaced_over_the_split(monkeypatch: Any, max_batches: int, expected: list[int]) -> None:
    """Files that are sorted by class would otherwise be scored on their first class alone."""
    task = TASKS["parity"]()
    model = SequenceModel.from_spec("lru", d_model=4, pooling="none", vocab_size=task.vocab_size, d_output=task.d_output)
    kind, batch, steps = type(task), type(task).batch, []
    monkeypatch.setattr(kind, "batch", lambda self, split, step, *rest: steps.append(step) or batch(self, split, step, *rest))
    evaluate(model, task, "valid", batch_size=100, max_batches=max_batches)
    assert steps == expected


def test_scores_need_no_exchange_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL cannot exchange the states of metrics that are computed on the CPU."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an exchange")

    task = TASKS["parity"]()
    model = SequenceModel.from_spec("lru", d_model=4, pooling="none", vocab_size=task.vocab_size, d_output=task.d_output)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(distributed, "all_gather", refuse)
        scores = evaluate(model, task, "valid", batch_size=100, max_batches=1)
    finally:
        distributed.destroy_process_group()
    assert 0 <= scores.values["accuracy"] <= 1


@pytest.mark.parametrize("has_mask", [True, False])
def test_of_outputs_with_a_loss_mask_the_scored_steps_are_copied(has_mask: bool) -> None:
    output = torch.arange(24.0).view(2, 4, 3)
    mask = torch.tensor([[False, True, False, True], [False] * 4])
    copied = _copy_scored_steps(output, Batch(torch.zeros(2, 4, dtype=torch.int64), loss_mask=mask if has_mask else None))
    assert torch.equal(copied, output * mask.unsqueeze(-1) if has_mask else output)


def test_batch_without_scored_answers_changes_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["parity"]()
    model = SequenceModel.from_spec("lru", d_model=4, pooling="none", vocab_size=task.vocab_size, d_output=task.d_output)
    expected = evaluate(model, task, "valid", batch_size=100, max_batches=1)
    kind, batch, masked = type(task), type(task).batch, {1}

    def batch_of(self: Any, split: Any, step: int, *rest: Any) -> Batch:
        made = batch(self, split, 0, *rest)
        assert made.loss_mask is not None
        return made._replace(loss_mask=torch.zeros_like(made.loss_mask)) if step in masked else made

    monkeypatch.setattr(kind, "batch", batch_of)
    monkeypatch.setattr(kind, "num_batches", lambda *_: 2)
    assert evaluate(model, task, "valid", batch_size=100) == expected
    masked.add(0)
    nothing = evaluate(model, task, "valid", batch_size=100)
    assert np.isnan(nothing.loss)
    assert nothing.values["accuracy"] is None


class HalfOfInput(nn.Module):
    """A model whose output is half of its input; it must be called without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, inputs: Tensor, **_: Any) -> Tensor:
        """Return (B, L, C)."""
        assert not torch.is_grad_enabled()
        return self.scale * inputs


def test_quantiles_of_errors_are_those_of_each_scored_step() -> None:
    """Over the examples of all batches in which the step is scored. None if these are few for a step."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(2, 2 * MIN_ERRORS, 5, 3, generator=generator)
    mask = torch.tensor([False, True, False, True, True]).expand(len(inputs), 5)
    cuts = [slice(0, MIN_ERRORS + 3), slice(MIN_ERRORS + 3, None)]
    batches = [Batch(inputs[rows], targets[rows], loss_mask=mask[rows]) for rows in cuts]
    found = error_quantiles(HalfOfInput(), batches, (0.1, 0.5), 7)
    assert found is not None
    errors = (targets - inputs / 2)[:, [1, 3, 4]].double().numpy()
    np.testing.assert_allclose(found.numpy(), np.quantile(errors, [0.1, 0.5], axis=0), rtol=1e-6)
    whole = error_quantiles(HalfOfInput(), [Batch(inputs, targets)], (0.1,), 7)
    assert whole is not None
    assert whole.shape == (1, 5, 3)
    valid = error_quantiles(HalfOfInput(), [Batch(inputs, targets, valid=mask)], (0.1, 0.5), 7)
    assert valid is not None
    assert torch.equal(valid, found)
    other = mask.clone()
    other[-1, 0] = True
    assert error_quantiles(HalfOfInput(), [Batch(inputs, targets, loss_mask=other)], (0.1,), 7) is None
    fewer = Batch(inputs[cuts[1]], targets[cuts[1]], loss_mask=mask[cuts[1]] & torch.tensor([True, True, True, True, False]))
    partly = error_quantiles(HalfOfInput(), [batches[0], fewer], (0.1, 0.5), 7)
    assert partly is not None
    assert torch.equal(partly[:, :2], found[:, :2])
    np.testing.assert_allclose(partly[:, 2].numpy(), np.quantile(errors[cuts[0], 2], [0.1, 0.5], axis=0), rtol=1e-6)
    chosen = error_quantiles(HalfOfInput(), batches, (0.1, 0.5), 7, mask[0] & (torch.arange(5) < 4))
    assert chosen is not None
    assert torch.equal(chosen, found[:, :2])
    assert error_quantiles(HalfOfInput(), batches, (0.1,), 7, torch.ones(5, dtype=torch.bool)) is None, "no errors of two steps"
    short = Batch(inputs[:, :4], targets[:, :4])
    assert error_quantiles(HalfOfInput(), [Batch(inputs, targets), short], (0.1,), 7) is None
    assert error_quantiles(HalfOfInput(), [Batch(inputs, targets, valid=other)], (0.1,), 7) is None
    assert (
        error_quantiles(
            HalfOfInput(),
            [batches[0]._replace(inputs=inputs[:MIN_ERRORS])._replace(targets=targets[:MIN_ERRORS], loss_mask=mask[:MIN_ERRORS])],
            (0.1,),
            7,
        )
        is not None
    )
    few = Batch(inputs[: MIN_ERRORS - 1], targets[: MIN_ERRORS - 1])
    assert error_quantiles(HalfOfInput(), [few], (0.1,), 7) is None


def test_scored_answers_are_rows_or_steps() -> None:
    inputs, valid = torch.zeros(3, 5, 2), torch.arange(5) < torch.tensor([[5], [2], [1]])
    per_row, per_step = TASKS["uea"](), TASKS["parity"]()
    if not per_step.per_step:
        per_step = TASKS["pendulum"]()
    assert [int(scored_answers(Batch(inputs), task)) for task in (per_row, per_step)] == [3, 15]
    assert [int(scored_answers(Batch(inputs, valid=valid), task)) for task in (per_row, per_step)] == [3, 8]
    assert int(scored_answers(Batch(inputs, valid=valid, loss_mask=valid & (torch.arange(5) > 0)), per_step)) == 5


def test_angles_of_symbols_are_those_of_the_layers_without_gradients() -> None:
    task = TASKS["parity"]()
    model = SequenceModel.from_spec("a lru a", d_model=4, d_state=2, pooling="none", vocab_size=task.vocab_size, d_output=2)
    enabled = []
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: enabled.append(torch.is_grad_enabled()))
    found = symbol_angles(model.train(), task)
    assert all(len(part._forward_pre_hooks) == 1 for part in model.modules()), "no hooks but those above"
    assert model.training
    assert enabled
    assert not any(enabled)
    assert len(found) == 2
    for angles in found.values():
        assert angles["symbols"] == list(task.symbols)
        assert [len(row) for row in angles["theta"]] == [len(angles["theta"][0])] * len(task.symbols)
    first = next(iter(found))
    inputs: list[Tensor] = []
    layer = model.get_submodule(first)
    layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model.eval()(torch.arange(len(task.symbols)).unsqueeze(1))
    expected = layer.angles(inputs[0][:, 0]).flatten(1)
    torch.testing.assert_close(torch.tensor(found[first]["theta"], dtype=torch.float64), expected.double())
    plain = SequenceModel.from_spec("lru", d_model=4, pooling="none", vocab_size=task.vocab_size, d_output=2)
    assert symbol_angles(plain, task) == {}
