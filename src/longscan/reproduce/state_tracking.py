"""State tracking: models that learn the word problems of seven groups, next to the models that are compiled for them.

The words are those of `longscan.reproduce.word_problems`: a model reads one and predicts after each letter the product of the
letters so far. Seed S trains on the stream of seed S, and all models are tested on the same 500 words of 512 letters.

Every model has the same width, updates and training words, and at most `MAX_PARAMETERS` parameters; a row has its number. A
solvable group has a compiled model in addition, whose certificate says for which words its answers are right. Nothing is chosen:
there is one setting for all models, and no validation split.

The folder of the runs:

automata/state_tracking.jsonl                 a row for each model and seed that is trained, and for each compiled model
state-tracking/GROUP/MODEL/UPDATES/seed_0.pt  the weights and the optimiser of a training that was stopped
state-tracking/GROUP/MODEL/UPDATES/seed_0.txt what its processes printed
"""

import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longscan import automata
from longscan._errors import SettingError, count_text, setting_error
from longscan._files import lock_file
from longscan.engine import Callback, Engine, NonFiniteLossError, StepResult
from longscan.engine.graphed_step import make_capturable
from longscan.models import SequenceModel, optimizer_groups
from longscan.report.page import duration_text
from longscan.report.records import Record, append_record, read_records
from longscan.reproduce.remaining import RemainingTime, RunProgress, TrainingLog, cpu_seconds
from longscan.reproduce.word_problems import (
    CHECKSUMS,
    GROUPS,
    MAX_NUMBER,
    MAX_SEED,
    random_words,
    score_fields,
    scored_words,
    word_problem,
)
from longscan.training.processes import GRACE, Ended, Job, run_jobs, run_locked, stop_signals, visible_gpus
from longscan.training.run import commit, device_name

NAME = "state-tracking"  # the target of `longscan reproduce`
RECORDS = "automata/state_tracking.jsonl"
LOCK = "state-tracking.lock"
UNUSED_FOLDER = "a folder in which no other process runs"  # what a locked folder must be, in errors
WIDTH = 64  # d_model
MIN_STATES = 16
UPDATES = 2500
BATCH_SIZE = 256  # words of an update
TRAIN_LENGTH = 40  # letters of a training word
LEARNING_RATE = 2e-3  # highest learning rate
WEIGHT_DECAY = 0.01
MAX_NORM = 1.0  # norm to which the gradient is clipped
WARMUP = 0.05  # share of the updates in which the learning rate rises; then it falls along half a cosine to 0
MAX_PARAMETERS = 256_000
SEEDS = 3
SCORING_BATCH = 50  # test words
PRINT_EVERY = 250  # updates
PRINT_SECONDS = 5.0  # between two lines of slower updates
COMPILED = "compiled"
TABLE_LENGTHS = (40, 128, 512)
LONGEST = max(TABLE_LENGTHS)


class _FlaLayer(nn.Module):
    """A layer of the package flash-linear-attention as a residual block: x + layer(norm(x)), in bfloat16 as its kernels need."""

    def __init__(self, name: str, index: int, **options: Any) -> None:
        super().__init__()
        from fla import layers

        self.norm = nn.RMSNorm(WIDTH)
        self.layer = getattr(layers, name)(hidden_size=WIDTH, num_heads=2, layer_idx=index, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (B, L, D) of the block."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return x + self.layer(self.norm(x))[0].to(x.dtype)


def _fla_model(name: str, letters: int, elements: int, **options: Any) -> nn.Module:
    """Return two blocks with a layer of flash-linear-attention between an embedding of the letters and a linear map."""
    blocks = [_FlaLayer(name, index, allow_neg_eigval=True, **options) for index in range(2)]
    return nn.Sequential(nn.Embedding(letters, WIDTH), *blocks, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, elements))


def _pdssm_states(elements: int) -> int:
    """Return the number of states of PD-SSM for a group of a number of elements."""
    return max(MIN_STATES, elements)


@cache
def _elements(group: str) -> int:
    """Return the number of elements of a group."""
    return word_problem(group).size


def _own_model(spec: str, letters: int, elements: int) -> nn.Module:
    """Return a model of this package's blocks. PD-SSM gets a state for each element of the group."""
    d_state = _pdssm_states(elements) if spec == "pdssm" else MIN_STATES
    return SequenceModel.from_spec(spec, d_model=WIDTH, d_state=d_state, d_output=elements, pooling="none", vocab_size=letters)


class Entry(NamedTuple):
    """A model of the table.

    Attributes:
        blocks: its spec, or the name of a layer of another package, as the rows have it.
        build: function from the numbers of letters and of elements to the model.
        package: package that it needs besides those of this one; None for none.
        limit: where it cannot be trained, for the report; empty if it can be trained everywhere.
    """

    blocks: str
    build: Callable[[int, int], nn.Module]
    package: str | None = None
    limit: str = ""


def _own_entry(spec: str) -> Entry:
    return Entry(spec, lambda letters, elements: _own_model(spec, letters, elements))


def _fla_entry(name: str, blocks: str, limit: str = "", **options: Any) -> Entry:
    return Entry(
        blocks, lambda letters, elements: _fla_model(name, letters, elements, **options), "flash-linear-attention", limit
    )


MODELS = {
    "pdssm": _own_entry("pdssm"),
    "aussm": _own_entry("aussm*2"),
    "mamba": _own_entry("mamba*2"),
    "s4d": _own_entry("s4d*2"),
    "gated_deltanet": _own_entry("gated_deltanet*2"),
    "gru": _own_entry("gru"),
    "fla_gated_deltanet": _fla_entry(
        "GatedDeltaNet",
        "fla GatedDeltaNet*2, negative eigenvalues",
        "on the Hopper GPUs of these rows, with Triton 3.6.0, version 0.6.0 stops in the backward pass with the error `Triton >= "
        "3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results for gated chunk_bwd_dqkwg`",
        head_dim=32,
        expand_v=1,
    ),
    "fla_deltanet": _fla_entry("DeltaNet", "fla DeltaNet*2, negative eigenvalues"),
    "fla_deltaproduct": _fla_entry(
        "GatedDeltaProduct",
        "fla GatedDeltaProduct*2, 2 householders, negative eigenvalues, no forget gate",
        head_dim=32,
        expand_v=1,
        use_forget_gate=False,
    ),
}


def learning_rate(step: int, updates: int) -> float:
    """Return the share of the highest learning rate at an update: a linear rise, then half a cosine to 0."""
    return min(1.0, (step + 1) / (WARMUP * updates)) * (0.5 + 0.5 * math.cos(math.pi * step / updates))


class Batch(NamedTuple):
    """The words of an update and the states after their letters, both (B, L) int64."""

    words: Tensor
    states: Tensor


class Training:
    """The training of one model and seed, which continues from a file.

    Args:
        group, model, seed: names in GROUPS and MODELS, and the number of the seed.
        updates: number of updates.
        file: the state of a training that was stopped; removed when the training is over.
    """

    def __init__(self, group: str, model: str, seed: int, updates: int, file: Path, device: torch.device) -> None:
        self.group, self.name, self.seed, self.updates, self.file, self.device = group, model, seed, updates, file, device
        self.dfa = word_problem(group)
        torch.manual_seed(seed)
        self.model = MODELS[model].build(len(self.dfa.alphabet), self.dfa.size).to(device)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if self.parameters > MAX_PARAMETERS:
            raise RuntimeError(f"{model} must have at most {MAX_PARAMETERS:,} parameters for {group}, got {self.parameters:,}")
        self.optimizer = torch.optim.AdamW(optimizer_groups(self.model, weight_decay=WEIGHT_DECAY), lr=LEARNING_RATE)
        self.engine = Engine(
            self.optimizer,
            self._loss,
            learning_rate=lambda step, scale: LEARNING_RATE * scale * learning_rate(step, updates),
            clip_gradients=lambda: nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM),
            callbacks=[_Watch(self)],
        )
        self.seconds = 0.0
        if file.exists():
            self._load()
        if self._is_captured():
            self.engine.capture(device)

    def _is_captured(self) -> bool:
        """Return whether updates are captured as a CUDA graph. Kernels of other packages are tuned in the updates before it."""
        return self.device.type == "cuda"

    def _load(self) -> None:
        captured = self._is_captured()
        # AdamW reads its step counts from the CPU in updates that are not captured.
        state = torch.load(self.file, map_location=self.device if captured else "cpu", weights_only=True)
        if captured:
            make_capturable(self.optimizer, self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.engine.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """Write the file from which the training continues."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        torch.save(state | {"step": self.engine.step, "seconds": self.seconds}, part)
        part.replace(self.file)

    def _loss(self, batch: Batch) -> tuple[Tensor, None]:
        return cross_entropy(self.model(batch.words).flatten(0, 1), batch.states.flatten()), None

    def batch(self, step: int) -> Batch:
        """Return the words and states of an update."""
        numbers = np.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        words = random_words(len(self.dfa.alphabet), "train", self.seed, numbers, TRAIN_LENGTH)
        return Batch(*(torch.from_numpy(x).to(self.device) for x in (words, self.dfa.run(words))))

    def run(self) -> Record | None:
        """Train, score and return the row; None if a signal stopped the training, which `save` has saved then.

        A loss that is not finite ends the training, and is what the row says in place of scores.
        """
        began, before = time.perf_counter(), self.seconds
        try:
            for step in range(self.engine.step, self.updates):
                self.engine.update(self.batch(step))
                self.seconds = before + time.perf_counter() - began
                if self.engine.stop_requested:
                    self.save()
                    return None
            self.engine.finish()
        except NonFiniteLossError as error:
            outcome: dict[str, Any] = {"refused": str(error)}
        else:
            outcome = self.scores()
        return {
            "case": self.group,
            "blocks": MODELS[self.name].blocks,
            "seed": self.seed,
            "steps": self.updates,
            "train_length": TRAIN_LENGTH,
            "d_model": WIDTH,
            "batch": BATCH_SIZE,
            "rate": LEARNING_RATE,
            "elements": self.dfa.size,
            "parameters": self.parameters,
            "checksum": CHECKSUMS[self.group]["test"],
            "seconds": round(self.seconds, 1),
            **outcome,
            **_provenance(f"{self.group}/{self.name}", self.updates, self.device),
        }

    @torch.no_grad()
    def scores(self) -> dict[str, Any]:
        """Return the scores on the test words."""
        words = scored_words(self.dfa)
        parts: list[Tensor] = []
        for first in range(0, len(words), SCORING_BATCH):
            part = torch.from_numpy(words[first : first + SCORING_BATCH])
            parts.append(self.model.eval()(part.to(self.device)).argmax(-1).cpu())
        return score_fields(torch.cat(parts) == torch.from_numpy(self.dfa.run(words)))


class _Watch(Callback):
    """Prints the loss and stops the training after a signal of `stop_signals`."""

    def __init__(self, training: Training) -> None:
        self.training, self.signalled, self.printed = training, False, time.monotonic()
        for number in stop_signals():
            signal.signal(number, self._on_signal)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        self.signalled = True

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Stop the engine after a signal, and print the loss now and then."""
        engine.stop_requested = self.signalled
        is_due = engine.step % PRINT_EVERY == 0 or time.monotonic() - self.printed > PRINT_SECONDS
        if is_due or engine.step == self.training.updates:
            self.printed = time.monotonic()
            engine.raise_if_not_finite()
            sys.stdout.write(f"update {engine.step}: loss {float(result.loss):.4f}, {self.training.seconds:.0f} s\n")
            sys.stdout.flush()


def _provenance(target: str, updates: int, device: torch.device) -> dict[str, str]:
    """Return the fields of a row that say where it comes from."""
    return {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": device_name(device),
        "torch": torch.__version__,
        "command": f"longscan reproduce {NAME}/{target}" + (f" --updates {updates}" if updates not in (0, UPDATES) else ""),
    }


def compiled_row(group: str) -> Record:
    """Return the row of the model that is compiled for a group, or that none can be, with the certificate and its depth."""
    dfa = word_problem(group)
    row = {"case": group, "change": COMPILED, "elements": dfa.size, "checksum": CHECKSUMS[group]["test"]}
    row |= _provenance(f"{group}/{COMPILED}", 0, torch.device("cpu"))
    try:
        compiled = automata.compile(dfa, minimise=False)
    except automata.NonSolvableError as error:
        return row | {"refused": str(error)}
    words = scored_words(dfa)
    found = compiled.states(torch.from_numpy(words))
    (holonomy,) = compiled.report.holonomy
    return row | {
        "seed": 0,
        "derived_length": len(holonomy.series),
        "layers": compiled.size.spec.count("a"),
        "blocks": compiled.size.spec,
        "d_model": compiled.size.d_model,
        "parameters": compiled.size.parameters,
        "certificate": str(compiled.verify()),
        **score_fields(found == torch.from_numpy(dfa.run(words))),
    }


class Planned(NamedTuple):
    """A training to run: names of the group and of the model, seed and updates."""

    group: str
    model: str
    seed: int
    updates: int

    @property
    def name(self) -> str:
        """Target and seed."""
        return f"{NAME}/{self.group}/{self.model}/seed_{self.seed}"

    @property
    def cpu_seconds(self) -> float:
        """Expected seconds of an update on one core of a CPU."""
        return cpu_seconds(self.model, _pdssm_states(_elements(self.group)))

    def path(self, out: Path, suffix: str) -> Path:
        """Return the path of a file of this training in the folder of the runs."""
        return out / NAME / self.group / self.model / str(self.updates) / f"seed_{self.seed}{suffix}"

    def is_recorded(self, rows: Sequence[Record]) -> bool:
        """Whether one of the rows is of this training."""
        wanted = {"case": self.group, "blocks": MODELS[self.model].blocks, "seed": self.seed, "steps": self.updates}
        return any(wanted.items() <= row.items() for row in rows)


def find_targets(target: str, names: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return pairs of a group and a model for `state-tracking[/GROUP[/MODEL]]`, reduced to those that `names` name.

    A name is GROUP, GROUP/MODEL or MODEL. Raises SettingError with the nearest name for others.
    """
    pairs = [(group, model) for group in GROUPS for model in (*MODELS, COMPILED)]

    def select(name: str, argument: str) -> list[tuple[str, str]]:
        found = [pair for pair in pairs if name in ("/".join(pair), *pair)]
        if not found:
            near = get_close_matches(name, [*GROUPS, *MODELS, COMPILED, *("/".join(pair) for pair in pairs)], 1, 0.4)
            needed = f"a group ({', '.join(GROUPS)}), a model ({', '.join(MODELS)}, {COMPILED}) or GROUP/MODEL"
            raise SettingError(f"{setting_error(argument, name, needed)}" + (f"; did you mean {near[0]}?" if near else ""))
        return found

    below = target.removeprefix(NAME).strip("/")
    selected = select(below, "target") if below else pairs
    if not names:
        return selected
    named = [pair for name in names for pair in select(name, "--rows")]
    return [pair for pair in dict.fromkeys(named) if pair in selected]


def missing_package(model: str) -> str | None:
    """Return the package that a model needs and that is not installed, None if there is nothing missing."""
    return MODELS[model].package if MODELS[model].package is not None and find_spec("fla") is None else None


_PROGRAM = """
import sys
from longscan.reproduce.state_tracking import train_one
from longscan.training.processes import stop_with_parent
stop_with_parent()
sys.exit(train_one(sys.argv[1]))
"""


def _command(planned: Planned, out: Path, _: float) -> list[str]:
    """Return the command of the process of a training."""
    return [sys.executable, "-c", _PROGRAM, json.dumps([*planned, str(out)])]


def train_one(argument: str) -> int:
    """Train the model that `run` wrote into the argument and add its row; return the exit status of the process."""
    *names, out = json.loads(argument)
    planned = Planned(*names)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    file = planned.path(Path(out), ".pt")

    def train() -> int:
        if planned.is_recorded(read_rows(out)):  # by a process that trained it until now
            return 0
        row = Training(planned.group, planned.model, planned.seed, planned.updates, file, device).run()
        if row is None:
            return 128 + signal.SIGINT
        append_record(Path(out) / RECORDS, row)
        file.unlink(missing_ok=True)
        return 0

    return run_locked([file], train)


def run(
    pairs: Sequence[tuple[str, str]],
    out: str | Path,
    *,
    seeds: int = SEEDS,
    updates: int = UPDATES,
    minutes: float = math.inf,
    per_device: int | None = None,
    echo: Callable[[str], object] = lambda _: None,
    on_failure: Callable[[str], object] = lambda _: None,
    on_progress: Callable[[RunProgress], object] = lambda _: None,
) -> list[Planned]:
    """Train models in parallel, add rows for those that are over and for the compiled ones, and return what is left.

    Args:
        pairs: names of a group and a model each; the compiled models come first, then seed 0 of all others in this order.
        out: folder of the runs, created if needed; trainings in it are continued.
        seeds, updates: seeds of each model, from 0, and updates of the weights.
        minutes: limit after which all trainings save their state and end.
        per_device: processes on a GPU (8), or on the CPU (one for each core).
        echo: called with a line for each package that is missing, with lines that say how many models are trained and where their
            outputs are, how long the trainings will take on a CPU, and with a line for each row.
        on_failure: called with the name of each training that ends without scores, or whose process ends with an error before it.
        on_progress: called with what is left, twice a second while models are trained.
    """
    began, out = time.monotonic(), Path(out)
    _check_limits(seeds, updates, minutes)
    out.mkdir(parents=True, exist_ok=True)
    with lock_file(out / LOCK, setting_error("--out", str(out), UNUSED_FOLDER)):
        rows = read_rows(out)
        _add_compiled_rows([group for group, model in pairs if model == COMPILED], rows, out, echo)
        trained = _select_installed([(group, model) for group, model in pairs if model != COMPILED], echo)
        plan = [Planned(group, model, seed, updates) for seed in range(seeds) for group, model in trained]
        plan = [one for one in plan if not one.is_recorded(rows)]
        by_name = {one.name: one for one in plan}

        def on_end(ended: Ended) -> None:
            one = by_name[ended.name]
            found = [row for row in read_rows(out) if one.is_recorded([row])]
            if "refused" in found[-1] if found else ended.has_failed:
                on_failure(one.name)
            if found:
                echo(f"{one.name}: {_result_text(found[-1])}")
            elif not ended.has_failed:
                echo(f"{one.name}: stopped before update {updates:,}")
            else:
                log = one.path(out, ".txt")
                line = _error_line(log.read_text("utf-8", errors="replace"))
                echo(f"{one.name}: ended with code {ended.status}: {line} ({log})")

        jobs = [Job(one.name, one.path(out, ".txt"), partial(_command, one, out)) for one in plan]
        gpus = visible_gpus()
        parallel = per_device or (8 if gpus else os.cpu_count() or 1)
        if jobs:
            most = parallel * max(1, len(gpus))
            echo(f"models to train: {len(jobs)}, at most {most} at a time; each prints a line when it ends")
            echo(f"their losses until then are in {jobs[0].log} and the files next to it")
        if not gpus and any(one.cpu_seconds for one in plan):
            echo(_cost_text(plan))
        parts = [TrainingLog(one.path(out, ".txt"), updates, one.cpu_seconds if not gpus else 1.0) for one in plan]
        remaining = RemainingTime(parts)
        limit = 60 * minutes - (time.monotonic() - began)
        run_jobs(jobs, gpus or [""], parallel, limit, on_end, lambda: on_progress(remaining.estimate()))
        rows = read_rows(out)
        return [one for one in plan if not one.is_recorded(rows)]


def _check_limits(seeds: int, updates: int, minutes: float) -> None:
    """Raise SettingError if the time is too short to save checkpoints, or if there are not enough words."""
    if 60 * minutes <= GRACE:
        needed = f"at least {math.ceil(GRACE / 0.6) / 100:g}, as the last {GRACE:g} seconds are for checkpoints"
        raise setting_error("--minutes", minutes, needed)
    for setting, given, most in (("--seeds", seeds, MAX_SEED + 1), ("--updates", updates, (MAX_NUMBER + 1) // BATCH_SIZE)):
        if given > most:
            raise setting_error(setting, given, f"at most {most:,}, as there are no more words")


def _add_compiled_rows(groups: Sequence[str], rows: Sequence[Record], out: Path, echo: Callable[[str], object]) -> None:
    """Append the rows of the compiled models of groups to the file in `out`, without those that are in `rows`."""
    for group in dict.fromkeys(groups):
        if not any(row["case"] == group and row.get("change") == COMPILED for row in rows):
            row = compiled_row(group)
            append_record(out / RECORDS, row)
            echo(f"{NAME}/{group}/{COMPILED}: {row.get('refused') or row['certificate']}")


def _select_installed(pairs: Sequence[tuple[str, str]], echo: Callable[[str], object]) -> list[tuple[str, str]]:
    """Return the pairs of a group and a model whose package is installed; say which models are left out."""
    missing = {model: package for _, model in pairs if (package := missing_package(model))}
    for package in dict.fromkeys(missing.values()):
        models = ", ".join(model for model in missing if missing[model] == package)
        echo(f"left out, as the package {package} is not installed: {models}")
    return [(group, model) for group, model in pairs if model not in missing]


def _cost_text(plan: Sequence[Planned]) -> str:
    """Return the line on the time that trainings take on the cores of this machine."""
    cores = min(os.cpu_count() or 1, len(plan))
    each = [one.updates * one.cpu_seconds for one in plan]
    seconds = max(sum(each) / cores, *each)  # a training has one core
    text = f"expected without a GPU: about {duration_text(seconds)} on {count_text(cores, 'core')} of an AMD EPYC"
    return f"{text}; --rows, --seeds and --updates make it less, and after Ctrl-C the same command continues"


def _error_line(text: str) -> str:
    """Return the last line of an output that names an error, else its last line with text; errors of CUDA end with advice."""
    lines = [line.strip() for line in reversed(text.splitlines()) if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return next(iter(errors + lines), "")


def _result_text(row: Record) -> str:
    """Return the end of a line on a row."""
    if "refused" in row:
        return f"failed: {row['refused']}"
    shares = ", ".join(f"{row['states'][str(n)]:.3f} at {n}" for n in TABLE_LENGTHS)
    speed = row["steps"] / max(row["seconds"], 0.1)
    return f"right states {shares} letters, {row['parameters']:,} parameters, {speed:.1f} updates a second"


def read_rows(out: str | Path) -> list[Record]:
    """Return the rows in a folder of runs, oldest first."""
    file = Path(out) / RECORDS
    return read_records(file) if file.exists() else []


def report_lines(rows: Sequence[Record]) -> list[str]:
    """Return the section of the report: the protocol, the table of the rows with all seeds, and what has no row."""
    devices = "; ".join(sorted({row["device"] for row in rows if row.get("change") != COMPILED})) or "no device yet"
    words, longest = rows[0].get("words", [[500, LONGEST]])[0]
    lines = [
        "Word problems of seven groups: a model reads letters, the generators of the group, and predicts after each letter the",
        f"product so far (`longscan reproduce {NAME}`; the words are those of `longscan.reproduce.word_problems`).",
        "The columns 40, 128 and 512 have the share of right products over all prefixes up to this length, the last column",
        f"the share of the {words} test words of {longest} letters without a single error: the mean of the seeds, and their",
        f"range. A constant answer is right on 1 / order of the group. The command trains {SEEDS} seeds of each model; where",
        "fewer are counted, the others have not been trained.",
        "",
        f"Every model has `d_model` {WIDTH} and at most {MAX_PARAMETERS:,} parameters, and learns from the same words:",
        f"batches of {BATCH_SIZE} words of {TRAIN_LENGTH} letters, AdamW, rate {LEARNING_RATE} with a warm-up and a cosine to 0.",
        "One setting is for all models, and no score has chosen it. PD-SSM has a state for each element of the group, at least",
        f"{MIN_STATES}; the other layers have `d_state` {MIN_STATES}. `compiled` is the model that `longscan.automata` writes",
        "without training: its certificate covers words of every length, and its depth is the number of abelian factors of the",
        "group.",
        f"Trained on: {devices}.",
        "",
        *_table(rows),
    ]
    missing = []
    for name, entry in MODELS.items():
        groups = [group for group in GROUPS if not any(r["case"] == group and r.get("blocks") == entry.blocks for r in rows)]
        if groups:
            needs = f", needs {entry.package}" if entry.package else ""
            needs += f"; {entry.limit}" if entry.limit else ""
            missing.append(f"`{name}` ({'all groups' if len(groups) == len(GROUPS) else ', '.join(groups)}{needs})")
    return lines + (["", f"Not run: {'; '.join(missing)}."] if missing else [])


def _table(rows: Sequence[Record]) -> list[str]:
    """Return a Markdown table with a line for each group, model and number of updates."""
    lengths = " | ".join(map(str, TABLE_LENGTHS))
    lines = [f"| Group | Model | Parameters | Updates | Seeds | {lengths} | Words right |"]
    lines.append("|---|---|---:|---:|---:|" + "---:|" * (len(TABLE_LENGTHS) + 1))
    for group in GROUPS:
        own = [row for row in rows if row["case"] == group]
        for row in [row for row in own if row.get("change") == COMPILED][-1:]:
            if "refused" in row:
                lines.append(f"| {group} | compiled: none, as the group is not solvable |" + " – |" * (4 + len(TABLE_LENGTHS)))
                continue
            name = f"compiled, `{row['blocks']}`, depth {row['derived_length']}"
            lines.append(f"| {group} | {name} | {row['parameters']:,} | 0 | – | {_score_cells([row])} |")
        for name, entry in MODELS.items():
            trained = [row for row in own if row.get("blocks") == entry.blocks and row.get("change") != COMPILED]
            for updates in sorted({row["steps"] for row in trained}):
                found = [row for row in trained if row["steps"] == updates]
                good = [row for row in found if "refused" not in row]
                seeds = str(len(found)) + (f", {len(found) - len(good)} failed" if len(good) < len(found) else "")
                parameters = f"{found[0]['parameters']:,}"
                lines.append(f"| {group} | `{name}` | {parameters} | {updates:,} | {seeds} | {_score_cells(good)} |")
    return lines


def _score_cells(rows: Sequence[Record]) -> str:
    """Return the cells with the scores of the seeds of a model."""
    columns = [[row["states"][str(n)] for row in rows] for n in TABLE_LENGTHS]
    return " | ".join(map(_range, [*columns, [row["exact"][str(LONGEST)] for row in rows]]))


def _range(values: Sequence[float]) -> str:
    """Return the mean of the seeds, with the smallest and the largest value if they differ; a dash for none."""
    if not values:
        return "–"
    mean, low, high = (f"{value:.3f}" for value in (sum(values) / len(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"
