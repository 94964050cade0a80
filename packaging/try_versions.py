"""Install the wheels in dist/ next to given versions of torch, in empty environments, and record what works.

    python packaging/try_versions.py --python python3.12 --torch 2.9.1 2.15.0 --commit 1234567 --tests tests/contracts/test_ops.py

Each version gets a new virtual environment without the sources on its path. `check_wheel.py` runs in it, then the tests that are
given. Every result is a line of packaging/tested.jsonl; a version that was tried before with the same Python and the same wheel
is left out. The table of docs/install.md is made from the file:

    python packaging/try_versions.py --table
"""

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "packaging" / "tested.jsonl"
PAGE = ROOT / "docs" / "howto" / "install.md"
MARKS = "<!-- tested -->", "<!-- /tested -->"
TEST_PACKAGES = ("pytest>=8", "pytest-timeout", "hypothesis")


def python_version(python: str) -> str:
    """Return the version of an interpreter, such as "3.12.1"."""
    program = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def find_wheel(version: str) -> Path:
    """Return the wheel in dist/ for a version of Python. Raises SystemExit if there is none."""
    tag = "cp311-cp311" if version.startswith("3.11.") else "cp312-abi3"
    found = sorted((ROOT / "dist").glob(f"longscan-*-{tag}-*.whl"))
    if not found:
        sys.exit(f"dist/ has no wheel {tag}: run packaging/build_wheels.sh first")
    return found[-1]


def run_quietly(*command: str | Path, folder: Path | None = None) -> tuple[bool, str]:
    """Run a command without PYTHONPATH and return whether it succeeded, and its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return result.returncode == 0, result.stdout


def try_version(python: str, wheel: Path, commit: str, version: str, tests: list[str]) -> dict[str, str | float]:
    """Install one version of torch and the wheel, run the checks and tests, and return the record."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = Path(folder, "bin", "python")
        pip = [inside, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        record: dict[str, str | float] = {"date": f"{datetime.date.today()}", "commit": commit, "wheel": wheel.name}
        record |= {"sha256": digest, "asked": version}
        done, output = run_quietly(*pip, f"torch=={version}", f"{wheel}[estimators]", *(TEST_PACKAGES if tests else ()))
        if done:
            done, output = run_quietly(inside, ROOT / "packaging" / "check_wheel.py", folder=Path(folder))
            record["versions"] = output.partition("\n")[0]
        record["check"] = "passed" if done else output[-2000:]
        if done and tests:
            command = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *(ROOT / name for name in tests)]
            done, output = run_quietly(*command, folder=Path(folder))
            record["tests"] = " ".join(tests)
            record["outcome"] = output.strip().rpartition("\n")[2] if done else output[-4000:]
            record["tests_passed"] = done
        record["seconds"] = round(time.monotonic() - started)
    return record


def read_records() -> list[dict[str, str | float]]:
    """Return the records, oldest first."""
    return [json.loads(line) for line in RECORDS.read_text("utf-8").split("\n") if line] if RECORDS.exists() else []


def write_table() -> None:
    """Replace the table in the page between its two marks: the last record of each Python and torch, with and without tests."""
    last = {(record["versions"], "tests_passed" in record): record for record in read_records() if "versions" in record}
    rows = ["", "| Versions | Wheel | Commit | Date | Checks | Tests |", "|---|---|---|---|---|---|"]
    for (versions, _), record in sorted(last.items()):
        checks = "passed" if record["check"] == "passed" else "failed"
        outcome = str(record["outcome"]).partition(" in ")[0] if record.get("tests_passed") else None
        outcome = outcome or ("failed" if "tests_passed" in record else "not run")
        tag = str(record["wheel"]).split("-", 2)[2].removesuffix(".whl")
        rows.append(f"| {versions} | {tag} | {record.get('commit') or '–'} | {record['date']} | {checks} | {outcome} |")
    before, rest = PAGE.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    PAGE.write_text(before + MARKS[0] + "\n" + "\n".join(rows) + "\n\n" + MARKS[1] + after)


def main() -> None:
    """Read the arguments, and try the versions that have no record yet or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters for the environments")
    parser.add_argument("--torch", nargs="+", default=[], help="versions of torch")
    parser.add_argument("--tests", nargs="*", default=[], help="test files to run in each environment")
    parser.add_argument("--commit", default="", help="commit from which the wheels were built, for the records")
    parser.add_argument("--table", action="store_true", help="write the table of the page")
    arguments = parser.parse_args()
    for python in arguments.python if arguments.torch else ():
        python_name = python_version(python)
        wheel = find_wheel(python_name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        known = {(record["python"], record["asked"]) for record in read_records() if record["sha256"] == digest}
        for version in arguments.torch:
            if (python_name, version) in known:
                continue
            record = {"python": python_name, **try_version(python, wheel, arguments.commit, version, arguments.tests)}
            with RECORDS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"Python {python_name}, torch {version}: check {record['check']}; tests {record.get('outcome', 'not run')}")
    if arguments.table:
        write_table()


if __name__ == "__main__":
    main()
