"""Data sets on disk: which are available, download of those that are not, and the lock file of checksums.

All data are in one folder, `LONGSCAN_DATA`. Its subfolder `downloads` has archives and downloads that are not complete. Its file
`data-lock.json` records the size and SHA-256 checksum of every downloaded file; from then on, another content is an error.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longscan._errors import one_line
from longscan._files import write_text
from longscan.datasets.archives import unpack_members
from longscan.datasets.catalogue import DataSet, RemoteFile

DOWNLOADS = "downloads"
LOCK_NAME = "data-lock.json"
Lock = dict[str, dict[str, Any]]  # "data set/file" -> size in bytes, sha256, url


def read_lock(root: Path) -> Lock:
    """Return the recorded checksums, {} if there are none yet. Raises ValueError if the lock file is damaged."""
    path = root / LOCK_NAME
    if not path.is_file():
        return {}
    try:
        lock: Lock = json.loads(path.read_bytes())
        if all(
            isinstance(record["sha256"], str) and isinstance(record["size"], int) and "url" in record for record in lock.values()
        ):
            return lock
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass  # the error below says what is needed
    raise ValueError(f"{path} must be a JSON object of records with size, sha256 and url, got something else")


def is_available(data_set: DataSet, root: Path) -> bool:
    """Return whether a data set, or files in another form that its task reads, are in `root`, the folder of all data."""
    lock = read_lock(root)
    complete = [_LocalFile(file, data_set, root).is_complete(lock) for file in data_set.files]
    return (bool(complete) and all(complete)) or _has_alternative(data_set, root)


def fetch(data_set: DataSet, root: Path) -> Path:
    """Download the files of a data set that are missing, check and unpack them, and return their folder.

    A downloaded file that is not an archive is compared with its recorded checksum. Files that the user has put there are left
    as they are.

    Args:
        data_set: what to download.
        root: the folder of all data.

    Raises:
        ConnectionError: a file cannot be downloaded; the message names the page of the data set.
        FileNotFoundError: a file must be downloaded by hand and is not there.
        ValueError: a checksum is wrong, or an archive is damaged.
        OSError: a file cannot be written.
    """
    try:
        if not data_set.files and not is_available(data_set, root):
            raise FileNotFoundError(_by_hand(data_set, f"into {root / data_set.folder}"))
        for file in data_set.files:
            local = _LocalFile(file, data_set, root)
            if local.is_complete(read_lock(root)):
                local.check_content()
            elif not _has_alternative(data_set, root):
                local.fetch()
    except ConnectionError as error:
        raise ConnectionError(f"{one_line(error)}; the data set can be downloaded by hand from {data_set.page}") from None
    except OSError as error:
        if error.strerror is None:  # a message of this package
            raise
        raise OSError(f"{error.filename or root} cannot be written: {error.strerror}") from None
    shutil.rmtree(root / DOWNLOADS / data_set.name, ignore_errors=True)
    return root / data_set.folder


@dataclass(frozen=True)
class _LocalFile:
    """A file of a data set with its places in `root`, the folder of all data."""

    file: RemoteFile
    data_set: DataSet
    root: Path

    @property
    def key(self) -> str:
        """Name of the file in the lock file."""
        return f"{self.data_set.name}/{self.file.name}"

    @property
    def folder(self) -> Path:
        """The folder of the data set."""
        return self.root / self.data_set.folder

    @property
    def download(self) -> Path:
        """The downloaded file, before it is unpacked or moved. Several data sets can share one that is downloaded by hand."""
        owner = self.root / DOWNLOADS
        return (owner if self.file.url is None else owner / self.data_set.name) / self.file.name

    @property
    def partial(self) -> Path:
        """The part of the file that has been downloaded."""
        return self.download.with_name(f"{self.download.name}.part")

    def is_complete(self, lock: Lock) -> bool:
        """Return whether the file, or what is unpacked from it, is in the folder of the data set, and not being unpacked."""
        exists = all((self.folder / path).exists() for path in self.file.creates)
        is_pending = self.download.exists() or self.partial.exists()
        return exists and (self.key in lock or not is_pending)

    def check_content(self) -> None:
        """Compare a file that is no archive with its recorded checksum. Raises ValueError naming both checksums."""
        record = read_lock(self.root).get(self.key)
        if record is not None and not self.file.members:
            _check(self.folder / self.file.name, f"sha256:{record['sha256']}", f"recorded in {self.root / LOCK_NAME}")

    def fetch(self) -> None:
        """Download the file if it is missing, check it, record its checksum, and unpack or move it into its folder."""
        record = read_lock(self.root).get(self.key)
        checksum = self.file.checksum or (None if record is None else f"sha256:{record['sha256']}")
        if not self.download.is_file():
            self._download(checksum)
        elif checksum is not None:
            _check(self.download, checksum, self._origin)
        if self.file.members:
            try:
                unpack_members(self.download, self.file.members, self.folder, self.download.with_name("unpacking"))
            except ValueError:
                if self.file.url is not None:  # the next call downloads it again
                    self.download.unlink()
                raise
            self._record()
            return
        self._record()
        (self.folder / self.file.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self.download, self.folder / self.file.name)

    def _download(self, checksum: str | None) -> None:
        if self.file.url is None:
            put = f"into {self.download.parent}, then repeat the command" if self.file.members else f"into {self.folder}"
            raise FileNotFoundError(_by_hand(self.data_set, put, self.file.name))
        import pooch

        from longscan.datasets.download import ResumingDownloader

        pooch.get_logger().setLevel("WARNING")  # otherwise it proposes to write the checksum into the program
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            pooch.retrieve(
                self.file.url,
                known_hash=checksum,
                fname=self.download.name,
                path=self.download.parent,
                downloader=ResumingDownloader(self.partial),
            )
        except ValueError as error:  # the message of pooch names both checksums
            raise ValueError(f"{self.file.url}: {one_line(error)} The known hash was {self._origin}") from None

    @property
    def _origin(self) -> str:
        return "published for this file" if self.file.checksum is not None else f"recorded in {self.root / LOCK_NAME}"

    def _record(self) -> None:
        import pooch

        record = {"size": self.download.stat().st_size, "sha256": pooch.file_hash(str(self.download)), "url": self.file.url}
        lock = {**read_lock(self.root), self.key: record}
        write_text(self.root / LOCK_NAME, json.dumps(lock, indent=1, sort_keys=True) + "\n")


def _has_alternative(data_set: DataSet, root: Path) -> bool:
    return any(next(root.glob(pattern), None) is not None for pattern in data_set.alternatives)


def _by_hand(data_set: DataSet, put: str, name: str = "the files") -> str:
    note = f" ({data_set.note})" if data_set.note else ""
    return f"{data_set.name} must be downloaded by hand{note}: download {name} from {data_set.page} {put}"


def _check(path: Path, checksum: str, origin: str) -> None:
    """Raise ValueError naming both checksums if a file has another one than `checksum`, "algorithm:hexadecimal digits"."""
    import pooch

    algorithm, _, digest = checksum.partition(":")
    found = pooch.file_hash(str(path), algorithm)
    if found != digest:
        raise ValueError(
            f"the {algorithm} checksum of {path} must be {digest}, {origin}, got {found}; remove the file to download it"
        )
