"""From a language to a model with exact weights: `compile_dfa`, and `Compiled`, which answers, explains and proves."""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longscan._files import write_text
from longscan.automata.abelian import Series
from longscan.automata.analysis import Report, analyse
from longscan.automata.cascade import build_program
from longscan.automata.certificate import LocalProof, check_program
from longscan.automata.dfa import DFA, Word
from longscan.automata.errors import AutomataError, LimitExceeded, NonSolvableError, PrecisionError
from longscan.automata.inspection import Certificate, inspect_weights
from longscan.automata.layout import Layout, Plan, count_parameters, plan
from longscan.automata.program import Program
from longscan.automata.skeleton import members
from longscan.automata.tracing import Step, Trace
from longscan.automata.weights import Phase, build_model, weight_arrays
from longscan.models import SequenceModel
from longscan.ops.dispatch import BACKENDS

AUTOMATON = "automaton.json"
MAX_PARAMETERS = 20_000_000
PIECE = 4096
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Size:
    """What a model would need: the letters of its blocks, its width, parameters, and the lengths of counters and flip-flops."""

    spec: str
    d_model: int
    parameters: int
    counters: tuple[int, ...]
    flip_flops: tuple[int, ...]


def _translate(dfa: DFA, series: Series, layout: Layout, *, minimise: bool) -> tuple[Report, Program, Plan]:
    for name, value, choices in (("series", series, ("abelian", "prime")), ("layout", layout, ("minimal", "am", "ma"))):
        if value not in choices:
            raise ValueError(f"{name}: got {value!r}, expected one of {choices}")
    report = analyse(dfa, monoid_limit=0, minimise=minimise)
    if report.verdict == "non-solvable":
        raise NonSolvableError(report)
    program = build_program(report.skeleton, report.dfa.start, series)
    return report, program, plan(program, layout)


def _size(program: Program, layout: Plan) -> Size:
    sizes: dict[str, list[int]] = {"counter": [], "flip-flop": [], "lookup": []}
    for op in program.ops:
        sizes[op.kind].append(program.fields[op.output].size)
    parameters = count_parameters(program, layout)
    return Size(layout.spec, layout.d_model, parameters, tuple(sizes["counter"]), tuple(sizes["flip-flop"]))


def size(dfa: DFA, *, series: Series = "abelian", layout: Layout = "minimal", minimise: bool = True) -> Size:
    """The size of the model that `compile` would make, without making its weights."""
    _, program, layout_plan = _translate(dfa, series, layout, minimise=minimise)
    return _size(program, layout_plan)


def compile_dfa(
    dfa: DFA,
    *,
    series: Series = "abelian",
    phase: Phase = "grid",
    layout: Layout = "minimal",
    dtype: str = "float32",
    backend: str = "auto",
    minimise: bool = True,
    length: int | None = None,
    max_params: int = MAX_PARAMETERS,
) -> "Compiled":
    """Turn an automaton into a model of this package's blocks that computes it at every step of every word.

    The tables are made and proved here; the weights when `model` is first asked for.

    Args:
        dfa: any automaton; its minimal one is compiled, unless `minimise` is False, which keeps its states apart.
        series: "abelian", fewest blocks, or "prime", counters of prime length only.
        phase: "grid", counters turn by whole steps and are exact for every length, or "float", the plain AUSSM layer, exact up
            to the certified length.
        layout: "minimal", or "am" or "ma", the two kinds of block by turns.
        dtype: "float32" or "float64".
        backend: of the model's ops.
        length: PrecisionError unless this length is certified; None asks for nothing.
        max_params: LimitExceeded beyond this many parameters.

    Raises NonSolvableError where the language needs a group that is not solvable, LimitExceeded beyond a limit: 20,000 image
    sets, 20,000 elements of a group, 20 million cases of the proof.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, expected one of {tuple(DTYPES)}")
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend: got {backend!r}, expected 'auto' or one of {BACKENDS}")
    if phase not in ("grid", "float"):
        raise ValueError(f"phase: got {phase!r}, expected 'grid' or 'float'")
    report, program, layout_plan = _translate(dfa, series, layout, minimise=minimise)
    parameters = count_parameters(program, layout_plan)
    if parameters > max_params:
        raise LimitExceeded("parameters", max_params, parameters)
    proof = check_program(program, report.dfa)
    if not proof.holds:
        raise AssertionError(f"the compiled program is wrong, please report this automaton: {proof.problems[0]}")
    settings = {"series": series, "phase": phase, "layout": layout, "dtype": dtype, "backend": backend}
    compiled = Compiled(report, program, layout_plan, proof, settings)
    if length is not None:
        certified = compiled.verify().safe_length
        if certified is not None and certified < length:
            raise PrecisionError(length, certified)
    return compiled


@dataclass(frozen=True)
class Compiled:
    """A compiled language. report: its analysis; program: the cascade as memories and tables; plan: where it stands in the model;
    proof: that the program is right for all words; settings: what it was compiled with.
    """

    report: Report
    program: Program
    plan: Plan
    proof: LocalProof
    settings: dict[str, Any]

    @cached_property
    def model(self) -> SequenceModel:
        """The model, in evaluation mode; its modules and weights are made when they are first asked for."""
        return build_model(
            self.program,
            self.plan,
            self.dfa.accept,
            phase=self.settings["phase"],
            dtype=DTYPES[self.settings["dtype"]],
            backend=self.settings["backend"],
        )

    @property
    def dfa(self) -> DFA:
        """The automaton that is computed."""
        return self.report.dfa

    @property
    def spec(self) -> str:
        """The letters of the blocks."""
        return self.plan.spec

    @cached_property
    def size(self) -> Size:
        """Blocks, width, parameters, memories."""
        return _size(self.program, self.plan)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights."""
        return dict(self.model.state_dict())

    def run(self, words: Tensor, state: Any = None, *, piece: int = PIECE) -> Iterator[tuple[Tensor, Tensor]]:
        """Run the model, on its own device, over words (B, L) of letter numbers, piece by piece of the length.

        Yields the logits (B, l, 2) and the residual stream behind the last block (B, l, d_model) of every piece, on the CPU.
        """
        device = next(self.model.parameters()).device
        for first in range(0, words.shape[1], piece):
            with torch.no_grad(), self._watch() as seen:
                logits, state = self.model(words[:, first : first + piece].to(device), state, return_state=True)
            yield logits.cpu(), seen[0].cpu()

    @contextmanager
    def _watch(self) -> Iterator[list[Tensor]]:
        seen: list[Tensor] = []
        hook = self.model.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            yield seen
        finally:
            hook.remove()

    def _numbers(self, words: Tensor | Sequence[Word]) -> tuple[Tensor, Tensor]:
        """Words as numbers (B, L), short ones filled up at the end, and their lengths."""
        if isinstance(words, Tensor):
            return words, torch.full((len(words),), words.shape[1])
        coded = [self.dfa.encode(word) for word in words]
        lengths = torch.tensor([len(word) for word in coded], dtype=torch.int64)
        numbers = torch.zeros(len(coded), int(lengths.max()) if coded else 0, dtype=torch.int64)
        for row, word in enumerate(coded):
            numbers[row, : len(word)] = torch.tensor(word, dtype=torch.int64)
        return numbers, lengths

    def states(self, words: Tensor | Sequence[Word]) -> Tensor:
        """The state that the model is in after every letter: (B, L) int64, -1 behind a word's end. The states are those of
        `dfa`.
        """
        numbers, lengths = self._numbers(words)
        read = [self.read_states(stream) for _, stream in self.run(numbers)]
        states = torch.cat(read, 1) if read else numbers.clone()
        return torch.where(torch.arange(states.shape[1]) < lengths[:, None], states, -1)

    def read_states(self, stream: Tensor) -> Tensor:
        """The states that residual streams (..., d_model) hold."""
        last = self.program.levels[-1]
        of_number = torch.tensor([mask.bit_length() - 1 for mask in last.sets])
        if last.field is None:
            return of_number[0].expand(stream.shape[:-1])
        first = self.plan.offsets[last.field]
        return of_number[stream[..., first : first + len(last.sets)].argmax(-1)]

    def accepts(self, words: Tensor | Sequence[Word]) -> list[bool]:
        """The model's answer for every word; for the empty word, which a model never sees, the automaton's."""
        numbers, lengths = self._numbers(words)
        answers = [logits.argmax(-1) == 1 for logits, _ in self.run(numbers)]
        at_end = torch.cat(answers, 1) if answers else torch.zeros(len(numbers), 0, dtype=torch.bool)
        empty = self.dfa.start in self.dfa.accept
        return [bool(row[n - 1]) if n else empty for row, n in zip(at_end, lengths.tolist(), strict=True)]

    def verify(self) -> Certificate:
        """Check the weights against the program's tables, block by block, and say up to which length the answers are
        certified.
        """
        domains = check_program(self.program, self.dfa, keep_domains=True)
        return inspect_weights(self.model, self.program, self.plan, domains, self.dfa.accept)

    def explain(self, word: Word) -> Trace:
        """What happens letter by letter: sets of the cascade, counters and flip-flops, and the same as the model holds them."""
        numbers = self.dfa.encode(word)
        values = self.program.run(np.array([numbers], np.int64).reshape(1, -1))[0]
        streams = [stream for _, stream in self.run(torch.tensor([numbers], dtype=torch.int64))]
        stream = torch.cat(streams, 1)[0] if streams else torch.zeros(0, self.plan.d_model)
        steps = []
        for letter, row, held in zip(word, values, stream, strict=True):
            chain = [members(level.sets[0 if level.field is None else row[level.field]]) for level in self.program.levels]
            memories = {f.name: int(row[i]) for i, f in enumerate(self.program.fields) if i and self._is_memory(i)}
            state = int(self.program.states(row))
            steps.append(
                Step(letter, state, state in self.dfa.accept, tuple(map(tuple, chain)), memories, int(self.read_states(held)))
            )
        return Trace(self.dfa, tuple(steps), stream)

    def _is_memory(self, field: int) -> bool:
        return any(op.output == field and op.kind != "lookup" for op in self.program.ops)

    def save(self, folder: str | Path) -> None:
        """Write the model as `SequenceModel.save_pretrained` does, and automaton.json beside it."""
        self.model.save_pretrained(folder)
        dfa = self.dfa
        content = {
            "alphabet": dfa.alphabet,
            "delta": dfa.delta,
            "start": dfa.start,
            "accept": sorted(dfa.accept),
            "settings": self.settings,
        }
        write_text(Path(folder) / AUTOMATON, json.dumps(content) + "\n")


def load(folder: str | Path) -> Compiled:
    """What `Compiled.save` wrote; the weights are those of the file, whatever has become of them since.

    FileNotFoundError where a file is missing, AutomataError where they do not belong together.
    """
    path = Path(folder) / AUTOMATON
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; `longscan automata --save` writes it beside the model")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        dfa = DFA(content["alphabet"], content["delta"], content["start"], frozenset(content["accept"]))
        settings = content["settings"]
        report, program, layout_plan = _translate(dfa, settings["series"], settings["layout"], minimise=False)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise AutomataError(f"{path}: damaged ({error!r}), expected what `longscan automata --save` wrote") from None
    model = SequenceModel.from_pretrained(folder).eval()
    shapes = {name: value.shape for name, value in weight_arrays(program, layout_plan, dfa.accept).items()}
    if {name: tuple(parameter.shape) for name, parameter in model.named_parameters()} != shapes:
        raise AutomataError(f"{folder}: the model is not of the automaton in {AUTOMATON}, expected both from one --save")
    compiled = Compiled(report, program, layout_plan, check_program(program, dfa), settings)
    vars(compiled)["model"] = model
    return compiled


def words_up_to(dfa: DFA, length: int) -> Tensor:
    """All words of one length, whose prefixes are all shorter words too: (letters^length, length)."""
    return torch.tensor(list(itertools.product(range(len(dfa.alphabet)), repeat=length)), dtype=torch.int64)
