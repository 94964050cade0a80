"""The checks of estimators of scikit-learn and aeon. SKIPPED lists the checks that are skipped, with reasons."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aeon.testing.estimator_checking import parametrize_with_checks
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import SkipTestWarning
from sklearn.utils._testing import SkipTest
from sklearn.utils.estimator_checks import estimator_checks_generator

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor
from longscan.estimators.aeon import AeonSSMClassifier, AeonSSMForecaster, AeonSSMRegressor

SKIPPED = {
    "check_methods_subset_invariance": "requires outputs equal to 1e-7 in batches of other sizes; they are float32, and "
    "test_estimators.py::test_predictions_do_not_depend_on_the_batch requires 1e-5",
    "check_sample_weight_equivalence_on_dense_data": "requires outputs equal to 1e-7 for repeated series, which are in other "
    "batches; test_settings.py::test_whole_weights_are_repetitions requires 1e-3 with one batch an epoch",
    "check_array_api_input": "scikit-learn skips it unless SCIPY_ARRAY_API is set",
}
WITHOUT_DATA = (  # the checks that a forecaster can pass; all others fit a table of cases and targets, not a series
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)
LEARNS = (  # the checks that require a good score
    "check_class_weight_classifiers",
    "check_classifiers_train",
    "check_regressors_train",
)
BRIEF = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}
LONG = {"d_model": 16, "d_state": 4, "epochs": 60, "lr": 0.01, "device": "cpu", "random_state": 0}


def list_checks() -> list[Any]:
    cases = []
    for kind in (SSMClassifier, SSMRegressor):
        for settings in (BRIEF, LONG):
            for estimator, check in estimator_checks_generator(kind(**settings)):
                name = check.func.__name__
                if name not in SKIPPED and (name in LEARNS) == (settings is LONG):
                    marks = [pytest.mark.slow] if settings is LONG else []
                    cases.append(pytest.param(estimator, check, id=f"{kind.__name__}-{name}", marks=marks))
    forecaster = SSMForecaster(horizon=2, window=4, d_model=4, d_state=2, epochs=1, device="cpu", random_state=0)
    for estimator, check in estimator_checks_generator(forecaster):
        name = check.func.__name__
        if name in WITHOUT_DATA:
            cases.append(pytest.param(estimator, check, id=f"SSMForecaster-{name}"))
    return cases


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize(("estimator", "check"), list_checks())
def test_estimator_passes_check_of_scikit_learn(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"not listed in SKIPPED: {skipped}")


def test_skipped_checks_exist_and_are_few() -> None:
    names = {check.func.__name__ for _, check in estimator_checks_generator(SSMRegressor(**BRIEF))}
    assert set(SKIPPED) <= names
    assert len(SKIPPED) <= 3, "do not add checks to SKIPPED"
    assert len(names) > 45
    assert issubclass(SkipTestWarning, UserWarning)


@parametrize_with_checks([AeonSSMClassifier, AeonSSMRegressor, AeonSSMForecaster])
def test_estimator_passes_check_of_aeon(check: Callable[[], None]) -> None:
    check()


def test_forecaster_satisfies_the_checks_of_tables_with_series() -> None:
    """Settings and data do not change, fits are deterministic, a pickled copy gives the same forecast, wrong data raise."""
    forecaster = SSMForecaster(horizon=3, window=8, d_model=4, d_state=2, epochs=1, device="cpu", random_state=0)
    settings = forecaster.get_params()
    y = np.sin(np.arange(30.0))
    y.flags.writeable = False
    assert forecaster.fit(y) is forecaster
    forecast = forecaster.predict(y)
    assert forecaster.get_params() == settings
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(forecaster)).predict(y), forecast)
    np.testing.assert_array_equal(forecaster.fit(y).predict(), forecast)
    for dtype in (np.float32, object):
        np.testing.assert_allclose(clone(forecaster).fit(y.astype(dtype)).predict(), forecast, rtol=1e-3)
    for invalid in (np.where(y > 0.9, np.nan, y), np.array(["a"] * 30), y.astype(complex), np.zeros((0,))):
        with pytest.raises(ValueError, match=r"^`[yX]` "):
            clone(forecaster).fit(invalid)
