"""What a person sees of a run: a progress bar in a terminal, a line for each validation elsewhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longscan.training.logs import Row


class ProgressView:
    """Shows rows of the log and the steps done; silent with `shown` False."""

    def __init__(self, steps: int, done: int, metric: str, *, shown: bool) -> None:
        self._metric = metric
        self._console = Console(stderr=True, quiet=not shown)
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
        )
        self._start = done
        self._task = self._bar.add_task("training", total=steps, completed=done, rate="", note="")

    def __enter__(self) -> "ProgressView":
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, trace)

    def step(self, done: int) -> None:
        """Updates made so far."""
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, completed=done, rate=f"{speed:.1f} steps/s" if speed else "")

    def row(self, row: Row) -> None:
        """A new row of the log."""
        words = [f"{row['split']} loss {_short(row['loss'])}"]
        if self._metric in row:
            words.append(f"{self._metric} {_short(row[self._metric])}")
        if "lr" in row:
            words.append(f"lr {row['lr']:.2g}")
        if row["split"] == "train":
            self._bar.update(self._task, note=", ".join(words))
        else:
            self._console.print(f"step {row['step']}: {', '.join(words)}", highlight=False)


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
