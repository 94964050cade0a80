"""Examples of answers for the report: which are chosen, what they say, and gradients times inputs."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from longscan.report import run_report
from longscan.tasks import TASKS, Batch
from longscan.training import examples as module
from longscan.training import parse_settings, train
from longscan.training.examples import find_examples, relevance
from longscan.training.run import build_model

TINY = ["--model.d_model", "4", "--model.d_state", "2", "--training.threads", "1", "--training.device", "cpu"]
SMALL = {"train_size": "12", "valid_size": "24", "test_size": "10"}
GENERATED = ("parity", "chomsky_reverse_string", "pendulum", "fitzhugh_nagumo", "multi_query_recall")


def settings_of(task: str, *argv: str) -> Any:
    """Return small settings of a task."""
    sizes = [f"--task.{name}={value}" for name, value in SMALL.items() if name in TASKS[task].__dataclass_fields__]
    return parse_settings(["--task", task, "--model.spec", "s5", *TINY, *sizes, *argv])


@pytest.mark.parametrize("name", GENERATED)
def test_examples_of_generated_tasks_are_in_the_report(name: str, tmp_path: Any) -> None:
    few = ("--steps", "1", "--training.test_batches", "1", "--training.eval_batches", "1")
    run = train(settings_of(name, *few), tmp_path / "run")
    found = json.loads((run.folder / "examples.json").read_text())
    assert 0 < found["looked_at"] <= module.MAX_EXAMPLES
    assert 1 <= len(found["examples"]) <= module.MAX_WRONG + module.MAX_RIGHT
    assert all(np.isfinite(one["relevance"]["values"]).all() for one in found["examples"])
    text = (run.folder / "report.html").read_text("utf-8")
    expected = {"values": "Answers over the truth", "classes": "ight answers</h2>"}[found["kind"]]
    assert expected in text
    assert text.count("<h3>") >= len(found["examples"])
    assert len(text) < 1_000_000


def test_random_numbers_and_mode_of_the_model_stay() -> None:
    settings = settings_of("parity")
    torch.manual_seed(0)
    model = build_model(settings).train()
    before = torch.get_rng_state()
    first = find_examples(model, settings.task, 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert first == find_examples(model, settings.task, 7), "the size of the parts changes nothing"


class FirstChannel(nn.Module):
    """A model of series whose two logits are plus and minus the sum of the first channel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor, **_: Any) -> Tensor:
        """Return (B, 2)."""
        total = self.scale * inputs[..., 0].sum(1)
        return torch.stack((total, -total), 1)


def test_gradient_times_input_of_a_linear_model_is_its_terms() -> None:
    inputs = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(0))
    products = relevance(FirstChannel(), Batch(inputs), lambda output: output[0, 1])
    assert products is not None
    np.testing.assert_allclose(products[0], -inputs[0, :, 0].numpy(), rtol=1e-6)
    assert not products[1:].any()


def test_long_inputs_have_no_gradient() -> None:
    assert relevance(FirstChannel(), Batch(torch.zeros(1, module.MAX_GRADIENT_STEPS + 1, 1)), lambda output: output[0, 0]) is None


def test_wrong_answers_are_the_most_certain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    task = settings_of("uea").task
    inputs = torch.arange(1.0, 9.0)[:, None, None].repeat(1, 2, 1) / 8  # answers are class 0, with growing probability
    targets = torch.tensor([0, 1, 0, 1, 1, 1, 1, 0])
    monkeypatch.setattr(module, "_spread_batches", lambda *_: [Batch(inputs, targets)])
    found = find_examples(FirstChannel(), task, 3)
    assert found is not None
    assert (found["looked_at"], found["wrong"]) == (8, 5)
    wrong, right = found["examples"][: module.MAX_WRONG], found["examples"][module.MAX_WRONG :]
    values = [one["series"][0]["values"][0] for one in wrong]
    assert values == [7 / 8, 6 / 8, 5 / 8, 4 / 8]
    assert [one["series"][0]["values"][0] for one in right] == [1 / 8, 3 / 8]
    assert all(one["true"] != one["predicted"] for one in wrong)
    assert all(one["true"] == one["predicted"] for one in right)
    assert wrong[0]["probability"] == pytest.approx(1 / (1 + np.exp(-3.5)), abs=1e-4)


def test_forecasts_are_in_the_units_of_the_table(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    values = 100 + 20 * np.sin(np.arange(400) / 4) + rng.normal(size=400)
    lines = [f"{np.datetime64('2024-01-01T00') + i},{value:.3f}" for i, value in enumerate(values)]
    (tmp_path / "mine.csv").write_text("date,price\n" + "\n".join(lines))
    argv = ["--task.dataset", "mine", "--task.data_dir", str(tmp_path), "--task.context", "16", "--task.horizon", "4"]
    settings = settings_of("forecast", *argv, "--task.layout", "append", "--task.level", "last", "--steps", "2")
    run = train(settings, tmp_path / "run")
    found = json.loads((run.folder / "examples.json").read_text())
    assert [one["error"] for one in found["examples"]] == ["smallest", "median", "largest"]
    for one in found["examples"]:
        variable = one["variables"][0]
        assert variable["name"] == "price"
        shown = np.array(variable["known"]["values"] + variable["truth"]["values"])
        start = int(np.abs(values - shown[0]).argmin())
        np.testing.assert_allclose(shown, values[start : start + len(shown)], atol=0.01)
        low, high = (np.array(variable["interval"][end]) for end in ("low", "high"))
        assert (low < high).all()
    assert 0.5 < found["coverage"] <= 1
    names = {"seasonal_naive", "persistence", "seasonal_mean", "constant"}
    assert json.loads((run.folder / "baselines.json").read_text()).keys() == names
    text = run_report(run.folder).read_text("utf-8")
    assert "price" in text
    assert "Simple predictors" in text


def test_forecasts_of_a_file_are_in_its_units(tmp_path: Any) -> None:
    """The target is not the first channel, and the inputs of the model have no level."""
    rng = np.random.default_rng(0)
    values = 100 + 20 * np.sin(np.arange(400) / 4) + rng.normal(size=400)
    lines = [f"{np.datetime64('2024-01-01T00') + i},{rng.normal():.3f},{value:.3f}" for i, value in enumerate(values)]
    (tmp_path / "mine.csv").write_text("date,rain,price\n" + "\n".join(lines))
    argv = ["--task.path", str(tmp_path / "mine.csv"), "--task.target", "[price]", "--task.context", "16", "--task.horizon", "4"]
    run = train(settings_of("series_forecast", *argv, "--task.level", "last", "--steps", "2"), tmp_path / "run")
    for one in json.loads((run.folder / "examples.json").read_text())["examples"]:
        (variable,) = one["variables"]
        assert variable["name"] == "price"
        shown = np.array(variable["known"]["values"] + variable["truth"]["values"])
        start = int(np.abs(values - shown[0]).argmin())
        np.testing.assert_allclose(shown, values[start : start + len(shown)], atol=0.01)
        assert np.abs(np.array(variable["answer"]["values"]) - 100).max() < 60
