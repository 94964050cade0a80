"""The FitzHugh-Nagumo model of a neuron, one step ahead (Rusch et al., 2022)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from longscan.tasks._random import CounterRNG
from longscan.tasks._store import Arrays, stored
from longscan.tasks.base import TASKS, Split, check_request
from longscan.tasks.dynamics.series import SeriesArrays, SeriesRegression

_POINTS, _END, _INNER = 1001, 400.0, 10


@TASKS.register("fitzhugh_nagumo")
@dataclass(frozen=True, kw_only=True)
class FitzHughNagumo(SeriesRegression):
    """A neuron's voltage one step of 0.4 later.

        ▅▇██▇▇▆▆▅▁▁▁▂▂▂▇██▇▇▆▆▅▁ 1 channels x 1000 steps | ▅▇██▇▇▆▆▅▁▁▁▂▂▂▇██▇▇▆▆▅▁

    v' = v - v^3/3 - w + 0.5, w' = (v + 0.7 - 0.8 w)/50, v(0) uniform on -1 .. 1, w(0) = 0, to time 400. Scored is the root of the
    mean squared error over all test series; the published code prints that of its last batch of 128. solver: "accurate", steps of
    0.04 with the classical Runge-Kutta method, or "published", scipy's RK45 with its default tolerances, whose errors are part of
    what is to be learnt. Persistence errs little here.
    """

    name: ClassVar[str] = "fitzhugh_nagumo"
    metric: ClassVar[str] = "rmse"
    train_size: int = 128
    valid_size: int = 128
    test_size: int = 1_024
    solver: Literal["accurate", "published"] = "accurate"

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("train_size", "valid_size", "test_size"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting}: must be positive, not {getattr(self, setting)}")
        if self.solver not in ("accurate", "published"):
            raise ValueError(f"solver: must be one of 'accurate', 'published', not {self.solver!r}")

    @property
    def variables(self) -> tuple[str, ...]:
        """The voltage."""
        return ("voltage",)

    def size(self, split: Split) -> int:
        """Number of series."""
        check_request(self, split, 0, 1, 0)
        return {"train": self.train_size, "valid": self.valid_size, "test": self.test_size}[split]

    def _arrays(self) -> SeriesArrays:
        return _arrays(self)

    def baselines(self, split: Split = "test") -> dict[str, float]:
        """The main metric of the best constant answer, and of persistence: the voltage now as the answer for the next step."""
        data = self._arrays()
        rows = data.rows[split]
        return {**super().baselines(split), "persistence": self._score(data.inputs[rows], data.targets[rows])}


@lru_cache(maxsize=4)
def _arrays(task: FitzHughNagumo) -> SeriesArrays:
    sizes: dict[Split, int] = {"train": task.train_size, "valid": task.valid_size, "test": task.test_size}
    solve = solved if task.solver == "accurate" else solved_by_scipy
    parts, rows, start = [], {}, 0
    for split, size in sizes.items():
        starts = 2 * CounterRNG(("fitzhugh_nagumo", split), 0).uniform(size) - 1

        def make(starts: np.ndarray = starts) -> Arrays:
            return {"voltage": solve(starts).astype(np.float32)}

        parts.append(stored("fitzhugh-nagumo", [], (split, size, task.solver), make)["voltage"])
        rows[split] = np.arange(start, start + size)
        start += size
    voltage = np.concatenate(parts)[..., None]
    return SeriesArrays(voltage[:, :-1], voltage[:, 1:], None, rows)


def slope(state: np.ndarray) -> np.ndarray:
    """The derivatives (2, ...) of voltage and recovery (2, ...)."""
    voltage, recovery = state
    return np.stack([voltage - voltage**3 / 3 - recovery + 0.5, (voltage + 0.7 - 0.8 * recovery) / 50])


def solved(starts: np.ndarray) -> np.ndarray:
    """Voltages (n, 1001) from v(0) = starts (n,), by the classical Runge-Kutta method."""
    step = _END / (_POINTS - 1) / _INNER
    state = np.stack([starts, np.zeros_like(starts)])
    voltages = [state[0]]
    for _ in range(_POINTS - 1):
        for _ in range(_INNER):
            first = slope(state)
            second = slope(state + step / 2 * first)
            third = slope(state + step / 2 * second)
            state = state + step / 6 * (first + 2 * second + 2 * third + slope(state + step * third))
        voltages.append(state[0])
    return np.stack(voltages, axis=1)


def solved_by_scipy(starts: np.ndarray) -> np.ndarray:
    """The same by `scipy.integrate.solve_ivp` as it comes."""
    from scipy.integrate import solve_ivp

    times = np.linspace(0, _END, _POINTS)
    solutions = [solve_ivp(lambda _, state: slope(state), (0, _END), [start, 0.0], t_eval=times) for start in starts]
    return np.stack([solution.y[0] for solution in solutions])
