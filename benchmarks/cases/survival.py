"""Accuracy of compiled models after noise, a cast to bfloat16, weight decay or training, and of models trained on their answers.

Fields of a row (suite automata, case survival): case, phase ("grid" or "float"), change, amount, seed, and the share of right
states over all prefixes of 20 random words of each length. A row of a student, a model trained from random weights, has the share
of right answers instead, and that of the best constant predictor.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from cases.automata import stamped
from harness import Measurement, Row
from longscan import automata
from longscan.automata.scoring import random_words, score
from longscan.layers.parameters import parameter_options
from longscan.models import SequenceModel, optimizer_groups
from longscan.report.records import read_records

LENGTHS = (40, 256, 1024)
NOISE = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
DECAY_FACTORS = (0.999, 0.99, 0.97, 0.9, 0.8, 0.5)
RATES = (1e-4, 1e-3, 1e-2)
STUDENTS = {  # change -> label of its bars
    "student of the answers of the compiled model": "student of\nall answers",
    "student of the labels of the last letter": "student of\nlast labels",
}


def survival(options: Any) -> Iterator[Row]:
    """Yield the rows of compiled parity and S3."""
    for name in ("parity", "S3"):
        yield from map(stamped, changes(name, options.quick))


def changes(name: str, quick: bool) -> Iterator[Row]:
    """Yield all rows of one named case."""
    for phase in ("grid", "float"):
        for change, amounts, apply in (
            ("nothing", (0.0,), leave_unchanged),
            ("noise relative to each weight", NOISE, relative_noise),
            ("noise on every weight", NOISE, noise),
            ("decay of the weights that decay", DECAY_FACTORS, decay),
            ("bfloat16", (0.0,), to_bfloat16),
            ("training on, no decay", RATES, partial(train_on, name=name, decay=0.0, quick=quick)),
            ("training on, decay 0.1", RATES, partial(train_on, name=name, decay=0.1, quick=quick)),
        ):
            for amount in amounts[:: 3 if quick else 1]:
                for seed in range(3 if "noise" in change and not quick else 1):
                    torch.manual_seed(seed)
                    compiled = automata.compile(automata.named(name), phase=phase)
                    apply(compiled.model, amount)
                    compiled.model.eval()
                    row = {"case": name, "phase": phase, "change": change, "amount": amount, "seed": seed}
                    yield row | {"states": state_accuracy(compiled), "certified_length": certified_length(compiled)}
    for teacher in ("answers of the compiled model", "labels of the last letter"):
        yield student(name, teacher, quick)


def certified_length(compiled: automata.CompiledAutomaton) -> int | str:
    """Return the length up to which the present weights are certified, "every" for all lengths, "not asked" for bfloat16."""
    if compiled.model.head.weight.dtype == torch.bfloat16:
        return "not asked"
    certificate = compiled.verify()
    return "every" if certificate.safe_length is None else certificate.safe_length


def state_accuracy(compiled: automata.CompiledAutomaton) -> dict[str, float]:
    """Return the share of right states by length."""
    return {str(n): score(compiled, random_words(compiled, 20, n, seed=n)).states for n in LENGTHS}


def leave_unchanged(model: nn.Module, amount: float) -> None:
    """Change nothing; `amount` is 0."""


def to_bfloat16(model: nn.Module, amount: float) -> None:  # noqa: ARG001
    """Cast the model to bfloat16 (angles, eigenvalues and initial states stay float32); `amount` is 0."""
    model.to(torch.bfloat16)


@torch.no_grad()
def relative_noise(model: nn.Module, amount: float) -> None:
    """Multiply each weight by 1 + amount * g with standard normal g, so that zeros stay zero."""
    for parameter in model.parameters():
        parameter.mul_(1 + amount * torch.randn_like(parameter))


@torch.no_grad()
def noise(model: nn.Module, amount: float) -> None:
    """Add amount * g with standard normal g to each weight, zeros included."""
    for parameter in model.parameters():
        parameter.add_(amount * torch.randn_like(parameter))


@torch.no_grad()
def decay(model: nn.Module, factor: float) -> None:
    """Multiply the parameters that an optimizer decays by a factor."""
    for parameter in model.parameters():
        if parameter_options(parameter).decay:
            parameter.mul_(factor)


def accepted(name: str, words: Tensor) -> Tensor:
    """Return whether the automaton accepts each prefix of `words`, (B, L) of 0 and 1."""
    dfa = automata.named(name).minimise()
    return torch.isin(torch.from_numpy(dfa.run(words.numpy())), torch.tensor(sorted(dfa.accept))).long()


def optimise(model: SequenceModel, rate: float, decay: float, steps: int, loss: Callable[[], Tensor]) -> None:
    """Train by AdamW, with weight decay for the parameters that declare it, and gradients clipped at a norm of 1."""
    optimiser = torch.optim.AdamW(optimizer_groups(model, weight_decay=decay), lr=rate)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.eval()


def train_on(model: SequenceModel, rate: float, *, name: str, decay: float, quick: bool) -> None:
    """Train for 200 steps on the right answers after every letter of words of length 40."""
    compiled = automata.compile(automata.named(name))

    def loss() -> Tensor:
        words = torch.randint(len(compiled.dfa.alphabet), (16, LENGTHS[0]))
        return nn.functional.cross_entropy(model(words).flatten(0, 1), accepted(name, words).flatten())

    optimise(model, rate, decay, 5 if quick else 200, loss)


def student(name: str, teacher: str, quick: bool) -> Row:
    """Return the row of a model of the same blocks, trained from random weights for 1,500 steps on words of 2 to 40 letters."""
    compiled = automata.compile(automata.named(name))
    torch.manual_seed(0)
    letters = len(compiled.dfa.alphabet)
    options = {"a": {"angle_spread": 3.0}}
    model = SequenceModel.from_spec(
        compiled.spec, d_model=16, d_output=2, vocab_size=letters, d_state=8, pooling="none", block_options=options
    )

    def loss() -> Tensor:
        words = torch.randint(letters, (32, int(torch.randint(2, LENGTHS[0] + 1, ()))))
        logits = model(words)
        if teacher.startswith("labels"):
            return nn.functional.cross_entropy(logits[:, -1], accepted(name, words)[:, -1])
        with torch.no_grad():
            teacher_logits = compiled.model(words)
        probabilities = (5 * teacher_logits / teacher_logits.abs().amax()).softmax(-1)
        return nn.functional.cross_entropy(logits.flatten(0, 1), probabilities.flatten(0, 1))

    optimise(model, 3e-3, 0.0, 5 if quick else 1500, loss)
    shares, constants = {}, {}
    for n in LENGTHS:
        words = random_words(compiled, 20, n, seed=n)
        right = accepted(name, words)
        with torch.no_grad():
            shares[str(n)] = float((model(words).argmax(-1) == right).double().mean())
        constants[str(n)] = max(float(right.double().mean()), 1 - float(right.double().mean()))
    return {"case": name, "phase": "float", "change": f"student of the {teacher}", "amount": 0.0, "seed": 0, "answers": shares,
            "constant": constants}  # fmt: skip


def draw(path: Path) -> None:
    """Draw the share of right states against the amount of each change by phase and length, and students as bars."""
    rows = read_records(path)
    kinds = [
        "noise relative to each weight", "noise on every weight", "decay of the weights that decay",
        "training on, no decay", "training on, decay 0.1",
    ]  # fmt: skip
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(20, 4.2 * len(cases)), layout="constrained")
    grid = figure.subplots(len(cases), len(kinds) + 1, squeeze=False, width_ratios=[1] * len(kinds) + [1.2])
    colours = dict(zip(LENGTHS, ("#2f6fb2", "#d9822b", "#3c8d5a"), strict=True))
    for case, line in zip(cases, grid, strict=True):
        for kind, axes in zip(kinds, line, strict=False):
            for phase, style in (("grid", "-"), ("float", "--")):
                chosen = [row for row in rows if (row["case"], row["phase"], row["change"]) == (case, phase, kind)]
                amounts = sorted({row["amount"] for row in chosen})
                for n, colour in colours.items():
                    shares = [statistics.mean(r["states"][str(n)] for r in chosen if r["amount"] == a) for a in amounts]
                    axes.plot(amounts, shares, style, marker="o", ms=3, color=colour, label=f"{phase}, length {n}")
            axes.set_title(f"{case}: {kind}", fontsize=9)
            axes.set_ylim(-0.03, 1.03)
            if "decay of" in kind:
                axes.set_xlabel("share kept")
                axes.invert_xaxis()
            else:
                axes.set_xscale("log")
                axes.set_xlabel("learning rate" if "training" in kind else "standard deviation")
        line[0].set_ylabel("share of right states")
        if case == cases[0]:
            line[0].legend(fontsize=7, loc="lower left")
        bars = [row for row in rows if row["case"] == case and (row["change"] == "bfloat16" or "student" in row["change"])]
        for i, row in enumerate(bars):
            shares = row.get("states") or row["answers"]
            for j, n in enumerate(LENGTHS):
                line[-1].bar(i + 0.25 * j, shares[str(n)], 0.25, color=colours[n])
            if "constant" in row:
                line[-1].plot([i - 0.13, i + 0.63], [row["constant"]["40"]] * 2, color="black", ls=":")
        names = [STUDENTS.get(row["change"], row["change"]) for row in bars]
        names = [f"{text}\n{row['phase']}" if text == "bfloat16" else text for text, row in zip(names, bars, strict=True)]
        line[-1].set_xticks([i + 0.25 for i in range(len(bars))], names, fontsize=7)
        line[-1].set_title(f"{case}: bfloat16 (states), students (answers)\ndotted: constant answer", fontsize=8)
    figure.savefig(path.with_suffix(".png"), dpi=80)


CASES = (
    Measurement(
        suite="automata", name="survival", rows=survival, folder="automata", file="survival", replaces=True, write_page=draw
    ),
)
