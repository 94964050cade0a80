"""The estimators with aeon's interface: series are (channels, steps), and a forecast is one value, `horizon` steps ahead.

Each class creates its counterpart in `longscan.estimators` with the same settings and passes the series to it as arrays, with
`layout="ncl"`.
"""

from typing import Any, Literal

import numpy as np
from aeon.classification.base import BaseClassifier
from aeon.forecasting.base import BaseForecaster
from aeon.regression.base import BaseRegressor

from longscan.estimators.classifier import SSMClassifier
from longscan.estimators.fitting import BlockOptions, Spec
from longscan.estimators.forecaster import SSMForecaster
from longscan.estimators.regressor import SSMRegressor

COLLECTION_TAGS = {
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "capability:multithreading": True,
    "X_inner_type": ["np-list", "numpy3D"],
    "python_dependencies": "torch",
}
TEST_PARAMS = {"d_model": 4, "d_state": 2, "epochs": 2, "device": "cpu"}  # for aeon's checks


class _CollectionEstimator:
    """The settings of `longscan.estimators.SSMClassifier` and `SSMRegressor`, and the parameters of aeon's checks.

    `n_jobs` is 1 by default, as aeon requires of every estimator.
    """

    _tags = COLLECTION_TAGS

    def __init__(
        self,
        spec: Spec | None = None,
        *,
        d_model: int | None = None,
        d_state: int | None = None,
        block_options: BlockOptions | None = None,
        pooling: Literal["mean", "last"] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        validation_fraction: float | None = None,
        patience: int = 10,
        minutes: float | None = None,
        device: str = "auto",
        n_jobs: int = 1,
        random_state: Any = None,
    ) -> None:
        self.spec = spec
        self.d_model = d_model
        self.d_state = d_state
        self.block_options = block_options
        self.pooling = pooling
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.minutes = minutes
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        super().__init__()

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:  # noqa: ARG003
        return dict(TEST_PARAMS)


class AeonSSMClassifier(_CollectionEstimator, BaseClassifier):
    """`longscan.estimators.SSMClassifier` for aeon; the settings are the same."""

    def _fit(self, X: Any, y: np.ndarray) -> None:
        self.estimator_ = SSMClassifier(**self.get_params(), layout="ncl").fit(list(X), y)

    def _predict(self, X: Any) -> np.ndarray:
        return self.estimator_.predict(list(X))

    def _predict_proba(self, X: Any) -> np.ndarray:
        return self.estimator_.predict_proba(list(X))


class AeonSSMRegressor(_CollectionEstimator, BaseRegressor):
    """`longscan.estimators.SSMRegressor` for aeon; the settings are the same."""

    def _fit(self, X: Any, y: np.ndarray) -> None:
        self.estimator_ = SSMRegressor(**self.get_params(), layout="ncl").fit(list(X), y)

    def _predict(self, X: Any) -> np.ndarray:
        return self.estimator_.predict(list(X))


class AeonSSMForecaster(BaseForecaster):
    """`longscan.estimators.SSMForecaster` for aeon: forecasts the value `horizon` steps ahead of one series; same settings."""

    _tags = {"python_dependencies": "torch"}  # noqa: RUF012 - aeon reads a plain dictionary

    def __init__(
        self,
        horizon: int = 1,
        window: int | None = None,
        spec: Spec = "mamba",
        *,
        d_model: int = 64,
        d_state: int = 16,
        epochs: int = 50,
        batch_size: int = 32,
        lr: float = 3e-3,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.window = window
        self.spec = spec
        self.d_model = d_model
        self.d_state = d_state
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.device = device
        self.random_state = random_state
        super().__init__(horizon=horizon, axis=1)

    def _fit(self, y: np.ndarray, exog: Any) -> "AeonSSMForecaster":  # noqa: ARG002 - it has none, says its tag
        self.estimator_ = SSMForecaster(**self.get_params()).fit(y[0])
        return self

    def _predict(self, y: np.ndarray, exog: Any) -> float:  # noqa: ARG002
        return float(self.estimator_.predict(y[0])[-1])

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:  # noqa: ARG003
        return dict(TEST_PARAMS)
