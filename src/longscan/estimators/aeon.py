"""The estimators in aeon's convention: series are (channels, steps), and forecasts are of one step, `horizon` ahead.

Thin shells: each makes its counterpart of `longscan.estimators` with the same settings and hands the series over as arrays, with
`layout="ncl"`.
"""

from typing import Any, Literal

import numpy as np
from aeon.classification.base import BaseClassifier
from aeon.forecasting.base import BaseForecaster
from aeon.regression.base import BaseRegressor

from longscan.estimators.classifier import SSMClassifier
from longscan.estimators.fitting import Spec
from longscan.estimators.forecaster import SSMForecaster
from longscan.estimators.regressor import SSMRegressor

COLLECTION_TAGS = {
    "capability:multivariate": True,
    "capability:unequal_length": True,
    "X_inner_type": ["np-list", "numpy3D"],
    "python_dependencies": "torch",
}
SMALL = {"d_model": 4, "d_state": 2, "epochs": 2, "device": "cpu"}  # for aeon's checks


class _CollectionShell:
    """The settings of `longscan.estimators.SSMClassifier` and `SSMRegressor`, and how their aeon versions are checked."""

    _tags = COLLECTION_TAGS

    def __init__(
        self,
        spec: Spec = "mamba",
        *,
        d_model: int = 64,
        d_state: int = 16,
        pooling: Literal["mean", "last"] = "mean",
        epochs: int = 50,
        batch_size: int = 32,
        lr: float = 3e-3,
        weight_decay: float = 0.01,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.spec = spec
        self.d_model = d_model
        self.d_state = d_state
        self.pooling = pooling
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state
        super().__init__()

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:  # noqa: ARG003
        return dict(SMALL)


class AeonSSMClassifier(_CollectionShell, BaseClassifier):
    """`longscan.estimators.SSMClassifier` for aeon; the settings are the same."""

    def _fit(self, X: Any, y: np.ndarray) -> None:
        self.estimator_ = SSMClassifier(**self.get_params(), layout="ncl").fit(list(X), y)

    def _predict(self, X: Any) -> np.ndarray:
        return self.estimator_.predict(list(X))

    def _predict_proba(self, X: Any) -> np.ndarray:
        return self.estimator_.predict_proba(list(X))


class AeonSSMRegressor(_CollectionShell, BaseRegressor):
    """`longscan.estimators.SSMRegressor` for aeon; the settings are the same."""

    def _fit(self, X: Any, y: np.ndarray) -> None:
        self.estimator_ = SSMRegressor(**self.get_params(), layout="ncl").fit(list(X), y)

    def _predict(self, X: Any) -> np.ndarray:
        return self.estimator_.predict(list(X))


class AeonSSMForecaster(BaseForecaster):
    """`longscan.estimators.SSMForecaster` for aeon: of one series, the value `horizon` steps ahead; the settings are the same."""

    _tags = {"python_dependencies": "torch"}  # noqa: RUF012 - aeon reads a plain dictionary

    def __init__(
        self,
        horizon: int = 1,
        window: int = 96,
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
        return dict(SMALL)
