"""Downloads from a local server: complete, continued, damaged, changed, killed; `longscan data` prints an error as one line."""

import gzip
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pooch")

from file_server import FileServer, make_archive
from longscan.cli import main
from longscan.datasets import DATA_SETS, DataSet, RemoteFile
from longscan.datasets.archives import unpack_members
from longscan.datasets.download import CHUNK_BYTES
from longscan.datasets.storage import LOCK_NAME, fetch, is_available, read_lock

CONTENT = random.Random(0).randbytes(100_000)


def make_data_set(url: str | None, checksum: str | None = None, members: tuple[str, ...] = (), name: str = "toy.bin") -> DataSet:
    file = RemoteFile(name=name, url=url, checksum=checksum, members=members)
    page = "https://example.org/toy"
    return DataSet(name="toy", folder="area", files=(file,), size="1", licence="none", page=page, use="--task parity")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs `longscan data get` and returns its output, or its error line if the exit code is 2."""

    def run(data_set: DataSet, code: int = 0) -> str:
        monkeypatch.setitem(DATA_SETS, data_set.name, data_set)
        capsys.readouterr()
        assert main(["data", "get", data_set.name, "--root", str(tmp_path)]) == code
        captured = capsys.readouterr()
        if code:
            assert captured.out == ""
            (line,) = captured.err.splitlines()
            return line
        assert captured.err == ""
        return captured.out

    return run


def test_downloaded_file_is_stored_and_recorded(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    server.files["toy.bin"] = CONTENT
    data_set = make_data_set(server.url("toy.bin"))
    assert not is_available(data_set, tmp_path)
    out = command(data_set)
    assert str(tmp_path / "area") in out
    assert f"export LONGSCAN_DATA={tmp_path}; longscan train --task parity" in out
    assert (tmp_path / "area" / "toy.bin").read_bytes() == CONTENT
    assert is_available(data_set, tmp_path)
    record = read_lock(tmp_path)["toy/toy.bin"]
    expected = {"size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest(), "url": server.url("toy.bin")}
    assert record == expected
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"toy.bin", LOCK_NAME}
    command(data_set)
    assert len(server.requests) == 1, "nothing is downloaded twice"


@pytest.mark.parametrize("seed", range(3))
def test_truncated_download_continues(server: FileServer, tmp_path: Path, command: Callable[..., str], seed: int) -> None:
    server.files["toy.bin"] = CONTENT
    server.cut_after = random.Random(seed).randrange(CHUNK_BYTES, len(CONTENT))
    data_set = make_data_set(server.url("toy.bin"))
    line = command(data_set, 2)
    assert (
        "the connection ended early; repeat the command to continue; the data set can be downloaded by hand from https://example.org/toy"
        in line
    )
    assert not is_available(data_set, tmp_path)
    received = (tmp_path / "downloads" / "toy" / "toy.bin.part").stat().st_size
    assert server.cut_after - CHUNK_BYTES < received <= server.cut_after
    server.cut_after = None
    command(data_set)
    assert server.requests[1] == ("toy.bin", f"bytes={received}-")
    assert (tmp_path / "area" / "toy.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("change", ["file", "no version", "no ranges"])
def test_download_starts_again_if_it_cannot_continue(
    server: FileServer, tmp_path: Path, command: Callable[..., str], change: str
) -> None:
    server.files["toy.bin"] = CONTENT
    server.cut_after, server.versioned = CHUNK_BYTES, change != "no version"
    data_set = make_data_set(server.url("toy.bin"))
    command(data_set, 2)
    server.cut_after, server.ranges = None, change != "no ranges"
    if change == "file":
        server.files["toy.bin"] = CONTENT[::-1]
    command(data_set)
    assert server.requests[1][1] == (None if change == "no version" else f"bytes={CHUNK_BYTES}-")
    assert (tmp_path / "area" / "toy.bin").read_bytes() == server.files["toy.bin"]


def test_complete_partial_file_is_not_downloaded_again(server: FileServer, tmp_path: Path) -> None:
    server.files["toy.bin"] = CONTENT
    part = tmp_path / "downloads" / "toy" / "toy.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    part.with_name("toy.bin.part.version").write_text(f'"{hashlib.md5(CONTENT).hexdigest()}"')
    fetch(make_data_set(server.url("toy.bin")), tmp_path)
    assert server.requests == [("toy.bin", f"bytes={len(CONTENT)}-")]
    assert (tmp_path / "area" / "toy.bin").read_bytes() == CONTENT


def test_wrong_checksum_raises(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    server.files["toy.bin"] = CONTENT
    expected, found = hashlib.md5(b"other").hexdigest(), hashlib.md5(CONTENT).hexdigest()
    data_set = make_data_set(server.url("toy.bin"), f"md5:{expected}")
    line = command(data_set, 2)
    assert expected in line
    assert found in line
    assert line.endswith("published for this file")
    assert not is_available(data_set, tmp_path)
    assert not (tmp_path / LOCK_NAME).exists()
    command(make_data_set(server.url("toy.bin"), f"md5:{found}"))
    assert (tmp_path / "area" / "toy.bin").read_bytes() == CONTENT


def test_changed_file_raises(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    server.files["toy.bin"] = CONTENT
    data_set = make_data_set(server.url("toy.bin"))
    command(data_set)
    first, changed = hashlib.sha256(CONTENT).hexdigest(), CONTENT[:-1]
    path = tmp_path / "area" / "toy.bin"
    path.write_bytes(changed)  # on this machine
    line = command(data_set, 2)
    assert first in line
    assert hashlib.sha256(changed).hexdigest() in line
    assert LOCK_NAME in line
    path.unlink()
    server.files["toy.bin"] = changed  # on the server
    line = command(data_set, 2)
    assert first in line
    assert hashlib.sha256(changed).hexdigest() in line
    assert LOCK_NAME in line
    assert not path.exists()
    server.files["toy.bin"] = CONTENT
    command(data_set)
    assert path.read_bytes() == CONTENT


def test_existing_file_of_the_user_is_unchanged(server: FileServer, tmp_path: Path) -> None:
    path = tmp_path / "area" / "toy.bin"
    path.parent.mkdir()
    path.write_bytes(b"mine")
    fetch(make_data_set(server.url("toy.bin"), "md5:0"), tmp_path)
    assert path.read_bytes() == b"mine"
    assert server.requests == []


def test_http_error_and_unreachable_server_raise(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    assert "toy.bin: the server answered 404 Not Found; the data set can be downloaded by hand from " in command(
        make_data_set(server.url("toy.bin")), 2
    )
    assert "toy.bin cannot be reached (ConnectionError)" in command(make_data_set("http://127.0.0.1:9/toy.bin"), 2)


def test_partial_file_that_is_too_long_is_removed(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    server.files["toy.bin"] = b"x" * 10
    part = tmp_path / "downloads" / "toy" / "toy.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 20)
    part.with_name("toy.bin.part.version").write_text(f'"{hashlib.md5(b"x" * 10).hexdigest()}"')
    assert "the server cannot continue at byte 20; repeat the command to start again" in command(
        make_data_set(server.url("toy.bin")), 2
    )
    command(make_data_set(server.url("toy.bin")))
    assert (tmp_path / "area" / "toy.bin").read_bytes() == b"x" * 10


def test_timeout_raises(server: FileServer, tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["toy.bin"], server.pause = CONTENT, 0.5
    monkeypatch.setattr("longscan.datasets.download.TIMEOUT", 0.1)
    assert "toy.bin did not answer within 0.1 seconds; repeat the command to continue" in command(
        make_data_set(server.url("toy.bin")), 2
    )
    assert not (tmp_path / "area").exists()


def test_content_encoding_is_not_decoded(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    server.files["toy.bin"], server.encoding = gzip.compress(CONTENT), "x-gzip"
    command(make_data_set(server.url("toy.bin")))
    assert (tmp_path / "area" / "toy.bin").read_bytes() == server.files["toy.bin"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_raises(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    server.files["toy.bin"] = CONTENT
    part = tmp_path / "downloads" / "toy" / "toy.bin.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    assert command(make_data_set(server.url("toy.bin")), 2).endswith("cannot be written: No space left on device")


def test_invalid_data_command_prints_one_line(
    run_invalid_command: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run_invalid_command("get", "etth", "--root", tmp_path) == (
        "longscan: `name` must be a data set of `longscan data list`, got 'etth'; did you mean ETTh1 or WTH or weather?"
    )
    assert run_invalid_command("get", "qqqqq", "--root", tmp_path).endswith("got 'qqqqq'")
    assert run_invalid_command("get", "ETTh1").startswith(
        "longscan: `--root` must be the folder of all data, got nothing; or set LONG"
    )
    assert run_invalid_command("get", "listops").endswith(
        "; ListOps must be downloaded by hand from https://github.com/google-research/long-range-arena, and --root says where to"
    )
    assert run_invalid_command("get", "etth").endswith("did you mean ETTh1 or WTH or weather?"), "the name is checked first"
    assert run_invalid_command("list", "ETTh1").startswith("longscan: `name` must be left out with `longscan data list`, which")
    assert run_invalid_command("get") == "longscan: `name` must be a data set of `longscan data list`, got nothing"
    assert "action" in run_invalid_command()
    assert "`action` must be one of list, get, got 'fetch'" in run_invalid_command("fetch")
    (tmp_path / LOCK_NAME).write_text("[1]")
    assert "data-lock.json must be a JSON object of records" in run_invalid_command("get", "ETTh1", "--root", tmp_path)
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    assert "data-lock.json must be a JSON object of records" in run_invalid_command("list")


@pytest.fixture
def run_invalid_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs `longscan data` with invalid arguments and returns its error line."""

    def run(*argv: object) -> str:
        assert main(["data", *map(str, argv)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    return run


DOWNLOAD_SCRIPT = """
import sys
from pathlib import Path
from longscan.datasets import DataSet, RemoteFile
from longscan.datasets.storage import fetch
file = RemoteFile(name="toy.bin", url=sys.argv[1])
fetch(DataSet(name="toy", folder="area", files=(file,), size="", licence="", page="", use=""), Path(sys.argv[2]))
"""


def test_killed_download_continues(server: FileServer, tmp_path: Path) -> None:
    server.files["toy.bin"], server.pause = CONTENT, 0.1
    process = subprocess.Popen([sys.executable, "-c", DOWNLOAD_SCRIPT, server.url("toy.bin"), str(tmp_path)])
    part = tmp_path / "downloads" / "toy" / "toy.bin.part"
    limit = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    received, server.pause = part.stat().st_size, 0.0
    assert 0 < received < len(CONTENT)
    fetch(make_data_set(server.url("toy.bin")), tmp_path)
    assert server.requests[1] == ("toy.bin", f"bytes={received}-")
    assert (tmp_path / "area" / "toy.bin").read_bytes() == CONTENT
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"toy.bin", LOCK_NAME}


FILES = {"release/a/Train/0/1.bin": b"one", "release/a/Train/1/2.bin": b"two", "release/a/notes.txt": b"n", "release/b.txt": b"b"}


@pytest.mark.parametrize("kind", ["zip", "w:gz", "w"])
def test_selected_members_are_unpacked(server: FileServer, tmp_path: Path, command: Callable[..., str], kind: str) -> None:
    server.files["toy"] = make_archive(kind, FILES)
    data_set = make_data_set(server.url("toy"), None, ("Train/", "b.txt"))
    command(data_set)
    contents = {str(path.relative_to(tmp_path / "area")): path.read_bytes() for path in (tmp_path / "area").rglob("*.*")}
    assert contents == {"Train/0/1.bin": b"one", "Train/1/2.bin": b"two", "b.txt": b"b"}
    assert read_lock(tmp_path)["toy/toy.bin"]["size"] == len(server.files["toy"])
    assert not (tmp_path / "downloads" / "toy").exists()
    command(data_set)
    assert len(server.requests) == 1


def test_unreadable_or_incomplete_archive_raises(server: FileServer, tmp_path: Path, command: Callable[..., str]) -> None:
    data_set = make_data_set(server.url("toy"), None, ("Train/", "b.txt"))
    server.files["toy"] = b"<html>come back later</html>"
    assert "is not a readable ZIP or TAR archive" in command(data_set, 2)
    server.files["toy"] = make_archive("w:gz", FILES)[:-20]
    assert "is not a readable ZIP or TAR archive" in command(data_set, 2)
    server.files["toy"] = make_archive("zip", {"Train/1.bin": b"1"})
    assert "must contain Train/, b.txt, got an archive without b.txt" in command(data_set, 2)
    server.files["toy"] = make_archive("w", {"Train/../../x": b"1"})
    assert "must lie within its folder" in command(data_set, 2)
    assert not (tmp_path / LOCK_NAME).exists(), "the checksum of a damaged archive is not recorded"
    assert list((tmp_path / "area").rglob("*")) == []
    server.files["toy"] = make_archive("zip", FILES)
    command(data_set)
    assert (tmp_path / "area" / "b.txt").read_bytes() == b"b"


def test_interrupted_unpacking_is_repeated(server: FileServer, tmp_path: Path) -> None:
    server.files["toy"] = make_archive("zip", FILES)
    data_set = make_data_set(server.url("toy"), None, ("Train/", "b.txt"))
    (tmp_path / "area" / "Train").mkdir(parents=True)
    (tmp_path / "area" / "b.txt").write_text("b")
    assert is_available(data_set, tmp_path), "files of the user"
    archive = tmp_path / "downloads" / "toy" / "toy.bin"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(server.files["toy"])
    assert not is_available(data_set, tmp_path), "the archive still exists, so it was not unpacked completely"
    fetch(data_set, tmp_path)
    assert (tmp_path / "area" / "Train" / "0" / "1.bin").read_bytes() == b"one"
    assert server.requests == []


def test_damaged_compressed_archive_raises(tmp_path: Path) -> None:
    """Stream readers do not check the checksum at the end of a gzip file."""
    content = bytearray(make_archive("w:gz", {"Train/1": CONTENT}))
    content[-6] ^= 1  # of the checksum
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"x.tar.gz is not a readable ZIP or TAR archive: CRC check failed"):
        unpack_members(tmp_path / "x.tar.gz", ["Train/"], tmp_path / "to", tmp_path / "temporary")
    assert not (tmp_path / "to").exists()


def test_links_are_not_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        link = tarfile.TarInfo("Train/passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        info = tarfile.TarInfo("Train/1")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"1"))
    unpack_members(tmp_path / "x.tar", ["Train/"], tmp_path / "to", tmp_path / "temporary")
    assert [path.name for path in (tmp_path / "to" / "Train").iterdir()] == ["1"]


def test_manual_download_is_unpacked(tmp_path: Path, command: Callable[..., str]) -> None:
    archive = make_archive("w:gz", FILES)
    data_set = make_data_set(None, f"md5:{hashlib.md5(archive).hexdigest()}", ("Train/", "b.txt"))
    line = command(data_set, 2)
    put = f"download toy.bin from https://example.org/toy into {tmp_path / 'downloads'}, then repeat the command"
    assert line == f"longscan: toy must be downloaded by hand: {put}"
    (tmp_path / "downloads").mkdir(exist_ok=True)
    (tmp_path / "downloads" / "toy.bin").write_bytes(archive[:-1])
    assert hashlib.md5(archive).hexdigest() in command(data_set, 2)
    (tmp_path / "downloads" / "toy.bin").write_bytes(archive)
    command(data_set)
    assert (tmp_path / "area" / "b.txt").read_bytes() == b"b"
    assert (tmp_path / "downloads" / "toy.bin").exists(), "the user's archive stays"
    assert is_available(data_set, tmp_path)
    plain = make_data_set(None, name="table.csv")
    assert command(plain, 2).endswith(f"download table.csv from https://example.org/toy into {tmp_path / 'area'}")


def test_lock_file_is_sorted_json(server: FileServer, tmp_path: Path) -> None:
    server.files |= {"b": b"b", "a": b"a"}
    files = tuple(RemoteFile(name=name, url=server.url(name)) for name in ("b", "a"))
    fetch(DataSet(name="toy", folder="area", files=files, size="", licence="", page="", use=""), tmp_path)
    assert list(json.loads((tmp_path / LOCK_NAME).read_text())) == ["toy/a", "toy/b"]
