"""Compilation of an automaton to a model with exact weights: `compile_dfa`, and its result `CompiledAutomaton`."""

import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longscan._errors import quote, setting_error
from longscan._files import write_text
from longscan._types import PositiveInt, checked_value
from longscan.automata.abelian import Series
from longscan.automata.analysis import Report, analyse
from longscan.automata.cascade import build_program
from longscan.automata.certificate import ProgramProof, check_program
from longscan.automata.dfa import DFA, Word
from longscan.automata.errors import AutomataError, LimitExceeded, NonSolvableError, PrecisionError
from longscan.automata.inspection import Certificate, inspect_weights
from longscan.automata.layout import Layout, ModelPlan, count_parameters, plan_model
from longscan.automata.program import Program
from longscan.automata.skeleton import states_of
from longscan.automata.tracing import Step, Trace
from longscan.automata.weights import Phase, build_model, weight_arrays
from longscan.models import SequenceModel
from longscan.ops.dispatch import BACKENDS

AUTOMATON = "automaton.json"
MAX_PARAMETERS = 20_000_000
CHUNK_LENGTH = 4096
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class ModelSize:
    """Size of a compiled model: its spec, width, number of parameters, and the sizes of its counters and flip-flops."""

    spec: str
    d_model: int
    parameters: int
    counters: tuple[int, ...]
    flip_flops: tuple[int, ...]


def _build_plan(dfa: DFA, series: Series, layout: Layout, *, minimise: bool) -> tuple[Report, Program, ModelPlan]:
    """Analyse an automaton, build its program and plan the model. Raises NonSolvableError if it has a non-solvable group."""
    checked_value(series, Series, "series")
    checked_value(layout, Layout, "layout")
    report = analyse(dfa, monoid_limit=0, minimise=minimise)
    if report.verdict == "non-solvable":
        raise NonSolvableError(report)
    program = build_program(report.skeleton, report.dfa.start, series)
    return report, program, plan_model(program, layout)


def _size(program: Program, layout: ModelPlan) -> ModelSize:
    sizes: dict[str, list[int]] = {"counter": [], "flip-flop": [], "lookup": []}
    for op in program.ops:
        sizes[op.kind].append(program.fields[op.output].size)
    parameters = count_parameters(program, layout)
    return ModelSize(layout.spec, layout.d_model, parameters, tuple(sizes["counter"]), tuple(sizes["flip-flop"]))


def model_size(dfa: DFA, *, series: Series = "abelian", layout: Layout = "minimal", minimise: bool = True) -> ModelSize:
    """Return the size of the model that `compile` would build, without building its weights."""
    _, program, layout_plan = _build_plan(dfa, series, layout, minimise=minimise)
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
) -> "CompiledAutomaton":
    """Compile an automaton to a model of this package's blocks that computes its state at every step of every word.

    This function builds and proves the tables; the weights are built at the first access to `model`.

    Args:
        dfa: any automaton; its minimal automaton is compiled, unless `minimise` is False.
        series: "abelian" for the fewest blocks, or "prime" for counters of prime size only.
        phase: "grid", the angles of counters are multiples of a step and exact for every length, or "float", the plain AUSSM
            layer, exact up to the certified length.
        layout: "minimal", or "am" or "ma" for alternating kinds of block.
        dtype: "float32" or "float64".
        backend: of the model's ops.
        length: PrecisionError unless words of this length, at least 1, are certified; None for no check.
        max_params: LimitExceeded beyond this number of parameters.

    Raises NonSolvableError if the language needs a group that is not solvable, LimitExceeded beyond a limit: 20,000 image
    sets, 20,000 elements of a group, 20 million cases of the proof.
    """
    checked_value(phase, Phase, "phase")
    checked_value(length, PositiveInt | None, "length")
    for name, value, choices in (("dtype", dtype, tuple(DTYPES)), ("backend", backend, ("auto", *BACKENDS))):
        if value not in choices:
            raise setting_error(name, value, f"one of {', '.join(choices)}")
    report, program, layout_plan = _build_plan(dfa, series, layout, minimise=minimise)
    parameters = count_parameters(program, layout_plan)
    if parameters > max_params:
        raise LimitExceeded("parameters", max_params, parameters)
    proof = check_program(program, report.dfa)
    if not proof.is_proved:
        raise AssertionError(f"the compiled program is wrong, please report this automaton: {proof.problems[0]}")
    settings = {"series": series, "phase": phase, "layout": layout, "dtype": dtype, "backend": backend}
    compiled = CompiledAutomaton(report, program, layout_plan, proof, settings)
    if length is not None:
        certified = compiled.verify().safe_length
        if certified is not None and certified < length:
            raise PrecisionError(length, certified)
    return compiled


@dataclass(frozen=True)
class CompiledAutomaton:
    """A compiled automaton with its model.

    report: the analysis of the language; program: the cascade as memories and tables; plan: the blocks and positions of these in
    the model; proof: the check that the program is correct for all words; settings: the arguments of `compile_dfa`.
    """

    report: Report
    program: Program
    plan: ModelPlan
    proof: ProgramProof
    settings: dict[str, Any]

    @cached_property
    def model(self) -> SequenceModel:
        """The model in evaluation mode; built at the first access."""
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
        """The automaton that the model computes."""
        return self.report.dfa

    @property
    def spec(self) -> str:
        """Spec of the blocks in AUSSM's notation, a string of "a" and "m"."""
        return self.plan.spec

    @cached_property
    def size(self) -> ModelSize:
        """Size of the model: blocks, width, parameters, memories."""
        return _size(self.program, self.plan)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights by their names in the model."""
        return dict(self.model.state_dict())

    def run(self, words: Tensor, state: Any = None, *, chunk_length: int = CHUNK_LENGTH) -> Iterator[tuple[Tensor, Tensor]]:
        """Run the model on its device over words (B, L) of letter numbers, in chunks of at most `chunk_length` steps.

        Yields the logits (B, l, 2) and the residual stream after the last block (B, l, d_model) of every chunk, on the CPU.
        """
        device = next(self.model.parameters()).device
        for first in range(0, words.shape[1], chunk_length):
            with torch.no_grad(), self._capture_stream() as captured:
                logits, state = self.model(words[:, first : first + chunk_length].to(device), state, return_state=True)
            yield logits.cpu(), captured[0].cpu()

    @contextmanager
    def _capture_stream(self) -> Iterator[list[Tensor]]:
        """Collect the inputs of the last norm, which are the residual stream after the last block."""
        captured: list[Tensor] = []
        hook = self.model.norm.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
        try:
            yield captured
        finally:
            hook.remove()

    def _encode_batch(self, words: Tensor | Sequence[Word]) -> tuple[Tensor, Tensor]:
        """Return words as letter numbers (B, L), padded with 0 at the end, and their lengths (B,).

        Raises TypeError for a text, which is one word and not several, and for no collection, ValueError for a tensor of another
        shape.
        """
        if isinstance(words, str):
            raise TypeError(f"`words` must be several words, such as [{quote(words, 40)}], got the text {quote(words, 40)}")
        if isinstance(words, Tensor):
            if words.ndim != 2:
                raise ValueError(f"`words` must have shape (words, length), got {tuple(words.shape)}")
            return words, torch.full((len(words),), words.shape[1])
        if not isinstance(words, Iterable):
            raise TypeError(f"`words` must be several words, got {quote(words, 40)}")
        encoded = [torch.tensor(self.dfa.encode(word), dtype=torch.int64) for word in words]
        lengths = torch.tensor([len(word) for word in encoded], dtype=torch.int64)
        return pad_sequence(encoded, batch_first=True) if encoded else torch.zeros(0, 0, dtype=torch.int64), lengths

    def states(self, words: Tensor | Sequence[Word]) -> Tensor:
        """Return the state of `dfa` that the model represents after every letter, (B, L) int64, -1 after the end of a word."""
        numbers, lengths = self._encode_batch(words)
        chunks = [self.read_states(stream) for _, stream in self.run(numbers)]
        states = torch.cat(chunks, 1) if chunks else numbers.clone()
        return torch.where(torch.arange(states.shape[1]) < lengths[:, None], states, -1)

    def read_states(self, stream: Tensor) -> Tensor:
        """Return the states (...) of `dfa` that residual streams (..., d_model) represent."""
        last = self.program.levels[-1]
        of_number = torch.tensor([mask.bit_length() - 1 for mask in last.sets])
        if last.field is None:
            return of_number[0].expand(stream.shape[:-1])
        first = self.plan.offsets[last.field]
        return of_number[stream[..., first : first + len(last.sets)].argmax(-1)]

    def accepts(self, words: Tensor | Sequence[Word]) -> list[bool]:
        """Return the model's answer for every word; for the empty word, on which a model cannot run, the automaton's."""
        numbers, lengths = self._encode_batch(words)
        answers = [logits.argmax(-1) == 1 for logits, _ in self.run(numbers)]
        at_end = torch.cat(answers, 1) if answers else torch.zeros(len(numbers), 0, dtype=torch.bool)
        empty = self.dfa.start in self.dfa.accept
        return [bool(row[n - 1]) if n else empty for row, n in zip(at_end, lengths.tolist(), strict=True)]

    def verify(self) -> Certificate:
        """Check the weights of each block against the program's tables; return up to which length the answers are certified."""
        domains = check_program(self.program, self.dfa, keep_domains=True)
        return inspect_weights(self.model, self.program, self.plan, domains, self.dfa.accept)

    def explain(self, word: Word) -> Trace:
        """Return the sets of the cascade, the counters and flip-flops and the model's state after every letter of a word."""
        numbers = self.dfa.encode(word)
        values = self.program.run(np.array([numbers], np.int64).reshape(1, -1))[0]
        streams = [stream for _, stream in self.run(torch.tensor([numbers], dtype=torch.int64))]
        stream = torch.cat(streams, 1)[0] if streams else torch.zeros(0, self.plan.d_model)
        steps = []
        for letter, row, vector in zip(word, values, stream, strict=True):
            chain = [states_of(level.sets[0 if level.field is None else row[level.field]]) for level in self.program.levels]
            memories = {f.name: int(row[i]) for i, f in enumerate(self.program.fields) if i and self._is_memory(i)}
            state = int(self.program.states(row))
            steps.append(
                Step(letter, state, state in self.dfa.accept, tuple(map(tuple, chain)), memories, int(self.read_states(vector)))
            )
        return Trace(self.dfa, tuple(steps), stream)

    def _is_memory(self, field: int) -> bool:
        return any(op.output == field and op.kind != "lookup" for op in self.program.ops)

    def save(self, folder: str | Path) -> None:
        """Write the model with `SequenceModel.save_pretrained`, and automaton.json in the same folder."""
        self.model.save_pretrained(folder)
        dfa = self.dfa
        content = {
            "alphabet": dfa.alphabet,
            "delta": dfa.delta,
            "start": dfa.start,
            "accept": sorted(dfa.accept),
            "settings": self.settings,
        }
        write_text(Path(folder) / AUTOMATON, json.dumps({**content, "crc32": _checksum(content)}) + "\n")


def load(folder: str | Path) -> CompiledAutomaton:
    """Load what `CompiledAutomaton.save` wrote; the weights are those of the file, which may have been trained since.

    Raises FileNotFoundError if a file is missing, AutomataError if the files do not belong together.
    """
    path = Path(folder) / AUTOMATON
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `longscan automata --save` writes it into the folder of the model")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # Files of the versions before the checksum have none.
        if content.pop("crc32", None) not in (None, _checksum(content)):
            raise ValueError("its checksum is that of another content")
        dfa = DFA(content["alphabet"], content["delta"], content["start"], frozenset(content["accept"]))
        settings = content["settings"]
        report, program, layout_plan = _build_plan(dfa, settings["series"], settings["layout"], minimise=False)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise AutomataError(f"{path} is damaged ({quote(error, 200)}); `longscan automata --save` writes it") from None
    model = SequenceModel.from_pretrained(folder).eval()
    shapes = {name: value.shape for name, value in weight_arrays(program, layout_plan, dfa.accept).items()}
    if {name: tuple(parameter.shape) for name, parameter in model.named_parameters()} != shapes:
        raise AutomataError(f"{folder} must hold the model of the automaton in {AUTOMATON}, got another model")
    compiled = CompiledAutomaton(report, program, layout_plan, check_program(program, dfa), settings)
    vars(compiled)["model"] = model
    return compiled


def _checksum(content: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the JSON text of a mapping."""
    return zlib.crc32(json.dumps(content).encode())


def all_words(dfa: DFA, length: int) -> Tensor:
    """Return all words of one length, (letters^length, length) int64; their prefixes are all shorter words."""
    return torch.tensor(list(itertools.product(range(len(dfa.alphabet)), repeat=length)), dtype=torch.int64)
