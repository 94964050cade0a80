"""Damaged files of every format that the package reads: the reader raises a clear error of one line, or the file is valid.

A case writes a valid file or directory, damages one file of it and reads it. These outcomes are correct:

    refused        a ValueError or FileNotFoundError of one line, which names the file, its folder or, in recipes, the setting
    unchanged      the file is read, and its content is that of the valid file
    well-formed    the file is read, and its content is different: the damage made another valid file, such as a table with
                   another digit or a list with fewer lines. These formats cannot detect that; such cases are counted separately.

A failure is any other exception, an infinity in the content, or a different content if the format can detect the damage: a
file with a checksum (saved models and checkpoints), a file that is cut off although its format has its length, an empty file, and
text in another encoding. A crash, or memory or time beyond the limits, ends the process and is a failure of its unit.
"""

import json
import logging
import os
import re
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from test_damaged import FORMATS
from torch import Tensor

import longscan
from file_server import make_archive
from longscan import automata
from longscan.datasets.archives import unpack_members
from longscan.datasets.storage import LOCK_NAME, read_lock
from longscan.estimators import SSMForecaster
from longscan.models import Forecaster, LanguageModel, SequenceModel, SiameseModel
from longscan.ops import dispatch
from longscan.report import read_records, run_report
from longscan.report.records import read_seeds
from longscan.reproduce import archive
from longscan.reproduce.archive import MANIFEST, pack, unpack
from longscan.reproduce.runs import LAYOUT
from longscan.tasks.series.files import Dialect
from longscan.tasks.series.reading import ReadOptions, read_series
from longscan.training import Run
from longscan.training.checkpoint import find_checkpoint, read_checkpoint, read_tensors, write_checkpoint, write_tensors
from longscan.training.logs import read_rows
from longscan.training.parsing import load_settings, parse_settings
from longscan.training.space import SweepConfig, read_sweep_file

ROOT = Path(__file__).parents[1]
SAVED = ROOT / "saved" / "v0.1"
SETTINGS = r"`?(task|model|training|about|space|seeds|trials|sampler)\b"  # start of an error about a setting of a recipe
MEMORY = 8 * 2**30  # bytes of memory for reading a file
SECONDS = 60  # processor time for reading a file


class Format(NamedTuple):
    """A format: functions that write and read a valid file or directory.

    checked: name patterns of files with checksums, in which all damage is detected. sized: whether a file contains its length.
    """

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    checked: tuple[str, ...] = ()
    sized: bool = False


SIZED = {"series.npy", "rollout.npy", "events.npy", "spikes.h5", "data_batch", "image.png", "image.jpg"}
READERS: dict[str, Format] = {name: Format(write, read, sized=name in SIZED) for name, (write, read) in FORMATS.items()}
COMMON: dict[str, Any] = {"d_model": 4, "d_state": 2}


def make_model_format(build: Callable[[], Any]) -> Format:
    """Return the format of a saved model, whose content is its configuration and weights."""

    def write(folder: Path) -> None:
        torch.manual_seed(0)
        build().save_pretrained(folder)

    def read(folder: Path) -> Any:
        loaded = type(build()).from_pretrained(folder)
        return loaded.config, loaded.state_dict()

    return Format(write, read, checked=("*.safetensors",))


READERS |= {
    "model": make_model_format(lambda: SequenceModel.from_spec("ma s5", d_output=2, d_input=3, **COMMON)),
    "language model": make_model_format(lambda: LanguageModel.from_spec("m", vocab_size=7, **COMMON)),
    "forecaster": make_model_format(lambda: Forecaster.from_spec("lru", d_input=2, horizon=3, **COMMON)),
    "siamese model": make_model_format(lambda: SiameseModel.from_spec("s4d", d_output=2, vocab_size=7, **COMMON)),
}


def write_training_checkpoint(folder: Path) -> None:
    torch.manual_seed(0)
    net = SequenceModel.from_spec("ma", d_output=2, d_input=3, **COMMON)

    def write(directory: Path) -> None:
        net.save_pretrained(directory)
        write_tensors(directory / "optimizer.safetensors", {"x/step": torch.tensor(3.0), "x/exp_avg": torch.randn(4)})

    write_checkpoint(folder / "last", write, {"step": 3, "best": {"value": 0.75}, "lr": 0.001, "longest": 12})


def read_training_checkpoint(folder: Path) -> Any:
    directory = find_checkpoint(folder / "last")
    if directory is None:
        raise FileNotFoundError(f"{folder}: no checkpoint")
    state = read_checkpoint(directory)
    net = SequenceModel.from_spec("ma", d_output=2, d_input=3, **COMMON)
    net.load_state_dict(read_tensors(directory / "model.safetensors"))
    return state, net.state_dict(), read_tensors(directory / "optimizer.safetensors")


def write_run(folder: Path) -> None:
    shutil.copytree(SAVED / "runs" / "finished", folder)


def read_run(folder: Path) -> Any:
    run = Run(folder)
    result = run.result
    rows = read_rows(folder / "metrics.jsonl", result["steps"])
    net = run.model("last")
    run_report(folder)
    return run.settings.as_dict(), result, rows, net.state_dict()


def write_sweep(folder: Path) -> None:
    shutil.copytree(SAVED / "sweep" / "stopped", folder, ignore=shutil.ignore_patterns("trials", "workers", "seeds"))


def read_sweep(folder: Path) -> Any:
    from longscan.training.sweep import Sweep

    sweep = Sweep(folder)
    best = sweep.best()
    trials = sweep.search.last_trials()
    return [None if trial is None else (trial.state.name, trial.values) for trial in trials], best and best.values


def read_recipe(path: Path) -> Any:
    return parse_settings(["--config", str(path)]).as_dict()


def write_sweep_plan(folder: Path) -> None:
    shutil.copytree(SAVED / "recipes" / "quickstart", folder / "quickstart")
    for path in folder.rglob("*.yaml"):
        if path.name != "basic_motions.yaml":
            path.unlink()
    (folder / "quickstart" / "basic_motions.yaml").write_text((SAVED / "recipes" / "quickstart" / "parity.yaml").read_text())


def read_sweep_plan(folder: Path) -> Any:
    values = read_sweep_file(folder / "quickstart" / "sweeps" / "basic_motions.yaml")
    settings = parse_settings([], base=values.pop("settings", None))
    return SweepConfig(settings=settings, **values).as_dict()


def make_record_format(kind: str, name: str) -> Format:
    def write(folder: Path) -> None:
        (folder / kind).mkdir(parents=True)
        shutil.copy(SAVED / "records" / kind / name, folder / kind / name)

    return Format(write, lambda folder: read_records(folder / kind / name))


def write_seed_records(folder: Path) -> None:
    shutil.copytree(SAVED / "records" / "seeds", folder)


def write_verdicts(folder: Path) -> None:
    folder.mkdir()
    key = dispatch.verdicts_key(torch.device("cpu"))
    (folder / "verdicts.json").write_text(json.dumps({key: {"linear_scan": {"cpu": "failed: too inexact"}}}))


class WarnedError(ValueError):
    """A warning of the package, which is counted like an error."""


class RaisingHandler(logging.Handler):
    """A log handler that raises every warning of the package as an error."""

    def emit(self, record: logging.LogRecord) -> None:
        raise WarnedError(record.getMessage())


def read_verdicts(folder: Path) -> Any:
    original, handler = dispatch.verdicts_path, RaisingHandler(logging.WARNING)
    logging.getLogger("longscan").addHandler(handler)
    dispatch.verdicts_path = lambda: folder / "verdicts.json"
    dispatch.failed_doctor.cache_clear()
    try:
        return dispatch.failed_doctor("linear_scan", "cpu", torch.device("cpu"))
    finally:
        logging.getLogger("longscan").removeHandler(handler)
        dispatch.verdicts_path = original
        dispatch.failed_doctor.cache_clear()


READERS |= {
    "checkpoint": Format(write_training_checkpoint, read_training_checkpoint, checked=("*",)),
    "run": Format(write_run, read_run, checked=("model.safetensors",)),
    "sweep": Format(write_sweep, read_sweep),
    "settings.yaml": Format(
        lambda path: shutil.copy(SAVED / "runs" / "finished" / "settings.yaml", path), lambda path: load_settings(path).as_dict()
    ),
    "recipe.yaml": Format(lambda path: shutil.copy(SAVED / "recipes" / "aussm" / "parity.yaml", path), read_recipe),
    "sweep file": Format(write_sweep_plan, read_sweep_plan),
    "records of runs": make_record_format("runs", "quickstart.jsonl"),
    "records of measurements": make_record_format("bench", "cpu.jsonl"),
    "records of automata": make_record_format("automata", "table.jsonl"),
    "records of seeds": Format(write_seed_records, read_seeds),
    "verdicts": Format(write_verdicts, read_verdicts),
}


def make_archive_format(kind: str) -> Format:
    """Return the format of an archive of three files, of which the first two are unpacked."""
    files = {
        f"top/Train/{number}.bin": np.random.default_rng(number).integers(0, 256, 500, np.uint8).tobytes() + b"-" * 500
        for number in range(2)
    }

    def write(path: Path) -> None:
        path.write_bytes(make_archive(kind, {**files, "top/notes": b"notes"}))

    def read(path: Path) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            unpack_members(path, ["Train/"], Path(folder) / "to", Path(folder) / "temporary")
            return {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*.bin")}

    return Format(write, read, checked=() if kind == "w" else ("*",))


def write_lock_file(path: Path) -> None:
    record = {"size": 120, "sha256": "0123456789abcdef" * 4, "url": None}
    path.write_text(json.dumps({"toy/a.csv": record, "toy/b.csv": record}, indent=1))


READERS |= {
    "data.zip": make_archive_format("zip"),
    "data.tar.gz": make_archive_format("w:gz"),
    "data.tar": make_archive_format("w"),
    LOCK_NAME: Format(write_lock_file, lambda path: read_lock(path.parent)),
}


def write_estimator(path: Path) -> None:
    shutil.copy(SAVED.parent / "estimators_2" / "forecaster.safetensors", path)


def read_estimator(path: Path) -> Any:
    estimator = SSMForecaster.load(path)
    return estimator.get_params(), estimator.predict()


def write_automaton(folder: Path) -> None:
    automata.compile(automata.from_regex("(ab)*")).save(folder)


def read_automaton(folder: Path) -> Any:
    compiled = automata.load(folder)
    return compiled.dfa.delta, compiled.dfa.start, sorted(compiled.dfa.accept), compiled.model.state_dict()


def own_options(**changed: Any) -> ReadOptions:
    """Return how a user's file of series is read by default."""
    given = {"layout": "auto", "dialect": Dialect(",", "."), "order": "refuse", **changed}
    names = [name for name in ReadOptions._fields if name not in ReadOptions._field_defaults]
    return ReadOptions(**{name: given.get(name) for name in names})


def write_own_table(path: Path) -> None:
    rows = [f"{case},2024-01-{day:02},{case * day / 8},{day},{'ab'[case % 2]}" for case in range(1, 4) for day in range(1, 9)]
    path.write_text("\n".join(["id,date,load,wind,kind", *rows]) + "\n")


def write_own_arrays(path: Path) -> None:
    np.savez(path, X=np.random.default_rng(0).normal(size=(4, 9, 2)), y=np.array(["a", "b", "a", "b"]))


def write_run_archive(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as runs:
        write_runs_of_rows(Path(runs))
        with mock.patch.object(archive, "PART_BYTES", 2_000):  # several parts: a folder without its only part has no archive
            pack(Path(runs), folder)


def write_runs_of_rows(out: Path) -> None:
    """Write a folder of `longscan reproduce` with a run that is over."""
    (out / MANIFEST).write_text(json.dumps({"layout": LAYOUT, "longscan": longscan.__version__}))
    run = out / "aussm" / "table1" / "parity" / "seed_0"
    shutil.copytree(SAVED / "runs" / "finished", run)


def read_run_archive(folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        (out / MANIFEST).write_text(json.dumps({"layout": LAYOUT, "longscan": longscan.__version__}))
        unpack(folder, out)
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


READERS |= {
    "estimator.safetensors": Format(write_estimator, read_estimator, checked=("*",)),
    "automaton": Format(write_automaton, read_automaton, checked=("*",)),
    "own.csv": Format(write_own_table, lambda path: read_series(path, own_options(label="kind"))),
    "own.npz": Format(write_own_arrays, lambda path: read_series(path, own_options()), sized=True),
    "archive of runs": Format(write_run_archive, read_run_archive, checked=("*",)),
}


def damage(content: bytes, draw: np.random.Generator, other: bytes) -> tuple[str, bytes]:
    """Return the name and the result of one kind of damage to `content`; `other` is the content of a file of another format."""
    offset = int(draw.integers(0, max(1, len(content))))
    lines = content.split(b"\n")
    number = int(draw.integers(0, len(lines)))
    line = lines[number]

    def change_bytes(flip_bits: bool) -> bytes:
        changed = bytearray(content)
        for position in draw.integers(0, max(1, len(content)), int(draw.integers(1, 6))):
            changed[position] = changed[position] ^ 1 << int(draw.integers(0, 8)) if flip_bits else int(draw.integers(0, 256))
        return bytes(changed)

    def replace_line(new: bytes) -> bytes:
        return b"\n".join([*lines[:number], new, *lines[number + 1 :]])

    def insert_huge_number() -> bytes:
        digit = re.search(rb"[0-9]", content[:200])
        return content if digit is None else content[: digit.start()] + b"999999999999" + content[digit.end() :]

    kinds: dict[str, Callable[[], bytes]] = {
        "cut": lambda: content[:offset],
        "empty": lambda: b"",
        "bits": lambda: change_bytes(True),
        "bytes": lambda: change_bytes(False),
        "encoding": lambda: content.decode("latin-1").encode(("utf-16", "utf-32")[int(draw.integers(0, 2))]),
        "column": lambda: replace_line(line + b",7" if draw.integers(0, 2) else line.rpartition(b",")[0]),
        "value": lambda: replace_line(line.replace(b"1", (b"NaN", b"inf", b"1e999", b"x", b"")[int(draw.integers(0, 5))])),
        "lines": lambda: b"\n".join(lines[:number]),
        "repeated": lambda: content * 40,
        "number": lambda: replace_line(line.replace(b"0", b"9" * 400, 1)),
        "zeros": lambda: content[:offset] + b"\0" * 9 + content[offset:],
        "no UTF-8": lambda: content[:offset] + b"\xff\xfe\xe9" + content[offset:],
        "hole": lambda: content[:offset] + content[offset + 13 :],
        "swapped": lambda: other,
        "size": insert_huge_number,
        "begin": lambda: bytes([*draw.integers(0, 256, 6), 255, 127]) + content[8:],  # lengths in binary headers
        "nested": lambda: content[:offset] + b"[{" * 20_000 + content[offset:],
        "missing": lambda: content,  # the caller deletes the file if it is one of several
    }
    kind = list(kinds)[int(draw.integers(0, len(kinds)))]
    return kind, kinds[kind]()


def to_comparable(content: Any) -> Any:
    """Convert the result of a reader to nested lists that can be compared; raise InfinityReadError for infinite values."""
    if isinstance(content, Tensor):
        content = content.detach().view(torch.int16).numpy() if content.dtype == torch.bfloat16 else content.detach().numpy()
    if isinstance(content, np.ndarray):
        if content.dtype.kind == "f" and np.isinf(content).any():
            raise InfinityReadError
        return [str(content.dtype), content.shape, content.tobytes() if content.dtype.kind != "O" else repr(content.tolist())]
    if is_dataclass(content) and not isinstance(content, type):
        return [to_comparable(getattr(content, each.name)) for each in fields(content)]
    if isinstance(content, dict):
        return [[key, to_comparable(value)] for key, value in sorted(content.items(), key=lambda pair: str(pair[0]))]
    if isinstance(content, list | tuple):
        return [to_comparable(part) for part in content]
    return repr(content)


class InfinityReadError(Exception):
    """A reader returned an infinity."""


def check_damaged_file(name: str, draw: np.random.Generator, folder: Path) -> tuple[str, str | None]:
    """Damage one file of a format, read it, and return the outcome and, if the outcome is a fault, its description."""
    file_format = READERS[name]
    target = folder / name
    file_format.write(target)
    undamaged = to_comparable(file_format.read(target))
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    file_format.write(target)
    files = sorted(path for path in target.rglob("*") if path.is_file()) if target.is_dir() else [target]
    if target.is_dir():
        files = [path for path in files if "tensorboard" not in path.parts and path.suffix not in (".csv", ".lock", ".html")]
    file = files[int(draw.integers(0, len(files)))]
    content = file.read_bytes()
    other = folder / "other" / sorted(FORMATS)[int(draw.integers(0, len(FORMATS)))]
    other.parent.mkdir()
    FORMATS[other.name][0](other)
    kind, changed = damage(content, draw, other.read_bytes())
    if kind == "missing" and target.is_dir():
        file.unlink()
    else:
        file.write_bytes(changed)
    case = f"{name}, {file.name}, {kind}"
    try:
        read_content = to_comparable(file_format.read(target))
    except (ValueError, FileNotFoundError) as error:
        message = str(error)
        settings = name in ("recipe.yaml", "sweep file") and re.match(SETTINGS, message)
        if file.name not in message and target.name not in message and not settings:
            return "refused", f"{case}: the error does not name the file: {type(error).__name__}: {message[:300]}"
        if "\n" in message or len(message) > 2000:  # the longest lists all tasks
            return "refused", f"{case}: the error is longer than a line: {message[:300]}"
        return "refused", None
    except InfinityReadError:
        return "well-formed", f"{case}: an infinity was read"
    except Exception as error:
        return "refused", f"{case}: {type(error).__name__}: {str(error)[:300]}"
    if read_content == undamaged:
        return "unchanged", None
    if any(file.match(pattern) for pattern in file_format.checked):
        return "well-formed", f"{case}: a different content was read from a file with a checksum"
    if kind in ("empty", "encoding") and changed != content and name not in EMPTY_IS_VALID:
        return "well-formed", f"{case}: was read"
    if kind in ("cut", "empty", "hole") and file_format.sized and file == target:
        return "well-formed", f"{case}: a different content was read from a file that has its length"
    return "well-formed", None


# Files of lines can be empty. A sweep with an empty journal finds its runs in their directories, and the callers of the
# reader of pairs raise an error for a file without pairs.
EMPTY_IS_VALID = {"pairs.tsv", "sweep", "records of runs", "records of measurements", "records of automata"}


def set_limits() -> None:
    """Limit the memory and processor time of this process, so that a reader that needs too much fails, not the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + 16 * 2**30, resource.RLIM_INFINITY))

    def raise_time_out(*_: object) -> None:
        raise RuntimeError(f"reading took more than {SECONDS} s of processor time")

    signal.signal(signal.SIGVTALRM, raise_time_out)


def run(seed: int, until: float, write: Callable[..., None], names: tuple[str, ...] = tuple(READERS)) -> None:
    warnings.simplefilter("ignore")
    set_limits()
    number = 0
    os.environ["LONGSCAN_CACHE"] = tempfile.mkdtemp(prefix="longscan-soak-cache-")
    try:
        while time.monotonic() < until:
            draw = np.random.default_rng([seed, number])
            name = names[(seed + number) % len(names)]
            write(begin=f"{name}, case {number}")
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            with tempfile.TemporaryDirectory() as folder:
                outcome, failure = check_damaged_file(name, draw, Path(folder))
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            write(subject=name, cases=1, outcomes={outcome: 1}, failure=failure and f"case {number}: {failure}")
            number += 1
    finally:
        shutil.rmtree(os.environ["LONGSCAN_CACHE"], ignore_errors=True)
