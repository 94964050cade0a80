"""How long the trainings of the state-tracking benchmark take: rates measured on a CPU, and the time that is left of a run."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

# Processor seconds of an update on one core: AMD EPYC, torch 2.13, one thread, the least of three updates or more. The layers of
# other packages do not run on a CPU. A step of PD-SSM is a product of matrices with a row for each state.
CPU_SECONDS = {"gru": 0.08, "s4d": 0.13, "mamba": 0.27, "aussm": 0.32, "gated_deltanet": 0.55}
PDSSM_CPU_SECONDS = {16: 0.24, 24: 0.60, 60: 6.2, 120: 24.4}
_TAIL = 400  # bytes at the end of a log in which its last update is found
_PRINTED = re.compile(rb"^update (\d+):", re.MULTILINE)


class TrainingLog(NamedTuple):
    """A training whose updates are counted in its log.

    Attributes:
        log: file of its output, with lines that begin with "update N:".
        updates: number of its updates.
        seconds: expected seconds of an update on one core, or 1 for all trainings if nothing is known.
    """

    log: Path
    updates: int
    seconds: float


class RunProgress(NamedTuple):
    """Number of updates of a run of several trainings, and its expected remaining time.

    Attributes:
        made: updates of all trainings that have been made.
        updates: updates of all trainings.
        seconds: expected seconds until the end, None before the first updates.
    """

    made: int
    updates: int
    seconds: float | None


def cpu_seconds(model: str, states: int) -> float:
    """Return the expected seconds of an update of a model on one core of a CPU; 0 for the models that do not run there.

    states: `d_state` of PD-SSM, one of those that the seven groups have.
    """
    return PDSSM_CPU_SECONDS[states] if model == "pdssm" else CPU_SECONDS.get(model, 0.0)


def last_update(log: Path) -> int:
    """Return the number of the last update that a log names, 0 if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            found = _PRINTED.findall(file.read())
    except FileNotFoundError:
        return 0
    return int(found[-1]) if found else 0


class RemainingTime:
    """Estimates the time that is left from the updates that the logs of the trainings name.

    A training counts its updates times their expected seconds, so that trainings of fast models, which come to an end first, do
    not make the others look fast. The speed is that since the first updates of this run.

    Args:
        trainings: the trainings of the run.
        now: the clock, in seconds.
    """

    def __init__(self, trainings: Sequence[TrainingLog], now: Callable[[], float] = time.monotonic) -> None:
        self._trainings, self._now = list(trainings), now
        self._updates = sum(one.updates for one in trainings)
        self._seen = self._made()
        self._began: tuple[float, float] | None = None  # time and work when the first updates of this run were seen
        self._end: float | None = None  # the expected time of the end

    def _made(self) -> list[int]:
        """Return the number of updates that each training has made."""
        return [min(one.updates, last_update(one.log)) for one in self._trainings]

    def estimate(self) -> RunProgress:
        """Return the updates made and the remaining time, which decreases by the clock between two updates."""
        made, now = self._made(), self._now()
        if made != self._seen:
            self._seen = made
            work = sum(one.seconds * n for one, n in zip(self._trainings, made, strict=True))
            if self._began is None:
                self._began = now, work
            elif work > self._began[1]:
                total = sum(one.seconds * one.updates for one in self._trainings)
                self._end = now + (total - work) * (now - self._began[0]) / (work - self._began[1])
        return RunProgress(sum(made), self._updates, None if self._end is None else max(0.0, self._end - now))
