"""Compare trained models with the compiled one on word problems of groups, by word length and by the number of AUSSM blocks.

    python benchmarks/learned.py --limit 540               train for nine minutes; the same command resumes
    python benchmarks/learned.py --only S3 --steps 2000 --name short    other settings, with separate files
    python benchmarks/learned.py --draw                    only draw learned.png from the rows
    python benchmarks/learned.py --table                   only print the table of docs/automata.md
    python benchmarks/learned.py --name helped --start learned --smoothing 0.2 --average 0.999
        the settings of recipes/quickstart/cycle_navigation.yaml that make exact rotations easier to find, with separate files

The groups are Z2, Z5, S3, A4, S4 and A5, the letters their generators. A model of n AUSSM blocks and one Mamba block reads words
of 40 random letters and is trained to predict the product of the letters so far, an element of the group. It is tested after
every letter of words of up to 1,024 letters. n is the derived length less one, the derived length, and one more; A5, which is not
solvable, gets n = 1, 2 and 4. Five seeds of one n are trained together, as in seeds.py.

Writes into DIR, which is results/automata unless --out is given and must be called automata: NAME.jsonl (learned.jsonl unless
--name is given), a row for every seed and one for the compiled model, added when all seeds of one n are trained;
NAME.safetensors, a few megabytes from which unfinished training resumes; at the end NAME.png. What has rows is not trained again.
"""

import argparse
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from longscan import automata
from longscan.engine import Callback, Engine, StepResult, WeightAverage
from longscan.models import SequenceModel, optimizer_groups
from longscan.report.records import append_record, read_records
from longscan.tasks import Batch
from longscan.training.run import commit, device_name
from seeds import Stacked, accuracies, clip_each, restore_training, summed_losses, training_tensors

ROOT = Path(__file__).parents[1]
GROUPS = {"Z2": "mod 2", "Z5": "mod 5", "S3": "S3", "A4": "A4", "S4": "S4", "A5": "A5"}
UNSOLVABLE_DEPTHS = (1, 2, 4)  # numbers of AUSSM blocks for a group that has no derived length
LENGTHS = (10, 20, 40, 64, 128, 256, 512, 1024)
TRAIN_LENGTH = 40  # letters of a training word
TEST_SEED = 1_000_003
SUCCESS = 0.99
WARMUP = 0.05  # share of the steps in which the learning rate rises; then it falls along half a cosine to a twentieth
OPTIONS = {"a": {"angle_spread": 3.0}}  # training finds exact rotations sooner
TABLE_LENGTHS = (40, 256, 1024)
COLOURS = ("#d9822b", "#2f6fb2", "#3c8d5a", "#8a5ca8")
MAX_STATE_NUMBERS = 2**26  # numbers in the states of all steps of one forward pass of the test


class Setting(NamedTuple):
    """The settings of a row: the group, the number of AUSSM blocks, and the settings of training."""

    group: str
    layers: int
    steps: int
    d_model: int
    d_state: int
    batch: int
    rate: float
    start: str
    smoothing: float
    average: float

    @property
    def spec(self) -> str:
        """The spec of the model."""
        return "a" * self.layers + "m"


def word_problem(group: str) -> automata.DFA:
    """Return the word problem of a group, with a state for each element."""
    return automata.named(GROUPS[group]).minimise()


def derived_length(group: str) -> int | None:
    """Return the number of abelian factors of the derived series, or None if the group is not solvable."""
    (found,) = automata.analyse(word_problem(group), monoid_limit=0).holonomy
    return len(found.series) if found.solvable else None


def depths(group: str) -> tuple[int, ...]:
    """Return the numbers of AUSSM blocks for a group: below, at and above the derived length."""
    k = derived_length(group)
    return UNSOLVABLE_DEPTHS if k is None else (k - 1, k, k + 1)


def random_letters(dfa: automata.DFA, count: int, length: int, seed: int, step: int) -> Tensor:
    """Return uniform random words (count, length), a function of seed and step."""
    generator = torch.Generator().manual_seed(seed << 32 | step)
    return torch.randint(len(dfa.alphabet), (count, length), generator=generator)


def score_fields(right: Tensor, longest: int) -> dict[str, dict[str, float]]:
    """Return the scores by length up to `longest`: "states", the share of right answers, and "exact", of words without an error.

    right: whether each answer is right, (words, L).
    """
    lengths = [n for n in LENGTHS if n <= longest]
    states = {str(n): float(right[:, :n].double().mean()) for n in lengths}
    return {"states": states, "exact": {str(n): float(right[:, :n].all(1).double().mean()) for n in lengths}}


class Learning(Callback):
    """Trains all seeds of one setting, with a file from which it resumes, and computes their rows."""

    def __init__(self, setting: Setting, seeds: int, file: Path, backend: str = "eager") -> None:
        self.setting, self.seeds, self.file, self.dfa = setting, list(range(seeds)), file, word_problem(setting.group)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        models = []
        for seed in [0, *self.seeds]:
            torch.manual_seed(seed)
            models.append(
                SequenceModel.from_spec(
                    setting.spec, d_model=setting.d_model, d_state=setting.d_state, d_output=self.dfa.size, pooling="none",
                    vocab_size=len(self.dfa.alphabet), backend=backend, block_options=OPTIONS if setting.layers else None,
                    initial_state=setting.start,
                )
            )  # fmt: skip
        self.parameters = sum(p.numel() for p in models[0].parameters())
        self.model = Stacked(models).to(self.device)
        self.average = WeightAverage(self.model, setting.average) if setting.average else None
        groups = optimizer_groups(self.model, weight_decay=0.01)
        self.engine = Engine(
            torch.optim.AdamW(groups, lr=torch.tensor(setting.rate, device=self.device)),
            self.compute_loss,
            learning_rate=self.learning_rate,
            clip_gradients=partial(clip_each, list(self.model.parameters()), 1.0),
            callbacks=[self] if self.average is None else [self.average, self],
        )
        if self.device.type == "cuda":
            self.engine.capture(self.device)
        self.seconds, self.solved = 0.0, [-1.0] * seeds
        if file.exists():
            self.restore()

    def batch(self, step: int) -> Batch:
        """Return the words of a step and their states, (seeds, words, letters)."""
        words = torch.stack([random_letters(self.dfa, self.setting.batch, TRAIN_LENGTH, seed, step) for seed in self.seeds])
        states = torch.from_numpy(self.dfa.run(words.flatten(0, 1).numpy())).view_as(words)
        mask = torch.ones_like(words, dtype=torch.bool)
        return Batch(words, states, mask, mask).to(self.device)

    def compute_loss(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the sum of the seeds' losses, and each seed's accuracy and loss, (K,) each."""
        output = self.model(batch.inputs, batch.valid)
        losses = summed_losses(output, batch, self.setting.smoothing) / batch.loss_mask.sum((1, 2))
        return losses.sum(), (accuracies(output.detach(), batch), losses.detach())

    def learning_rate(self, step: int, scale: float) -> float:
        """Return `scale` times the learning rate of a step: a linear warm-up, a cosine to a twentieth of the highest rate."""
        steps = self.setting.steps
        warmup, decay = min(1.0, (step + 1) / (WARMUP * steps)), 0.525 + 0.475 * math.cos(math.pi * step / steps)
        return scale * self.setting.rate * warmup * decay

    def run(self, until: float, every: int) -> bool:
        """Train to the last step, or until `time.perf_counter` reaches `until`, but at least one step; return whether it ended.

        every: steps between two evaluations.
        """
        self.until, self.every, self.started, self.earlier_seconds = until, every, time.perf_counter(), self.seconds
        self.engine.stop_requested = False
        self.engine.run(self.batch(step) for step in range(self.engine.step, self.setting.steps))
        return self.engine.step == self.setting.steps

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Evaluate and save every `every` steps and at the last one; save and stop when the time is over."""
        self.seconds = self.earlier_seconds + time.perf_counter() - self.started
        if engine.step % self.every == 0 or engine.step == self.setting.steps:
            self.evaluate(*result.outputs)
            self.save()
        if time.perf_counter() >= self.until:
            self.save()
            engine.stop_requested = True

    def evaluate(self, accuracy: Tensor, loss: Tensor) -> None:
        """Record which seeds answer the present batch for the first time, and print the accuracies."""
        if not bool(torch.isfinite(loss).all()):
            raise FloatingPointError(f"{self.setting}: the loss is {loss.tolist()} at step {self.engine.step}")
        for seed, share in enumerate(accuracy.tolist()):
            if share >= SUCCESS and self.solved[seed] < 0:
                self.solved[seed] = self.engine.step
        shown = " ".join(f"{share:.3f}" for share in accuracy.tolist())
        print(f"{self.setting.group} {self.setting.spec} step {self.engine.step}: {shown}, {self.seconds:.0f} s", flush=True)

    def save(self) -> None:
        """Replace the file by one of the weights, moments and progress, atomically."""
        tensors = training_tensors(self.model, self.engine, self.average)
        tensors["progress"] = torch.tensor([self.engine.step, self.seconds, *self.solved], dtype=torch.float64)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, f"{self.file}.new", {"setting": self.name})
        os.replace(f"{self.file}.new", self.file)

    @property
    def name(self) -> str:
        """The text by which the file names its setting."""
        return f"{self.setting} {len(self.seeds)} seeds"

    def restore(self) -> None:
        """Resume from the file. ValueError if it is of another setting."""
        with safe_open(self.file, "pt") as file:
            saved = file.metadata()["setting"]
        if saved != self.name:
            raise ValueError(
                f"{self.file} must be the training of {self.name}, got that of {saved}; use its settings, or move the file"
            )
        tensors = load_file(self.file)
        step, self.seconds, *self.solved = tensors["progress"].tolist()
        self.engine.step = int(step)
        restore_training(self.model, self.engine, self.average, tensors, self.engine.step)

    @torch.no_grad()
    def rows(self, count: int, longest: int) -> Iterator[dict[str, Any]]:
        """Yield a row for every seed: its scores on `count` random words of length `longest`, by averaged weights if any."""
        words = random_letters(self.dfa, count, longest, TEST_SEED, 0)
        states = torch.from_numpy(self.dfa.run(words.numpy()))
        numbers = len(self.seeds) * longest * self.setting.d_model * self.setting.d_state * 2
        outputs = []
        model = self.model if self.average is None else self.average.model
        for part in words.to(self.device).split(max(1, MAX_STATE_NUMBERS // numbers)):
            wide = part.expand(len(self.seeds), *part.shape)
            outputs.append(model(wide, torch.ones_like(wide, dtype=torch.bool)).argmax(-1).cpu())
        answers = torch.cat(outputs, 1)
        for seed in self.seeds:
            solved = None if self.solved[seed] < 0 else int(self.solved[seed])
            yield about(self.setting, self.dfa, self.device) | {
                "change": "learned", "seed": seed, "parameters": self.parameters, "seconds": round(self.seconds, 1),
                "solved_at": solved, "words": [list(words.shape)], **score_fields(answers[seed] == states, longest),
            }  # fmt: skip


def about(setting: Setting, dfa: automata.DFA, device: torch.device) -> dict[str, Any]:
    """Return the fields that all rows have: the group, the settings, and how the row was made."""
    return {
        "case": setting.group, "derived_length": derived_length(setting.group), "elements": dfa.size, "blocks": setting.spec,
        **dict(zip(setting._fields[1:], setting[1:], strict=True)), "commit": commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": device_name(device), "torch": torch.__version__,
        "command": shlex.join(["python", "benchmarks/learned.py", *sys.argv[1:]]),
    }  # fmt: skip


def trained_by(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the settings of training of a row, the fields of `Setting` after the group and the depth."""
    absent = {"start": "zero", "smoothing": 0.0, "average": 0.0}  # in rows of earlier versions
    return tuple(row.get(name, absent.get(name)) for name in Setting._fields[2:])


def compiled_row(group: str, count: int, longest: int) -> dict[str, Any]:
    """Return the row of the compiled model of a group on the same words; for a group that is refused, with the reason."""
    dfa = word_problem(group)
    plain = Setting(group, 0, 0, 0, 0, 0, 0.0, "zero", 0.0, 0.0)
    row = about(plain, dfa, torch.device("cpu")) | {"change": "compiled", "seed": 0}
    for training in ("blocks", *Setting._fields[1:]):
        del row[training]
    try:
        compiled = automata.compile(dfa, minimise=False)
    except automata.NonSolvableError as error:
        return row | {"refused": str(error)}
    words = random_letters(dfa, count, longest, TEST_SEED, 0)
    read = torch.cat([compiled.read_states(stream) for part in words.split(16) for _, stream in compiled.run(part)])
    size = compiled.size
    row |= {"layers": size.spec.count("a"), "blocks": size.spec, "d_model": size.d_model, "parameters": size.parameters}
    return row | {"words": [list(words.shape)], **score_fields(read == torch.from_numpy(dfa.run(words.numpy())), longest)}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the share of right states by length, a panel for every group: seeds and mean of each depth, and the compiled model."""
    groups = [group for group in GROUPS if any(row["case"] == group for row in rows)]
    figure = Figure(figsize=(4.6 * min(3, len(groups)), 3.7 * math.ceil(len(groups) / 3)), layout="constrained")
    grid = figure.subplots(math.ceil(len(groups) / 3), min(3, len(groups)), squeeze=False)
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_axis_off()
    for group, axes in zip(groups, grid.flat, strict=False):
        own, lengths = [row for row in rows if row["case"] == group], list(LENGTHS)
        learned = [row for row in own if row["change"] == "learned"]
        for layers, colour in zip(sorted({row["layers"] for row in learned}), COLOURS, strict=False):
            seeds = [row["states"] for row in learned if row["layers"] == layers]
            lengths = [int(n) for n in seeds[0]]
            for shown in seeds:
                axes.plot(lengths, list(shown.values()), color=colour, lw=0.7, alpha=0.45)
            means = [sum(shown[str(n)] for shown in seeds) / len(seeds) for n in lengths]
            exact = [row["exact"][str(lengths[-1])] for row in learned if row["layers"] == layers]
            good = sum(share >= SUCCESS for share in exact)
            label = f"{'a' * layers}m: {good} of {len(seeds)} seeds exact at {lengths[-1]}"
            axes.plot(lengths, means, color=colour, marker="o", ms=3, label=label)
        for row in own:
            if row["change"] == "compiled" and "states" in row:
                lengths = [int(n) for n in row["states"]]
                axes.plot(lengths, list(row["states"].values()), color="black", ls="--", label=f"compiled, {row['blocks']}")
        k, elements = own[0]["derived_length"], own[0]["elements"]
        axes.axhline(1 / elements, color="0.5", ls=":", label="one answer for all")
        axes.axvline(TRAIN_LENGTH, color="0.8", lw=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(n) for n in lengths], fontsize=8)
        axes.set_ylim(-0.03, 1.04)
        axes.set_title(f"{group}: " + ("not solvable, nothing compiled" if k is None else f"derived length {k}"), fontsize=10)
        axes.set_xlabel("letters")
        axes.legend(fontsize=7)
    grid[0, 0].set_ylabel("share of right states, all prefixes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def table(plain: list[dict[str, Any]], helped: list[dict[str, Any]]) -> str:
    """Return a table in Markdown of the share of right states: a line for every depth, means over its seeds in both files."""
    lengths = [*(f"{n:,}" for n in TABLE_LENGTHS), *(f"{n:,}, helped" for n in TABLE_LENGTHS)]
    lines = [f"| Group | Blocks | Constant answer | {' | '.join(lengths)} |", "|---|---|---:|" + "---:|" * len(lengths)]
    for group in GROUPS:
        for layers in depths(group):
            cells: list[str] = []
            for rows in (plain, helped):
                learned = (row for row in rows if row["change"] == "learned")
                seeds = [row["states"] for row in learned if (row["case"], row["layers"]) == (group, layers)]
                cells += [f"{sum(seed[str(n)] for seed in seeds) / len(seeds):.2f}" if seeds else "–" for n in TABLE_LENGTHS]
            constant = 1 / word_problem(group).size
            lines.append(f"| {group} | `{'a' * layers}m` | {constant:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Train the models that have no rows yet, or only draw, or print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "automata")
    parser.add_argument("--only", nargs="+", choices=tuple(GROUPS), default=tuple(GROUPS))
    parser.add_argument("--depths", nargs="+", type=int, help="numbers of AUSSM blocks; default: around the derived length")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=48, help="d_model")
    parser.add_argument("--states", type=int, default=8, help="d_state")
    parser.add_argument("--batch", type=int, default=64, help="words per step and seed")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--start", choices=("zero", "learned"), default="zero", help="state before the first letter")
    parser.add_argument("--smoothing", type=float, default=0.0, help="label smoothing")
    parser.add_argument("--average", type=float, default=0.0, help="decay of an average of the weights, which is tested; 0: none")
    parser.add_argument("--words", type=int, default=200, help="number of test words")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="length of a test word")
    parser.add_argument("--every", type=int, default=500, help="steps between two evaluations, each of which saves")
    parser.add_argument("--backend", choices=("eager", "triton"), default="eager", help="backend of the scans")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which this call stops")
    parser.add_argument("--name", default="learned", help="name of the files")
    parser.add_argument("--draw", action="store_true", help="only draw NAME.png from the rows")
    parser.add_argument("--table", action="store_true", help="only print the table of learned.jsonl and helped.jsonl")
    given = parser.parse_args()
    if given.table:
        print(table(*(read_records(given.out / f"{name}.jsonl") for name in ("learned", "helped"))))
        return 0
    until = time.perf_counter() + given.limit
    path, file = given.out / f"{given.name}.jsonl", given.out / f"{given.name}.safetensors"
    rows = read_records(path) if path.exists() else []
    if given.draw:
        draw(rows, path.with_suffix(".png"))
        return 0
    training = (given.steps, given.width, given.states, given.batch, given.rate, given.start, given.smoothing, given.average)
    for row in rows:
        if row["change"] == "learned" and trained_by(row) != training:
            raise ValueError(f"{path} must have rows of the settings {training}, got {trained_by(row)}; choose another --name")
    for group in given.only:
        if not any((row["case"], row["change"]) == (group, "compiled") for row in rows):
            append_record(path, compiled_row(group, given.words, given.longest))
        for layers in given.depths or depths(group):
            setting = Setting(group, layers, *training)
            if any((row["case"], row.get("layers"), row["change"]) == (group, layers, "learned") for row in rows):
                continue
            learning = Learning(setting, given.seeds, file, given.backend)
            try:
                done = learning.run(until, given.every)
            except KeyboardInterrupt:
                parser.exit(130, "learned.py: stopped; the same command resumes from the last evaluation\n")
            if not done:
                print("not done: the same command resumes")
                return 0
            for row in learning.rows(given.words, given.longest):
                append_record(path, row)
            file.unlink()
    draw(read_records(path), path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
