"""Archives of a folder of runs that are small enough to carry to another machine: parts of 16 MiB, at most eight.

An archive is a gzip-compressed tar file, cut into the files runs.tar.gz.9f86d081.1of3 and so on, whose names have eight digits of
its SHA-256. It holds what a run needs to continue: of a run that is over its settings, result and log, of others also the last
checkpoint and the best one. Checkpoints of runs that are over, TensorBoard's files and pages stay behind.

A process may be killed at any moment: a part gets its name once it is whole, and the parts of the archive before are removed once
all new ones are there. Where two archives are whole, both are unpacked.
"""

import io
import re
import shutil
import tarfile
from collections.abc import Iterable, Set
from hashlib import sha256
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from longscan._errors import one_line, setting_error
from longscan._files import write_text, write_user_file
from longscan.datasets.archives import unpack_members
from longscan.reproduce.rows import TRIES
from longscan.training.checkpoint import find_checkpoint
from longscan.training.processes import lock_job
from longscan.training.run import SETTINGS, Run, build_model, is_run_folder
from longscan.training.settings import Settings

MANIFEST = "reproduce.json"
RECORDS = ("runs", f"{TRIES}/runs")  # folders of records in a folder of runs
PART_BYTES, MAX_PARTS = 16 * 2**20, 8
_FILES = (SETTINGS, "metrics.jsonl", "result.json", "angles.json", "device_seconds.json")
_PART = re.compile(r"runs\.tar\.gz\.(?:([0-9a-f]{8})\.)?(\d+)of(\d+)")  # earlier archives have no digits


def checkpoint_bytes(settings: Settings) -> int:
    """Return the size of the tensors of an unfinished run in an archive.

    The last checkpoint has the weights, two numbers of AdamW for each of them, and the average if there is one; the best
    checkpoint has weights alone.
    """

    def size(tensors: Iterable[Tensor]) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    with torch.device("meta"):
        model = build_model(settings)
    return (4 + bool(settings.training.average)) * size(model.parameters()) + 2 * size(model.buffers())


def check_size(target: Path, checkpoints: int) -> None:
    """Raise SettingError if an archive could need more parts than are allowed.

    Args:
        target: folder of the archive.
        checkpoints: bytes of the checkpoints of all unfinished runs. Weights hardly become smaller by compression.
    """
    if checkpoints > MAX_PARTS * PART_BYTES:
        raise _too_large(target, checkpoints)


def other_checkpoint_bytes(out: Path, folders: Set[Path]) -> int:
    """Return the size of the checkpoints in an archive of those unfinished runs of a folder that are not in `folders`."""
    others = {settings.parent for settings in out.rglob(SETTINGS)} - folders
    files = [path for folder in others for found in _checkpoints(folder) for path in found.iterdir()]
    return sum(path.stat().st_size for path in files)


def _too_large(target: Path, n_bytes: int) -> ValueError:
    size, most = n_bytes / 2**20, MAX_PARTS * PART_BYTES // 2**20
    needed = f"the folder of an archive of at most {most} MiB, which fewer rows or seeds in --out make"
    return setting_error("--pack", f"{target} with {size:.0f} MiB", needed)


def pack(out: Path, target: Path) -> list[Path]:
    """Write the archive of a folder of runs and return its parts, which replace those of an earlier archive.

    Args:
        out: the folder of the runs and their records.
        target: folder of the parts, created if needed.

    Raises SettingError, and leaves an earlier archive, if more parts would be needed than are allowed.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6, dereference=True) as tar:  # `unpack` leaves links out
        for path in [out / MANIFEST, *(path for folder in RECORDS for path in sorted((out / folder).glob("*.jsonl")))]:
            tar.add(path, path.relative_to(out))
        for settings in sorted(out.rglob(SETTINGS)):
            _add_run(tar, settings.parent, settings.parent.relative_to(out))
    content = buffer.getvalue()
    parts = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
    if len(parts) > MAX_PARTS:
        raise _too_large(target, len(content))
    target.mkdir(parents=True, exist_ok=True)
    name = sha256(content).hexdigest()[:8]
    written = [target / f"runs.tar.gz.{name}.{number}of{len(parts)}" for number in range(1, len(parts) + 1)]
    for path, part in zip(written, parts, strict=True):
        write_user_file(path, part)
    for path in {*_parts(target), *target.glob(".runs.tar.gz.*.writing")} - {*written}:  # .writing: of a process that was killed
        path.unlink()
    return written


def _add_run(tar: tarfile.TarFile, folder: Path, name: Path) -> None:
    """Add what is needed to continue a run, or to know the result of one that is over."""
    for file in _FILES:
        if (folder / file).exists():
            tar.add(folder / file, name / file)
    for found in _checkpoints(folder):
        tar.add(found, name / "checkpoints" / found.name.removesuffix(".previous"))


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run that an archive holds: the last and the best one, none if the run is over."""
    if (folder / "result.json").exists():
        return []
    found = [find_checkpoint(folder / "checkpoints" / which) for which in ("last", "best")]
    return [one for one in found if one is not None]


def _parts(source: Path) -> dict[Path, tuple[str, int, int]]:
    """Return the parts of archives in a folder: path, and name of the archive, number of its parts and number of this one."""
    found = {path: _PART.fullmatch(path.name) for path in source.glob("runs.tar.gz.*")}
    return {path: (one[1] or "", int(one[3]), int(one[2])) for path, one in found.items() if one is not None}


def read_archives(source: Path) -> list[bytes]:
    """Return the contents of the archives in a folder: none, one, or also the one before if `pack` was killed before its end.

    Raises SettingError if there are parts, and all parts of no archive.
    """
    archives: dict[tuple[str, int], dict[int, Path]] = {}
    for path, (name, count, number) in _parts(source).items():
        archives.setdefault((name, count), {})[number] = path
    whole = [parts for (_, count), parts in sorted(archives.items()) if sorted(parts) == [*range(1, count + 1)]]
    if archives and not whole:
        names = ", ".join(sorted(path.name for parts in archives.values() for path in parts.values()))
        raise setting_error("--pack", str(source), f"a folder with all parts of an archive, and not with {names} alone")
    return [b"".join(parts[number].read_bytes() for number in sorted(parts)) for parts in whole]


def unpack(source: Path, out: Path) -> None:
    """Copy the runs and records of an archive into a folder of runs, which has its manifest.

    A run that both have is taken from the archive if it has made more updates there. Records are added to those of the folder.
    Raises SettingError if the archive is damaged or of another version, or if another process keeps training a run that would be
    replaced.
    """
    new = out / ".unpacking"
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    for content in read_archives(source):
        try:
            _unpack(content, source, out, new)
        finally:
            shutil.rmtree(new)


def _unpack(content: bytes, source: Path, out: Path, new: Path) -> None:
    """Copy the runs and records of an archive into a folder of runs by way of the folder `new`."""
    new.mkdir(parents=True)
    (new / "runs.tar.gz").write_bytes(content)
    try:
        unpack_members(new / "runs.tar.gz", [""], new, new / "incomplete")
        versions = [(folder / MANIFEST).read_text("utf-8") for folder in (out, new)]
    except (ValueError, FileNotFoundError) as error:
        raise setting_error("--pack", str(source), f"a folder whose archive is not damaged ({one_line(error)})") from None
    if versions[0] != versions[1]:
        raise setting_error("--pack", f"{source} of {versions[1]}", f"a folder whose archive is of this version, {versions[0]}")
    replaced = new / "replaced"
    for settings in sorted(new.rglob(SETTINGS)):
        run = settings.parent
        here = out / run.relative_to(new)
        if _updates(run) <= _updates(here):
            continue
        with lock_job(here):  # until the job of a parent that was killed has saved its checkpoint
            if _updates(run) > _updates(here):
                if here.exists():  # renamed, not removed: a kill leaves one run or the other
                    here.rename(replaced)
                run.rename(here)
                shutil.rmtree(replaced, ignore_errors=True)
    for records in (path for folder in RECORDS for path in (new / folder).glob("*.jsonl")):
        _merge_lines(records, out / records.relative_to(new))


def _updates(folder: Path) -> float:
    """Return the updates of the run in a folder: -1 without a run, infinity if it is over."""
    if not is_run_folder(folder):
        return -1.0
    run = Run(folder)
    return run.steps_made() if run.result is None else inf


def _merge_lines(source: Path, target: Path) -> None:
    """Append the lines of a file that another one does not have. A line may contain U+2028, at which `str.splitlines` splits."""
    target.parent.mkdir(parents=True, exist_ok=True)
    have, found = ([line for line in _read_if_exists(path).split("\n") if line] for path in (target, source))
    if new := [line for line in found if line not in have]:
        write_text(target, "".join(f"{line}\n" for line in (*have, *new)))


def _read_if_exists(path: Path) -> str:
    """Return the text of a file, "" if it does not exist."""
    return path.read_text("utf-8") if path.exists() else ""
