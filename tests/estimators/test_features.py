"""Random state space features, the ridge regression on them, and estimators without settings."""

import re

import numpy as np
import pytest
import torch

from longscan.estimators import SSMClassifier, SSMRegressor
from longscan.estimators import features as features_module
from longscan.estimators.features import (
    FEWEST_SERIES,
    FIRST_LAYER_GROUPS,
    HIDDEN_OUTPUTS,
    INTERVALS,
    KINDS,
    LARGEST_FEATURE,
    LINEAR_KINDS,
    MAX_OUTPUTS,
    MIN_OUTPUTS,
    MOST_VALUES,
    RAMP,
    SECOND_LAYER_GROUPS,
    SHAPE_KINDS,
    STATES_PER_GROUP,
    THRESHOLDS,
    VALUES_PER_OUTPUT,
    FeatureModel,
    StateFeatures,
    _deviation,
    _Group,
    _mixture,
    _part_means,
    _part_weights,
    calibrated_features,
    choose_outputs,
)
from longscan.estimators.fitting import _choose_rows
from longscan.estimators.ridge import fit_ridge, fit_scores, fit_values, lowers_cross_entropy, regression_seconds
from longscan.estimators.series import StandardisedSeries

DEFAULT = {"device": "cpu", "random_state": 0}
# means of the absolute features of each kind, without and with times and padding; penalty, error and weights of two fits
EVEN = [0.535852, 0.493789, 1.59622, 0.356823, 0.585184, 0.638754]
UNEVEN = [0.524744, 0.477478, 1.56373, 0.319523, 0.507524, 0.612854]
VALUES = [0.000316228, 1.17758, 0.823044]
SCORES = [0.0001, 0.293784, 0.278123]
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


def test_regressor_uses_features_that_are_not_linear_where_they_lower_the_error():
    X, frequencies = make_waves(120)
    X = X + np.linspace(0, 1, 40)
    linear = SSMRegressor(**DEFAULT).fit(X[:80], X[:80, -8:].mean(1))
    assert linear.network().features.kinds == LINEAR_KINDS
    assert linear.score(X[80:], X[80:, -8:].mean(1)) > 0.95
    of_all = SSMRegressor(**DEFAULT).fit(X[:80], frequencies[:80])
    assert of_all.network().features.kinds == KINDS
    assert of_all.score(X[80:], frequencies[80:]) > 0.5


def test_a_setting_of_the_stack_or_of_training_selects_it():
    X, y = make_waves(8)
    assert not isinstance(SSMClassifier(d_model=4, epochs=1, **DEFAULT).fit(X, y).network(), FeatureModel)


def test_there_are_fewer_outputs_for_more_data_and_less_time():
    assert choose_outputs(100, 100) > choose_outputs(5000, 1000) > choose_outputs(100_000, 1000) == MIN_OUTPUTS
    series = StandardisedSeries(np.random.default_rng(0).normal(size=(4, 50, 1)).astype(np.float32), np.full(4, 50), None)
    features, count = calibrated_features(series, CPU, np.random.RandomState(0), seconds=1e-9)
    assert (features.outputs, count) == (FIRST_LAYER_GROUPS, 4)
    many = StandardisedSeries(np.zeros((100_000, 1000, 1), np.float32), np.full(100_000, 1000), None)
    features, count = calibrated_features(many, CPU, np.random.RandomState(0))
    assert (features.outputs, count) == (MIN_OUTPUTS, 100_000)
    features, count = calibrated_features(many, CPU, np.random.RandomState(0), seconds=1e-9)
    assert (features.outputs, count) == (FIRST_LAYER_GROUPS, FEWEST_SERIES)


def test_a_fit_in_little_time_reads_some_of_the_series_and_all_classes(monkeypatch, caplog):
    X, y = make_waves(40)
    y[7] = 2
    monkeypatch.setattr(features_module, "FEWEST_SERIES", 20)
    seen = []
    original = SSMClassifier._regression

    def record(self, values, features, examples):
        seen.append((len(values), sorted(set(examples.targets.tolist()))))
        return original(self, values, features, examples)

    monkeypatch.setattr(SSMClassifier, "_regression", record)
    model = SSMClassifier(minutes=1e-9, **DEFAULT).fit(X, y)
    assert seen[0][0] in (20, 21)
    assert seen[0][1] == [0, 1, 2]
    assert model.score(X, y) > 0.8
    assert re.search(r"minutes: in 1e-09 minutes there is time to fit to 2[01] of the 40 series", caplog.text)
    SSMClassifier(minutes=10.0, **DEFAULT).fit(X, y)
    assert seen[1][0] == 40


def test_chosen_rows_have_all_classes():
    targets = np.repeat([0, 1, 2], [500, 499, 1])
    for seed in range(5):
        rows = _choose_rows(targets, 100, np.random.RandomState(seed))
        assert len(rows) in (100, 101)
        assert 999 in rows
        assert (np.diff(rows) > 0).all()
    assert len(_choose_rows(np.zeros((1000, 2)), 100, np.random.RandomState(0))) == 100


def test_series_are_as_many_as_the_time_allows(monkeypatch):
    """The features of 8 series take a second and the trial of the fewest outputs 2, so of 14 seconds 9 are left for features."""
    monkeypatch.setattr(features_module, "regression_seconds", lambda *_: 3.0)
    monkeypatch.setattr(features_module, "MAX_OUTPUTS", FIRST_LAYER_GROUPS)
    monkeypatch.setattr(features_module, "MIN_OUTPUTS", FIRST_LAYER_GROUPS)
    monkeypatch.setattr(features_module, "FEWEST_SERIES", 10)
    values = np.random.default_rng(0).normal(size=(1000, 1024, 1)).astype(np.float32)
    series = StandardisedSeries(values, np.full(1000, 1024), None)
    for seconds, expected in ((14.0, 9 * 8), (6.0, 10), (1e4, 1000)):
        times = iter([0, 1, 2])
        monkeypatch.setattr(features_module, "monotonic", lambda times=times: next(times))
        assert calibrated_features(series, CPU, np.random.RandomState(0), seconds=seconds)[1] == expected


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


def make_group(bounds: tuple[float, float] | None = (2.0, 8.0), outputs: int = 5) -> _Group:
    random = np.random.RandomState(0)
    return _Group(lambda: random.standard_normal(2), bounds, outputs, random)


def test_outputs_are_those_of_the_recurrence():
    group, u, elapsed = make_group(), torch.randn(2, 9, 2), torch.rand(2, 9) + 0.5
    eigenvalues = torch.complex(*group.eigenvalues.unbind(1))
    assert (eigenvalues.real < -1 / 8 + 1e-6).all()
    assert (eigenvalues.real > -1 / 2 - 1e-6).all()
    turns = group.eigenvalues[:, 1] / np.pi
    assert (turns >= 0).all()
    assert (turns <= (2 / -(1 / eigenvalues.real)).clamp_max(1) + 1e-6).all(), "two half turns in a time constant, one in a step"
    until_next = torch.cat([elapsed[:, 1:], torch.ones(2, 1)], 1)
    half = STATES_PER_GROUP // 2
    for times in (None, (elapsed, until_next)):
        states = torch.zeros(2, 9, STATES_PER_GROUP, dtype=torch.complex64)
        for own, steps, before in ((slice(half), range(9), -1), (slice(half, None), reversed(range(9)), 1)):
            x = torch.zeros(2, half, dtype=torch.complex64)
            for step in steps:
                factor = (eigenvalues[own] * (1 if times is None else times[before > 0][:, step, None])).exp()
                x = factor * x + (1 - factor.abs()) * (u[:, step] @ group.mixture[:, own])
                states[:, step, own] = x
        outputs = torch.view_as_real(states).flatten(2) @ group.readout + group.bias
        torch.testing.assert_close(group(u, times and elapsed)[0], outputs.permute(2, 0, 1), atol=1e-5, rtol=1e-4)
    memoryless = make_group(None)
    expected = u @ memoryless.mixture @ memoryless.readout + memoryless.bias
    torch.testing.assert_close(memoryless(u, elapsed)[0], expected.permute(2, 0, 1))


def test_slow_groups_are_summarised_at_some_of_the_steps():
    slow, u = make_group((40.0, 80.0), outputs=9), torch.randn(2, 65, 2)
    assert slow.stride == 10
    y, hidden = slow(u, None)
    assert y.shape == (9, 2, 7)
    slow.stride = 1
    all_steps, _ = slow(u, None)
    torch.testing.assert_close(y, all_steps[:, :, ::10])
    torch.testing.assert_close(hidden, all_steps[:HIDDEN_OUTPUTS])
    weights = _part_weights(u, torch.arange(65) < torch.tensor([[65], [31]]), 10)
    assert weights[:, 0].tolist() == [[pytest.approx(1 / 7)] * 7, [pytest.approx(1 / 4)] * 4 + [0] * 3]


def test_thresholds_are_quantiles_of_standardised_outputs():
    group, random = make_group(outputs=40), np.random.RandomState(1)
    u, steps = torch.randn(4, 300, 2), torch.arange(300) < torch.tensor([[300], [300], [100], [250]])
    with torch.no_grad():
        group.calibrate(u, steps, None, random)
        y = group(u, None)[0][:, steps]
    torch.testing.assert_close(y.mean(1), torch.zeros(40), atol=1e-4, rtol=0)
    torch.testing.assert_close(y.std(1, correction=0), torch.ones(40), atol=1e-3, rtol=0)
    shares = (y[None] > group.thresholds[..., None]).float().mean(2)
    middle, tails = shares[: THRESHOLDS // 2], shares[THRESHOLDS // 2 :]
    assert 0.4 < middle.mean() < 0.6
    assert 0.3 < (tails < 0.5).float().mean() < 0.7, "as many thresholds at either end"
    assert tails.clamp_max(0.5).minimum(1 - tails).median() < 0.1 < middle.minimum(1 - middle).median()


@pytest.mark.parametrize("length", [8, 11])
def test_features_of_an_output_are_those_of_their_definition(length):
    """Compared with the definitions at the top of the module, for thresholds that are far from all values."""
    group = make_group(outputs=2)
    group.thresholds.fill_(99)
    group.thresholds[:3] = torch.tensor([[1.5, 0.0], [0.5, 0], [2.5, 0]])
    inputs, valid = torch.zeros(1, 11, 1), torch.arange(11)[None] < length
    y = torch.randint(-9, 9, (2, 1, 11), generator=torch.Generator().manual_seed(0)) + 0.25
    weights = _part_weights(inputs, valid, 1)
    distribution, intervals, extremes, means, part_means, ends = group.summarise(y, weights, ~valid)
    known, above = y[:, 0, :length], (y[:, 0, :length] > torch.tensor([[1.5], [0.0]])).float()
    assert RAMP < 0.25
    torch.testing.assert_close(distribution[0, :2], above.mean(1))
    torch.testing.assert_close(distribution[0, 2:4], (known > torch.tensor([[0.5], [0]])).float().mean(1))
    torch.testing.assert_close(distribution[0, -2:], known.std(1, correction=0))
    torch.testing.assert_close(extremes[0], torch.cat([known.amax(1), known.amin(1)]))
    part = (torch.arange(length) + 0.5) / length
    expected = [above[:, (part * count).floor() == number].mean(1) for count in INTERVALS for number in range(count)]
    torch.testing.assert_close(intervals[0].view(-1, 2), torch.stack(expected))
    torch.testing.assert_close(means[0], known.mean(1))
    expected = [known[:, (part * count).floor() == number].mean(1) for count in INTERVALS for number in range(count)]
    torch.testing.assert_close(part_means[0].view(-1, 2), torch.stack(expected))
    torch.testing.assert_close(ends[0], torch.cat([known[:, 0], known[:, -1]]))
    linear = group.summarise(y, weights, ~valid, LINEAR_KINDS)
    torch.testing.assert_close(linear, [means, part_means, ends])


def test_no_value_of_a_tensor_is_read_by_the_host():
    """Meta tensors have no values; on a GPU, reading one would wait for it, and a CUDA graph could not be captured."""
    model = FeatureModel(channels=2, length=50, outputs=64, kinds=KINDS, d_output=3).to("meta")
    inputs, elapsed = torch.empty(2, 50, 2, device="meta"), torch.empty(2, 50, device="meta")
    with torch.no_grad():
        assert model(inputs).shape == (2, 3)
        assert model(inputs, torch.empty(2, 50, dtype=torch.bool, device="meta"), elapsed).shape == (2, 3)


def test_families_are_the_groups_and_kinds_of_the_features():
    random = np.random.RandomState(0)
    features = StateFeatures(2, 30, 16, random)
    assert features.n_features == (FIRST_LAYER_GROUPS + SECOND_LAYER_GROUPS) * 2 * (THRESHOLDS + 3 + sum(INTERVALS))
    inputs = torch.randn(3, 30, 2)
    features.calibrate(inputs, None, None, random)
    for kinds in (SHAPE_KINDS, LINEAR_KINDS, KINDS):
        features.select(kinds)
        with torch.no_grad():
            group, y = next(features._outputs(inputs, None, None))
            parts = group.summarise(y, _part_weights(inputs, None, 1), None, kinds)
            assert features(inputs).shape == (3, features.n_features)
        assert [part.shape[1] for part in parts] == np.bincount(features.families[features.families[:, 0] == 0, 1]).tolist()
        assert len(parts) == len(kinds)


def test_values_are_a_family_of_means_over_equal_parts_of_each_series():
    inputs, lengths = torch.randn(3, 12, 2), torch.tensor([12, 8, 5])
    valid = torch.arange(12) < lengths[:, None]
    torch.testing.assert_close(_part_means(inputs, None, 12), inputs, atol=1e-5, rtol=0)  # each step, where there are as many
    found = _part_means(inputs, valid, 4)
    torch.testing.assert_close(found[0], inputs[0].reshape(4, 3, 2).mean(1), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], inputs[1, :8].reshape(4, 2, 2).mean(1), atol=1e-5, rtol=0)
    second = (0.75 * inputs[2, 1] + 0.5 * inputs[2, 2]) / 1.25  # from step 1.25 to 2.5
    torch.testing.assert_close(found[2, 1], second, atol=1e-5, rtol=0)
    random = np.random.RandomState(0)
    features = StateFeatures(2, 12, 16, random, values=4)
    features.calibrate(inputs, valid, None, random)
    torch.testing.assert_close(features(inputs, valid)[:, -8:], found.flatten(1))
    assert (features.families[-8:] == [FIRST_LAYER_GROUPS + SECOND_LAYER_GROUPS, len(SHAPE_KINDS)]).all()
    features.select(LINEAR_KINDS)
    assert features(inputs, valid).shape == (3, features.n_features)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 50, 1), 50), ((4, 900, 1), MOST_VALUES), ((4, 500, 500), VALUES_PER_OUTPUT * MAX_OUTPUTS // 500)],
    ids=["short", "long", "many channels"],
)
def test_values_are_at_most_as_many_as_steps_and_fewer_with_many_channels(shape, expected):
    series = StandardisedSeries(np.zeros(shape, np.float32), np.full(shape[0], shape[1]), None)
    assert calibrated_features(series, CPU, np.random.RandomState(0), with_values=True)[0].values == expected


def test_classifier_finds_classes_that_are_linear_in_all_steps():
    """Without the values themselves the accuracy was .68."""
    random = np.random.default_rng(1)
    X = random.standard_normal((480, 30))
    y = X @ random.standard_normal(30) > 0
    model = SSMClassifier(**DEFAULT).fit(X[:80], y[:80])
    assert model.network().features.values == 30
    assert model.score(X[80:], y[80:]) > 0.77


def test_classifier_leaves_values_out_that_do_not_lower_the_error():
    """Waves of a random start; their predictions are those of the other features alone."""
    X, y = make_waves(60)
    model = SSMClassifier(**DEFAULT).fit(X, y)
    assert model.network().features.values == 0
    without = type("WithoutValues", (SSMClassifier,), {"_with_values": False})(**DEFAULT).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), without.predict_proba(X))


def test_a_lower_cross_entropy_exceeds_two_standard_errors():
    random = np.random.default_rng(0)
    features, classes = random.standard_normal((40, 3)), np.arange(40) % 2
    fit = fit_scores(features, classes)
    logits = np.stack([np.zeros(40), random.normal(0.3, 1, 40)], 1)
    logits[classes == 0] = logits[classes == 0, ::-1]
    even, other = fit._replace(left_out=np.zeros((40, 2))), fit._replace(left_out=logits)
    for weights in (None, random.uniform(0.5, 2, 40)):
        share = np.full(40, 1 / 40) if weights is None else weights / weights.sum()
        for shift in (0.0, 0.2, 0.4):
            moved = other._replace(left_out=logits + shift * np.eye(2)[classes] * 10)
            gains = np.log(2) - np.log1p(
                np.exp(moved.left_out[np.arange(40), 1 - classes] - moved.left_out[np.arange(40), classes])
            )
            mean = share @ gains
            expected = mean > 2 * np.sqrt(share**2 @ (gains - mean) ** 2)
            assert lowers_cross_entropy(moved, even, classes, weights) == expected == (shift > 0)
            assert not lowers_cross_entropy(even, moved, classes, weights)


def test_families_that_determine_the_targets_have_larger_factors():
    """One family is noise; the other determines the targets."""
    random = np.random.default_rng(0)
    features, kinds = random.standard_normal((30, 50)), np.repeat([0, 1], [40, 10])
    targets = features[:, 40:] @ random.standard_normal((10, 1))
    families = np.stack([np.zeros(50, np.int64), kinds], 1)
    plain, chosen = fit_values(features, targets), fit_values(features, targets, families=families)
    assert chosen.error < 0.1 * plain.error
    assert np.abs(chosen.weight[:, :40]).max() < 0.1 * np.abs(chosen.weight[:, 40:]).max()
    predicted = ((features - chosen.mean) * chosen.scale) @ chosen.weight.T + chosen.bias
    np.testing.assert_allclose(predicted, targets, atol=0.5)
    labels = (targets[:, 0] > 0).astype(np.int64)
    assert fit_scores(features, labels, families=families).error < 0.5 * fit_scores(features, labels).error


def test_factors_enlarge_the_features_that_the_penalty_is_for():
    random = np.random.default_rng(0)
    features, targets, factors = random.standard_normal((12, 40)), random.standard_normal((12, 2)), random.uniform(0.5, 2, 40)

    def loss(outputs: np.ndarray) -> float:
        return float(np.mean((outputs - targets) ** 2))

    fit = fit_ridge(features, targets, loss, factors=factors)
    Z = (features - features.mean(0)) / features.std(0) * factors
    inner = np.linalg.solve(Z @ Z.T + fit.penalty * 40 * np.eye(12), targets - targets.mean(0))
    np.testing.assert_allclose(fit.weight.T, factors[:, None] * (Z.T @ inner), rtol=1e-6, atol=1e-9)


def test_weights_of_parts_are_those_of_means():
    valid = torch.arange(9) < torch.tensor([[9], [5]])
    weights = _part_weights(torch.zeros(2, 9, 1), valid, 1)
    assert weights.shape == (2, 1 + sum(INTERVALS), 9)
    torch.testing.assert_close(weights.sum(2)[0], torch.ones(1 + sum(INTERVALS)))
    assert weights[1, 0].tolist() == pytest.approx([0.2] * 5 + [0] * 4)
    assert weights[1, 1].tolist() == pytest.approx([1 / 2, 1 / 2, 0, 0, 0, 0, 0, 0, 0]), "of the first half"


def test_outputs_are_reduced_to_the_time_that_is_left(monkeypatch):
    """To four fifths of the share of the expected time that is left, and to half at most."""
    tried = []
    original = StateFeatures.__init__

    def record(self, channels, length, outputs, random, kinds, values):
        tried.append(outputs)
        original(self, channels, length, outputs, random, kinds, values)

    monkeypatch.setattr(StateFeatures, "__init__", record)
    series = StandardisedSeries(np.random.default_rng(0).normal(size=(4, 50, 1)).astype(np.float32), np.full(4, 50), None)
    for seconds, regression, kinds, expected in (
        (16.0, 0.0, SHAPE_KINDS, [MAX_OUTPUTS]),
        (15.9, 0.0, SHAPE_KINDS, [MAX_OUTPUTS, MAX_OUTPUTS // 2]),
        (13.0, 0.0, SHAPE_KINDS, [MAX_OUTPUTS, int(0.8 * MAX_OUTPUTS * 3 / 6)]),
        (10.1, 0.0, SHAPE_KINDS, [MAX_OUTPUTS, FIRST_LAYER_GROUPS]),  # fewer than without a limit
        (26.0, 10.0, SHAPE_KINDS, [MAX_OUTPUTS]),
        (16.0, 10.0, SHAPE_KINDS, [MAX_OUTPUTS, int(0.8 * MAX_OUTPUTS * 6 / 16)]),
        (23.0, 10.0, KINDS, [MAX_OUTPUTS, int(0.8 * MAX_OUTPUTS * 13 / 26)]),  # which fits two regressions
    ):
        left = iter([regression, 0.0])
        monkeypatch.setattr(features_module, "regression_seconds", lambda *_, left=left: next(left))
        times = iter([0, 4, 10, 10, 10, 10])  # 10 seconds, 6 of them for the features; then none
        monkeypatch.setattr(features_module, "monotonic", lambda times=times: next(times))
        tried.clear()
        calibrated_features(series, CPU, np.random.RandomState(0), seconds=seconds, kinds=kinds)
        assert tried == expected


def test_a_regression_takes_longer_for_more_series_and_features():
    few, series, both = (regression_seconds(*sizes) for sizes in ((100, 1000), (2000, 1000), (2000, 20_000)))
    assert few < series < both


def test_features_of_a_seed_match_the_record():
    """Means over the features of each kind, so that a changed constant or formula of the features is seen."""
    random = np.random.RandomState(0)
    features = StateFeatures(2, 60, 32, random, KINDS)
    inputs = torch.from_numpy(np.random.RandomState(1).standard_normal((5, 60, 2)).cumsum(1).astype(np.float32))
    elapsed = torch.from_numpy(np.random.RandomState(2).uniform(0.5, 2, (5, 60)).astype(np.float32))
    valid = torch.arange(60) < torch.tensor([60, 60, 41, 50, 13])[:, None]
    for times, steps, record in ((None, None, EVEN), (elapsed, valid, UNEVEN)):
        features.calibrate(inputs, steps, times, np.random.RandomState(3))
        with torch.no_grad():
            found = features(inputs, steps, times).abs().numpy()
        kinds = features.families[:, 1]
        means = [found[:, kinds == kind].mean() for kind in range(len(KINDS))]
        np.testing.assert_allclose(means, record, rtol=2e-3)


def test_hidden_outputs_are_bounded():
    """Those below 0 and above 3 deviations of the first layer reach the second as 0 and 3."""
    random = np.random.RandomState(0)
    features, inputs, read = StateFeatures(2, 30, 16, random), torch.randn(3, 30, 2), []
    features.calibrate(inputs, None, None, random)
    for group in features.second:
        group.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    with torch.no_grad():
        features(100 * inputs)
    assert read
    for u in read:
        assert (u.min(), u.max()) == (0, 3)


def test_factors_of_families_match_the_record():
    random = np.random.default_rng(0)
    features = random.standard_normal((20, 30)) * random.uniform(0.5, 5, 30)
    targets = features[:, :12] @ random.standard_normal((12, 2)) + random.standard_normal((20, 2))
    families = np.stack([np.repeat([0, 1], 15), np.tile([0, 1, 2], 10)], 1)
    fit = fit_values(features, targets, random.uniform(0.5, 2, 20), families)
    np.testing.assert_allclose([fit.penalty, fit.error, np.abs(fit.weight).mean()], VALUES, rtol=2e-3)
    scores = fit_scores(features, (targets[:, 0] > 0).astype(np.int64), None, families)
    np.testing.assert_allclose([scores.penalty, scores.error, np.abs(scores.weight).mean()], SCORES, rtol=2e-3)
