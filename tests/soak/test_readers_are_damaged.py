"""Each function of the package that opens a file is reached by a format of `damage.READERS`, or is listed with the reason."""

import ast
import logging
import sys
import warnings
from pathlib import Path
from types import FrameType

import pytest

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), *(str(FOLDER.parent / name) for name in ("contracts", "tasks"))]

import damage  # noqa: E402

SOURCE = Path(damage.longscan.__file__).parent
OPENING = {
    "File", "ParquetFile", "ZipFile", "load_array", "load_file", "memmap", "read_bytes", "read_csv", "read_parquet",
    "read_table", "read_text", "safe_load", "safe_open",
}  # fmt: skip
NOT_DAMAGED = {
    "the file is of this program, or of the system": """
        cli/__init__._discard_output cli/reproduction._report datasets/download._save report/published._data
        report/results.fill_markdown reproduce/archive.pack reproduce/rows.read_rows system._read_cpuinfo
        training/checkpoint.write_checkpoint training/pictures._save training/run.device_name training/stacked.open
        training/stacked.train_stacked training/trainer.run""",
    "this program wrote the file, and only progress or a table depends on it": """
        cli/fitting._adds_nothing datasets/download.__call__ models/saving._has_content report/sweep.sweep_report
        reproduce/archive._read_if_exists reproduce/near._read reproduce/remaining.last_update
        reproduce/runs._unfinished_line reproduce/runs.check_manifest
        reproduce/runs.device_seconds reproduce/state_tracking.on_end reproduce/state_tracking.run
        training/records.read_baselines""",
    "another function that is reached reads the same format": """
        tasks/forecasting/tables.read_dates tasks/forecasting/task._load tasks/forecasting/task.read_inputs
        tasks/timeseries/files.read_recordings""",
    "text or bytes of any content": """
        tasks/language/text._load tasks/language/text.read_inputs tasks/lra/text._read_reviews tasks/lra/text.read""",
    "other tests damage the file": """
        models/interchange._read_mapping models/interchange._read_tensors tasks/lra/pathfinder._load_released
        tasks/lra/pathfinder.read tasks/series/files._parquet tasks/series/reading._read_series_file""",
}


def opening_functions() -> set[str]:
    """Return the functions whose own code opens a file for reading, as PATH.NAME."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).with_suffix("").as_posix()
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(map(_opens, ast.walk(function))):
                found.add(f"{place}.{function.name}")
    return found


def _opens(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    modes = {letter for part in node.args if isinstance(part, ast.Constant) for letter in str(part.value)}
    return name in OPENING or (name == "open" and isinstance(node.func, ast.Attribute) and not modes & set("wax+"))


def test_every_reader_has_a_damaged_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[str] = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            place = Path(frame.f_code.co_filename).relative_to(SOURCE).with_suffix("").as_posix()
            reached.add(f"{place}.{frame.f_code.co_name}")

    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    for number, (name, file_format) in enumerate(damage.READERS.items()):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file_format.write(path)
            previous = sys.getprofile()
            sys.setprofile(record)
            try:
                file_format.read(path)
            finally:
                sys.setprofile(previous)
    excused = {function for functions in NOT_DAMAGED.values() for function in functions.split()}
    opening = opening_functions()
    assert opening - reached - excused == set(), "a reader needs an entry in READERS of damage.py, or FORMATS of test_damaged.py"
    assert excused - opening == set(), "listed, but gone"
    assert excused & reached == set(), "listed, but reached"
