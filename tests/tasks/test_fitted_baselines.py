"""Baselines that are fitted on the training series of a task."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from longscan.tasks.fitted import aeon_accuracies, resample, ridge_predictions
from longscan.tasks.series import SeriesClasses, SeriesValues


def waves(path, count=24, steps=24):
    """Write a long CSV file of series: the class is the frequency, the number `load` the level of the first channel."""
    rng, lines = np.random.default_rng(0), ["series,step,x,y,kind,load"]
    for number in range(count):
        kind, load = "ab"[number % 2], rng.normal()
        wave = np.sin((1 + number % 2) * np.arange(steps) / 2) + 0.01 * rng.normal(size=steps)
        lines += [f"{number},{step},{load + value},{value},{kind},{load}" for step, value in enumerate(wave)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_resampled_series_are_interpolated_linearly():
    series = np.stack([np.arange(5.0), 10 - np.arange(5.0)], axis=1)
    assert resample(series, 9)[:, 0] == pytest.approx(np.arange(9) / 2)
    assert resample(series, 9).sum(1) == pytest.approx(10)
    assert resample(series[:1], 3) == pytest.approx(np.repeat(series[:1], 3, axis=0))


@pytest.mark.parametrize("features", [5, 60])
def test_ridge_is_that_of_scikit_learn(features):
    rng = np.random.default_rng(1)
    train, test = rng.normal(size=(40, features)), rng.normal(size=(7, features))
    targets = train[:, :2] + 0.1 * rng.normal(size=(40, 2))
    train[:, -1] = test[:, -1] = 3.0  # a constant feature
    found = ridge_predictions(train, targets, test)
    mean, spread = train.mean(0), np.where(train.std(0) < 1e-9, 1, train.std(0))
    scaled = (train - mean) / spread
    alphas = np.logspace(-3, 3, 13) * (scaled**2).sum() / len(train)
    peer = RidgeCV(alphas=alphas).fit(scaled, targets)
    assert found == pytest.approx(peer.predict((test - mean) / spread), abs=1e-8)


def test_ridge_of_classes_and_values_is_better_than_the_constant(tmp_path):
    path = waves(tmp_path / "waves.csv")
    options = {"path": path, "channels": ("x", "y"), "id": "series", "time": "step"}
    classes = SeriesClasses(**options, label="kind").baselines()
    values = SeriesValues(**options, label="load").baselines()
    assert list(classes) == list(values) == ["constant", "ridge"]
    assert classes["ridge"] == 1 > classes["constant"]
    assert values["ridge"] < 0.1 * values["constant"]


def test_fitted_baselines_are_left_out_without_aeon_or_for_many_values(tmp_path, monkeypatch):
    task = SeriesClasses(path=waves(tmp_path / "waves.csv"), label="kind", channels=("x", "y"), id="series", time="step")
    calls = []
    module = "longscan.tasks.series.labelled"
    monkeypatch.setattr(f"{module}.find_spec", lambda _: object())
    monkeypatch.setattr(f"{module}.aeon_accuracies", lambda *parts, **options: calls.append((parts, options)) or {"x": 1.0})
    assert task.fitted_baselines("test", seed=4) == {"x": 1.0}
    (train, labels, test, targets), options = calls[0]
    assert (len(train), len(test)) == (len(labels), len(targets)) == (task.size("train"), task.size("test"))
    assert train[0].shape == (2, 24)
    assert options["seed"] == 4
    monkeypatch.setattr(f"{module}.ROCKET_VALUES", 100)
    assert task.fitted_baselines() == {}
    monkeypatch.setattr(f"{module}.ROCKET_VALUES", 3e7)
    monkeypatch.setattr(f"{module}.find_spec", lambda _: None)
    assert task.fitted_baselines() == {}
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_methods_of_aeon_read_series_of_unequal_length():
    pytest.importorskip("aeon")
    rng = np.random.default_rng(2)
    labels = np.arange(20) % 2
    series = [np.sin((1 + kind) * np.arange(rng.integers(20, 30)) / 2)[None] for kind in labels]
    calls = []
    progress = {"on_progress": lambda *call: calls.append(call)}
    found = aeon_accuracies(series, labels, series, labels, seed=0, largest_table=1e9, **progress)
    assert calls == [("minirocket", done, 2) for done in range(3)] + [("dtw_1nn", done, 20) for done in range(21)]
    assert found == {"minirocket": 1.0, "dtw_1nn": 1.0}
    assert "dtw_1nn" not in aeon_accuracies(series, labels, series, labels, seed=0, largest_table=10)
