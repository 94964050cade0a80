"""The commands that list what exists: tasks, layers and examples of a task."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from longscan._types import Doc
from longscan.cli import own_data
from longscan.cli._arguments import first_line
from longscan.cli._console import echo, print_table, stdout

WIDE = 130  # columns of a terminal that shows every column of the table of tasks
PROPERTIES = ("causal", "streaming", "irregular", "batch_independent")


def tasks(
    *,
    settings: Annotated[bool, Doc("list the tasks' settings and defaults instead")] = False,
) -> int:
    """List the tasks: what they ask, their sizes, the score of a constant answer, whether their data are available."""
    from longscan.tasks import TASKS

    if settings:
        rows = [
            {"task": name, "what it asks": first_line(task), "settings (default)": _defaults(task)}
            for name, task in sorted(TASKS.items())
        ]
        _print_rows(rows, ("task", "settings (default)"))
        return 0
    _print_rows([_task_row(name, task) for name, task in sorted(TASKS.items())], ("task", "what it asks", "available"))
    areas = "uea, lra, forecasting, activity, events, dna"
    echo(f"Data: --data-dir FOLDER, or LONGSCAN_DATA with a folder an area ({areas}); `longscan data list` shows public ones.")
    return 0


def _task_row(name: str, task: Any) -> dict[str, str]:
    """Return the row of a task in the table, by column."""
    from longscan.tasks.listing import task_facts

    found = task_facts(task())
    sizes = "" if found.sizes is None else " / ".join("endless" if size is None else f"{size:,}" for size in found.sizes)
    row = {"task": name, "what it asks": first_line(task), "train / valid / test": sizes}
    for column, number in (("classes", found.classes), ("length", found.length)):
        row[column] = "" if number is None else str(number)
    about = "about " if found.available == "generated" else ""  # of a small set of the same kind
    row["constant"] = "" if found.constant is None else f"{found.metric} {about}{found.constant:.2g}"
    return {**row, "source": found.source, "available": found.available}


def _defaults(task: Any) -> str:
    """Return a task's settings and their defaults on one line."""
    settings = []
    for f in fields(task):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        settings.append(f.name if default is MISSING else f"{f.name} ({default})")
    return ", ".join(settings)


def _print_rows(rows: Sequence[dict[str, str]], narrow_columns: Sequence[str]) -> None:
    """Print a table of tasks with uncut names; on a narrow terminal only `narrow_columns`."""
    from rich.table import Column, Table

    narrow = stdout().is_terminal and stdout().width < WIDE
    names = [name for name in rows[0] if not narrow or name in narrow_columns]
    table = Table(*(Column(name, no_wrap=name == "task", overflow="fold") for name in names), show_lines=narrow)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    print_table(table)
    if narrow:
        stdout().print(f"More columns: in a terminal of {WIDE} columns, or with `| less -S`.", soft_wrap=False)


def show(
    task: Annotated[str | None, Doc("name of the task, your own file or folder, or the folder of a run; comes first")] = None,
    *settings: str,
    label: own_data.Label = None,
    label_kind: own_data.LabelKind = None,
    target: own_data.Target = None,
    horizon: own_data.Horizon = None,
    id: own_data.Id = None,  # noqa: A002
    time: own_data.Time = None,
    channels: own_data.Channels = None,
    group: own_data.Group = None,
    out: Annotated[str | None, Doc("the picture; TASK.png without it")] = None,
    split: Annotated[Literal["train", "valid", "test"], Doc("part of the task's data")] = "train",
    count: Annotated[int, Doc("how many examples")] = 6,
) -> int:
    """Draw examples of a task, of your own file or of a run into a PNG file; settings follow as in train."""
    from longscan.cli.runs import errors_as_lines
    from longscan.tasks import TASKS
    from longscan.tasks.pictures import draw_examples
    from longscan.training.parsing import parse_settings, read_yaml
    from longscan.training.run import SETTINGS, holds_run

    options = own_data.given_options(
        label=label, target=target, horizon=horizon, id=id, time=time, channels=channels, group=group
    )
    is_run = task is not None and task not in TASKS and holds_run(Path(task))
    if task is not None and task not in TASKS and not is_run and own_data.is_path(task):
        parsed = own_data.own_settings(task, options, label_kind, settings)
        own_data.print_summary(parsed)
    else:
        own_data.check_unused(options | ({} if label_kind is None else {"label_kind": label_kind}))
        if is_run:
            parsed = parse_settings(settings, read_yaml(Path(str(task)) / SETTINGS))
        else:
            parsed = parse_settings([*([] if task is None else ["--task", task]), *settings])
    with errors_as_lines():
        picture = draw_examples(parsed.task, out or f"{parsed.task.name}.png", split=split, count=count)
    echo(f"picture: {picture}")
    return 0


def layers() -> int:
    """List the names that a spec is made of, with the layers and blocks that they stand for and their properties."""
    from rich.table import Table

    from longscan.blocks import BLOCKS
    from longscan.layers import LAYERS
    from longscan.models import STANDARD_BLOCKS, find_block

    table = Table("name in a spec", "layer", "block", "description", "properties")
    for name in sorted({*STANDARD_BLOCKS, *LAYERS}):
        layer, block = find_block(name)
        kinds: list[type[Any]] = [LAYERS[layer]] if layer else []
        kinds += [BLOCKS[block]] if block else []
        present = [flag for flag in PROPERTIES if all(getattr(kind, flag) for kind in kinds)]
        present += ["changes_length"] if any(kind.changes_length for kind in kinds) else []
        described = BLOCKS[block] if block in ("bidirectional", "feed_forward") else kinds[0]
        table.add_row(name, layer or "none", block or "none", first_line(described), ", ".join(present).replace("_", " "))
    print_table(table)
    pairs = f"block[layer], such as mamba[s4d], combines any layer with a block: {', '.join(sorted(BLOCKS))}"
    echo(f"{pairs}\nin a word of m and a, m is mamba and a is aussm")
    return 0
