"""Measure how many one-token changes of the package its tests detect.

Cosmic Ray finds the places and makes the changes (`choose`), except those that cannot change what the package does: in type
annotations, and of `strict=` of zip and `frozen=`, `slots=`, `kw_only=` of @dataclass, which only make misuse raise.
`cover` runs the tests once under coverage to record which test executes which line, and how long it takes. `run` changes a copy
of the package, runs the tests that execute the changed line (the fast ones of every file first, then the others, up to --seconds
of their time) and writes one JSON line: killed, timeout, survived, or stale if the file has changed since. `report` prints a
table by part and lists the survivors. Survivors that are in equivalent.json, with the line before and after the change and the
reason why it changes nothing, are counted in a separate column; entries whose line has changed since are listed.

    python tests/mutation/campaign.py choose --seed 1 --count 200 --out mutants.jsonl      # needs cosmic-ray
    python tests/mutation/campaign.py cover --processes 2 --out coverage.json              # needs coverage
    python tests/mutation/campaign.py run mutants.jsonl --coverage coverage.json --processes 2 --out results.jsonl
    python tests/mutation/campaign.py report results.jsonl

`run` skips mutants that the result file has already, so the same command continues a campaign. Tests that fail on this machine
without any mutant kill none, also if the coverage comes from another machine. The Triton kernels are left out:
the interpreter runs rewritten source, which coverage cannot attribute to lines.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/longscan")
PARTS = ("ops", "layers", "blocks", "training", "tasks", "estimators")
EXCLUDED_FILES = ("triton", "_native.pyi")  # parts of paths inside the package
EXCLUDED_ARGUMENTS = {"zip": {"strict"}, "dataclass": {"frozen", "slots", "kw_only"}}  # call -> excluded arguments
EQUIVALENT = Path(__file__).with_name("equivalent.json")
# Replacements that raise TypeError on floats or compare identities: any test that executes the line detects them.
TRIVIAL = ("Shift", "Bit", "_Is", "IsNot", "Invert", "UAdd", "VariableReplacer", "VariableInserter")
# Default values are executed at import, which belongs to no test, so the test that compares them runs for every mutant.
DEFAULTS = "tests/contracts/test_defaults.py::test_defaults_match_the_table"
# An editable installation finds the package by an entry of sys.meta_path, which comes before PYTHONPATH.
BY_PATH = "import sys; sys.meta_path[:] = [x for x in sys.meta_path if 'ScikitBuild' not in type(x).__name__]; "
RUN_PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


class Position(NamedTuple):
    """A position of a source file that can be mutated, and the operators that apply there as (name, occurrence)."""

    path: str
    line: int
    column: int
    operators: list[tuple[str, int]]


def list_source_files(part: str) -> list[Path]:
    """Return the Python files of a part of the package, relative to the repository."""
    files = sorted(path.relative_to(ROOT) for path in (ROOT / PACKAGE / part).rglob("*.py"))
    return [path for path in files if not any(text in str(path.relative_to(PACKAGE)) for text in EXCLUDED_FILES)]


def find_excluded_spans(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return start and end, as (line, column), of every type annotation and of the arguments of `EXCLUDED_ARGUMENTS`."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            excluded = [node.returns]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            excluded = [node.annotation]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXCLUDED_ARGUMENTS:
            excluded = [keyword.value for keyword in node.keywords if keyword.arg in EXCLUDED_ARGUMENTS[node.func.id]]
        else:
            continue
        spans += [
            ((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0))
            for part in excluded
            if part is not None
        ]
    return spans


def find_positions(path: Path) -> Iterator[Position]:
    """Yield every position of a file at which Cosmic Ray has a change that is not trivially detected."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    spans = find_excluded_spans((ROOT / path).read_text(encoding="utf-8"))
    tree, found = get_ast_from_path(ROOT / path), defaultdict(list)
    for name in plugins.operator_names():
        if any(text in name for text in TRIVIAL):
            continue
        operator = plugins.get_operator(name)()
        starts = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            if not any(first <= start < last for first, last in spans):
                found[start].append((name, occurrence))
    for (line, column), operators in sorted(found.items()):
        yield Position(str(path), line, column, operators)


def digest(source: str) -> str:
    """Return a hash of a source file, by which `run` detects mutants of earlier versions of the file."""
    return hashlib.sha256(source.encode()).hexdigest()


def changes_meaning(source: str, mutated: str) -> bool:
    """Return whether mutated source is valid Python that parses to another tree."""
    try:
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def choose(count: int, seed: int, out: Path) -> None:
    """Write `count` mutants, spread evenly over the parts, with random positions and operators."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    generator, chosen = random.Random(seed), []
    for index, part in enumerate(PARTS):
        remaining = count // len(PARTS) + (index < count % len(PARTS))
        all_positions = [position for path in list_source_files(part) for position in find_positions(path)]
        for position in generator.sample(all_positions, len(all_positions)):
            if remaining == 0:
                break
            name, occurrence = generator.choice(position.operators)
            source = (ROOT / position.path).read_text(encoding="utf-8")
            try:
                mutated = mutate_code(source, plugins.get_operator(name)(), occurrence)
            except AttributeError:  # Cosmic Ray cannot replace an exception whose name has a dot
                continue
            if mutated is None or not changes_meaning(source, mutated):
                continue
            before, after = source.splitlines(), mutated.splitlines()
            changed = [number for number, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
            is_removed = len(before) != len(after)
            chosen.append(
                {
                    "id": f"{position.path}:{position.line}:{position.column}:{name.removeprefix('core/')}",
                    "part": part,
                    "path": position.path,
                    "line": position.line,
                    "before": before[position.line - 1 if is_removed else changed[0]].strip(),
                    "after": "(line removed)" if is_removed else after[changed[0]].strip(),
                    "source": mutated,
                    "of": digest(source),
                }
            )
            remaining -= 1
    out.write_text("".join(json.dumps(mutant) + "\n" for mutant in chosen), encoding="utf-8")


class Recorder:
    """A pytest plugin that measures which lines each test executes, and writes outcome and duration of each test.

    The lines go to coverage data files with the test as their context; outcomes go to the file that LONGSCAN_OUTCOMES names.
    """

    def __init__(self) -> None:
        from coverage import Coverage

        self.coverage = Coverage(data_file=os.environ["LONGSCAN_COVERAGE"], data_suffix=True, source=[str(PACKAGE)])
        self.end = time.monotonic() + float(os.environ["LONGSCAN_SECONDS"])
        self.coverage.start()

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Attribute the following lines to this test; stop if the time is over."""
        if time.monotonic() > self.end:
            item.session.shouldstop = "the time is over"
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the report of a test's call, or of a set-up that did not pass."""
        if report.when == "call" or not report.passed:
            row = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
            with Path(os.environ["LONGSCAN_OUTCOMES"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def pytest_unconfigure(self) -> None:
        """Save what was measured."""
        self.coverage.stop()
        self.coverage.save()


def make_environment(tree: Path) -> dict[str, str]:
    """Return the environment variables of tests of the package in `tree`."""
    paths = [str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return os.environ | settings


def collect_tests(select: Sequence[str] = ()) -> list[str]:
    """Return the names of the tests that are not slow, of the whole project or of the files given."""
    arguments = ["-q", "-m", "not slow", "--continue-on-collection-errors", "--collect-only", *select]
    call = [sys.executable, "-c", RUN_PYTEST, *arguments]
    listing = subprocess.run(call, cwd=ROOT, env=make_environment(ROOT), capture_output=True, text=True)
    tests = [line for line in listing.stdout.splitlines() if line.startswith("tests/") and "::" in line]
    if not tests:
        raise RuntimeError(f"pytest found no tests: {listing.stdout[-2000:]} {listing.stderr[-2000:]}")
    return tests


def read_coverage(paths: Sequence[Path]) -> dict[str, Any]:
    """Read the files that `cover` wrote, without tests that no longer exist."""
    known, seconds, lines = set(collect_tests()), {}, defaultdict(lambda: defaultdict(list))
    for path in paths:
        coverage = json.loads(path.read_text(encoding="utf-8"))
        seconds |= {test: cost for test, cost in coverage["seconds"].items() if test in known}
        for source, tests_by_line in coverage["lines"].items():
            for line, tests in tests_by_line.items():
                lines[source][line] += [test for test in tests if test in known]
    return {"lines": lines, "seconds": seconds}


def cover(processes: int, select: list[str], until: float, out: Path) -> None:
    """Run the tests once and write which tests execute which line, their seconds, and which of them fail without any change.

    After `until` seconds no further test is started, and the number of tests that did not run is printed.
    """
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call = [sys.executable, "-c", RUN_PYTEST, "-q", "-m", "not slow", "--continue-on-collection-errors"]
        variables = make_environment(ROOT)
        variables |= {"LONGSCAN_OUTCOMES": str(folder / "outcomes.jsonl"), "LONGSCAN_COVERAGE": str(folder / "lines")}
        variables["LONGSCAN_SECONDS"] = str(until)
        tests = collect_tests(select)
        (folder / "record_lines.py").write_text(
            "import campaign\ndef pytest_configure(config):\n    config.pluginmanager.register(campaign.Recorder())\n",
            encoding="utf-8",
        )
        variables["PYTHONPATH"] += os.pathsep + os.pathsep.join((name, str(Path(__file__).parent)))

        def run_share(number: int) -> str:
            share = folder / f"share-{number}.txt"
            share.write_text("\n".join(tests[number::processes]), encoding="utf-8")
            arguments = ["-p", "record_lines", "-p", "no:cacheprovider", f"@{share}"]
            completed = subprocess.run([*call, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True)
            return f"{completed.stdout[-300:]} {completed.stderr[-300:]}"

        with ThreadPoolExecutor(processes) as pool:
            outputs = list(pool.map(run_share, range(processes)))
        if not (folder / "outcomes.jsonl").exists():
            raise RuntimeError(f"no test ran: {outputs[0]}")
        combined = Coverage(data_file=str(folder / "lines"))
        combined.combine([name])
        data, lines = combined.get_data(), {}
        for path in data.measured_files():
            contexts = data.contexts_by_lineno(path)
            relative = str(Path(path).resolve().relative_to(ROOT))
            lines[relative] = {line: sorted(set(names) - {""}) for line, names in contexts.items()}
        rows = [json.loads(row) for row in (folder / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()]
    passed = {row["test"]: row["seconds"] for row in rows if row["outcome"] == "passed"}
    failing = sorted({row["test"] for row in rows if row["outcome"] == "failed"})
    out.write_text(json.dumps({"lines": lines, "seconds": passed, "failing": failing}), encoding="utf-8")
    n_left = len(tests) - len({row["test"] for row in rows})
    sys.stderr.write(f"{len(passed)} tests passed, {len(failing)} failed, {n_left} not run, {len(lines)} files covered\n")


def choose_tests(mutant: dict[str, Any], coverage: dict[str, Any], seconds: float) -> list[str]:
    """Return the tests that execute the line of a mutant, or else its file, with the fast ones of every test file first."""
    known, by_line = coverage["seconds"], coverage["lines"].get(mutant["path"], {})
    candidates = by_line.get(str(mutant["line"])) or [test for tests in by_line.values() for test in tests]
    unique = sorted({test for test in candidates if test in known}, key=lambda test: known[test])
    rank: Counter[str] = Counter()
    ordered = []
    for test in unique:
        file = test.split("::")[0]
        ordered.append((rank[file], known[test], test))
        rank[file] += 1
    chosen, spent = [DEFAULTS], known.get(DEFAULTS, 0.0)
    for _, cost, test in sorted(ordered):
        if test != DEFAULTS and (spent + cost <= seconds or len(chosen) == 1):
            chosen.append(test)
            spent += cost
    return chosen


def copy_tree(folder: Path) -> Path:
    """Copy the package and its tests into a directory in which mutants are applied."""
    tree = folder / "tree"
    for name in ("src", "tests", "recipes", "results", "docs", "benchmarks", "csrc"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, tree / path.name)
    native = find_spec("longscan.ops._native")
    if native is not None and native.origin is not None:
        shutil.copy2(native.origin, tree / PACKAGE / "ops")
    command = [sys.executable, "-c", BY_PATH + "import longscan; print(longscan.__file__)"]
    completed = subprocess.run(command, cwd=tree, env=make_environment(tree), capture_output=True, text=True, check=True)
    if not Path(completed.stdout.strip()).is_relative_to(tree):
        raise RuntimeError(f"the tests of {tree} would import {completed.stdout.strip()}")
    return tree


def run_tests(tree: Path, tests: Sequence[str], limit: float) -> tuple[bool, str]:
    """Run tests until one fails; return whether all passed, and the test that failed, or how the run ended without one.

    Raises subprocess.TimeoutExpired if they take more than `limit` seconds.
    """
    names = tree / "chosen.txt"
    names.write_text("\n".join(tests), encoding="utf-8")
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", f"@{names}"]
    call = [sys.executable, "-c", BY_PATH + RUN_PYTEST, *arguments]
    completed = subprocess.run(call, cwd=tree, env=make_environment(tree), capture_output=True, text=True, timeout=limit)
    failed = [line.split(" ")[1] for line in completed.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return completed.returncode == 0, failed[0] if failed else f"exit status {completed.returncode}"


def try_mutant(mutant: dict[str, Any], tests: list[str], tree: Path, limit: float, unchanged: dict[str, bool]) -> dict[str, Any]:
    """Run the tests on a mutant; return the row to write, without the mutant's source.

    Only a test that passes on the unchanged package can kill. A test that fails there, too, is excluded from all later runs.
    `unchanged` maps the start of the name of each failed test to whether it passes without a mutant, and is extended.
    """
    row = {name: value for name, value in mutant.items() if name not in ("source", "of")}
    original = (tree / mutant["path"]).read_text(encoding="utf-8")
    if digest(original) != mutant["of"]:
        changed = "the file has changed since the mutant was chosen"
        return row | {"tests": len(tests), "outcome": "stale", "by": changed, "seconds": 0.0}
    started = time.monotonic()
    while True:
        failing = tuple(name for name, passes in unchanged.items() if not passes)
        tests = [test for test in tests if not test.startswith(failing)]
        try:
            (tree / mutant["path"]).write_text(mutant["source"], encoding="utf-8")
            passed, by = run_tests(tree, tests, limit)
            outcome, by = ("survived", "") if passed else ("killed", by)
        except subprocess.TimeoutExpired:
            outcome, by = "timeout", f"{limit:.0f} s"
        finally:
            (tree / mutant["path"]).write_text(original, encoding="utf-8")
        if outcome == "killed" and by not in unchanged:
            test = next((test for test in tests if test.startswith(by)), None)
            unchanged[by] = run_tests(tree, [test or tests[0]], limit)[0]
            if test is None and not unchanged[by]:
                raise RuntimeError(f"{tests[0]} fails without a change of the package")
        if outcome != "killed" or unchanged[by]:
            return row | {"tests": len(tests), "outcome": outcome, "by": by, "seconds": round(time.monotonic() - started, 1)}


def run(chosen: Path, coverage_files: Sequence[Path], processes: int, seconds: float, until: float, out: Path) -> None:
    """Try every mutant that is not in `out`, in parallel; after `until` seconds no further one is started."""
    coverage = read_coverage(coverage_files)
    done = {json.loads(row)["id"] for row in out.read_text(encoding="utf-8").splitlines()} if out.exists() else set()
    mutants = [json.loads(row) for row in chosen.read_text(encoding="utf-8").splitlines()]
    waiting = [mutant for mutant in mutants if mutant["id"] not in done]
    began = time.monotonic()
    unchanged: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(processes):
            (Path(folder) / str(number)).mkdir()
            trees.put(copy_tree(Path(folder) / str(number)))

        def run_mutant(mutant: dict[str, Any]) -> dict[str, Any] | None:
            if time.monotonic() - began > until:
                return None
            tree = trees.get()
            try:
                return try_mutant(mutant, choose_tests(mutant, coverage, seconds), tree, 60 + 5 * seconds, unchanged)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(processes) as pool, out.open("a", encoding="utf-8") as file:
            for number, row in enumerate(pool.map(run_mutant, waiting), 1):
                if row is not None:
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    sys.stderr.write(f"{number}/{len(waiting)} {row['outcome']:8s} {row['id']}\n")


def report(results: Path) -> str:
    """Return a table by part, and every survivor with its change or, if it is in equivalent.json, with the reason."""
    rows = [json.loads(row) for row in results.read_text(encoding="utf-8").splitlines()]
    entries = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    reasons = {(entry["path"], entry["before"], entry["after"]): entry["reason"] for entry in entries}
    for row in rows:
        row["reason"] = reasons.get((row["path"], row["before"], row["after"]))
        if row["outcome"] == "survived" and row["reason"] is not None:
            row["outcome"] = "equivalent"
    lines = ["| part | mutants | killed | timeout | equivalent | survived |", "|---|---|---|---|---|---|"]
    for part in (*PARTS, "all"):
        outcomes = Counter(row["outcome"] for row in rows if part in ("all", row["part"]))
        counts = [outcomes[outcome] for outcome in ("killed", "timeout", "equivalent", "survived")]
        lines.append(f"| {part} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    lines.append("")
    for row in rows:
        if row["outcome"] == "survived":
            lines += [f"- {row['id']} ({row['tests']} tests)", f"  - `{row['before']}`", f"  - `{row['after']}`"]
    lines += ["", *(f"- equivalent: {row['id']}: {row['reason']}" for row in rows if row["outcome"] == "equivalent")]
    for entry in entries:
        path = ROOT / entry["path"]
        if not path.exists() or entry["before"] not in map(str.strip, path.read_text(encoding="utf-8").splitlines()):
            lines.append(f"- the entry of {EQUIVALENT.name} is stale, its line has changed: {entry['path']}: `{entry['before']}`")
    return "\n".join(lines)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    choosing = commands.add_parser("choose")
    choosing.add_argument("--count", type=int, default=200)
    choosing.add_argument("--seed", type=int, required=True)
    choosing.add_argument("--out", type=Path, required=True)
    covering = commands.add_parser("cover")
    covering.add_argument("--processes", type=int, default=2)
    covering.add_argument("--until", type=float, default=1e9, help="seconds after which no further test is started")
    covering.add_argument("--out", type=Path, required=True)
    covering.add_argument("select", nargs="*", help="tests; all of them when none is named")
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("--coverage", type=Path, nargs="+", required=True, help="files that `cover` wrote")
    running.add_argument("--processes", type=int, default=2)
    running.add_argument("--seconds", type=float, default=60, help="of tests to try on a mutant")
    running.add_argument("--until", type=float, default=float("inf"), help="seconds after which no further mutant is tried")
    running.add_argument("--out", type=Path, required=True)
    reporting = commands.add_parser("report")
    reporting.add_argument("results", type=Path)
    given = parser.parse_args()
    if given.command == "choose":
        choose(given.count, given.seed, given.out)
    elif given.command == "cover":
        cover(given.processes, given.select, given.until, given.out)
    elif given.command == "run":
        run(given.mutants, given.coverage, given.processes, given.seconds, given.until, given.out)
    else:
        sys.stdout.write(report(given.results) + "\n")


if __name__ == "__main__":
    main()
