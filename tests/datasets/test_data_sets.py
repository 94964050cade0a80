"""Tasks read the downloaded and unpacked files of the data sets of the catalogue."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from file_server import FileServer, make_archive
from longscan.cli import main
from longscan.datasets import DATA_SETS, DataSet, find_data_set
from longscan.datasets.storage import is_available
from longscan.tasks import TASKS
from longscan.training.parsing import parse_settings
from made_up import EVENTS, MADE_UP, spoken, table

ROOT = Path(__file__).parents[2]


def write_series(folder: Path) -> None:
    header = "@problemName x\n@timeStamps false\n@univariate false\n@classLabel true a b\n@data\n"
    for part, first in (("TRAIN", 0), ("TEST", 40)):
        lines = [f"{number},2,3:4,5,{number}:{'ab'[number % 2]}\n" for number in range(first, first + 40)]
        (folder / f"Heartbeat_{part}.ts").write_text(header + "".join(lines))


def write_ett(folder: Path) -> None:
    (folder / "ETTh1.csv").write_text(table(20 * 30 * 24, 7))


def write_text(folder: Path) -> None:
    (folder / "wikitext-2").mkdir()
    for part in ("train", "valid", "test"):
        (folder / "wikitext-2" / f"wiki.{part}.tokens").write_text("a film is <unk> " * 2000)


def write_encode(folder: Path) -> None:
    for file in DATA_SETS["ENCODE"].files:
        (folder / file.name).parent.mkdir(exist_ok=True)
        (folder / file.name).write_text(">x|y\n" + "ACGTTGCA\n" * 3000)


# Data set -> writer of small files of its format, leading folders in the archive, mode of the archive.
PUBLISHED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "Heartbeat": (write_series, "", "zip"),
    "CIFAR-10": (MADE_UP["lra_image"], "", "w:gz"),
    "aclImdb": (MADE_UP["lra_text"], "", "w:gz"),
    "AAN": (MADE_UP["lra_retrieval"], "", ""),
    "SHD": (lambda folder: spoken(folder, "shd"), "", "zip"),
    "SSC": (lambda folder: spoken(folder, "ssc"), "", "zip"),
    "DVSGesture": (EVENTS["dvs_gesture"], "", "w:gz"),
    "N-MNIST": (MADE_UP["events"], "", "zip"),
    "walker": (MADE_UP["walker"], "walker/", "zip"),
    "ConfLongDemo_JSI": (MADE_UP["human_activity"], "", "zip"),
    "ETTh1": (write_ett, "", ""),
    "ENCODE": (write_encode, "", ""),
    "wikitext-2": (write_text, "", "zip"),
}


def publish_files(data_set: DataSet, made: Path, server: FileServer, by_hand: Path) -> DataSet:
    """Copy the files of `made` to the server or the folder `by_hand` in their published form; return the changed data set."""
    _, leading, kind = PUBLISHED[data_set.name]
    contents = {leading + str(path.relative_to(made)): path.read_bytes() for path in sorted(made.rglob("*")) if path.is_file()}
    files = []
    for file in data_set.files:
        # Every archive has a file that does not belong to the data set and must not be unpacked.
        content = make_archive(kind, {"README": b"!", **contents}) if file.members else contents[file.name]
        if file.url is None:
            by_hand.mkdir(exist_ok=True)
            (by_hand / file.name).write_bytes(content)
        else:
            server.files[f"{data_set.name}/{file.name}"] = content
        url = None if file.url is None else server.url(f"{data_set.name}/{file.name}")
        checksum = file.checksum and f"md5:{hashlib.md5(content).hexdigest()}"
        files.append(replace(file, url=url, checksum=checksum))
    return replace(data_set, files=tuple(files))


@pytest.mark.parametrize("name", PUBLISHED)
def test_task_reads_downloaded_files(
    name: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pooch")
    made, root = tmp_path / "made", tmp_path / "data"
    made.mkdir()
    root.mkdir()
    PUBLISHED[name][0](made)
    data_set = publish_files(DATA_SETS[name], made, server, root / "downloads")
    monkeypatch.setitem(DATA_SETS, name, data_set)
    monkeypatch.setenv("LONGSCAN_DATA", str(root))
    assert main(["data", "get", name]) == 0
    (options,) = re.findall(r"^to read it: longscan train (.*) --out RUN$", capsys.readouterr().out, re.MULTILINE)
    assert is_available(data_set, root)
    # The folder is an option instead of LONGSCAN_DATA because the caches of tasks would give these files to later tests.
    area = ["--data-dir", str(root / data_set.folder.partition("/")[0])]
    folder = [] if "--data-dir" in options or "byte_text" in options else area
    task = parse_settings([*options.split(), *folder]).task
    task.batch("train", 0, 2)
    assert task.size("test")
    assert not list(root.rglob("README"))


def test_options_of_data_sets_are_those_of_a_task() -> None:
    for data_set in [item for item in DATA_SETS.values() if item.use]:
        options = dict(zip(*[iter(data_set.use.format(folder="x").split())] * 2, strict=True))
        settings = {name.removeprefix("--task."): value for name, value in options.items() if name.startswith("--task.")}
        assert set(options) <= {"--task", "--data-dir", *(f"--task.{name}" for name in settings)}
        dataset = getattr(TASKS[options["--task"]](**settings), "dataset", data_set.name)
        assert re.sub("[_-]", "", dataset).lower() == re.sub("[_-]", "", data_set.name).lower()


def test_data_sets_are_complete() -> None:
    for name, data_set in DATA_SETS.items():
        assert name == data_set.name
        assert data_set.page.startswith("https://")
        assert data_set.size == "unknown" or re.fullmatch(r"[\d.]+ [MG]B", data_set.size)
        assert data_set.licence
        assert data_set.is_by_hand == (not data_set.files or None in [file.url for file in data_set.files])
        assert not data_set.is_by_hand or data_set.note, "a note is missing"
        for file in data_set.files:
            assert file.url is None or file.url.startswith("https://")
            assert file.checksum is None or re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.checksum)


def test_names_ignore_case_and_errors_suggest_similar_names() -> None:
    assert find_data_set("cifar-10") is DATA_SETS["CIFAR-10"]
    with pytest.raises(ValueError, match=r"^`name` must be .*, got 'Hartbeat'; did you mean Heartbeat\?$"):
        find_data_set("Hartbeat")


def test_errors_of_tasks_name_existing_data_sets() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "src" / "longscan" / "tasks").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"longscan data get ([\w-]+)`", text)}
    assert len(named) > 10
    assert named <= set(DATA_SETS)


@pytest.mark.parametrize(
    ("task", "settings", "data_set"),
    [
        ("uea", {"dataset": "EigenWorms"}, "EigenWorms"),
        ("lra_image", {}, "CIFAR-10"),
        ("lra_text", {}, "aclImdb"),
        ("lra_retrieval", {}, "AAN"),
        ("events", {"dataset": "shd"}, "SHD"),
        ("events", {"dataset": "ssc"}, "SSC"),
        ("events", {"dataset": "dvs_gesture"}, "DVSGesture"),
        ("events", {"dataset": "nmnist"}, "N-MNIST"),
        ("walker", {}, "walker"),
        ("human_activity", {}, "ConfLongDemo_JSI"),
        ("forecast", {"dataset": "WTH"}, "WTH"),
        ("species", {}, "ENCODE"),
        ("byte_text", {}, "tinyshakespeare"),
    ],
)
def test_missing_data_error_names_the_command(task: str, settings: dict[str, str], data_set: str, tmp_path: Path) -> None:
    settings |= {} if task == "byte_text" else {"data_dir": str(tmp_path)}
    with pytest.raises(FileNotFoundError, match=f"longscan data get {data_set}`"):
        TASKS[task](**settings).size("test")


def test_unknown_uea_set_error_names_the_archive() -> None:
    with pytest.raises(FileNotFoundError, match=r"the archive is at https://www.timeseriesclassification.com"):
        TASKS["uea"](dataset="MyOwn", data_dir=str(ROOT)).size("test")


def test_data_list_command_lists_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines[1 : len(DATA_SETS) + 1]] == list(DATA_SETS)
    assert " yes " not in text
    assert "set LONGSCAN_DATA" in text
    directory = tmp_path / "uea" / "ERing"
    directory.mkdir(parents=True)
    (directory / "ERing_TRAIN.arff").write_text("")  # another form that the task reads
    (tmp_path / "forecasting").mkdir()
    (tmp_path / "forecasting" / "weather.csv").write_text("")
    monkeypatch.setenv("LONGSCAN_DATA", str(tmp_path))
    assert main(["data", "list"]) == 0
    available = [line.split()[0] for line in capsys.readouterr().out.splitlines() if " yes " in line]
    assert available == ["ERing", "weather"]
