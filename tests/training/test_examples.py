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
    assert 0 < found["n_examined"] <= module.MAX_EXAMPLES
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
    task = TASKS["lra_image"]()
    inputs = torch.arange(1.0, 9.0)[:, None, None].repeat(1, 2, 1) / 8  # answers are class 0, with growing probability
    targets = torch.tensor([0, 1, 0, 1, 1, 1, 1, 0])
    monkeypatch.setattr(module, "_spread_batches", lambda *_: [Batch(inputs, targets)])
    monkeypatch.setattr(module, "_spread_names", lambda *_: [])
    found = find_examples(FirstChannel(), task, 3)
    assert found is not None
    assert (found["n_examined"], found["wrong"]) == (8, 5)
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
        assert variable["interval"]["times"] == variable["truth"]["times"] == variable["answer"]["times"] == [16, 17, 18, 19]
        assert variable["known"]["times"] == list(range(3, 16)), "three times as many steps as are forecast, and the last one"
    truth, answer = (np.array([one["variables"][0][key]["values"] for one in found["examples"]]) for key in ("truth", "answer"))
    errors = np.square(truth - answer).mean(1)
    assert errors[0] < errors[1] < errors[2]
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
        first = np.datetime64("2024-01-01T00") + start + len(variable["known"]["values"])
        assert one["name"] == str(first.astype("datetime64[s]")).replace("T", " ")
        assert f"{one['error']} error · {one['name']}</h3>" in (run.folder / "report.html").read_text("utf-8")
        assert np.abs(np.array(variable["answer"]["values"]) - 100).max() < 60


@pytest.mark.parametrize(("n_wrong", "n_right"), [(0, 4), (1, 3), (2, 3), (3, 2), (4, 2), (5, 2)])
def test_half_of_the_missing_wrong_answers_are_replaced_by_right_ones(
    monkeypatch: pytest.MonkeyPatch, n_wrong: int, n_right: int
) -> None:
    targets = (torch.arange(12) < n_wrong).long()
    monkeypatch.setattr(module, "_spread_batches", lambda *_: [Batch(torch.ones(12, 2, 1), targets)])
    monkeypatch.setattr(module, "_spread_names", lambda *_: [])
    found = find_examples(FirstChannel(), TASKS["lra_image"](), 5)
    assert found is not None
    assert found["wrong"] == n_wrong
    assert [one["true"] == one["predicted"] for one in found["examples"]] == [False] * min(4, n_wrong) + [True] * n_right


class SameByte(nn.Module):
    """A model of bytes that predicts the byte that it reads, with the logit 6; all others have 0."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(256, 256)
        self.encoder.weight.data = 6 * torch.eye(256)

    def forward(self, inputs: Tensor, **_: Any) -> Tensor:
        """Return (B, L, 256)."""
        return self.encoder(inputs)


def byte_answers(tmp_path: Any, content: bytes, window: int) -> dict[str, Any]:
    """Return the only example of a file whose last window is `content`."""
    (tmp_path / "bytes").write_bytes(b"." * 40 * len(content) + content)
    fraction = (len(content) + 0.5) / (41 * len(content))
    task = TASKS["byte_text"](path=str(tmp_path / "bytes"), window=window, valid_fraction=fraction)
    found = find_examples(SameByte(), task, 2)
    assert found is not None
    (example,) = found["examples"]
    return found | example


def test_answers_at_several_steps(tmp_path: Any) -> None:
    """The true and the given answer of each step, its probability, and the token on which one of the wrong answers depends."""
    found = byte_answers(tmp_path, b"aa~ \n\x00\x00a", 7)
    probability = round(float(np.exp(6) / (np.exp(6) + 255)), 3)
    names = ["a", "a", "~", "␣", "↵", "0x00", "0x00", "a"]
    answers = [[step, names[step + 1], names[step], probability] for step in range(7)]
    assert found["answers"] == answers
    assert (found["n_examined"], found["wrong"], found["scored"], found["first"], found["length"]) == (1, 5, 7, 0, 7)
    assert found["focus"] == 3, "the middle one of the wrong answers at 1, 2, 3, 4 and 6"
    assert found["tokens"] == names[:7]
    np.testing.assert_allclose(found["token_relevance"], [0, 0, 0, 6, 0, 0, 0], atol=1e-6)
    assert found["relevance"]["names"] == ["tokens"]
    assert found["relevance"]["times"] == [0, 1, 2, 3, 4, 5, 6]


def test_long_text_is_shown_around_a_wrong_answer(tmp_path: Any) -> None:
    """The wrong answer is in the middle of the part that is shown. Of a text without errors the end is shown."""
    count = module.MAX_TOKENS
    text = b"a" * 200 + b"b" * 101
    found = byte_answers(tmp_path, text, 300)
    assert (found["wrong"], found["focus"], found["first"]) == (1, 199, 199 - count // 2)
    assert [row[0] for row in found["answers"]] == list(range(found["first"], found["first"] + count))
    assert len(found["tokens"]) == len(found["token_relevance"]) == count
    assert found["token_relevance"][count // 2] == pytest.approx(6)
    found = byte_answers(tmp_path, b"a" * 301, 300)
    assert (found["wrong"], found["focus"], found["first"]) == (0, 299, 300 - count)
    segments = found["relevance"]
    assert len(segments["times"]) == module.SEGMENTS
    assert (segments["times"][0], segments["times"][-1]) == (1, 298.5), "the first segments have three steps, the last ones two"
    assert segments["values"][0][-1] == pytest.approx(6)


def test_channels_on_which_the_answer_depends_most_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are sums of elapsed times, padding is left out, and the channels stay in their order."""
    task = TASKS["lra_image"]()

    class Weighted(FirstChannel):
        def forward(self, inputs: Tensor, **_: Any) -> Tensor:
            total = (self.scale * inputs * torch.tensor([1.0, 5, 2, 0, 4, 3, 6])).sum((1, 2))
            return torch.stack((total, -total), 1)

    inputs = torch.ones(1, 5, 7)
    inputs[0, :, 3] = 100
    elapsed, valid = torch.tensor([[1.0, 0.5, 2, 1, 9]]), torch.tensor([[True, True, True, True, False]])
    monkeypatch.setattr(module, "_spread_batches", lambda *_: [Batch(inputs, torch.tensor([1]), valid=valid, elapsed=elapsed)])
    monkeypatch.setattr(module, "_spread_names", lambda *_: [])
    monkeypatch.setattr(type(task), "channel_names", tuple("abcdefg"))
    found = find_examples(Weighted(), task, 3)
    assert found is not None
    (one,) = found["examples"]
    assert one["true"] == task.classes[1]
    assert one["predicted"] == task.classes[0]
    assert (one["length"], one["time"], one["channels"]) == (4, "time", 7)
    assert [series["name"] for series in one["series"]] == ["a", "b", "c", "e", "f", "g"]
    assert one["series"][0] == {"name": "a", "times": [1, 1.5, 3.5, 4.5], "values": [1, 1, 1, 1]}
    assert one["relevance"]["times"] == [1, 1.5, 3.5, 4.5]
    assert one["relevance"]["values"] == [[float(weight)] * 4 for weight in (1, 5, 2, 4, 3, 6)]
    assert one["probability"] == 1
    assert one["probability_of_true"] == 0


def test_channels_that_vary_most_are_shown_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long inputs have no gradients. The channels keep their order."""
    task = TASKS["lra_image"]()
    inputs = torch.tensor([1.0, 2.0, 4.0])[:, None] * torch.tensor([3.0, 0, 5, 1, 4, 2, 7])
    monkeypatch.setattr(module, "_spread_batches", lambda *_: [Batch(inputs[None], torch.tensor([0]))])
    monkeypatch.setattr(module, "_spread_names", lambda *_: [])
    monkeypatch.setattr(module, "relevance", lambda *_: None)
    monkeypatch.setattr(type(task), "channel_names", tuple("abcdefg"))
    found = find_examples(FirstChannel(), task, 3)
    assert found is not None
    (one,) = found["examples"]
    assert [series["name"] for series in one["series"]] == ["a", "c", "d", "e", "f", "g"]
    assert "relevance" not in one


@pytest.mark.parametrize(("count", "names"), [(64, 6), (65, 1)])
def test_many_channels_without_names_are_shown_as_their_mean(monkeypatch: pytest.MonkeyPatch, count: int, names: int) -> None:
    task = TASKS["lra_image"]()
    inputs = torch.arange(float(count)).repeat(1, 3, 1)
    monkeypatch.setattr(module, "_spread_batches", lambda *_: [Batch(inputs, torch.tensor([0]))])
    monkeypatch.setattr(module, "_spread_names", lambda *_: [])
    monkeypatch.setattr(type(task), "channel_names", None)
    found = find_examples(FirstChannel(), task, 3)
    assert found is not None
    (one,) = found["examples"]
    assert len(one["series"]) == len(one["relevance"]["values"]) == names
    if names == 1:
        assert one["series"][0] == {"name": "mean of the channels", "times": [0, 1, 2], "values": [32, 32, 32]}
    else:
        assert [series["name"] for series in one["series"]] == ["1", "2", "3", "4", "5", "6"], "of equally strong ones the first"


@pytest.mark.parametrize(("length", "count"), [(10, 256), (20_000, 100), (10**7, 16)])
def test_fewer_examples_are_examined_if_they_are_long(length: int, count: int) -> None:
    """They come from equally many places over the whole split."""
    asked = []

    class Recorded:
        num_batches = staticmethod(lambda *_: 20)
        batch = staticmethod(lambda split, step, rows, seed: asked.append((split, step, rows, seed)))

    task: Any = Recorded()
    task.length = length
    module._spread_batches(task, "valid", 3)
    assert asked == [("valid", step, -(-count // 8), 3) for step in (0, 2, 5, 7, 10, 12, 15, 17)]
