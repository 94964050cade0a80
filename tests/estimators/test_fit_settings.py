"""The settings of `fit` that concern weights, validation, time, threads and output, over all estimators that have them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from longscan.engine import Callback
from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor, fitting, forecaster, split_cases
from longscan.estimators.features import STATES_PER_GROUP, rows_at_once
from longscan.estimators.threads import LARGE_BATCH, choose_threads, limited_threads

KINDS = [SSMClassifier, SSMRegressor]
BRIEF = {"d_model": 4, "d_state": 2, "epochs": 3, "lr": 0.01, "device": "cpu", "random_state": 0}


def make_series(n: int = 12, length: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return series and their classes, which say whether the first channel rises."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = random.normal(size=(n, length, 2)) * 0.3
    X[..., 0] += np.where(y[:, None] == 1, 1, -1) * np.linspace(-1, 1, length)
    return X, y


def outputs_of(model, X):
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_zero_removes_a_series(kind):
    X, y = make_series()
    y[-1] = 2
    weights = np.ones(12)
    weights[[0, 5, 11]] = 0
    kept = weights > 0
    weighted = kind(**BRIEF).fit(X, y, sample_weight=weights)
    removed = kind(**BRIEF).fit(X[kept], y[kept], sample_weight=weights[kept])
    np.testing.assert_array_equal(outputs_of(weighted, X), outputs_of(removed, X))
    np.testing.assert_allclose(outputs_of(kind(**BRIEF).fit(X[kept], y[kept]), X), outputs_of(removed, X), rtol=1e-4)
    heavy = kind(**BRIEF).fit(X, y, sample_weight=np.where(y == 1, 9, 1))
    assert not np.allclose(outputs_of(heavy, X), outputs_of(kind(**BRIEF).fit(X, y), X), rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_weights_are_repetitions(kind):
    X, y = make_series()
    counts = np.array([1, 3, 0, 2, 1, 1, 2, 1, 4, 1, 1, 2])
    settings = {**BRIEF, "batch_size": 100}
    weighted = kind(**settings).fit(X, y, sample_weight=counts)
    repeated = kind(**settings).fit(X.repeat(counts, axis=0), y.repeat(counts))
    np.testing.assert_allclose(outputs_of(weighted, X), outputs_of(repeated, X), rtol=1e-3)
    np.testing.assert_allclose(weighted.mean_, repeated.mean_)
    np.testing.assert_allclose(weighted.scale_, repeated.scale_)
    assert weighted.loss_curve_ == pytest.approx(repeated.loss_curve_, rel=1e-3)


def test_weights_are_aligned_by_the_index_and_count_in_the_score():
    X, y = make_series()
    cases = pd.Index([f"case {i}" for i in range(12)])
    series = pd.Series([pd.DataFrame(row) for row in X], index=cases)
    weights = pd.Series(np.arange(12.0), index=cases)
    model = SSMClassifier(**BRIEF).fit(series, y, sample_weight=weights)
    shuffled = SSMClassifier(**BRIEF).fit(series, y, sample_weight=weights.sample(frac=1, random_state=0))
    np.testing.assert_array_equal(shuffled.predict_proba(X), model.predict_proba(X))
    correct = model.predict(X) == y
    assert model.score(X, y, sample_weight=weights.to_numpy()) == pytest.approx(correct @ np.arange(12) / 66)
    regressor = SSMRegressor(**BRIEF).fit(X, y)
    only = np.arange(12) < 4
    assert regressor.score(X, y, sample_weight=only) == pytest.approx(regressor.score(X[only], y[only]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"^`sample_weight` must have the shape \(12,\), one weight for each series, got \(3,\)"),
        (np.ones((12, 1)), r"^`sample_weight` must have the shape \(12,\), .*, got \(12, 1\)"),
        (-np.ones(12), "^`sample_weight` must be finite numbers of at least 0 with one above 0, got numbers from -1 to -1"),
        (np.full(12, np.nan), "^`sample_weight` must be finite numbers"),
        (np.zeros(12), "^`sample_weight` must be .*, got only zeros"),
        (["a"] * 12, "^`sample_weight` must contain only real numbers, got text, such as 'a'"),
    ],
    ids=str,
)
def test_invalid_weights_raise(kind, weights, message):
    with pytest.raises(ValueError, match=message):
        kind(**BRIEF).fit(*make_series(), sample_weight=weights)


def test_class_weights_multiply_sample_weights():
    X, _ = make_series()
    y = np.array(["a"] * 9 + ["b"] * 3)
    settings = {**BRIEF, "batch_size": 12}
    balanced = SSMClassifier(**settings, class_weight="balanced").fit(X, y)
    mapped = SSMClassifier(**settings, class_weight={"b": 3.0}).fit(X, y)
    weighted = SSMClassifier(**settings).fit(X, y, sample_weight=np.where(y == "b", 3.0, 1.0))
    np.testing.assert_allclose(mapped.predict_proba(X), weighted.predict_proba(X), rtol=1e-5)
    np.testing.assert_allclose(balanced.predict_proba(X), weighted.predict_proba(X), rtol=1e-4)
    np.testing.assert_allclose(balanced._class_weights(np.repeat([0, 1], [9, 3]), None), [12 / 18, 12 / 6])
    assert balanced._class_weights(np.repeat([0, 1], [9, 3]), np.repeat([1.0, 3.0], [9, 3])).tolist() == [1, 1]
    for invalid in ({"c": 1.0}, {"a": 0, "b": 0}):
        with pytest.raises(ValueError, match=r"^`class_weight` must have weights of labels in `y`, \['a', 'b'\], got "):
            SSMClassifier(**settings, class_weight=invalid).fit(X, y)
    for invalid in ("equal", {"a": -1.0}):
        with pytest.raises(ValueError, match=r"^`class_weight"):
            SSMClassifier(**settings, class_weight=invalid).fit(X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_the_best_epoch_on_validation_data_are_kept(kind):
    X, y = make_series(24)
    settings = {**BRIEF, "epochs": 40, "lr": 0.3}
    seen = {}
    model = kind(**settings, patience=3, callbacks=[CollectRows(seen)]).fit(X, y, validation_data=(X[:8], 1 - y[:8]))
    errors = [tuple(row.values()) for row in model.validation_curve_]
    best = min(range(len(errors)), key=errors.__getitem__)
    assert len(errors) == len(model.loss_curve_) == best + 4 < 40, "training ends three epochs after the best one"
    assert [row["split"] for row in seen["rows"]] == ["train", "valid"] * len(errors)
    assert [row["loss"] for row in seen["rows"][::2]] == model.loss_curve_
    if kind is SSMClassifier:
        assert model.score(X[:8], 1 - y[:8]) == pytest.approx(1 - errors[best][0])
        probabilities = model.predict_proba(X[:8])[np.arange(8), 1 - y[:8]]
        assert -np.log(probabilities).mean() == pytest.approx(errors[best][1], rel=1e-4)
    else:
        squared = np.mean((model.predict(X[:8]) - (1 - y[:8])) ** 2) / model.target_scale_[0] ** 2
        assert squared == pytest.approx(errors[best][0], rel=1e-4)


class CollectRows(Callback):
    """Stores the rows of the log, the losses of the steps and the number of steps at the end in a dictionary."""

    def __init__(self, seen):
        self.seen = seen
        seen.update(rows=[], losses=[], steps=None)

    def __deepcopy__(self, memo):
        return self

    def on_step_end(self, engine, result):
        self.seen["losses"].append(float(result.loss))

    def on_log(self, engine, row):
        self.seen["rows"].append(row)

    def on_train_end(self, engine):
        self.seen["steps"] = engine.step


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_series_is_held_back(kind):
    X, y = make_series(20)
    X[:, 0, 0] += np.arange(20)  # so that the mean tells which series were fitted
    model = kind(**BRIEF, validation_fraction=0.25).fit(X, y)
    assert len(model.validation_curve_) == 3
    assert model.mean_[0] != pytest.approx(X[..., 0].mean())
    again = kind(**BRIEF, validation_fraction=0.25).fit(X, y)
    np.testing.assert_array_equal(outputs_of(again, X), outputs_of(model, X))
    for none in (None, 0):
        assert kind(**BRIEF, validation_fraction=none).fit(X, y).validation_curve_ is None
    assert SSMClassifier(**BRIEF, validation_fraction=np.float32(0.25)).fit(X, y).validation_curve_
    with pytest.raises(ValueError, match=r"^`validation_fraction` must be a number from 0 to below 1 or None, got 1"):
        kind(**BRIEF, validation_fraction=1.0).fit(X, y)
    with pytest.raises(ValueError, match=r"^`validation_fraction` must be None with `validation_data`, got 0\.25"):
        kind(**BRIEF, validation_fraction=0.25).fit(X, y, validation_data=(X, y))


def test_validation_part_is_stratified(monkeypatch):
    X, _ = make_series(20)
    y = np.repeat(["a", "b"], [15, 5])
    split = {}
    original = SSMClassifier._split
    monkeypatch.setattr(SSMClassifier, "_split", lambda *args: split.setdefault("parts", original(*args)))
    SSMClassifier(**BRIEF, validation_fraction=0.2).fit(X, y)
    assert [np.bincount(part.targets).tolist() for part in split["parts"]] == [[12, 4], [3, 1]]
    for labels, fraction in ((np.repeat(["a", "b"], [19, 1]), 0.2), (y, 0.01)):
        rarest = min(np.sum(labels == "a"), np.sum(labels == "b"))
        message = rf"^`validation_fraction` must leave enough series .* 20 series with {rarest} of the rarest class \("
        with pytest.raises(ValueError, match=message):
            SSMClassifier(**BRIEF, validation_fraction=fraction).fit(X, labels)
    with pytest.raises(ValueError, match=r"^`validation_fraction` must leave enough series .*, got 0\.9 of 1 series"):
        SSMRegressor(**BRIEF, validation_fraction=0.9).fit(X[:1], [1.0])


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_validation_data_raise(kind):
    X, y = make_series()
    fit = kind(**BRIEF).fit
    for invalid, got in (((X,), "1 item$"), (X, "a ndarray"), (4, "a int")):
        with pytest.raises(ValueError, match=rf"^`validation_data` must be \(X, y\) or \(X, y, times\), got {got}"):
            fit(X, y, validation_data=invalid)
    times = np.tile(np.arange(6), (12, 1))
    for invalid, got in (
        ((X[..., :1], y), "`X` must have 2 channels as in fit, got 1"),
        ((X, y[:4]), "`y` must have "),
        ((X, y, times), "`times` must be None as in fit, got times"),
    ):
        with pytest.raises(ValueError, match=f"^`validation_data` must be series and targets like those of `fit`, got .*{got}"):
            fit(X, y, validation_data=invalid)
    wrong = np.full(12, 7) if kind is SSMClassifier else np.zeros((12, 2))
    with pytest.raises(ValueError, match=r"^`validation_data` must .* `y` must have (labels|1 column) (of|as in) fit"):
        fit(X, y, validation_data=(X, wrong))
    assert fit(X, y, times, validation_data=(X, y, times)).validation_curve_


@pytest.mark.parametrize("kind", KINDS)
def test_block_options_are_those_of_the_spec(kind):
    X, y = make_series()
    model = kind("mamba lru", **BRIEF, block_options={"mamba": {"expand": 1}}).fit(X, y)
    assert [entry["options"].get("expand") for entry in model.model_.entries] == [1, None]
    with pytest.raises(ValueError, match=r"^`block_options` must be named by the blocks of the spec 'mamba', got 's4d'"):
        kind("mamba", **BRIEF, block_options={"s4d": {}}).fit(X, y)
    with pytest.raises(ValueError, match=r"the options of block 0 .* must be among .*, got 'size'"):
        kind("mamba", **BRIEF, block_options={"mamba": {"size": 1}}).fit(X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_see_every_update_and_may_stop(kind):
    X, y = make_series()

    class StopAt(Callback):
        def on_step_end(self, engine, result):
            engine.stop_requested |= engine.step == 4

    seen = {}
    model = kind(**BRIEF, batch_size=4, callbacks=[CollectRows(seen), StopAt()]).fit(X, y)
    assert seen["steps"] == len(seen["losses"]) == 4
    assert model.loss_curve_ == pytest.approx([np.mean(seen["losses"][:3]), seen["losses"][3]])
    assert model.validation_curve_ is None
    assert clone(model).callbacks[0] is model.callbacks[0]
    with pytest.raises(ValueError, match=r"^`callbacks` must be a list or None, got 3"):
        kind(**BRIEF, callbacks=3).fit(X, y)


class FakeClock:
    """A clock that advances by one second at every update and by two at every evaluation."""

    def __init__(self, monkeypatch):
        self.now, self.rates = 0.0, []
        for module in ("longscan.engine.callbacks", "longscan.estimators.fitting"):
            monkeypatch.setattr(f"{module}.monotonic", lambda: self.now)
        outputs, update = SSMRegressor._model_outputs, torch.optim.AdamW.step

        def evaluate(model, *args):
            self.now += 2
            return outputs(model, *args)

        def step(optimizer, *args):
            self.now += 1
            self.rates.append(optimizer.param_groups[0]["lr"])
            return update(optimizer, *args)

        for kind in KINDS:
            monkeypatch.setattr(kind, "_model_outputs", evaluate)
        monkeypatch.setattr(torch.optim.AdamW, "step", step)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("validate", [False, True])
def test_fit_ends_within_its_time_and_the_schedule_with_it(monkeypatch, kind, validate):
    clock = FakeClock(monkeypatch)
    X, y = make_series()
    held = {"validation_data": (X, y)} if validate else {}
    settings = {**BRIEF, "epochs": 1000, "batch_size": 4, "patience": 1000}
    model = kind(**settings, minutes=1.0).fit(X, y, **held)
    assert 50 < clock.now <= 60
    assert max(clock.rates) > 0.007
    assert clock.rates[-1] < 0.1 * max(clock.rates)
    peak = clock.rates.index(max(clock.rates))
    assert all(a >= b for a, b in pairwise(clock.rates[peak:]))
    assert len(model.loss_curve_) == -(-len(clock.rates) // 3)
    if validate:
        assert len(model.validation_curve_) == len(model.loss_curve_), "an incomplete last epoch is evaluated"
    clock.now, clock.rates = 0.0, []
    kind(**settings, minutes=0.001).fit(X, y, **held)
    assert len(clock.rates) == 1
    clock.now, clock.rates = 0.0, []
    kind(**{**settings, "epochs": 2}, minutes=10.0).fit(X, y, **held)
    assert len(clock.rates) == 6


def test_fit_without_a_limit_does_not_depend_on_the_clock(monkeypatch):
    X, y = make_series()
    expected = SSMClassifier(**BRIEF).fit(X, y).predict_proba(X)
    FakeClock(monkeypatch)
    np.testing.assert_array_equal(SSMClassifier(**BRIEF).fit(X, y).predict_proba(X), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_verbose_shows_losses_and_errors(kind, capsys):
    X, y = make_series()
    kind(**BRIEF).fit(X, y)
    assert capsys.readouterr() == ("", "")
    kind(**BRIEF, verbose=1).fit(X, y, validation_data=(X, y))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 6
    assert [line.split()[2] for line in lines] == ["train", "valid"] * 3
    assert all(" loss 0." in line or " loss 1." in line for line in lines)
    assert ("error" in lines[1]) == (kind is SSMClassifier)


@pytest.mark.parametrize("kind", [*KINDS, SSMForecaster])
def test_verbose_may_be_a_bool(kind, capsys):
    data = (WAVE,) if kind is SSMForecaster else make_series()
    settings = {**BRIEF, **({"horizon": 2, "window": 8} if kind is SSMForecaster else {})}
    kind(**settings, verbose=False).fit(*data)
    assert capsys.readouterr().err == ""
    fitted = kind(**settings, verbose=True).fit(*data)
    assert capsys.readouterr().err
    assert fitted.get_params()["verbose"] is True
    for wrong in (2, "yes", None):
        with pytest.raises(ValueError, match="`verbose` must be True, False, 1 or 0, got "):
            kind(**settings, verbose=wrong).fit(*data)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_are_set_in_fit_and_predict_and_restored(monkeypatch, kind):
    X, y = make_series()
    before = torch.get_num_threads()
    seen = []
    original = kind._model_outputs
    monkeypatch.setattr(kind, "_model_outputs", lambda *args: seen.append(torch.get_num_threads()) or original(*args))

    class Record(Callback):
        def on_step_end(self, engine, result):
            seen.append(torch.get_num_threads())

    model = kind(**BRIEF, n_jobs=3, callbacks=[Record()]).fit(X, y)
    model.predict(X)
    assert seen == [3] * 4
    assert torch.get_num_threads() == before
    single = kind(**BRIEF, n_jobs=1).fit(X, y)
    np.testing.assert_allclose(outputs_of(single, X), outputs_of(model, X), rtol=1e-4)

    class Interrupt(Callback):
        def on_step_end(self, engine, result):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kind(**BRIEF, n_jobs=3, callbacks=[Interrupt()]).fit(X, y)
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match=r"^`n_jobs` must be a whole number other than 0 or None, got 0"):
        kind(**BRIEF, n_jobs=0).fit(X, y)


def test_number_of_threads_follows_the_work(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    with limited_threads(2):
        assert choose_threads(None, LARGE_BATCH - 1) == 1
        assert choose_threads(None, LARGE_BATCH) == 2
    assert [choose_threads(n_jobs, 1) for n_jobs in (1, 5, -1, -2, -9)] == [1, 5, 4, 3, 1]


def test_progress_bar_has_the_updates_of_all_epochs(monkeypatch):
    steps = []
    monkeypatch.setattr(fitting, "_progress_bar", lambda count, limit: steps.append((count, limit)))
    X, y = make_series()
    SSMClassifier(**BRIEF, batch_size=5, verbose=1).fit(X, y)
    assert steps == [(9, None)]


def test_threads_are_chosen_by_steps_and_width_of_a_batch(monkeypatch):
    """The width of a stack is d_model, and its batches have at most batch_size series; features have that of their states."""
    found = []

    def choose(n_jobs, values):
        found.append((n_jobs, values))
        return 1

    monkeypatch.setattr(fitting, "choose_threads", choose)
    monkeypatch.setattr(forecaster, "choose_threads", choose)
    X, y = make_series()
    n, length, _ = X.shape
    model = SSMClassifier(**BRIEF, batch_size=5, n_jobs=2).fit(X, y)
    found.clear()
    model.predict(X)
    assert set(found) == {(2, 5 * length * 4)}
    features = SSMClassifier(device="cpu", n_jobs=2, random_state=0).fit(X, y)
    found.clear()
    features.predict(X)
    assert set(found) == {(2, min(n, rows_at_once(length)) * length * 2 * STATES_PER_GROUP)}
    found.clear()
    series = SSMForecaster(horizon=2, window=8, batch_size=5, **BRIEF).fit(np.sin(np.arange(60.0)))
    assert (None, 5 * 8 * 4) in found
    found.clear()
    series.predict()
    assert found == [(None, 8 * 4)]


def test_long_frames_are_cross_validated_by_case():
    X, y = make_series()
    long = pd.concat({f"case {i:02d}": pd.DataFrame(series) for i, series in enumerate(X)})
    labels = pd.Series(y, index=[f"case {i:02d}" for i in range(12)])
    model = SSMClassifier(**BRIEF)
    assert cross_val_score(model, split_cases(long), labels, cv=3, error_score="raise").shape == (3,)
    of_rows = labels.reindex(long.index.get_level_values(0)).set_axis(long.index)
    with pytest.raises(ValueError, match=r"split_cases\(X\)"):
        cross_val_score(model, long, of_rows, cv=3, error_score="raise")
    with pytest.raises(ValueError, match=r"split_cases\(X\)"):
        cross_val_score(model, long, of_rows.to_numpy(), cv=3, error_score="raise")


WAVE = np.sin(np.arange(120.0)) + 0.1 * np.random.default_rng(0).normal(size=120)


@pytest.mark.parametrize("window", [4, 60])
def test_forecaster_has_options_threads_callbacks_and_a_progress_bar(window, capsys):
    """With a window of 60 the series is too short for a linear forecast, and there is one training instead of two."""
    before, seen, threads = torch.get_num_threads(), {}, []

    class Record(Callback):
        def on_step_end(self, engine, result):
            threads.append(torch.get_num_threads())

    settings = {**BRIEF, "block_options": {"mamba": {"expand": 1}}, "n_jobs": 3, "verbose": 1}
    model = SSMForecaster(2, window, **settings, callbacks=[CollectRows(seen), Record()]).fit(WAVE)
    assert model.model_.entries[0]["options"]["expand"] == 1
    assert set(threads) == {3}
    assert torch.get_num_threads() == before
    splits = [row["split"] for row in seen["rows"]]
    trained = splits[: len(splits) - model.n_epochs_] if model.validation_curve_ else splits
    assert trained == (["train", "valid"] * (len(model.validation_curve_) - 1) if model.validation_curve_ else ["train"] * 3)
    assert len(capsys.readouterr().err.splitlines()) == len(splits)
    quiet = SSMForecaster(2, window, **{**settings, "verbose": 0, "n_jobs": 1}).fit(WAVE)
    np.testing.assert_allclose(quiet.predict(), model.predict(), rtol=1e-3, atol=1e-4)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("window", [4, 60])
def test_forecaster_stops_to_train_in_time(monkeypatch, window):
    clock = FakeClock(monkeypatch)
    monkeypatch.setattr("longscan.estimators.forecaster.monotonic", lambda: clock.now)
    monkeypatch.setattr("longscan.estimators.held_back.BLOCK_GAIN", 0.0)
    monkeypatch.setattr("longscan.estimators.held_back.exceeds_chance", lambda *_: True)
    settings = {**BRIEF, "epochs": 10_000, "batch_size": 20}
    model = SSMForecaster(2, window, **settings, minutes=1.0).fit(WAVE)
    assert 20 < clock.now <= 60
    assert model.n_epochs_ < 60
    if model.validation_curve_:
        assert len(model.validation_curve_) > 1
        assert model.n_epochs_ == int(np.nanargmin(model.validation_curve_))
    clock.now, clock.rates = 0.0, []
    SSMForecaster(2, window, **settings, minutes=0.001).fit(WAVE)
    assert len(clock.rates) <= 2


def test_regressors_take_several_targets_of_as_many_rows_as_series():
    X, _ = make_series()
    assert SSMRegressor(**BRIEF).__sklearn_tags__().target_tags.multi_output
    for rows in (len(X) - 1, len(X) + 1):
        with pytest.raises(ValueError, match=rf"^`y` must have the shape \(12,\) or \(12, K\), .*, got \({rows},\)"):
            SSMRegressor(**BRIEF).fit(X, np.zeros(rows))


def test_score_refuses_labels_that_no_prediction_can_equal():
    X, y = np.random.RandomState(0).randn(8, 12), np.arange(8) % 2
    model = SSMClassifier(random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="`y` must have labels that are numbers as in fit, got text, such as '0'"):
        model.score(X, y.astype(str))
    assert model.score(X, y.astype(float)) == model.score(X, y)


@pytest.mark.parametrize("estimator", [SSMClassifier, SSMRegressor, SSMForecaster])
def test_error_about_the_seed_names_it(estimator):
    for seed in (-1, 2**32, 1.5, True, "a"):
        with pytest.raises(ValueError, match=r"^`random_state` must be a whole number from 0 to below 2\^32, .* or None, got "):
            estimator(**{**BRIEF, "random_state": seed}).fit(np.zeros((3, 4)), np.zeros(3))


@pytest.mark.parametrize(("name", "value"), [("horizon", 5), ("quantiles", (0.2, 0.8)), ("quantiles", None)])
def test_a_forecaster_whose_settings_were_changed_after_fit_raises(name, value):
    series = np.sin(np.arange(60.0))
    model = SSMForecaster(**BRIEF, horizon=3, window=8, quantiles=(0.1, 0.9)).fit(series)
    expected = model.predict_quantiles()
    model.set_params(**{name: value})
    for call in (model.predict, model.predict_quantiles, lambda: model.score(series), lambda: model.backtest(series)):
        with pytest.raises(ValueError, match=f"`{name}` must be .* as in fit, or fit must be called again, got"):
            call()
    assert len(model.backtest(series, start=52, stride=100, refit=True)) == model.horizon, "a backtest with refit fits again"
    model.set_params(horizon=3, quantiles=[0.1, 0.9])
    pd.testing.assert_frame_equal(model.predict_quantiles(), expected)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


TORCH_SETTINGS = {
    "float64 by default": lambda: default_dtype(torch.float64),
    "another default device": lambda: torch.device("meta"),
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def fitted(name):
    """Return an estimator of this name, fitted to the series of `make_series`."""
    X, y = make_series()
    if name == "forecaster":
        return SSMForecaster(**BRIEF, horizon=3, window=8, quantiles=(0.1, 0.9)).fit(X.reshape(-1, 2))
    kind = SSMClassifier if "classifier" in name else SSMRegressor
    settings = BRIEF if "stack" in name else {"random_state": 0, "device": "cpu"}
    return kind(**settings).fit(X, y, validation_data=(X, y))


def fit_and_predict(name, folder):
    """Return predictions of an estimator in a dictionary, also after `save` and `load` and from a stream."""
    (X, y), model = make_series(), fitted(name)
    if name == "forecaster":
        found = {"forecast": model.predict(), "quantiles": model.predict_quantiles(), "score": model.score(X.reshape(-1, 2))}
    else:
        found = {"outputs": outputs_of(model, X), "score": model.score(X, y), "curve": model.validation_curve_[0]["loss"]}
    if "stack" in name:
        stream = model.stream()
        stream.update(X[0])
        found["stream"] = stream.update(X[1])
    model.save(folder / name)
    loaded = type(model).load(folder / name)
    return found | {"loaded": loaded.predict() if name == "forecaster" else outputs_of(loaded, X)}


@pytest.mark.parametrize("setting", TORCH_SETTINGS)
@pytest.mark.parametrize("name", ["classifier", "classifier stack", "regressor", "regressor stack", "forecaster"])
def test_results_do_not_depend_on_settings_of_torch(name, setting, tmp_path):
    expected = fit_and_predict(name, tmp_path)
    with TORCH_SETTINGS[setting]():
        before = [torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
        found = fit_and_predict(name, tmp_path)
        assert before == [torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
        assert torch.is_autocast_enabled("cpu") == (setting == "autocast")
        assert torch.get_default_device().type == ("meta" if setting == "another default device" else "cpu")
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifier", "classifier stack", "regressor", "regressor stack", "forecaster"])
def test_fits_in_several_threads_are_those_of_one_thread(name):
    X, _ = make_series()
    predict = (lambda model: model.predict()) if name == "forecaster" else (lambda model: outputs_of(model, X))
    expected, before = predict(fitted(name)), torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: fitted(name), range(8)))
    assert torch.equal(torch.get_rng_state(), before)
    for model in models:
        np.testing.assert_array_equal(predict(model), expected)


class Interruption(Callback):
    """Stops the training as Ctrl-C does."""

    def on_step_end(self, engine, result):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["classifier", "classifier stack", "regressor", "regressor stack", "forecaster"])
def test_an_estimator_whose_later_fit_fails_is_not_fitted(name):
    (X, y), model = make_series(), fitted(name)
    data = (X.reshape(-1, 2),) if name == "forecaster" else (X,)
    wrong = (X[:1, :2],) if name == "forecaster" else (100 * X, np.full(12, np.nan))
    predict = model.predict if name == "forecaster" else lambda: model.predict(X)
    predict()
    with pytest.raises(ValueError, match="`y`"):
        model.fit(*wrong)
    with pytest.raises(NotFittedError):
        predict()
    if "stack" in name:
        model.fit(*data, y).set_params(callbacks=[Interruption()])
        with pytest.raises(KeyboardInterrupt):
            model.fit(100 * X, np.where(y, 0, 7))
        with pytest.raises(NotFittedError):
            predict()
