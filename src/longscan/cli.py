"""The command `longscan`: train, sweep, eval, predict, record, automata, tasks, layers, report.

Each command is a function of its words that returns an exit code. What a user can mend (a setting, a file, a directory) is said
in one line on stderr with exit code 2; a run whose loss left the finite numbers ends with 1, an interrupted one with 130.
Packages outside the standard library are imported where they are used, so that one that is not installed is said in a line too.
"""

import csv
import inspect
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import longscan
from longscan._errors import SettingError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace
    from rich.console import Console
    from rich.table import Table

RESUMABLE = ("train", "sweep")
# What torch says, in a RuntimeError of its own, where the CPU's or a GPU's memory does not suffice.
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|Storage size calculation overflowed")
WIDE = 130  # columns of a terminal that holds all that there is to say of a task


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that the words name (the process's own where None) and return its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    name = words[0] if words else "--help"
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "longscan"):
            raise
        _complain(f"longscan {name} needs the package {package}, which is not installed: pip install 'longscan[train,data]'")
        return 2
    except (SettingError, ImportError) as error:  # ImportError: one that says itself which package to install
        _complain(str(error))
        return 2
    except SystemExit as stop:  # jsonargparse leaves this way after --help
        return int(stop.code or 0)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error))):
            raise
        _complain(f"{name} needs more memory than there is here: make the model, batches, lengths or splits smaller")
        return 2
    except KeyboardInterrupt:
        advice = f"; `longscan {name} --resume` goes on from the last checkpoint" if name in RESUMABLE else ""
        sys.stderr.write(f"longscan: stopped{advice}\n")
        return 130
    except BrokenPipeError:  # who read our output has left; Python would flush the rest at its exit and fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        _help()
        return 0 if words else 2
    if words[0] == "--version":
        sys.stdout.write(f"longscan {longscan.__version__}\n")
        return 0
    if words[0] not in COMMANDS:
        raise SettingError(f"{words[0]}: unknown command, needed one of {', '.join(COMMANDS)}")
    return COMMANDS[words[0]](words[1:])


def _complain(text: str) -> None:
    """A line on stderr, red on a terminal; without rich, which may be what is missing."""
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    sys.stderr.write(f"{red}longscan: {text}{plain}\n")


@cache
def _out() -> "Console":
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


@cache
def _err() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def _show(table: "Table") -> None:
    """Print a table: within the terminal, with cells that fold; elsewhere plain rows, each as long as it needs."""
    from rich.console import Console

    if _out().is_terminal:
        _out().print(table, soft_wrap=False)
        return
    if table.title:
        _out().print(table.title)
    table.title, table.box, table.show_lines, table.pad_edge = None, None, False, False
    whole = Console(width=100_000, file=io.StringIO(), highlight=False)
    with whole.capture() as captured:
        whole.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def train_command(words: Sequence[str]) -> int:
    """Train a model, test it and write its report."""
    from longscan.training import check_target, parse_settings, train
    from longscan.training.parsing import read_yaml
    from longscan.training.run import SETTINGS, Run

    parser = _parser("train", train_command)
    parser.add_argument("--out", type=str, help="directory of the run")
    parser.add_argument("--steps", type=int, help="stands for --training.steps")
    parser.add_argument("--checkpoint-every", type=int, help="stands for --training.checkpoint_every")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--overwrite", action="store_true", help="remove the run that --out holds")
    parser.add_argument("--record", type=str, help="append the result to this file of records")
    base = None
    folder = _early(words, "--out")
    if folder is None and not {"-h", "--help"} & set(words):
        raise SettingError("--out: got nothing, needed the directory of the run")
    if "--resume" in words and folder is not None:
        base = read_yaml(Run(folder).folder / SETTINGS)
    parsed = parse_settings(words, parser, base)
    command = parsed.command
    if command.resume and command.overwrite:
        raise SettingError("--resume: got --overwrite beside it, needed one of the two")
    if command.record is not None:
        check_target(command.record)
    run = train(
        parsed.settings,
        command.out,
        resume=command.resume,
        overwrite=command.overwrite,
        progress=True,
        command=shlex.join(["longscan", "train", *words]),
    )
    if int(os.environ.get("RANK", "0")):  # under torchrun the first process speaks for all
        return 0
    if command.record is not None:
        _record(run, command.record)
    return _say_result(run)


def _say_result(run: Any) -> int:
    result = run.result
    if result["status"] == "failed":
        _err().print(f"failed: {result['failure']}; the report is {run.folder / 'report.html'}", style="red", markup=False)
        return 1
    _out().print(f"test {result['metric']}: {result['value']:.4f} (scaled {result['scaled']:.4f}, weights: {result['selected']})")
    _out().print(f"best constant predictor: {result['constant']:.4f} (scaled {result['constant_scaled']:.4f})")
    _out().print(f"report: {run.folder / 'report.html'}", markup=False)
    return 0


def sweep_command(argv: Sequence[str]) -> int:
    """Search settings by validation scores and test the best over seeds, with many workers; `--seeds` alone repeats a recipe."""
    from longscan.training import SweepConfig, check_target, parse_settings, run_sweep
    from longscan.training.space import read_config, read_sweep_file

    parser = _parser("sweep", sweep_command)
    parser.add_argument("file", type=str, nargs="?", help="sweep file: config, space, sampler, trials, seeds; comes first")
    parser.add_argument("--out", type=str, help="folder of the sweep, with a run's directory for each trial and seed")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with one run at a time; 0 only writes the folder")
    parser.add_argument("--sampler", type=str, help="grid, random or tpe")
    parser.add_argument("--trials", type=int, help="settings that random and tpe try")
    parser.add_argument("--search-seeds", type=int, help="runs of each setting in the search")
    parser.add_argument("--seeds", type=int, help="tested runs of the best setting")
    parser.add_argument("--steps", type=int, help="stands for --training.steps")
    parser.add_argument("--checkpoint-every", type=int, help="stands for --training.checkpoint_every")
    parser.add_argument("--storage", type=str, help="database URL for Optuna; a file in --out without it")
    parser.add_argument("--resume", action="store_true", help="go on with the sweep in --out, or help with it from here")
    parser.add_argument("--record", type=str, help="append the tested runs to this file of records")
    folder = _early(argv, "--out")
    if folder is None and not {"-h", "--help"} & set(argv):
        raise SettingError("--out: got nothing, needed the folder of the sweep")
    resumed = folder is not None and "--resume" in argv
    plain: dict[str, Any] = read_config(Path(folder or ""))[1].as_dict() if resumed else {}
    if argv and not argv[0].startswith("-"):
        plain |= read_sweep_file(argv[0], quick="--quick" in argv)
    parsed = parse_settings(argv, parser, plain.pop("settings", None))
    given = parsed.command
    names = ("sampler", "trials", "search_seeds", "seeds", "storage")
    plain |= {name: given[name] for name in names if given[name] is not None}
    if not resumed:
        plain["command"] = shlex.join(["longscan", "sweep", *argv])
    config = SweepConfig(settings=parsed.settings, **plain)
    if given.record is not None:
        check_target(given.record)

    def echo(line: str) -> None:
        _err().print(line, markup=False)

    sweep = run_sweep(config, given.out, resume=given.resume, workers=given.workers, echo=echo)
    found = sweep.result()
    _show_sweep(found)
    if given.record is not None:
        for run in sweep.unrecorded(given.record):
            _record(run, given.record)
    _out().print(f"report: {sweep.folder / 'report.html'}", markup=False)
    if found["status"] != "finished":
        _err().print("longscan: not over; `longscan sweep --resume` goes on", style="red", markup=False)
        return 1 if given.workers else 0
    return 0 if found["test"] or (found["best"] and not found["seeds"]) else 1


def _show_sweep(found: dict[str, Any]) -> None:
    """The trials, best first, and the test over seeds."""
    from rich.markup import escape
    from rich.table import Table

    from longscan.report.sweep import best_first, failures, setting_text, settings_text
    from longscan.report.text import mean_text, show

    metric, best, test = found["metric"], found["best"], found["test"]
    if found["trials"]:
        names = [", ".join(name.rpartition(".")[2] for name in key.split(",")) for key in found["space"]]
        table = Table("trial", *names, f"validation {metric}", "constant", "status", title=f"sweep, {found['task']}")
        for row in best_first(found):
            values = [escape(setting_text(row["settings"][key])) if key in row["settings"] else "" for key in found["space"]]
            table.add_row(str(row["trial"]), *values, show(row["score"]), show(row["constant"]), row["status"])
        _show(table)
    for line in (*failures(found["trials"], "trial"), *failures(found["seeds"], "seed")):
        _out().print(line, markup=False)
    if best is not None:
        said = f"trial {best['trial']}, {metric} {best['score']:.4f} ({settings_text(best['settings'])})"
        _out().print(f"best on validation: {said}", markup=False)
    if test is not None:
        mean = mean_text((test["mean"], test["half_width"]), 4)
        _out().print(f"test {metric}: {mean} over {test['count']} seeds (scaled {test['scaled']:.4f}), {test['failed']} failed")
        _out().print(f"best constant predictor: {test['constant']:.4f}")


def eval_command(words: Sequence[str]) -> int:
    """Score a run's model on a split."""
    from rich.table import Table

    from longscan.training import Run

    parser = _parser("eval", eval_command)
    parser.add_argument("run", type=str, help="directory of the run")
    parser.add_argument("--split", type=str, default="test", help="train, valid or test")
    parser.add_argument("--checkpoint", type=str, default="selected", help="selected, last, best or average")
    parser.add_argument("--by-length", action="store_true", help="also show the score by length of the input")
    given = _parse(parser, words)
    if (Path(given.run) / "automaton.json").is_file():
        return _eval_automaton(given)
    run = Run(given.run)
    scores = run.evaluate(given.split, given.checkpoint)
    task = run.settings.task
    table = Table("metric", "value", title=f"{given.run}, {given.split} split, weights: {given.checkpoint}")
    table.add_row("loss", f"{scores.loss:.4f}")
    buckets = {name: value for name, value in scores.values.items() if "/" in name}
    if given.by_length and not buckets:
        raise SettingError(f"--by-length: task {task.name} has no scores by length")
    for name, value in scores.values.items():
        if name not in buckets or given.by_length:
            table.add_row(name, "none" if value is None else f"{value:.4f}")
    main_value = scores.values[task.metric]
    if main_value is not None:
        table.add_row(f"{task.metric}, scaled", f"{task.scaled(main_value):.4f}")
    table.add_row(f"{task.metric} of the best constant predictor", f"{task.constant_score(given.split):.4f}")
    _show(table)
    return 0


def _eval_automaton(given: "Namespace") -> int:
    """Score a model that `longscan automata --save` wrote, on all short words and on long random ones."""
    from rich.table import Table

    from longscan.automata import load
    from longscan.automata.scoring import scores

    if given.split != "test" or given.checkpoint != "selected":
        raise SettingError(f"{given.run}: a compiled model has no splits and no checkpoints, needed neither of these words")
    try:
        compiled = load(given.run)
    except (ValueError, OSError) as error:
        raise SettingError(" ".join(str(error).split())) from error
    table = Table("words", "answers right", "states right", "best constant answer", title=f"{given.run}, after each letter")
    for row in scores(compiled):
        table.add_row(row.words, f"{row.accuracy:.6f}", f"{row.states:.6f}", f"{row.constant:.4f}")
    _show(table)
    _out().print(str(compiled.verify()), markup=False)
    return 0


def automata_command(words: Sequence[str]) -> int:
    """Compile a regular expression or a named language into a model with exact weights."""
    from rich.table import Table

    from longscan import automata
    from longscan.automata.drawing import draw_model, write_dot
    from longscan.automata.scoring import random_words

    parser = _parser("automata", automata_command)
    parser.add_argument("pattern", type=str, nargs="?", help="regular expression with | * + ? ( ) and . for any letter")
    parser.add_argument("--alphabet", type=str, help="its letters; those of the pattern without it")
    parser.add_argument("--named", type=str, help="instead of a pattern: parity, mod K, Dyck depth K, S3, S4, A5, ...")
    parser.add_argument("--series", type=str, default="abelian", help="abelian, or prime for counters of prime length only")
    parser.add_argument("--phase", type=str, default="grid", help="grid, exact for every length, or float, the plain layer")
    parser.add_argument("--layout", type=str, default="minimal", help="minimal, am or ma: which blocks follow one another")
    parser.add_argument("--dtype", type=str, default="float32", help="float32 or float64")
    parser.add_argument("--backend", type=str, default="auto", help="of the model's ops: auto, reference, eager, cpu or triton")
    parser.add_argument("--length", type=int, help="refuse unless words of this length are certified")
    parser.add_argument("--picture", type=str, help="where to draw states and residual stream; automaton.png without it")
    parser.add_argument("--save", type=str, help="directory for the model, the picture and the graphs for Graphviz")
    parser.add_argument("--word", type=str, help="the word to draw and to print step by step; a random one is drawn without it")
    given = _parse(parser, words)
    if (given.pattern is None) == (given.named is None):
        raise SettingError("automata: needed exactly one of a regular expression and --named")
    try:
        dfa = automata.named(given.named) if given.named is not None else automata.from_regex(given.pattern, given.alphabet)
        report = automata.analyse(dfa)
        table = Table("", "", show_header=False, title=given.named or given.pattern)
        for row in report.rows():
            table.add_row(*row)
        _show(table)
        compiled = automata.compile(
            dfa, series=given.series, phase=given.phase, layout=given.layout, dtype=given.dtype, backend=given.backend,
            length=given.length,
        )  # fmt: skip
        letters = random_words(compiled, 1, 40, shun_sinks=True)[0].tolist()
        word = [compiled.dfa.alphabet[i] for i in letters] if given.word is None else given.word
        figure = draw_model(compiled, word)
        size = compiled.size
        _out().print(f"model: blocks {size.spec}, d_model {size.d_model}, {size.parameters:,} parameters", markup=False)
        _out().print(str(compiled.verify()), markup=False)
        folder = None if given.save is None else Path(given.save)
        picture = Path(given.picture or ("automaton.png" if folder is None else folder / "automaton.png"))
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=110)
        _out().print(f"picture: {picture}", markup=False)
        if folder is not None:
            compiled.save(folder)
            graph = write_dot(compiled, folder / "automaton.dot")
            _out().print(f"model: {folder}; graphs: {graph}", markup=False)
        if given.word is not None:
            _out().print(str(compiled.explain(word)), markup=False)
    except (ValueError, OSError) as error:
        raise SettingError(" ".join(str(error).split())) from error
    return 0


def predict_command(words: Sequence[str]) -> int:
    """Apply a run's model to the examples in a file, as a CSV table."""
    from longscan.training import Run

    parser = _parser("predict", predict_command)
    parser.add_argument("run", type=str, help="directory of the run")
    parser.add_argument("file", type=str, help="examples in the form that the task reads")
    parser.add_argument("--out", type=str, help="where to write the table; stdout without it")
    parser.add_argument("--checkpoint", type=str, default="selected", help="selected, last, best or average")
    parser.add_argument("--missing", type=str, help="refuse or fill missing values of series; as in training without it")
    given = _parse(parser, words)
    rows = Run(given.run).predict(given.file, given.checkpoint, given.missing)
    target = sys.stdout if given.out is None else _open_table(given.out)
    try:
        writer = csv.DictWriter(target, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    finally:
        if given.out is not None:
            target.close()
    return 0


def _open_table(path: str) -> Any:
    try:
        return Path(path).open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise SettingError(f"--out: {path} can not be written ({error.strerror})") from None


def record_command(words: Sequence[str]) -> int:
    """Append a run's result to a file of records, such as results/runs/parity.jsonl."""
    from longscan.training import Run

    parser = _parser("record", record_command)
    parser.add_argument("run", type=str, help="directory of the run")
    parser.add_argument("--results", type=str, required=True, help="JSON Lines file in a folder called runs")
    given = _parse(parser, words)
    _record(Run(given.run), given.results)
    return 0


def _record(run: Any, target: str) -> None:
    from longscan.training import record_run

    record_run(run, target)
    _out().print(f"recorded in {target}", markup=False)


def tasks_command(words: Sequence[str]) -> int:
    """List the tasks: what they ask, how large they are, what a constant answer scores, whether their data are available."""
    from longscan.tasks import TASKS
    from longscan.tasks.listing import task_facts

    parser = _parser("tasks", tasks_command)
    parser.add_argument("--settings", action="store_true", help="list the tasks' settings and defaults instead")
    given = _parse(parser, words)
    if given.settings:
        asked = sorted(TASKS.items())
        rows = [{"task": n, "what it asks": _first_line(t), "settings (default)": _defaults(t)} for n, t in asked]
        _show_rows(rows, ("task", "settings (default)"))
        return 0
    rows = []
    for name, task in sorted(TASKS.items()):
        found = task_facts(task())
        sizes = "" if found.sizes is None else " / ".join("endless" if size is None else f"{size:,}" for size in found.sizes)
        row = {"task": name, "what it asks": _first_line(task), "train / valid / test": sizes}
        for word, number in (("classes", found.classes), ("length", found.length)):
            row[word] = "" if number is None else str(number)
        about = "about " if found.available == "generated" else ""  # of a small set of the same kind
        row["constant"] = "" if found.constant is None else f"{found.metric} {about}{found.constant:.2g}"
        rows.append({**row, "source": found.source, "available": found.available})
    _show_rows(rows, ("task", "what it asks", "available"))
    areas = "uea, lra, forecasting, activity, events, dna"
    _out().print(f"Data: --data-dir FOLDER, or LONGSCAN_DATA with a folder an area ({areas}).")
    return 0


def _defaults(task: Any) -> str:
    """A task's settings and their defaults, in a line."""
    settings = []
    for f in fields(task):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        settings.append(f.name if default is MISSING else f"{f.name} ({default})")
    return ", ".join(settings)


def _show_rows(rows: Sequence[dict[str, str]], kept: Sequence[str]) -> None:
    """A table of tasks, names never cut; on a narrow terminal only the columns `kept`."""
    from rich.table import Column, Table

    narrow = _out().is_terminal and _out().width < WIDE
    names = [name for name in rows[0] if not narrow or name in kept]
    table = Table(*(Column(name, no_wrap=name == "task", overflow="fold") for name in names), show_lines=narrow)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    _show(table)
    if narrow:
        _out().print(f"More columns: in a terminal of {WIDE} columns, or with `| less -S`.", soft_wrap=False)


def show_command(words: Sequence[str]) -> int:
    """Draw examples of a task into a PNG file: `longscan show parity`; the task's settings follow as in train."""
    from longscan.tasks.pictures import draw_examples
    from longscan.training import parse_settings

    parser = _parser("show", show_command)
    parser.add_argument("--out", type=str, help="the picture; TASK.png without it")
    parser.add_argument("--split", type=str, default="train", help="train, valid or test")
    parser.add_argument("--count", type=int, default=6, help="how many examples")
    if words and not words[0].startswith("-"):
        words = ["--task", *words]
    parsed = parse_settings(words, parser)
    task, given = parsed.settings.task, parsed.command
    try:
        picture = draw_examples(task, given.out or f"{task.name}.png", split=given.split, count=given.count)
    except (ValueError, OSError) as error:
        raise SettingError(" ".join(str(error).split())) from error
    _out().print(f"picture: {picture}", markup=False)
    return 0


def baselines_command(words: Sequence[str]) -> int:
    """Score simple predictors on the test split of a run's task; `longscan record` then sets them beside the run."""
    from rich.table import Table

    from longscan.training import Run, write_baselines

    parser = _parser("baselines", baselines_command)
    parser.add_argument("run", type=str, help="directory of the run")
    parser.add_argument("--quick", action="store_true", help="leave out those that must be fitted")
    given = _parse(parser, words)
    run = Run(given.run)
    try:
        scores = write_baselines(run, fitted=not given.quick)
    except (ValueError, OSError) as error:
        raise SettingError(" ".join(str(error).split())) from error
    table = Table("predictor", run.settings.task.metric, title=f"{given.run}, test split")
    value = (run.result or {}).get("value")
    for name, score in {"this run": value, **scores}.items():
        if score is not None:
            table.add_row(name, f"{score:.4f}")
    _show(table)
    return 0


def layers_command(words: Sequence[str]) -> int:
    """List the names that a spec is made of, with the layers and blocks that they stand for and their properties."""
    from rich.table import Table

    from longscan.blocks import BLOCKS
    from longscan.layers import LAYERS
    from longscan.models import STANDARD_BLOCKS, find_block

    _parse(_parser("layers", layers_command), words)
    properties = ("causal", "streaming", "irregular", "changes_length", "batch_independent")
    table = Table("name in a spec", "layer", "block", "description", "properties")
    for name in sorted({*STANDARD_BLOCKS, *LAYERS}):
        layer, block = find_block(name)
        kinds: list[type[Any]] = [LAYERS[layer]] if layer else []
        kinds += [BLOCKS[block]] if block else []
        held = [flag for flag in properties if flag != "changes_length" and all(getattr(kind, flag) for kind in kinds)]
        held += ["changes_length"] if any(kind.changes_length for kind in kinds) else []
        described = BLOCKS[block] if block in ("bidirectional", "feed_forward") else kinds[0]
        table.add_row(name, layer or "none", block or "none", _first_line(described), ", ".join(held).replace("_", " "))
    _show(table)
    pairs = f"block[layer], such as mamba[s4d], combines any layer with a block: {', '.join(sorted(BLOCKS))}"
    _out().print(f"{pairs}\nin a word of m and a, m is mamba and a is aussm", markup=False)
    return 0


def explain_command(words: Sequence[str]) -> int:
    """Say which backend runs each op of a run's model on this machine, and what is torch's own."""
    from longscan._devices import find_device
    from longscan.ops import explain
    from longscan.training import Run

    parser = _parser("explain", explain_command)
    parser.add_argument("run", type=str, help="directory of the run")
    parser.add_argument("--device", type=str, default="cpu", help="cpu, cuda, cuda:1, ...")
    given = _parse(parser, words)
    try:
        device = find_device(given.device, "--device")
    except ValueError as error:
        raise SettingError(str(error)) from None
    model = Run(given.run).model().to(device)
    _out().print(str(explain(model)), markup=False, highlight=False, soft_wrap=True)
    return 0


def report_command(words: Sequence[str]) -> int:
    """Write the report of a run, or of a directory of results beside the published figures."""
    from longscan.report import fill_markdown, results_report, run_report, sweep_report
    from longscan.training.run import holds_run

    parser = _parser("report", report_command)
    parser.add_argument("folder", type=str, default="results", nargs="?", help="directory of a run, a sweep, or of results")
    parser.add_argument("--out", type=str, help="where to write the page of results; report.html in the folder without it")
    parser.add_argument("--markdown", type=str, help="instead, put the tables of results between the marks of this Markdown file")
    given = _parse(parser, words)
    folder = Path(given.folder)
    try:
        if holds_run(folder) or (folder / "sweep.json").is_file():
            for word in ("out", "markdown"):
                if given[word] is not None:
                    raise SettingError(f"--{word}: got {given[word]!r}, needed none, as a run's report stands in its directory")
            page = run_report(folder) if holds_run(folder) else sweep_report(folder)
        elif given.markdown is not None:
            page = fill_markdown(given.markdown, folder)
        elif folder.is_dir():
            page = results_report(folder, Path(given.out) if given.out else folder / "report.html")
        else:
            raise SettingError(f"{folder}: no such directory, needed a run's or one of results")
    except (ValueError, OSError) as error:
        raise SettingError(" ".join(str(error).split())) from error
    _out().print(f"report: {page}", markup=False)
    return 0


def doctor_command(words: Sequence[str]) -> int:
    """Try every kernel on this machine, forward and backward, against float64; `auto` goes by what it finds."""
    import torch
    from rich.table import Table

    from longscan._devices import find_device
    from longscan.doctor import doctor, kernels

    parser = _parser("doctor", doctor_command)
    parser.add_argument("--device", type=str, help="cpu, cuda, cuda:1, ...; all that there are without it")
    given = _parse(parser, words)
    found = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    try:
        devices = [find_device(name, "--device") for name in ([given.device] if given.device else found)]
    except ValueError as error:
        raise SettingError(str(error)) from None
    faults = 0
    for device in devices:
        if not list(kernels(device)):
            _out().print(f"{device}: no native kernels, ops run on the eager backend")
            continue
        table = Table("kernel", "calls", "worst: call, result", "error", "allowed", "verdict", title=f"kernels on {device}")
        for findings in doctor(device):
            faulty = [finding for finding in findings if finding.fault]
            faults += len(faulty)
            worst = faulty[0] if faulty else max(findings, key=lambda finding: finding.error / finding.allowed)
            table.add_row(
                f"{worst.op}, {worst.backend}", str(len(findings)), f"{worst.call}, {worst.worst}", f"{worst.error:.1e}",
                f"{worst.allowed:.1e}", f"{len(faulty)} faults; {worst.fault}" if faulty else "passed",
            )  # fmt: skip
        _show(table)
    _out().print(f"{faults} faults: `auto` will not take these kernels here" if faults else "no fault found")
    return 1 if faults else 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train_command,
    "sweep": sweep_command,
    "eval": eval_command,
    "predict": predict_command,
    "record": record_command,
    "automata": automata_command,
    "tasks": tasks_command,
    "show": show_command,
    "baselines": baselines_command,
    "layers": layers_command,
    "report": report_command,
    "doctor": doctor_command,
    "explain": explain_command,
}


def _help() -> None:
    from rich.table import Table

    table = Table("command", "what it does", title="longscan: state space models for long sequences", title_justify="left")
    for name, command in COMMANDS.items():
        table.add_row(name, _first_line(command))
    _show(table)
    _out().print(
        "`longscan COMMAND --help` lists a command's words; `longscan train --task NAME --help` also the settings of a task."
    )


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _parser(name: str, command: Callable[[Sequence[str]], int]) -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    return ArgumentParser(prog=f"longscan {name}", description=_first_line(command), exit_on_error=False, allow_abbrev=False)


def _parse(parser: "ArgumentParser", words: Sequence[str]) -> "Namespace":
    from jsonargparse import ArgumentError

    from longscan.training.parsing import explain

    try:
        return parser.parse_args(list(words))
    except ArgumentError as error:
        raise SettingError(explain(str(error))) from None


def _early(words: Sequence[str], name: str) -> str | None:
    """The value of a word before the parser is built."""
    for position, word in enumerate(words):
        if word == name and position + 1 < len(words):
            return words[position + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None
