"""One-step-ahead prediction of the FitzHugh-Nagumo model of a neuron (Rusch et al., 2022)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np

from longscan._types import Doc
from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, cached_arrays
from longscan.tasks.base import TASKS, TestSize, TrainSize, ValidSize
from longscan.tasks.dynamics.series import GeneratedSeries, SeriesArrays
from longscan.tasks.examples import consecutive_rows

_POINTS, _END_TIME, _SUBSTEPS = 1001, 400.0, 10


@TASKS.register("fitzhugh_nagumo")
@dataclass(frozen=True, kw_only=True)
class FitzHughNagumo(GeneratedSeries):
    """Predict the voltage of a neuron one step of 0.4 ahead.

        ▅▇██▇▇▆▆▅▁▁▁▂▂▂▇██▇▇▆▆▅▁ 1 channel x 1000 steps | ▅▇██▇▇▆▆▅▁▁▁▂▂▂▇██▇▇▆▆▅▁

    v' = v - v^3/3 - w + 0.5, w' = (v + 0.7 - 0.8 w)/50, v(0) uniform on -1 .. 1, w(0) = 0, to time 400. The score is the root of
    the mean squared error over all test series; the published code prints that of its last batch of 128. The error of the
    persistence baseline is small.
    """

    metric: ClassVar[str] = "rmse"
    variables: ClassVar[tuple[str, ...]] = ("voltage",)
    _has_persistence_baseline: ClassVar[bool] = True
    train_size: TrainSize = 128
    valid_size: ValidSize = 128
    test_size: TestSize = 1_024
    solver: Annotated[
        Literal["accurate", "published"],
        Doc(
            "accurate: the classical Runge-Kutta method with steps of 0.04; published: scipy's RK45 with its default tolerances, "
            "so that the targets contain its errors"
        ),
    ] = "accurate"

    def _arrays(self) -> SeriesArrays:
        return _arrays(self)


@lru_cache(maxsize=4)
def _arrays(task: FitzHughNagumo) -> SeriesArrays:
    solve = solve_rk4 if task.solver == "accurate" else solve_with_scipy

    def simulate() -> Arrays:
        starts = [2 * CounterRNG(("fitzhugh_nagumo", split), 0).uniform(size) - 1 for split, size in task._sizes.items()]
        return {"voltage": solve(np.concatenate(starts)).astype(np.float32)}  # one call for all splits is faster

    voltage = cached_arrays("fitzhugh-nagumo", [], (task._sizes, task.solver), simulate)["voltage"][..., None]
    return SeriesArrays(voltage[:, :-1], voltage[:, 1:], None, consecutive_rows(task._sizes))


def derivatives(state: np.ndarray) -> np.ndarray:
    """Return the time derivatives (2, ...) of voltage and recovery (2, ...)."""
    voltage, recovery = state
    return np.stack([voltage - voltage**3 / 3 - recovery + 0.5, (voltage + 0.7 - 0.8 * recovery) / 50])


def solve_rk4(starts: np.ndarray) -> np.ndarray:
    """Return voltages (n, 1001) from v(0) = starts (n,), by the classical Runge-Kutta method."""
    step = _END_TIME / (_POINTS - 1) / _SUBSTEPS
    state = np.stack([starts, np.zeros_like(starts)])
    voltages = [state[0]]
    for _ in range(_POINTS - 1):
        for _ in range(_SUBSTEPS):
            first = derivatives(state)
            second = derivatives(state + step / 2 * first)
            third = derivatives(state + step / 2 * second)
            state = state + step / 6 * (first + 2 * second + 2 * third + derivatives(state + step * third))
        voltages.append(state[0])
    return np.stack(voltages, axis=1)


def solve_with_scipy(starts: np.ndarray) -> np.ndarray:
    """Return voltages (n, 1001) from v(0) = starts (n,), by `scipy.integrate.solve_ivp` with its default settings."""
    from scipy.integrate import solve_ivp

    times = np.linspace(0, _END_TIME, _POINTS)
    solutions = [solve_ivp(lambda _, state: derivatives(state), (0, _END_TIME), [start, 0.0], t_eval=times) for start in starts]
    return np.stack([solution.y[0] for solution in solutions])
