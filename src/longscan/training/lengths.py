"""Which lengths the training batches of a step have: the length curriculum and the other range late in training."""

from longscan.tasks import Task
from longscan.training.settings import Settings


class LengthPlan:
    """The task that a training step draws from; `longest` is the only thing that training changes (0: no curriculum)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.training
        self._task = settings.task
        self._curriculum: Task | None = None
        self._opens = int(settings.training.late_lengths.start * settings.training.steps)
        self._late = settings.late_task() if settings.training.late_lengths.share else None
        self.longest = settings.training.curriculum.start

    @property
    def longest(self) -> int:
        """The curriculum's present length."""
        return self._longest

    @longest.setter
    def longest(self, length: int) -> None:
        self._longest = length
        self._curriculum = self._task.at_length(length) if length else None

    def task(self, step: int) -> Task:
        """The task of update number `step`; the late range gets its share of the steps evenly spread."""
        if self._late is not None and step >= self._opens:
            share, turn = self._settings.late_lengths.share, step - self._opens
            if int((turn + 1) * share) > int(turn * share):
                return self._late
        return self._curriculum or self._task

    def looks_at(self, done: int) -> bool:
        """Whether the curriculum wants the training score after `done` updates."""
        curriculum = self._settings.curriculum
        return bool(curriculum.start) and self._longest < curriculum.end and done % curriculum.every == 0

    def score(self, value: float) -> None:
        """Take in the main metric of a training batch."""
        curriculum = self._settings.curriculum
        if value > curriculum.threshold:
            self.longest = min(self._longest + curriculum.increment, curriculum.end)
