"""Correct and mark the rows of results/runs: the values that were wrong when they were recorded, computed again.

    LONGSCAN_DATA=data python benchmarks/correct_records.py

LONGSCAN_DATA names the folder with forecasting/ (WTH.csv, ETTh1.csv) and activity/ (the walker's rollouts) that the runs read.

1. Regression tasks recorded the score of their first baseline as that of the best constant predictor: persistence (forecasts, the
   walker, FitzHugh-Nagumo), or the mean of train (the pendulum). The best constant on test is computed from the task that the
   row's command names, and stands in the row's field "corrected"; the fields that the run wrote stay as they are.
2. Rows whose recipe was given up because of its test score, and rows whose recipe was made after such scores had been seen, get
   the fields "replaced" and "chosen_on". MARKS says which rows and why.
3. Rows that were removed from a file when its recipe changed come back from the history of the repository (REMOVED).

Rows that have these fields already stay untouched, so that the command can be repeated.
"""

import json
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longscan.report.records import check_record
from longscan.tasks.regression import RegressionTask
from longscan.training import parse_settings
from longscan.training.records import commit

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results/runs"
COMMAND = "python benchmarks/correct_records.py"
REASON = "the recorded constant predictor was {}, which is not the best constant"
BECAUSE = "because of its test score"
STOP = (
    "without the early stop (--training.solved_at 0, at 8dfa127) seeds 0 to 4 end after 55,000 updates at .95, 1.00, 1.00, .50 "
    "and .67; source: results/README.md, no rows were recorded"
)

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Fields for the rows of a file whose task and commits these are."""

    file: str
    task: str
    commits: tuple[str, ...]
    fields: Row


MARKS = (
    # 9718f6a put a small model for 300 updates in the place of this recipe, whose test error was above that of DLinear.
    Mark(file="afternoon", task="forecast/ETTh1", commits=("a3bc61f",), fields={"replaced": BECAUSE}),
    Mark(file="afternoon", task="forecast/ETTh1", commits=("83bc89b1fbd8",), fields={"chosen_on": "test"}),
    # Before it stood a recipe of what is added to the last value, .584 on test (results/README.md); it left no row.
    Mark(file="afternoon", task="forecast/WTH", commits=("a3bc61f",), fields={"chosen_on": "test"}),
    # 5da7bb7 put another recipe in the place of this one, which answered the test words in two seeds of five.
    Mark(file="quickstart", task="cycle_navigation", commits=("868da2545925", "5c2508207467"), fields={"replaced": BECAUSE}),
    Mark(file="quickstart", task="cycle_navigation", commits=("ae3a58d1fe88",), fields={"chosen_on": "test"}),
    # c3c9b68 put another recipe in the place of the one at f06368b, which ended at .65 and .97 on test.
    Mark(file="quickstart", task="parity", commits=("87898ad7e9a5+changes",), fields={"chosen_on": "test"}),
    Mark(file="quickstart", task="parity", commits=("8dfa127af076",), fields={"chosen_on": "test", "note": STOP}),
)

# File, the commit whose copy of it still holds the rows, the commit that the rows were made at.
REMOVED = (("quickstart", "1db2a4c", "f06368b5b15e"),)


def corrected_constant(row: Row) -> Row | None:
    """Return the field "corrected" of a row whose constant predictor is not the best one; None where nothing is to correct.

    Raises SystemExit where the task scores neither persistence nor the constant as recorded, so that other data are noticed.
    """
    task = task_of(row)
    if not isinstance(task, RegressionTask):
        return None
    baselines = task.baselines("test")
    recorded, best = row["constant"], baselines["constant"]
    if recorded == best:
        return None
    if recorded == baselines.get("persistence"):
        what = "persistence"
    elif "persistence" not in baselines and best < recorded < 1.01 * best:
        what = "the mean of train"
    else:
        raise SystemExit(f"{row['task']}, {row['commit']}: recorded constant {recorded}, found {baselines}; other data?")
    if row["baselines"].get("seasonal_naive") not in (None, baselines.get("seasonal_naive")):
        raise SystemExit(f"{row['task']}, {row['commit']}: recorded {row['baselines']}, found {baselines}; other data?")
    values = {
        "scaled": None if row["value"] is None else task.scaled(row["value"]),
        "constant": best,
        "constant_scaled": task.scaled(best),
        "baselines": row["baselines"] | {name: baselines[name] for name in ("constant", "persistence") if name in baselines},
    }
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"values": values, "reason": REASON.format(what), "command": COMMAND, "commit": commit(), "date": date}


def task_of(row: Row) -> object:
    """Return the task that a row's command asks for, by the recipes as they are now."""
    words = shlex.split(row["command"])[2:]
    parser = ArgumentParser(allow_abbrev=False)
    for option in ("--out", "--record", "--task.data_dir", "--data-dir"):  # LONGSCAN_DATA says where the data are
        parser.add_argument(option)
    for flag in ("--overwrite", "--resume"):
        parser.add_argument(flag, action="store_true")
    return parse_settings(parser.parse_known_args(words)[1]).task


def removed_rows(file: str, kept_at: str, made_at: str) -> list[Row]:
    """Return the rows made at a commit as an older copy of the file holds them, each with the recipe of that commit named."""
    text = subprocess.run(
        ["git", "-C", str(ROOT), "show", f"{kept_at}:results/runs/{file}.jsonl"], check=True, capture_output=True, text=True
    ).stdout
    rows = [row for row in map(json.loads, text.splitlines()) if row["commit"] == made_at]
    return [row | {"recipe": f"{row['recipe']} at {made_at[:7]}", "replaced": BECAUSE} for row in rows]


def main() -> int:
    """Correct, mark and complete all files of results/runs; print what changed."""
    if commit().endswith("+changes"):
        raise SystemExit("commit first: the corrected rows name the commit that they were computed at")
    for path in sorted(RUNS.glob("*.jsonl")):
        lines = path.read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        rows += [
            row
            for file, kept_at, made_at in REMOVED
            if file == path.stem and not any(other["commit"] == made_at for other in rows)
            for row in removed_rows(file, kept_at, made_at)
        ]
        for number, row in enumerate(rows):
            added: Row = {}
            for mark in MARKS:
                if (mark.file, mark.task) == (path.stem, row["task"]) and row["commit"] in mark.commits:
                    added |= {name: value for name, value in mark.fields.items() if name not in row}
            if "corrected" not in row and (found := corrected_constant(row)) is not None:
                added["corrected"] = found
            if added or number >= len(lines):
                check_record("runs", row | added)
                lines[number : number + 1] = [json.dumps(row | added, ensure_ascii=False, allow_nan=False)]
                what = ", ".join(added) or "brought back"
                sys.stdout.write(f"{path.name}: {row['task']}, seed {row['seed']}, {row['commit']}: {what}\n")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
