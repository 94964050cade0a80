"""Tries of a row with other settings than its protocol's: runs with separate folders and records, which do not count as the row.

tries/PAPER/TABLE/ROW/SETTINGS/seed_0/   a run in a folder of runs; SETTINGS is the text of `settings_name`
tries/runs/PAPER.jsonl                   the records of the tries that are over
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from longscan._argparse import UnknownArgumentError
from longscan._errors import setting_error
from longscan._types import list_settings
from longscan.reproduce.rows import TRIES, PublishedRow, Try, read_rows
from longscan.reproduce.runs import progress_of, row_argv, row_settings
from longscan.training.parsing import SECTIONS, parse_settings
from longscan.training.run import SETTINGS, build_model
from longscan.training.trainer import changed_settings

OPTION = "--settings"
MAX_NAME = 120  # characters of a folder's name that are the settings; a file system allows 255 bytes


def make_tries(rows: Sequence[PublishedRow], words: Sequence[str]) -> list[Try]:
    """Return a try of each row with the settings in `words`, each of the form "training.lr=0.003".

    Raises SettingError for settings that do not exist or that no model can have, for those that the row has anyway or another row
    of the figure has, and for settings of the task: with another task or other data a run would be of another row.
    """
    known = {_identity(row): row.id for row in read_rows()}
    tries = []
    for row in rows:
        attempt = _make_try(row, _parse_words(words))
        if (other := known.setdefault(_identity(attempt), attempt.id)) != attempt.id:
            needed = f"settings that make {row.id} differ from {other}"
            raise setting_error(OPTION, " ".join(words), needed)
        tries.append(attempt)
    return tries


def _parse_words(words: Sequence[str]) -> dict[str, str]:
    """Return the texts of the settings by name. Raises SettingError for those that a try must not change."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        section = name.partition(".")[0]
        if not equals or not name or name in given:
            raise setting_error(OPTION, word, "settings of the form NAME=VALUE, each once")
        if section not in ("task", *SECTIONS):
            known = [one.name for group in SECTIONS for one in list_settings(SECTIONS[group], group)]
            raise UnknownArgumentError(f"--{name}", known)
        if section not in ("model", "training"):
            raise setting_error(name, text, f"left out of {OPTION}, as the task, its data and the labels are those of the row")
        if name == "training.seed":
            raise setting_error(name, text, f"left out of {OPTION}, as --seeds gives the seeds")
        given[name] = text
    return given


def _make_try(row: PublishedRow, texts: Mapping[str, str]) -> Try:
    """Return a try of a row with other settings, given as texts by name. Raises SettingError as `make_tries` does."""
    own = row_settings(row)
    settings = parse_settings([*row_argv(row, 0), *(f"--{name}={text}" for name, text in texts.items())])
    with torch.device("meta"):
        build_model(settings)  # raises the errors of blocks and their options
    changed = {name: value for name, _, value in changed_settings(own, settings, frozenset())}
    for name, text in texts.items():
        if not any(f"{name}.".startswith(f"{other}.") for other in changed):
            raise setting_error(name, text, f"another value than that of {row.id}")
    values = {one.name: getattr(row, one.name) for one in fields(row)}
    values |= {"id": f"{TRIES}/{row.id}/{settings_name(changed)}", "settings": {**row.settings, **changed}}
    return Try(**values, try_of=row.id, changed=changed)


def _identity(row: PublishedRow) -> str:
    """Return a text that rows of the same figure have in common whose runs have the same settings."""
    return json.dumps([row.published, row.recipe, row.with_seed, row.settings], sort_keys=True)


def settings_text(changed: Mapping[str, Any]) -> str:
    """Return settings in the form of the command line, in the order of their names: "model.d_state=8 training.lr=0.003"."""
    return " ".join(f"{name}={_value_text(value)}" for name, value in sorted(changed.items()))


def settings_name(changed: Mapping[str, Any]) -> str:
    """Return the name of the folder for settings: "model.d_state=8,training.lr=0.003".

    Other characters of values than letters, digits and ``_.-~`` are percent-encoded, so that different settings have different
    names, which are safe in a path. Of a long name whole settings are left out, and "~" with a part of its SHA-256 follows.
    """
    name = ",".join(f"{name}={quote(_value_text(value), safe='')}" for name, value in sorted(changed.items()))
    if len(name) <= MAX_NAME:
        return name
    shown = name[:MAX_NAME].rpartition(",")[0] or name[:MAX_NAME]
    return f"{shown},~{sha256(name.encode()).hexdigest()[:16]}"


def _value_text(value: Any) -> str:
    """Return a value as JSON; a text without quotes, unless it then reads as another value of JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, sort_keys=True)


def count_runs(folder: Path) -> tuple[int, int]:
    """Return the numbers of runs of tries in a folder of runs that are over and that are not."""
    over = [progress_of(path.parent).is_over for path in sorted((folder / TRIES).rglob(SETTINGS))]
    return sum(over), len(over) - sum(over)
