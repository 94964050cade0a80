"""Archives of a folder of runs that are small enough to carry to another machine: parts of 16 MiB, at most eight.

An archive is a gzip-compressed tar file, cut into the files runs.tar.gz.1of3 and so on. It holds what a run needs to continue: of
a run that is over its settings, result and log, of others also the last checkpoint and the best one. Checkpoints of runs that are
over, TensorBoard's files and pages stay behind.
"""

import io
import re
import shutil
import tarfile
from collections.abc import Iterable
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from longscan._errors import setting_error
from longscan.datasets.archives import unpack_members
from longscan.reproduce.rows import TRIES
from longscan.training.checkpoint import find_checkpoint
from longscan.training.run import SETTINGS, Run, build_model, holds_run
from longscan.training.settings import Settings

MANIFEST = "reproduce.json"
RECORDS = ("runs", f"{TRIES}/runs")  # folders of records in a folder of runs
PART_BYTES, MAX_PARTS = 16 * 2**20, 8
_FILES = (SETTINGS, "metrics.jsonl", "result.json", "angles.json", "device_seconds.json")
_PART = re.compile(r"runs\.tar\.gz\.(\d+)of(\d+)")


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
    written = []
    for number, part in enumerate(parts, 1):
        path = target / f"runs.tar.gz.{number}of{len(parts)}"
        path.with_name(path.name + ".writing").write_bytes(part)
        written.append(path)
    for path in written:
        path.with_name(path.name + ".writing").replace(path)
    for path in set(_parts(target)) - set(written):
        path.unlink()
    return written


def _add_run(tar: tarfile.TarFile, folder: Path, name: Path) -> None:
    """Add what is needed to continue a run, or to know the result of one that is over."""
    for file in _FILES:
        if (folder / file).exists():
            tar.add(folder / file, name / file)
    if (folder / "result.json").exists():
        return
    for which in ("last", "best"):
        found = find_checkpoint(folder / "checkpoints" / which)
        if found is not None:
            tar.add(found, name / "checkpoints" / which)


def _parts(source: Path) -> list[Path]:
    """Return the parts of the archive in a folder, in no order."""
    return [path for path in source.glob("runs.tar.gz.*") if _PART.fullmatch(path.name)]


def read_archive(source: Path) -> bytes | None:
    """Return the content of the archive in a folder, None if there is none. Raises SettingError if a part is missing."""
    parts = {path: [int(number) for number in _PART.fullmatch(path.name).groups()] for path in _parts(source)}  # type: ignore[union-attr]
    if not parts:
        return None
    count = max(total for _, total in parts.values())
    if sorted(parts.values()) != [[number, count] for number in range(1, count + 1)]:
        names = ", ".join(sorted(path.name for path in parts))
        raise setting_error("--pack", f"{source} with {names}", f"a folder with the {count} parts of one archive")
    return b"".join(path.read_bytes() for path in sorted(parts, key=lambda path: parts[path]))


def unpack(source: Path, out: Path) -> None:
    """Copy the runs and records of an archive into a folder of runs, which has its manifest.

    A run that both have is taken from the archive if it has made more updates there. Records are added to those of the folder.
    Raises SettingError if the archive is damaged or of another version.
    """
    content = read_archive(source)
    if content is None:
        return
    new = out / ".unpacking"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    (new / "runs.tar.gz").write_bytes(content)
    try:
        unpack_members(new / "runs.tar.gz", [""], new, new / "incomplete")
    except ValueError as error:
        shutil.rmtree(new)
        raise setting_error("--pack", str(source), f"a folder whose archive is not damaged ({error})") from None
    versions = [(folder / MANIFEST).read_text("utf-8") for folder in (out, new)]
    if versions[0] != versions[1]:
        shutil.rmtree(new)
        raise setting_error("--pack", f"{source} of {versions[1]}", f"a folder whose archive is of this version, {versions[0]}")
    for settings in sorted(new.rglob(SETTINGS)):
        run = settings.parent
        here = out / run.relative_to(new)
        if _updates(run) > _updates(here):
            shutil.rmtree(here, ignore_errors=True)
            here.parent.mkdir(parents=True, exist_ok=True)
            run.rename(here)
    for records in (path for folder in RECORDS for path in (new / folder).glob("*.jsonl")):
        _merge_lines(records, out / records.relative_to(new))
    shutil.rmtree(new)


def _updates(folder: Path) -> float:
    """Return the updates of the run in a folder: -1 without a run, infinity if it is over."""
    if not holds_run(folder):
        return -1.0
    run = Run(folder)
    return run.steps_made() if run.result is None else inf


def _merge_lines(source: Path, target: Path) -> None:
    """Append the lines of a file that another one does not have. A line may contain U+2028, at which `str.splitlines` splits."""
    target.parent.mkdir(parents=True, exist_ok=True)
    have = target.read_text("utf-8").split("\n") if target.exists() else [""]
    with target.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in source.read_text("utf-8").split("\n") if line not in ("", *have))
