"""The commands that list what exists: tasks, layers and examples of a task."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from longscan._argparse import check_given_once
from longscan._errors import setting_error
from longscan._types import Doc, PositiveInt
from longscan.cli import own_data
from longscan.cli._arguments import first_line
from longscan.cli._console import echo, print_entries

PROPERTIES = ("causal", "streaming", "irregular", "batch_independent")
# The groups of `longscan tasks`: title, and sub-packages of longscan.tasks. Tasks of other packages come last.
TASK_GROUPS = {
    "Your own series": ("series",),
    "Measured and simulated series": ("timeseries", "forecasting", "dynamics", "events"),
    "Text and DNA": ("language", "dna"),
    "Long Range Arena": ("lra",),
    "Formal languages, memory and counting, generated": ("formal",),
}
# The groups of `longscan layers`: title, and names in a spec. Registered names that are in no group come last.
LAYER_GROUPS = {
    "Recurrences that depend on the input": (
        "mamba",
        "s6",
        "mamba2",
        "mamba3",
        "gated_deltanet",
        "s7",
        "aussm",
        "pdssm",
        "mlstm",
    ),
    "Linear time-invariant recurrences": ("s5", "lru", "s4d", "s4", "linoss"),
    "Attention and recurrences that run step by step, to compare with": ("attention", "gru", "lstm", "slstm"),
    "Further blocks": ("bidirectional", "feed_forward"),
}
OTHERS = "Others"


def tasks(
    task: Annotated[str | None, Doc("name of the only task to list (default: all tasks)")] = None,
    *,
    settings: Annotated[bool, Doc("list the tasks' settings and defaults instead")] = False,
) -> int:
    """List the tasks: what they ask, their sizes, the score of a constant answer, and whether their data are available."""
    from longscan.tasks import TASKS

    listed = sorted(TASKS)
    if task is not None:
        from longscan.training.parsing import task_class

        listed = [task_class(task).name]
    packages = {name: kind.__module__.removeprefix("longscan.tasks.").partition(".")[0] for name, kind in TASKS.items()}
    groups = {title: [n for n in listed if packages[n] in found] for title, found in TASK_GROUPS.items()}
    groups[OTHERS] = sorted(set(listed) - {name for names in groups.values() for name in names})
    describe = _defaults if settings else _task_lines
    print_entries({title: {name: describe(TASKS[name]) for name in names} for title, names in groups.items()})
    if settings:
        return 0
    areas = "uea, lra, forecasting, activity, events, dna"
    echo(
        "Sizes are examples in train / valid / test; constant: the best constant answer on test.\n"
        "Data: --data-dir FOLDER, or LONGSCAN_DATA, a folder with one folder for each area\n"
        f"({areas}); `longscan data list` shows public ones.\n"
        "`longscan train --task NAME --help` explains the settings of a task."
    )
    return 0


def _task_lines(task: Any) -> list[str]:
    """Return the lines about a task: its question, and its sizes, classes, length and constant score."""
    from longscan.tasks.listing import task_facts

    if task.__abstractmethods__:
        return [first_line(task), f"cannot be used, as it does not define {', '.join(sorted(task.__abstractmethods__))}"]
    found = task_facts(task())
    facts = [] if found.sizes is None else [" / ".join("endless" if size is None else f"{size:,}" for size in found.sizes)]
    facts += [] if found.classes is None else [f"{found.classes} classes"]
    facts += [] if found.length is None else [f"length {found.length}"]
    about = "about " if found.available == "generated" else ""  # computed from a small set of the same kind
    facts += [] if found.constant is None else [f"constant {found.metric} {about}{found.constant:.2g}"]
    if task.source == "your own file":
        facts += ["`longscan train FILE`"]
    elif found.available != "generated":
        facts += [f"{'data found' if found.available == 'yes' else 'data not found'}, from {found.source}"]
    return [first_line(task), "; ".join(facts)]


def _defaults(task: Any) -> list[str]:
    """Return a task's settings and their defaults."""
    settings = []
    for f in fields(task):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        settings.append(f.name if default is MISSING else f"{f.name} ({default})")
    return [", ".join(settings)]


def show(
    task: Annotated[str | None, Doc("name of a task, your own file or folder, or the folder of a run; must come first")] = None,
    *settings: str,
    label: own_data.Label = None,
    label_kind: own_data.LabelKind = None,
    target: own_data.Target = None,
    horizon: own_data.Horizon = None,
    known: own_data.Known = None,
    id: own_data.Id = None,  # noqa: A002
    time: own_data.Time = None,
    channels: own_data.Channels = None,
    group: own_data.Group = None,
    out: Annotated[str | None, Doc("PNG file to write (default: TASK.png)")] = None,
    split: Annotated[Literal["train", "valid", "test"], Doc("which part of the data")] = "train",
    count: Annotated[PositiveInt, Doc("number of examples")] = 6,
) -> int:
    """Draw examples of a task, of your own file or of a run into a PNG file.

    Examples:
        longscan show parity
        longscan show pumps.csv --label worn --id pump --time second
    """
    from longscan.cli.runs import errors_as_lines
    from longscan.tasks import TASKS
    from longscan.tasks.pictures import draw_examples
    from longscan.training.parsing import parse_settings, read_yaml
    from longscan.training.run import SETTINGS, is_run_folder

    options = own_data.given_options(
        label=label, target=target, horizon=horizon, known=known, id=id, time=time, channels=channels, group=group
    )
    _check_settings_of_task(settings)
    if task in TASKS:
        check_given_once(["--task", str(task), *settings], (), {"--task": "--task.name"})
    if out is not None and Path(out).suffix.lower() not in ("", ".png"):
        raise setting_error("--out", out, "a file whose name ends in .png")
    is_run = task is not None and task not in TASKS and is_run_folder(Path(task))
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


def _check_settings_of_task(settings: Sequence[str]) -> None:
    """Raise SettingError if a setting is of a section that has no effect on examples, such as `--model.spec`."""
    from longscan.training.settings import Settings

    without_effect = {f"--{section.name}" for section in fields(Settings)} - {"--task"}
    for word in settings:
        name = word.partition("=")[0]
        if name.partition(".")[0] in without_effect:
            raise setting_error(name, word, "left out: `longscan show` reads settings of the task only, `--task...`")


def layers() -> int:
    """List the names that can be used in `--model.spec`, their layers and blocks, and the properties of these."""
    from longscan.blocks import BLOCKS
    from longscan.layers import LAYERS
    from longscan.models import STANDARD_BLOCKS

    groups = dict(LAYER_GROUPS)
    groups[OTHERS] = tuple(sorted({*STANDARD_BLOCKS, *LAYERS} - {name for names in groups.values() for name in names}))
    print_entries({title: {name: _layer_lines(name) for name in names} for title, names in groups.items()})
    echo(
        "block[layer], such as mamba[s4d], combines any layer with a block:\n"
        f"{', '.join(sorted(BLOCKS))}.\n"
        "In a word of m and a, m is mamba and a is aussm."
    )
    return 0


def _layer_lines(name: str) -> list[str]:
    """Return the lines about a name of specs: its layer and block, and their properties."""
    from longscan.blocks import BLOCKS
    from longscan.layers import LAYERS
    from longscan.models import find_block

    layer, block = find_block(name)
    kinds: list[type[Any]] = [LAYERS[layer]] if layer else []
    kinds += [BLOCKS[block]] if block else []
    present = [flag for flag in PROPERTIES if all(getattr(kind, flag) for kind in kinds)]
    present += ["changes_length"] if any(kind.changes_length for kind in kinds) else []
    described = BLOCKS[block] if block in ("bidirectional", "feed_forward") else kinds[0]
    parts = f"layer {layer or 'none'}, block {block or 'none'}"
    return [first_line(described), f"{parts}; {', '.join(present).replace('_', ' ')}"]
