"""Time fits of an estimator that trains blocks on a GPU, with updates that are replayed as CUDA graphs and without.

    python benchmarks/captured_fits.py --out build/captured_fits.jsonl
    python benchmarks/captured_fits.py --quick                  few short series, also on a CPU, where no update is replayed

An SSMClassifier is fitted to series of two classes, noise with a damped response to a pulse at a random time, whose frequency is
the class. Both ways take turns, after a short fit each that compiles the kernels and is not counted. A row is one fit:

    captured                whether updates may be captured and replayed, the default on a GPU
    fit_seconds             the whole fit, with the capture of its graphs
    seconds_per_update      mean of the second half of the updates, when all graphs are captured
    replays                 number of replayed updates
    accuracy                on as many series that are not in the fit; the two ways must agree up to rounding
    loss                    mean training loss of the last epoch
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from harness import provenance
from longscan._devices import find_device
from longscan.engine import Callback, Engine, GraphedStep, StepResult
from longscan.estimators import SSMClassifier, fitting
from row_files import write_row

CHANNELS = 3
FREQUENCIES = (0.1, 0.3)  # of the responses of the two classes, in radians a step
DAMPING, NOISE = 0.02, 0.7


class Clock(Callback):
    """Measures `seconds_per_update` of the updates after `first` until `last`, and counts the `replays` until then."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last, self._start = first, last, 0.0
        self.seconds_per_update, self.replays = math.nan, 0

    def on_step_end(self, engine: Engine, result: StepResult) -> None:  # noqa: ARG002
        """Read the clock after the two updates, when the GPU has finished."""
        if engine.step not in (self._first, self._last):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if engine.step == self._first:
            self._start = now
            return
        self.seconds_per_update = (now - self._start) / (self._last - self._first)
        step = engine._gradient_step
        self.replays = step._n_replays if isinstance(step, GraphedStep) else 0


def make_series(count: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return series (count, length, 3) and their classes (count,)."""
    random = np.random.default_rng(seed)
    classes = np.arange(count) % 2
    age = np.arange(length) - random.integers(0, max(1, length // 2), count)[:, None]
    response = np.where(age >= 0, np.exp(-DAMPING * np.maximum(age, 0)) * np.sin(np.take(FREQUENCIES, classes)[:, None] * age), 0)
    return response[:, :, None] * [1.0, 0.5, -1.0] + NOISE * random.normal(size=(count, length, CHANNELS)), classes


@contextmanager
def without_capture() -> Iterator[None]:
    """Make fits in a `with` block run their updates without CUDA graphs."""
    with patch.object(fitting, "replays_updates", lambda _: False):
        yield


def fit(settings: dict[str, Any], data: Sequence[np.ndarray], captured: bool) -> dict[str, Any]:
    """Return the fields of a fit. data: series and classes to fit to, and those to score on."""
    X, y, X_test, y_test = data
    updates = settings["epochs"] * math.ceil(len(X) / settings["batch_size"])
    clock = Clock(updates // 2, updates)
    with nullcontext() if captured else without_capture():
        start = time.perf_counter()
        model = SSMClassifier(callbacks=[clock], **settings).fit(X, y)
        seconds = time.perf_counter() - start
    return {
        "captured": captured,
        "fit_seconds": seconds,
        "seconds_per_update": clock.seconds_per_update,
        "updates": updates,
        "replays": clock.replays,
        "accuracy": float(np.mean(model.predict(X_test) == y_test)),
        "loss": model.loss_curve_[-1],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line, fit both ways in turns, and write a row for each fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default="mamba*2", help="blocks of the estimator (default: %(default)s)")
    parser.add_argument("--series", type=int, default=400, help="series of the fit (default: %(default)s)")
    parser.add_argument("--length", type=int, default=1024, help="their steps (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the series (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="fits of each way (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="device of the fits (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="ten series of 32 steps, two epochs, one turn")
    parser.add_argument("--out", type=Path, help="file of JSON lines, to which rows are added")
    options = parser.parse_args(argv)
    if options.quick:
        options.series, options.length, options.epochs, options.turns = 10, 32, 2, 1
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    sizes = {"spec": options.spec, "epochs": options.epochs, "batch_size": min(32, options.series // 2), "random_state": 0}
    settings = {**sizes, "device": options.device}
    data = (*make_series(options.series, options.length, seed=0), *make_series(options.series, options.length, seed=1))
    about = {"series": options.series, "length": options.length, "channels": CHANNELS, **sizes}
    about |= provenance(find_device(options.device))
    for captured in (True, False):
        fit({**settings, "epochs": 1}, data, captured)
    for turn in range(options.turns):
        for captured in (True, False):
            write_row({"case": "fit of SSMClassifier", "turn": turn, **fit(settings, data, captured), **about}, options.out)


if __name__ == "__main__":
    main()
