"""What the estimators share: reading X, fitting a model to a collection, running it."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from longscan.estimators.series import Collection, is_table, read_series
from longscan.layers._settings import declared_types, fits, told
from longscan.models import SequenceModel, optimizer_groups

CLIP = 1.0
WARMUP = 0.1  # of the steps
Spec = str | Sequence[Mapping[str, Any]]


@contextmanager
def seeded(seed: int) -> Any:
    """torch's generator set to `seed` inside, as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def pick_device(name: str) -> torch.device:
    """The device of a setting; "auto" takes an accelerator where there is one."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: got {name!r}, expected 'auto' or a device of torch ({error})") from None


def check_settings(estimator: BaseEstimator) -> None:
    """ValueError names a setting that is not of its declared type, or can not be; scikit-learn wants them looked at in `fit`."""
    kind: type = type(estimator)
    settings, declared = estimator.get_params(deep=False), declared_types(kind)
    for name, value in settings.items():
        if not fits(value, declared[name]):
            raise ValueError(f"{name}: got {value!r}, needed {told(declared[name])}")
    for name in ("epochs", "batch_size", "horizon", "window"):
        if settings.get(name, 1) < 1:
            raise ValueError(f"{name}: got {settings[name]}, expected at least 1")
    for name in ("lr", "weight_decay"):
        if settings.get(name, 0) < 0:
            raise ValueError(f"{name}: got {settings[name]}, expected at least 0")
    if settings.get("pooling", "mean") not in ("mean", "last"):
        raise ValueError(f"pooling: got {settings['pooling']!r}, expected 'mean' or 'last'")


def minimise(
    model: nn.Module,
    loss_of: Callable[[np.ndarray], Tensor],
    epoch: Callable[[np.random.RandomState], np.ndarray],
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    random: np.random.RandomState,
) -> list[float]:
    """AdamW under a warm-up and a cosine, gradients clipped at norm 1. Returns the mean loss of each epoch.

    epoch: the examples of an epoch, in the order in which they are shown; loss_of: the mean loss of some of them.
    """
    optimizer = torch.optim.AdamW(optimizer_groups(model, weight_decay=weight_decay), lr=lr, fused=True)
    order = epoch(random)
    steps = epochs * math.ceil(len(order) / batch_size)
    warmup = max(1, round(WARMUP * steps))
    step, curve = 0, []
    model.train()
    for number in range(epochs):
        order = order if number == 0 else epoch(random)
        losses = []
        for first in range(0, len(order), batch_size):
            rate = lr * min(1, (step + 1) / warmup) * (1 + math.cos(math.pi * step / steps)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            loss = loss_of(order[first : first + batch_size])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            losses.append(loss.item())
            step += 1
        curve.append(float(np.mean(losses)))
    model.eval()
    return curve


class SeriesEstimator(BaseEstimator):
    """A model of whole series: reads collections, fits a `SequenceModel` to one target a series.

    Subclasses set what is fitted. scikit-learn reads the settings off the signature of the constructor.
    """

    def __init__(
        self,
        spec: Spec = "m",
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

    def _read(self, X: Any, times: Any, *, fitting: bool) -> Collection:
        """X and times as a collection; ValueError where they are not, or are of other channels than fitted ones."""
        if is_table(X):
            table = validate_data(self, X, reset=fitting, dtype="numeric", ensure_min_samples=1)
            index = [X.columns] * len(X) if isinstance(times, str) and hasattr(X, "columns") else times
            collection = read_series(np.asarray(table, dtype=np.float64)[..., None], index)
        else:
            collection = read_series(X, times)
        if not fitting and collection.channels != self.n_channels_:
            raise ValueError(f"X: got series of {collection.channels} channels, expected {self.n_channels_} as in fit")
        if not fitting and (collection.times is not None) != self.has_times_:
            raise ValueError(
                f"times: got {'some' if times is not None else 'none'}, expected them where fit had them, and only there"
            )
        return collection

    def _fit(self, collection: Collection, d_output: int, loss: Callable[[Tensor, np.ndarray], Tensor]) -> None:
        """Fit `model_` to the collection; loss: mean loss of outputs (b, d_output) for the rows of these numbers."""
        check_settings(self)
        random = check_random_state(self.random_state)
        self.n_channels_, self.has_times_ = collection.channels, collection.times is not None
        self.mean_, self.scale_ = collection.statistics()
        self.time_unit_ = collection.time_unit()
        device = pick_device(self.device)
        with seeded(int(random.randint(2**31 - 1))):
            model = SequenceModel.from_spec(
                self.spec,
                d_model=self.d_model,
                d_state=self.d_state,
                d_output=d_output,
                d_input=collection.channels,
                pooling=cast("Any", self.pooling),
                head="affine",
            ).to(device)

            def loss_of(rows: np.ndarray) -> Tensor:
                inputs, valid, elapsed = collection.batch(rows, self.mean_, self.scale_, self.time_unit_, device)
                return loss(model(inputs, valid=valid, elapsed=elapsed), rows)

            self.loss_curve_ = minimise(
                model,
                loss_of,
                lambda random: random.permutation(len(collection)),
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                weight_decay=self.weight_decay,
                random=random,
            )
        self.model_ = model

    def _outputs(self, X: Any, times: Any) -> np.ndarray:
        """(n, d_output), float64, batch by batch."""
        check_is_fitted(self, "model_")
        collection = self._read(X, times, fitting=False)
        device = next(self.model_.parameters()).device
        parts = []
        with torch.no_grad():
            for first in range(0, len(collection), self.batch_size):
                rows = np.arange(first, min(first + self.batch_size, len(collection)))
                inputs, valid, elapsed = collection.batch(rows, self.mean_, self.scale_, self.time_unit_, device)
                parts.append(self.model_(inputs, valid=valid, elapsed=elapsed).cpu().double().numpy())
        return np.concatenate(parts)

    def network(self) -> SequenceModel:
        """A copy of the fitted model, which reads series in units of `mean_` and `scale_`."""
        check_is_fitted(self, "model_")
        return copy.deepcopy(self.model_)
