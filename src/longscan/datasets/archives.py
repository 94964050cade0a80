"""Unpacking of chosen parts of ZIP and TAR archives, in one pass."""

import errno
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from longscan._errors import one_line


def unpack_members(archive: Path, members: Sequence[str], target: Path, temporary: Path) -> None:
    """Unpack chosen members of an archive; files appear in the target folder only after all have been unpacked.

    Args:
        archive: a ZIP file, or a TAR file with or without compression.
        members: paths of files, and of folders with a trailing "/", without the folders of the archive above them; "" for all.
        target: the folder that receives them. Existing files of the same names are replaced.
        temporary: a folder for files that are not complete; what it holds is removed before and after.

    Raises:
        ValueError: the archive is damaged, lacks a member, or has a member outside the target folder.
    """
    shutil.rmtree(temporary, ignore_errors=True)
    paths: list[PurePosixPath] = []
    try:
        for path, content in _regular_files(archive, members):
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            with (temporary / path).open("wb") as file:
                shutil.copyfileobj(content, file, 2**20)
            paths.append(path)
    except Exception as error:  # the readers of ZIP and TAR raise almost anything for a damaged archive
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a wrong position; others: the disk
            raise
        raise ValueError(f"{archive} is not a readable ZIP or TAR archive: {one_line(error)[:200]}") from None
    absent = [member for member in members if not (temporary / member).exists()]
    if absent:
        raise ValueError(f"{archive} must contain {', '.join(members)}, got an archive without {', '.join(absent)}")
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(temporary / path, target / path)
    shutil.rmtree(temporary)


def _regular_files(archive: Path, members: Sequence[str]) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Yield the chosen files of an archive: path without the leading folders, and content. Links are left out."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                path = _path_from_member(entry.filename, members)
                if path is not None and not entry.is_dir():
                    with zipped.open(entry) as content:
                        yield path, content
        return
    with tarfile.open(archive) as tarred:
        for info in tarred:
            path = _path_from_member(info.name, members)
            stored = tarred.extractfile(info) if path is not None and info.isreg() else None
            if path is not None and stored is not None:
                yield path, stored
            # The list would hold an entry for each of a million files; typeshed lacks it.
            tarred.members.clear()  # type: ignore[attr-defined]
        while tarred.fileobj is not None and tarred.fileobj.read(2**20):
            pass  # the checksum of a compressed archive is compared at its end


def _path_from_member(name: str, members: Sequence[str]) -> PurePosixPath | None:
    """Return the part of a path that begins with one of the members, or None. Raises ValueError for an absolute path or ".."."""
    path = f"/{name}"
    for member in members:
        start = path.find(f"/{member}")
        if start >= 0 and (not member or member.endswith("/") or path.endswith(f"/{member}")):
            found = PurePosixPath(path[start + 1 :])
            if ".." in found.parts or found.is_absolute():
                raise ValueError(f"member of an archive must lie within its folder, got {name!r}")
            return found
    return None
