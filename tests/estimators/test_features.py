"""Random state space features, the ridge regression on them, and estimators without settings."""

import numpy as np
import pytest
import torch

from longscan.estimators import SSMClassifier, SSMRegressor
from longscan.estimators import features as features_module
from longscan.estimators.features import (
    FEWEST_OUTPUTS,
    LARGEST_FEATURE,
    FeatureModel,
    StateFeatures,
    _deviation,
    _mixture,
    _Systems,
    calibrated_features,
    choose_outputs,
)
from longscan.estimators.ridge import fit_ridge
from longscan.estimators.series import StandardisedSeries

DEFAULT = {"device": "cpu", "random_state": 0}
CPU = torch.device("cpu")


def make_waves(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy waves of one channel and a random start, and classes, which are their frequencies."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    phases = random.uniform(0, 6, (count, 1)) + np.where(labels[:, None] == 1, 0.9, 0.6) * np.arange(40)
    return np.sin(phases) + 0.3 * random.standard_normal((count, 40)), labels


@pytest.mark.parametrize("n_features", [4, 40], ids=["more examples", "more features"])
@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_outputs_are_those_of_fits_to_the_other_examples(n_features, weighted):
    random = np.random.default_rng(0)
    features, targets = random.normal(size=(12, n_features)) + 3, random.normal(size=(12, 2))
    weights = random.uniform(0.5, 2, 12) if weighted else np.ones(12)
    fit = fit_ridge(features, targets, lambda outputs: float(np.mean((outputs - targets) ** 2)), weights)
    scaled, others = (features - fit.mean) * fit.scale, np.arange(12) != 7
    share = weights[others]
    centre, mean = np.average(scaled[others], axis=0, weights=share), np.average(targets[others], axis=0, weights=share)
    Z = scaled[others] - centre
    share = share * 12 / weights.sum()
    gram = Z.T @ (share[:, None] * Z) + fit.penalty * n_features * np.eye(n_features)
    expected = mean + (scaled[7] - centre) @ np.linalg.solve(gram, Z.T @ (share[:, None] * (targets[others] - mean)))
    np.testing.assert_allclose(fit.left_out[7], expected, rtol=1e-6)


def test_padding_and_batches_do_not_change_features():
    random = np.random.RandomState(0)
    series = StandardisedSeries(random.standard_normal((5, 30, 2)).astype(np.float32), np.array([30, 12, 25, 7, 30]), None)
    features = StateFeatures(2, 30, 70, random)
    features.calibrate(*series.batch(np.arange(5), CPU), random)
    with torch.no_grad():
        together = features(*series.batch(np.arange(5), CPU))
        for row in range(5):
            np.testing.assert_allclose(features(*series.batch(np.array([row]), CPU))[0], together[row], atol=2e-4, rtol=2e-4)
    assert together.shape == (5, features.n_features)


def test_classifier_without_settings_learns_and_is_deterministic(tmp_path):
    X, y = make_waves(60)
    model = SSMClassifier(**DEFAULT).fit(X, y)
    assert isinstance(model.network(), FeatureModel)
    X_test, y_test = make_waves(100, seed=1)
    assert model.score(X_test, y_test) > 0.9
    again = SSMClassifier(**DEFAULT).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X_test), model.predict_proba(X_test))
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(SSMClassifier.load(tmp_path / "model").predict_proba(X_test), model.predict_proba(X_test))
    with pytest.raises(ValueError, match="`spec` must be given for streams"):
        model.stream()
    ragged = [row[: 30 + index % 10] for index, row in enumerate(X)]
    times = [np.arange(len(row)) * 0.5 for row in ragged]
    even, timed = SSMClassifier(**DEFAULT).fit(ragged, y), SSMClassifier(**DEFAULT).fit(ragged, y, times)
    np.testing.assert_allclose(timed.predict_proba(ragged, times), even.predict_proba(ragged), atol=2e-3)


def test_a_feature_far_beyond_those_of_the_fit_has_a_limited_effect():
    X, y = make_waves(40)
    model = SSMClassifier(**DEFAULT).fit(X, y).network()
    inputs = torch.from_numpy(X[:1, :, None].astype(np.float32))
    with torch.no_grad():
        before = model(inputs)
        model.scale[0] = 1e9  # a feature that was nearly constant
        change = (model(inputs) - before).abs()
    assert (change <= 2 * LARGEST_FEATURE * model.head.weight[:, 0].abs() + 1e-4).all()


def test_regressor_without_settings_beats_the_constant():
    X, _ = make_waves(120)
    y = 5 + X.std(1) + X[:, -1]
    assert SSMRegressor(**DEFAULT).fit(X[:80], y[:80]).score(X[80:], y[80:]) > 0.5


def test_a_setting_of_the_stack_or_of_training_selects_it():
    X, y = make_waves(8)
    assert not isinstance(SSMClassifier(d_model=4, epochs=1, **DEFAULT).fit(X, y).network(), FeatureModel)


def test_there_are_fewer_outputs_for_more_data_and_less_time():
    assert choose_outputs(100, 100) > choose_outputs(5000, 1000) > choose_outputs(100_000, 1000) == FEWEST_OUTPUTS
    series = StandardisedSeries(np.random.default_rng(0).normal(size=(4, 50, 1)).astype(np.float32), np.full(4, 50), None)
    features = calibrated_features(series, CPU, np.random.RandomState(0), seconds=1e-9)
    assert sum(group.mixture.shape[1] for group in features.first) == FEWEST_OUTPUTS


def test_classifier_of_aeon_without_settings_of_a_stack_is_the_default():
    pytest.importorskip("aeon.base", reason="the package aeon is not installed")
    from longscan.estimators.aeon import AeonSSMClassifier

    X, y = make_waves(30)
    model = AeonSSMClassifier(minutes=1.0, n_jobs=1, **DEFAULT).fit(X[:, None], y)
    assert model.estimator_.minutes == 1.0
    assert isinstance(model.estimator_.network(), FeatureModel)
    stack = AeonSSMClassifier("mamba", d_model=4, epochs=1, block_options={"mamba": {"expand": 1}}, **DEFAULT).fit(X[:, None], y)
    assert stack.estimator_.network().config["d_model"] == 4


def test_constant_columns_have_deviation_one():
    values = torch.tensor([[1.0, 3.0], [1.0, 7.0]])
    assert _deviation(values).tolist() == [1, 2]


@pytest.mark.parametrize("count", [1, 5, 300])
def test_mixtures_read_few_columns(count):
    """The number of columns is log-uniform up to 8."""
    random = np.random.RandomState(0)
    numbers = [np.count_nonzero(_mixture(count, random)) for _ in range(400)]
    assert set(numbers) == set(range(1, min(count, 8) + 1))
    if count > 8:
        share = np.mean(np.array(numbers) == 1)
        assert abs(share - np.log(2) / np.log(9)) < 0.06


def test_features_of_an_output_are_shares_means_and_the_largest_value():
    """Compared with the definitions at the top of the module, for thresholds that are far from all values."""
    random = np.random.RandomState(0)
    system = _Systems(np.ones((1, 2)), 10, False, random)
    y = torch.tensor([[0.0, 10], [1, 10], [2, -10], [3, 10]])[None]
    thresholds = torch.tensor([[1.5, 0.0], [0.5, 0], [2.5, 0]])
    system.slope.fill_(1000.0)
    system.offsets.copy_(0.5 - thresholds * 1000)
    weights, positions = torch.full((1, 4), 0.25), (torch.arange(4.0)[None] + 0.5) / 4
    features = system.summarise(y, weights, positions, None)[0].view(-1, 2)
    share, position, second, third, mean, largest = features
    assert share.tolist() == [0.5, 0.75]
    torch.testing.assert_close(position, torch.tensor([(0.375 + 0.005) / 0.51, (0.34375 + 0.005) / 0.76]))
    assert (second.tolist(), third.tolist()) == ([0.75, 0.75], [0.25, 0.75])
    assert (mean.tolist(), largest.tolist()) == ([1.5, 5.0], [3.0, 10.0])


def test_backward_systems_read_the_reversed_series_with_the_times_to_the_next_step():
    random = np.random.RandomState(0)
    system = _Systems(np.ones((1, 3)), 10, True, random)
    u, elapsed = torch.randn(2, 6, 1), torch.rand(2, 6) + 0.5
    forward = _Systems(np.ones((1, 3)), 10, False, random)
    forward.load_state_dict(system.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(system(u, None, None), forward(u.flip(1), None, None).flip(1))
        until_next = torch.cat([elapsed[:, 1:], torch.ones(2, 1)], 1)
        torch.testing.assert_close(system(u, None, elapsed), forward(u.flip(1), None, until_next.flip(1)).flip(1))
        valid = torch.arange(6) < torch.tensor([[6], [4]])
        padded, short = system(u, valid, elapsed), system(u[1:, :4], None, elapsed[1:, :4])
        torch.testing.assert_close(padded[1:, :4], short)


def test_outputs_are_reduced_to_the_time_that_is_left(monkeypatch):
    """To four fifths of the share of the expected time that is left, and to half at most."""
    tried = []
    original = StateFeatures.__init__

    def record(self, channels, length, outputs, random):
        tried.append(outputs)
        original(self, channels, length, outputs, random)

    monkeypatch.setattr(StateFeatures, "__init__", record)
    series = StandardisedSeries(np.random.default_rng(0).normal(size=(4, 50, 1)).astype(np.float32), np.full(4, 50), None)
    for seconds, expected in (
        (20.0, [768]),
        (19.0, [768, int(0.8 * 768 * 8.5 / 20)]),
        (19.9, [768, 288]),
        (11.0, [768, FEWEST_OUTPUTS]),
    ):
        times = iter([0, 10, 10.5, 11, 11.1])  # 10 seconds for all series, for which 20 seconds are expected; then little
        monkeypatch.setattr(features_module, "monotonic", lambda times=times: next(times))
        tried.clear()
        calibrated_features(series, CPU, np.random.RandomState(0), seconds=seconds)
        assert tried == expected
