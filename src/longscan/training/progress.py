"""Progress bars of one training, of several trainings, and of fits of methods."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from longscan.engine import Callback, Engine, StepResult


class ProgressBar(Callback):
    """Shows a progress bar in a terminal, and a line for each validation and test on stderr; nothing if `shown` is False.

    Args:
        steps: number of steps of the training.
        steps_made: number of steps of an earlier part of it.
        metric: name in the rows of the log that is shown next to the loss.
        shown: False for no output.
        train_lines: without a terminal also show a line for each training row.
        time_spent: function that returns the fraction of the available time that has passed, 0 to 1. From it the bar estimates
            the number of steps if time ends the training before `steps`. None if time is not limited.

    Attributes:
        close: removes the bar.
    """

    def __init__(
        self,
        steps: int,
        steps_made: int,
        metric: str,
        *,
        shown: bool,
        train_lines: bool = False,
        time_spent: Callable[[], float] | None = None,
    ) -> None:
        self._steps, self._metric, self._time_spent = steps, metric, time_spent
        self._console = Console(stderr=True, quiet=not shown)
        self._train_lines = train_lines and not self._console.is_terminal
        rate, note = "{task.fields[rate]}", "{task.fields[note]}"
        columns = ("training", BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn(), note)
        self._bar = Progress(*columns, console=self._console, disable=not (shown and self._console.is_terminal))
        self._task = self._bar.add_task("training", total=steps, completed=steps_made, rate="", note="")
        self._bar.start()
        self.close = self._bar.stop

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Show the steps made and the speed."""
        if self._bar.disable:
            return
        speed = self._bar.tasks[0].speed  # a sum over the latest thousand steps
        spent = 0.0 if self._time_spent is None else self._time_spent()
        total = min(self._steps, round(engine.step / spent)) if spent else self._steps
        self._bar.update(self._task, completed=engine.step, total=total, rate=f"{speed:.1f} steps/s" if speed else "")

    def on_log(self, engine: Engine, row: dict[str, Any]) -> None:
        """Show a training row next to the bar, and the row of another split as a line."""
        if "split" not in row:
            return
        values = {name: row[name] for name in ("loss", self._metric) if name in row}
        text = ", ".join(f"{name} {'none' if value is None else format(value, '.4f')}" for name, value in values.items())
        if row["split"] == "train":
            self._bar.update(self._task, note=f"train {text}, lr {row['lr']:.2g}")
        if row["split"] != "train" or self._train_lines:
            self._console.print(f"step {row['step']}: {row['split']} {text}", highlight=False)


class FitBar:
    """Shows the progress of fits on stderr: in a terminal a bar for each method with its time, elsewhere a line for each method.

    It is called with the name of the method, the number of its parts that are done, and the number of its parts. `close` ends the
    bars.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._bar.start()
        self.close = self._bar.stop

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show the progress of a method."""
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total)
            if self._bar.disable:
                self._console.print(f"fitting {name}", highlight=False)
        self._bar.update(self._tasks[name], completed=done)


class RunBar:
    """Shows the updates of several trainings that run in other processes, and the time that is left.

    In a terminal it shows a bar, elsewhere a line on stderr at regular times.

    Args:
        console: the console on stdout, on which `print` prints lines.
        every: seconds between two lines where there is no terminal.
    """

    def __init__(self, console: Console, every: float = 60.0) -> None:
        self._console, self._every, self._printed = console, every, time.monotonic()
        columns = ("training", BarColumn(), MofNCompleteColumn(), TextColumn("updates, {task.fields[note]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self.close = self._bar.stop

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False)

    def update(self, made: int, total: int, note: str) -> None:
        """Show the updates that have been made, and a note on the time that is left."""
        if self._bar.disable:
            if time.monotonic() - self._printed >= self._every:
                self._printed = time.monotonic()
                Console(stderr=True).print(f"{made:,} of {total:,} updates, {note}", highlight=False, soft_wrap=True)
            return
        if self._task is None:
            self._task = self._bar.add_task("training", total=total, note=note)
            self._bar.start()
        self._bar.update(self._task, completed=made, note=note)
