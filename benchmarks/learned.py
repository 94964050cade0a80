"""A learned model against the compiled one on the word problems of groups: success by length, with fewer AUSSM blocks than the
group's derived length, as many, and more.

    python benchmarks/learned.py --limit 540               a slice of nine minutes; the same command goes on where it stopped
    python benchmarks/learned.py --only S3 --steps 2000 --name short    other settings, files of their own
    python benchmarks/learned.py --draw                    learned.png from the rows
    python benchmarks/learned.py --table                   the table of docs/automata.md, from learned.jsonl and helped.jsonl
    python benchmarks/learned.py --name helped --start learned --smoothing 0.2 --average 0.999
        what makes exact rotations easier to find in recipes/quickstart/cycle_navigation.yaml, with files of its own

Groups: Z2, Z5, S3, A4, S4, A5; letters: their generators, as the compiler has them. A model of blocks `a..am` (one Mamba block
behind n AUSSM blocks) reads 40 random letters and is told the state, an element of the group, after each; it is asked after every
letter of words of up to 1,024. n is the derived length less one, the derived length, one more; A5 has none, and gets 1, 2 and 4.
With n = 0 Mamba is alone. Five seeds of one n are trained together, as in seeds.py.

Writes into DIR (results/automata unless --out is given; it must be called automata): NAME.jsonl (learned.jsonl unless --name is
given), a row for every seed and one for the compiled model, as soon as a depth is done; NAME.safetensors, a few megabytes from
which the depth in progress goes on; in the end NAME.png. A finished depth is not run again.
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
from safetensors.torch import save_file
from torch import Tensor

from longscan import automata
from longscan.engine import Callback, Engine, StepResult, WeightAverage
from longscan.layers.parameters import parameter_options
from longscan.models import SequenceModel
from longscan.report.records import append_record, read_records
from longscan.tasks import Batch
from longscan.training.records import commit, device_name
from seeds import Stacked, accuracies, clip_each, summed_losses

ROOT = Path(__file__).parents[1]
GROUPS = {"Z2": "mod 2", "Z5": "mod 5", "S3": "S3", "A4": "A4", "S4": "S4", "A5": "A5"}
WITHOUT_SERIES = (1, 2, 4)  # numbers of AUSSM blocks for a group that has no derived length
LENGTHS = (10, 20, 40, 64, 128, 256, 512, 1024)
TRAINED = 40  # letters of a training word
TEST_SEED = 1_000_003
SUCCESS = 0.99
WARM = 0.05  # share of the steps over which the learning rate rises; then it falls, as half a cosine, to a twentieth
OPTIONS = {"a": {"angle_spread": 3.0}}  # exact rotations are found sooner
SHOWN = (40, 256, 1024)  # lengths in the table
COLOURS = ("#d9822b", "#2f6fb2", "#3c8d5a", "#8a5ca8")
CELLS = 2**26  # numbers of a state over all steps of the words that are scored at once


class Setting(NamedTuple):
    """What a row is one of: the group, the number of AUSSM blocks, and the sizes of training."""

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
        """The letters of the blocks."""
        return "a" * self.layers + "m"


def language(group: str) -> automata.DFA:
    """The word problem of a group: a state for each element."""
    return automata.named(GROUPS[group]).minimise()


def derived_length(group: str) -> int | None:
    """The number of abelian factors of the derived series; None where it does not end."""
    (found,) = automata.analyse(language(group), monoid_limit=0).holonomy
    return len(found.series) if found.solvable else None


def depths(group: str) -> tuple[int, ...]:
    """Below, at and above the derived length."""
    k = derived_length(group)
    return WITHOUT_SERIES if k is None else (k - 1, k, k + 1)


def letters(dfa: automata.DFA, count: int, length: int, seed: int, step: int) -> Tensor:
    """Uniform words (count, length), a function of seed and step."""
    generator = torch.Generator().manual_seed(seed << 32 | step)
    return torch.randint(len(dfa.alphabet), (count, length), generator=generator)


def shares(right: Tensor, longest: int) -> dict[str, dict[str, float]]:
    """Of right answers (words, L), by length up to `longest`: the share of right ones, the share of words without a wrong one."""
    lengths = [n for n in LENGTHS if n <= longest]
    states = {str(n): float(right[:, :n].double().mean()) for n in lengths}
    return {"states": states, "exact": {str(n): float(right[:, :n].all(1).double().mean()) for n in lengths}}


class Learning(Callback):
    """The training of all seeds of one setting, the file that it resumes from, and the rows at the end."""

    def __init__(self, setting: Setting, seeds: int, file: Path, backend: str = "eager") -> None:
        self.setting, self.seeds, self.file, self.dfa = setting, list(range(seeds)), file, language(setting.group)
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
        groups: list[dict[str, Any]] = [
            {
                "params": [p for p in self.model.parameters() if parameter_options(p).decay == decays],
                "weight_decay": 0.01 * decays,
            }
            for decays in (True, False)
        ]
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
        """The words of a step and their states, (seeds, words, letters)."""
        words = torch.stack([letters(self.dfa, self.setting.batch, TRAINED, seed, step) for seed in self.seeds])
        states = torch.from_numpy(self.dfa.run(words.flatten(0, 1).numpy())).view_as(words)
        mask = torch.ones_like(words, dtype=torch.bool)
        return Batch(words, states, mask, mask).to(self.device)

    def compute_loss(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the sum of the seeds' losses, and each seed's accuracy and loss, (K,) each."""
        output = self.model(batch.inputs, batch.valid)
        losses = summed_losses(output, batch, self.setting.smoothing) / batch.loss_mask.sum((1, 2))
        return losses.sum(), (accuracies(output.detach(), batch), losses.detach())

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step: a linear warm-up, and a cosine to a twentieth."""
        steps = self.setting.steps
        warm, fall = min(1.0, (step + 1) / (WARM * steps)), 0.525 + 0.475 * math.cos(math.pi * step / steps)
        return self.setting.rate * warm * fall

    def run(self, until: float, every: int) -> bool:
        """Train to the last step, or until the clock says `until`, one step at least; return whether it was the last."""
        self.until, self.every, self.started, self.earlier_seconds = until, every, time.perf_counter(), self.seconds
        self.engine.stop_requested = False
        self.engine.run(self.batch(step) for step in range(self.engine.step, self.setting.steps))
        return self.engine.step == self.setting.steps

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        """Look at the seeds and save, if it is time to; stop at the end of the time."""
        self.seconds = self.earlier_seconds + time.perf_counter() - self.started
        if engine.step % self.every == 0 or engine.step == self.setting.steps:
            self.look(*result.outputs)
            self.save()
        if time.perf_counter() >= self.until:
            self.save()
            engine.stop_requested = True

    def look(self, accuracy: Tensor, loss: Tensor) -> None:
        """Note which seeds answer the present batch, and print the state of the training."""
        if not bool(torch.isfinite(loss).all()):
            raise FloatingPointError(f"{self.setting}: the loss is {loss.tolist()} at step {self.engine.step}")
        for seed, share in enumerate(accuracy.tolist()):
            if share >= SUCCESS and self.solved[seed] < 0:
                self.solved[seed] = self.engine.step
        shown = " ".join(f"{share:.3f}" for share in accuracy.tolist())
        print(f"{self.setting.group} {self.setting.spec} step {self.engine.step}: {shown}, {self.seconds:.0f} s", flush=True)

    def save(self) -> None:
        """Weights, moments and progress, in one move."""
        tensors = {"progress": torch.tensor([self.engine.step, self.seconds, *self.solved], dtype=torch.float64)}
        for name, parameter in self.model.named_parameters():
            tensors[f"weight:{name}"] = parameter.detach()
            tensors |= {f"{key}:{name}": self.engine.optimizer.state[parameter][key] for key in ("exp_avg", "exp_avg_sq")}
        if self.average is not None:
            tensors |= {f"average:{name}": weight for name, weight in self.average.weights.items()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, f"{self.file}.new", {"setting": self.name})
        os.replace(f"{self.file}.new", self.file)

    @property
    def name(self) -> str:
        """What the file says that it is of."""
        return f"{self.setting} {len(self.seeds)} seeds"

    def restore(self) -> None:
        """Go on from the file; ValueError where it is of another setting."""
        with safe_open(self.file, "pt") as file:
            held = file.metadata()["setting"]
            if held != self.name:
                raise ValueError(f"{self.file}: holds {held}, expected {self.name}; go on with its settings, or move the file")
            step, self.seconds, *self.solved = file.get_tensor("progress").tolist()
            self.engine.step = int(step)
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(file.get_tensor(f"weight:{name}"))
                    state = {key: file.get_tensor(f"{key}:{name}").to(self.device) for key in ("exp_avg", "exp_avg_sq")}
                    self.engine.optimizer.state[parameter] = {"step": torch.tensor(float(step), device=self.device), **state}
            if self.average is not None:
                names = [name for name, _ in self.model.named_parameters()]
                self.average.restore({name: file.get_tensor(f"average:{name}") for name in names}, self.engine.step)

    @torch.no_grad()
    def rows(self, count: int, longest: int) -> Iterator[dict[str, Any]]:
        """A row for every seed, from `count` random words of `longest` letters, by the averaged weights where there are any."""
        words = letters(self.dfa, count, longest, TEST_SEED, 0)
        states = torch.from_numpy(self.dfa.run(words.numpy()))
        numbers = len(self.seeds) * longest * self.setting.d_model * self.setting.d_state * 2
        told = []
        model = self.model if self.average is None else self.average.model
        for part in words.to(self.device).split(max(1, CELLS // numbers)):
            wide = part.expand(len(self.seeds), *part.shape)
            told.append(model(wide, torch.ones_like(wide, dtype=torch.bool)).argmax(-1).cpu())
        answers = torch.cat(told, 1)
        for seed in self.seeds:
            solved = None if self.solved[seed] < 0 else int(self.solved[seed])
            yield about(self.setting, self.dfa, self.device) | {
                "change": "learned", "seed": seed, "parameters": self.parameters, "seconds": round(self.seconds, 1),
                "solved_at": solved, "words": [list(words.shape)], **shares(answers[seed] == states, longest),
            }  # fmt: skip


def about(setting: Setting, dfa: automata.DFA, device: torch.device) -> dict[str, Any]:
    """What every row says."""
    return {
        "case": setting.group, "derived_length": derived_length(setting.group), "elements": dfa.size, "blocks": setting.spec,
        **dict(zip(setting._fields[1:], setting[1:], strict=True)), "commit": commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": device_name(device), "torch": torch.__version__,
        "command": shlex.join(["python", "benchmarks/learned.py", *sys.argv[1:]]),
    }  # fmt: skip


def trained_by(row: dict[str, Any]) -> tuple[Any, ...]:
    """The fields of `Setting`, less the group and the depth, that a row of a learned model was made with."""
    absent = {"start": "zero", "smoothing": 0.0, "average": 0.0}
    return tuple(row.get(name, absent.get(name)) for name in Setting._fields[2:])


def compiled_row(group: str, count: int, longest: int) -> dict[str, Any]:
    """The compiled model of a group on the words of the learned ones; for a group that is refused, the reason."""
    dfa = language(group)
    plain = Setting(group, 0, 0, 0, 0, 0, 0.0, "zero", 0.0, 0.0)
    row = about(plain, dfa, torch.device("cpu")) | {"change": "compiled", "seed": 0}
    for training in ("blocks", *Setting._fields[1:]):
        del row[training]
    try:
        compiled = automata.compile(dfa, minimise=False)
    except automata.NonSolvableError as error:
        return row | {"refused": str(error)}
    words = letters(dfa, count, longest, TEST_SEED, 0)
    read = torch.cat([compiled.read_states(stream) for part in words.split(16) for _, stream in compiled.run(part)])
    size = compiled.size
    row |= {"layers": size.spec.count("a"), "blocks": size.spec, "d_model": size.d_model, "parameters": size.parameters}
    return row | {"words": [list(words.shape)], **shares(read == torch.from_numpy(dfa.run(words.numpy())), longest)}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel for every group: the share of right states by length, each depth's mean and its seeds, the compiled model's."""
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
        axes.axvline(TRAINED, color="0.8", lw=0.8)
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
    """The share of right states as a table of Markdown: a line for every depth, means of its seeds, without help and with."""
    lengths = [*(f"{n:,}" for n in SHOWN), *(f"{n:,}, helped" for n in SHOWN)]
    lines = [f"| Group | Blocks | One answer for all | {' | '.join(lengths)} |", "|---|---|---:|" + "---:|" * len(lengths)]
    for group in GROUPS:
        for layers in depths(group):
            cells: list[str] = []
            for rows in (plain, helped):
                learned = (row for row in rows if row["change"] == "learned")
                seeds = [row["states"] for row in learned if (row["case"], row["layers"]) == (group, layers)]
                cells += [f"{sum(seed[str(n)] for seed in seeds) / len(seeds):.2f}" if seeds else "–" for n in SHOWN]
            constant = 1 / language(group).size
            lines.append(f"| {group} | `{'a' * layers}m` | {constant:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Train what is missing, draw, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "automata")
    parser.add_argument("--only", nargs="+", choices=tuple(GROUPS), default=tuple(GROUPS))
    parser.add_argument("--depths", nargs="+", type=int, help="numbers of AUSSM blocks; around the derived length without it")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=48, help="d_model")
    parser.add_argument("--states", type=int, default=8, help="d_state")
    parser.add_argument("--batch", type=int, default=64, help="words of a step and seed")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--start", choices=("zero", "learned"), default="zero", help="state before the first letter")
    parser.add_argument("--smoothing", type=float, default=0.0, help="share of a label that is spread over all answers")
    parser.add_argument("--average", type=float, default=0.0, help="decay of an average of the weights, which is tested; 0: none")
    parser.add_argument("--words", type=int, default=200, help="words of the test")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="letters of a test word")
    parser.add_argument("--every", type=int, default=500, help="steps between two looks, each of which rewrites the file")
    parser.add_argument("--backend", choices=("eager", "triton"), default="eager", help="of the scans")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which this call stops")
    parser.add_argument("--name", default="learned", help="of the files")
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
            raise ValueError(f"{path}: holds rows of other settings, {trained_by(row)}, expected {training}; give --name")
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
                parser.exit(130, "learned.py: stopped; the same command goes on from the last look\n")
            if not done:
                print("not done: the same command goes on")
                return 0
            for row in learning.rows(given.words, given.longest):
                append_record(path, row)
            file.unlink()
    draw(read_records(path), path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
