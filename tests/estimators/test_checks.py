"""scikit-learn's and aeon's own checks of estimators; what is skipped stands in SKIPPED with its reason."""

from collections.abc import Callable
from typing import Any

import pytest
from aeon.testing.estimator_checking import parametrize_with_checks
from sklearn.base import BaseEstimator
from sklearn.exceptions import SkipTestWarning
from sklearn.utils._testing import SkipTest
from sklearn.utils.estimator_checks import estimator_checks_generator

from longscan.estimators import SSMClassifier, SSMForecaster, SSMRegressor
from longscan.estimators.aeon import AeonSSMClassifier, AeonSSMForecaster, AeonSSMRegressor

SKIPPED = {
    "check_methods_subset_invariance": "wants outputs equal to 1e-7 in batches of other sizes; they are float32, and are held to "
    "1e-5 by test_estimators.py::test_predictions_do_not_depend_on_the_batch",
    "check_array_api_input": "scikit-learn itself leaves it out unless SCIPY_ARRAY_API is set",
}
LEARNS = ("check_classifiers_train", "check_regressors_train")  # the checks that ask for a good score
BRIEF = {"d_model": 4, "d_state": 2, "epochs": 1, "device": "cpu", "random_state": 0}
ENOUGH = {"d_model": 16, "d_state": 4, "epochs": 60, "lr": 0.01, "device": "cpu", "random_state": 0}


def checks() -> list[Any]:
    cases = []
    for kind in (SSMClassifier, SSMRegressor):
        for settings in (BRIEF, ENOUGH):
            for estimator, check in estimator_checks_generator(kind(**settings)):
                name = check.func.__name__
                if name not in SKIPPED and (name in LEARNS) == (settings is ENOUGH):
                    marks = [pytest.mark.slow] if settings is ENOUGH else []
                    cases.append(pytest.param(estimator, check, id=f"{kind.__name__}-{name}", marks=marks))
    return cases


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize(("estimator", "check"), checks())
def test_check_of_scikit_learn(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"skipped without standing in SKIPPED: {skipped}")


def test_skipped_checks_exist_and_are_few() -> None:
    names = {check.func.__name__ for _, check in estimator_checks_generator(SSMRegressor(**BRIEF))}
    assert set(SKIPPED) <= names
    assert len(SKIPPED) <= 2, "this list may only shrink"
    assert len(names) > 45
    assert issubclass(SkipTestWarning, UserWarning)


@parametrize_with_checks([AeonSSMClassifier, AeonSSMRegressor, AeonSSMForecaster])
def test_check_of_aeon(check: Callable[[], None]) -> None:
    check()


def test_the_forecaster_keeps_to_the_conventions_of_settings() -> None:
    """No check of scikit-learn is made for forecasters; those of settings are."""
    from sklearn.base import clone

    forecaster = SSMForecaster(horizon=3, spec="ml", random_state=1)
    twin = clone(forecaster)
    assert twin.get_params() == forecaster.get_params()
    assert twin.set_params(horizon=5).horizon == 5
    assert "horizon=3" in repr(forecaster)
