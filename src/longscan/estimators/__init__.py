"""Estimators in the scikit-learn convention: fit, predict, score on numpy arrays and pandas frames.

`longscan.estimators.aeon` holds the same in aeon's convention.
"""

from typing import TYPE_CHECKING

from longscan._lazy import lazy

if TYPE_CHECKING:
    from longscan.estimators.backtesting import score_forecasts as score_forecasts
    from longscan.estimators.classifier import SSMClassifier as SSMClassifier
    from longscan.estimators.forecaster import SSMForecaster as SSMForecaster
    from longscan.estimators.reading import split_cases as split_cases
    from longscan.estimators.regressor import SSMRegressor as SSMRegressor

__all__ = ["SSMClassifier", "SSMForecaster", "SSMRegressor", "score_forecasts", "split_cases"]

__getattr__ = lazy(
    __name__,
    {
        "SSMClassifier": "longscan.estimators.classifier",
        "SSMForecaster": "longscan.estimators.forecaster",
        "SSMRegressor": "longscan.estimators.regressor",
        "score_forecasts": "longscan.estimators.backtesting",
        "split_cases": "longscan.estimators.reading",
    },
    extra="estimators",
)
