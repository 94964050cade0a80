"""Random state space features, the ridge regression on them, and estimators without settings."""

import numpy as np
import pytest
import torch

from longscan.estimators import SSMClassifier, SSMRegressor
from longscan.estimators.aeon import AeonSSMClassifier
from longscan.estimators.features import (
    FEWEST_OUTPUTS,
    LARGEST_FEATURE,
    FeatureModel,
    StateFeatures,
    _deviation,
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
    X, y = make_waves(30)
    model = AeonSSMClassifier(minutes=1.0, n_jobs=1, **DEFAULT).fit(X[:, None], y)
    assert model.estimator_.minutes == 1.0
    assert isinstance(model.estimator_.network(), FeatureModel)
    stack = AeonSSMClassifier("mamba", d_model=4, epochs=1, block_options={"mamba": {"expand": 1}}, **DEFAULT).fit(X[:, None], y)
    assert stack.estimator_.network().config["d_model"] == 4


def test_constant_columns_have_deviation_one():
    values = torch.tensor([[1.0, 3.0], [1.0, 7.0]])
    assert _deviation(values).tolist() == [1, 2]
