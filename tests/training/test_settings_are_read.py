"""Every setting has an effect: code that acts on it reads it, not only code that checks or writes settings."""

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import longscan
from longscan import estimators
from longscan.tasks import TASKS
from longscan.training import (
    AboutSettings,
    CurriculumSettings,
    LateLengthSettings,
    ModelSettings,
    SettingError,
    TrainingSettings,
    parse_settings,
    train,
)
from longscan.training.batches import LengthSchedule
from longscan.training.parsing import load_settings
from longscan.training.records import result_row
from longscan.training.space import SweepConfig

SETTINGS = (ModelSettings, TrainingSettings, CurriculumSettings, LateLengthSettings, AboutSettings)
IGNORED_CALLERS = {
    "__post_init__",
    "_check",
    "as_dict",
    "asdict",
    "_asdict_inner",
    "fields",
    "replace",
    "_replace",
}  # functions that copy or check all settings


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Return the set of (class, field) of all settings that are read, except by IGNORED_CALLERS."""
    fields_read: set[tuple[str, str]] = set()

    def watched(kind: type, names: frozenset[str]) -> Callable[[Any, str], Any]:
        def read(self: Any, name: str) -> Any:
            if name in names:
                caller = sys._getframe(1).f_code
                if caller.co_name not in IGNORED_CALLERS and not caller.co_filename.endswith("dataclasses.py"):
                    fields_read.add((kind.__name__, name))
            return object.__getattribute__(self, name)

        return read

    for kind in SETTINGS:
        monkeypatch.setattr(kind, "__getattribute__", watched(kind, frozenset(field.name for field in fields(kind))))
    return fields_read


def test_every_setting_of_a_run_is_read(tiny: Any, tmp_path: Path, reads: set[tuple[str, str]]) -> None:
    """The run is short and has a curriculum, late lengths, an average, restarts and early stopping, and it is recorded."""
    late = LateLengthSettings(share=0.5, start=0.5, shortest=4, longest=5)
    settings = tiny(
        steps=3, eval_every=2, curriculum=CurriculumSettings(start=4, end=6, every=1), late_lengths=late, average=0.5,
        schedule="restarts", patience=3, solved_at=0.01, label_smoothing=0.1,
    )  # fmt: skip
    result_row(train(settings, tmp_path / "run"))
    LengthSchedule(settings).update(1.0)
    replace(settings.training, restart_period=1).learning_rate(2)
    unread = {(kind.__name__, field.name) for kind in SETTINGS for field in fields(kind)} - reads
    assert sorted(unread) == []


def test_retired_setting_is_read_from_files_with_its_only_value(tiny: Any, tmp_path: Path) -> None:
    """The optimizer is always AdamW. On the command line the setting is unknown."""
    path, content = tmp_path / "settings.yaml", tiny().as_dict()
    for value, needed in (("adamw", None), ("sgd", "`training.optimizer` must be adamw .*, got 'sgd'")):
        path.write_text(yaml.safe_dump({**content, "training": {**content["training"], "optimizer": value}}))
        if needed is None:
            assert load_settings(path).as_dict() == content
        else:
            with pytest.raises(SettingError, match=needed):
                load_settings(path)
    with pytest.raises(SettingError, match=r"`training\.optimizer` is an unknown setting"):
        parse_settings(["--task", "parity", "--training.optimizer", "adamw"])


@functools.cache
def read_attributes(path: Path) -> set[str]:
    """Return the names of attributes that a file reads outside of `__post_init__`."""
    names: set[str] = set()

    class Visitor(ast.NodeVisitor):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            if node.name != "__post_init__":
                self.generic_visit(node)

        def visit_Attribute(self, node: ast.Attribute) -> None:
            if isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            self.generic_visit(node)

    Visitor().visit(ast.parse(path.read_text()))
    return names


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_of_a_task_is_read(name: str) -> None:
    """The setting is read in the package of the task or in the modules of all tasks."""
    own = Path(inspect.getfile(TASKS[name])).parent
    shared = Path(inspect.getfile(longscan)).parent / "tasks"
    files = {*own.glob("*.py"), *shared.glob("*.py"), *(Path(inspect.getfile(kind)) for kind in TASKS[name].__mro__[:-1])}
    assert {field.name for field in fields(TASKS[name])} <= set().union(*map(read_attributes, files))


ESTIMATORS = [kind for name in estimators.__all__ if inspect.isclass(kind := getattr(estimators, name))]


@pytest.mark.parametrize("kind", [SweepConfig, *ESTIMATORS])
def test_every_setting_of_sweeps_and_estimators_is_read(kind: type) -> None:
    names = [field.name for field in fields(kind)] if kind is SweepConfig else list(inspect.signature(kind).parameters)
    assert set(names) <= set().union(*map(read_attributes, Path(inspect.getfile(kind)).parent.glob("*.py")))
