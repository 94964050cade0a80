"""The registered tasks at small sizes, with their default settings and with each choice of each setting."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from longscan.tasks import TASKS, Task
from longscan.tasks.forecasting import Forecast
from made_up import MADE_UP

# Choices that are valid only with other settings; separate tests cover them.
SKIPPED_CHOICES = (
    "species-split=chromosome",
    "dna_language-split=chromosome",
    "species-train_part=rest",
    "dna_language-train_part=rest",
    "forecast-variant=384-96-96",
    "forecast-level=last",
    "forecast-level=season",
    "events-augment=True",
    "events-batching=packed",
    "series_forecast-missing=mask",
    *(f"series_{kind}-layout={layout}" for kind in ("classes", "values", "forecast") for layout in ("wide", "nlc", "ncl")),
    *(f"pathfinder-resolution={size}" for size in (64, 128, 256)),
    *(f"human_activity-test_person={person}" for person in "ABCD"),
)
# Settings whose code the tasks share. `make test` has their choices for tasks with answers of one and of several tokens and for
# one set of generated files, `make contract` for all tasks.
SHARED_SETTINGS = ("data", "teacher_forcing")
SHOW_SHARED_SETTINGS = ("parity", "repetition", "listops")
SMALL_SIZES = {"train_size": 90, "valid_size": 40, "test_size": 300}  # values of the settings that set the size of a fixed set


def choices(hint: Any) -> list[Any]:
    """Return the values of a setting that has finitely many: literals and booleans."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if hint is bool:
        return [False, True]
    if get_origin(hint) is UnionType:
        return [choice for part in get_args(hint) if part is not NoneType for choice in choices(part)]
    return []


@cache
def write_files(name: str) -> dict[str, Any]:
    """Write generated files for a task; return the settings with which it reads them, none for a task that reads no files."""
    if name not in MADE_UP:
        return {}
    folder = tempfile.mkdtemp(prefix=f"longscan-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return MADE_UP[name](Path(folder))


def make_small(cls: type[Task], **settings: Any) -> Task:
    """Return a task with small sets and generated files."""
    sizes = {field.name: SMALL_SIZES[field.name] for field in fields(cls) if field.name in SMALL_SIZES}
    return cls(**{**sizes, **write_files(cls.name), **settings})


def list_variants() -> Iterator[Any]:
    for name, cls in TASKS.items():
        yield pytest.param(make_small(cls), id=name)
        hints = get_type_hints(cls)
        for field in fields(cls):
            for choice in choices(hints[field.name]):
                if field.name == "dataset" and name in MADE_UP:  # the files are those of one data set
                    continue
                if field.name == "data" and name.startswith("chomsky_"):  # all languages have the same code for it
                    continue
                if choice != field.default and f"{name}-{field.name}={choice}" not in SKIPPED_CHOICES:
                    slow = field.name in SHARED_SETTINGS and name not in SHOW_SHARED_SETTINGS
                    marks = pytest.mark.slow if slow else ()
                    yield pytest.param(make_small(cls, **{field.name: choice}), id=f"{name}-{field.name}={choice}", marks=marks)
    both = make_small(Forecast, layout="append", level="season", periods=2, channels="apart")
    yield pytest.param(both, id="forecast-append-season-apart")


VARIANTS = list(list_variants())
GENERATORS = ((1, 2, 3, 0, 5, 6, 7, 4), (4, 7, 6, 5, 2, 1, 0, 3))  # of a group of eight elements
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {  # settings with other types than lists of choices
    **{f"group_word-{group}": ("group_word", {"group": group}) for group in ("Z7", "S4", "A4", "A5")},
    "group_word-generated": ("group_word", {"generators": GENERATORS, "letters": "generators"}),
    "counters-3": ("counters", {"counters": 3}),
    "bounded_dyck-3-2": ("bounded_dyck", {"kinds": 3, "depth": 2}),
    "selective_copying-5-7": ("selective_copying", {"letters": 5, "copied": 7}),
    "induction_heads-6": ("induction_heads", {"letters": 6}),
    "multi_query_recall-20-4": ("multi_query_recall", {"letters": 20, "pairs": 4, "power": 0.5}),
    "parity-short": ("parity", {"train_lengths": (7, 19), "eval_lengths": (20, 70)}),
    **{
        f"{name}-14": (name, {"train_lengths": (7, 19), "eval_lengths": (20, 70), "vocab_size": 14})
        for name in ("modular_arithmetic", "majority", "set", "repetition")
    },
    "forecast-append-last": ("forecast", {"layout": "append", "level": "last"}),
    "pathfinder-9": ("pathfinder", {"contour": 9}),
    "listops-short": ("listops", {"longer_than": 5, "shorter_than": 60, "max_args": 4, "max_depth": 4}),
    "events-packed": ("events", {"batching": "packed"}),
    "events-augmented": ("events", {"augment": True, "downsample": 2, "train_events": 12}),
    "lra_text-short": ("lra_text", {"longest": 17, "split_seed": 3, "valid_fraction": 0.25}),
    "walker-dropped": ("walker", {"dropped": 0.4}),
    "uea-seed": ("uea", {"split_seed": 5, "valid_fraction": 0.3}),
}
SPECIAL = [pytest.param(make_small(TASKS[name], **settings), id=title) for title, (name, settings) in SETTINGS.items()]
