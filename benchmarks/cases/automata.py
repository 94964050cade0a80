"""Answers of compiled automata on real models (suite automata); rows go to results/automata/NAME.jsonl.

table: the named automata on every backend, on all words up to length 8, 1,000 of length 1,000, and for automata with sinks 1,000
that avoid them; about half an hour of one core. million: a word of 1,000,000 letters for four automata on every backend; half an
hour. random: 1,000 random automata of 2 to 10 states, which must compile and be certified, or raise an error if they are not
solvable. mutants: 500 changes of one entry of compiled cascades that change the language. Each overwrites its file. The exit
status is 1 if an answer is wrong.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sympy.combinatorics import Permutation as SympyPermutation
from sympy.combinatorics import PermutationGroup as SympyGroup

from harness import CPU, GPU, Measurement, Row, provenance
from longscan import automata
from longscan.automata.certificate import check_product, check_program
from longscan.automata.compiler import all_words
from longscan.automata.program import HOLD, Branch, Program
from longscan.automata.scoring import random_words, score

BACKENDS = ("eager", "cpu", "reference", *(["triton"] if GPU.type == "cuda" else []))
LONG = ("parity", "mod 5", "S3", "flip-flop and parity")
PRODUCT_LIMIT = 5_000
MAX_STREAM_NUMBERS = 20_000_000  # numbers in the residual stream of one forward pass


def named_cases(options: Any) -> Iterator[Row]:
    """Yield a row for each named case and backend, or one with the reason of the refusal."""
    quick = options.quick
    for name in automata.NAMED:
        dfa = automata.named(name)
        for backend in BACKENDS[: 2 if quick else None]:
            try:
                compiled, seconds = timed_compile(dfa, backend=backend)
            except automata.NonSolvableError as error:
                yield stamped({"case": name, "states": dfa.minimise().size, "refused": str(error)})
                break
            compiled.model.to(device_of(backend))
            monoid_size = automata.analyse(dfa).monoid_size
            size = compiled.size
            row = {
                "case": name, "backend": backend, "dtype": "float32", "states": compiled.dfa.size,
                "monoid": monoid_size, "counters": list(size.counters),
                "flip_flops": list(size.flip_flops), "blocks": size.spec, "d_model": size.d_model, "parameters": size.parameters,
                "compile_ms": round(1e3 * seconds[0], 2), "weights_ms": round(1e3 * seconds[1], 2),
                "certificate": str(compiled.verify()),
            }  # fmt: skip
            short = all_words(compiled.dfa, 8 if len(compiled.dfa.alphabet) == 2 or not quick else 5)
            thousand = random_words(compiled, 20 if quick else 1000, 100 if quick else 1000)
            batches = [short, thousand]
            if compiled.dfa.sinks:  # uniform random words soon end in a sink and stay there
                batches.append(random_words(compiled, *thousand.shape, avoid_sinks=True))
            yield stamped(row | {"words": [list(words.shape) for words in batches], **mistakes(compiled, *batches)})


def long_cases(options: Any) -> Iterator[Row]:
    """Yield a row for each backend and each of four automata, for one word of a million letters."""
    for backend in BACKENDS[: 2 if options.quick else None]:
        for name in LONG:
            compiled = automata.compile(automata.named(name), backend=backend)
            compiled.model.to(device_of(backend))
            words = random_words(compiled, 1, 10_000 if options.quick else 1_000_000, seed=1)
            row = {"case": name, "backend": backend, "dtype": "float32", "words": [list(words.shape)]}
            yield stamped(row | mistakes(compiled, words))


def device_of(backend: str) -> torch.device:
    """Return the device on which the models of a backend run."""
    return GPU if backend == "triton" else CPU


def stamped(row: Row) -> Row:
    """Return a row with the fields that say how it was made."""
    return row | provenance(device_of(row.get("backend", "cpu")), uses_triton=False)


def mistakes(compiled: automata.CompiledAutomaton, *batches: torch.Tensor) -> dict[str, Any]:
    """Return the number of prefixes tried, the number of wrong answers and states, and the seconds, as fields of a row."""
    started, wrong, prefixes = time.perf_counter(), 0, 0
    for words in batches:
        rows = max(1, MAX_STREAM_NUMBERS // (words.shape[1] * compiled.plan.d_model))
        for part in words.split(rows):
            found = score(compiled, part)
            wrong += round((1 - found.accuracy) * found.prefixes) + round((1 - found.states) * found.prefixes)
            prefixes += found.prefixes
    return {"prefixes": prefixes, "wrong": wrong, "seconds": round(time.perf_counter() - started, 1)}


def timed_compile(dfa: automata.DFA, repeats: int = 3, **options: Any) -> tuple[automata.CompiledAutomaton, tuple[float, float]]:
    """Return the compiled automaton, and the least CPU seconds of compiling and proving it and of building its model."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        compiled = automata.compile(dfa, **options)
        proved = time.process_time()
        compiled.model.parameters()
        times.append((proved - started, time.process_time() - proved))
    first, second = zip(*times, strict=True)
    return compiled, (min(first), min(second))


def random_automaton(seed: int) -> automata.DFA:
    """Return a random automaton of 2 to 10 states and two or three letters, with uniform transitions and accepting states."""
    draw = random.Random(seed)
    states, letters = draw.randint(2, 10), draw.randint(2, 3)
    delta = tuple(tuple(draw.randrange(states) for _ in range(letters)) for _ in range(states))
    return automata.DFA(tuple("abc"[:letters]), delta, 0, frozenset(q for q in range(states) if draw.random() < 0.5))


def solvable_by_points(dfa: automata.DFA) -> bool:
    """Return whether all groups in the transition monoid are solvable, by sympy and by another method than the compiler's.

    Every group of the monoid acts faithfully on the image of its identity. Hence all are solvable if and only if, for every image
    set P, the group of permutations of P by words that map P to itself is solvable. Its generators are Schreier's, on the graph
    of image sets of one size.
    """
    full = frozenset(range(dfa.size))
    seen = {full}
    for image in (queue := [full]):
        for letter in dfa.maps:
            target = frozenset(letter[q] for q in image)
            if target not in seen:
                seen.add(target)
                queue.append(target)
    done: set[frozenset[int]] = set()
    for root in queue:
        if root in done or len(root) < 2:
            continue
        maps = {root: {q: q for q in root}}  # for each set the map of points of one word from the root to it
        order = [root]
        for image in order:
            for letter in dfa.maps:
                target = frozenset(letter[q] for q in image)
                if len(target) == len(root) and target not in maps:
                    maps[target] = {q: letter[maps[image][q]] for q in root}
                    order.append(target)
        back = {root}
        while grown := {s for s in maps if s not in back and any(frozenset(a[q] for q in s) in back for a in dfa.maps)}:
            back |= grown
        points = {q: i for i, q in enumerate(sorted(root))}
        generators = set()
        for image in back:
            for letter in dfa.maps:
                target = frozenset(letter[q] for q in image)
                if len(target) == len(root) and target in back:
                    home = {maps[target][q]: q for q in root}
                    generators.add(tuple(points[home[letter[maps[image][q]]]] for q in sorted(root)))
        done |= back
        if not SympyGroup([SympyPermutation(list(g)) for g in generators]).is_solvable:
            return False
    return True


def random_cases(options: Any) -> Iterator[Row]:
    """Yield a row for each random automaton and print a summary."""
    rows = []
    for row in random_outcomes(30 if options.quick else 1000):
        rows.append(row)
        yield stamped(row)
    print("\n".join(summary(rows)), flush=True)


def random_outcomes(count: int) -> Iterator[Row]:
    """Yield the outcome for the random automata of seeds 0 to `count` - 1: compiled, refused, or over a limit."""
    for seed in range(count):
        dfa = random_automaton(seed)
        row: dict[str, Any] = {"seed": seed, "states": dfa.size, "letters": len(dfa.alphabet), "minimal": dfa.minimise().size}
        row["solvable"] = solvable_by_points(dfa.minimise())
        try:
            compiled, seconds = timed_compile(dfa, 1)
            row["compile_ms"], row["weights_ms"] = round(1e3 * seconds[0], 2), round(1e3 * seconds[1], 2)
        except automata.NonSolvableError:
            yield row | {"outcome": "refused", "right": not row["solvable"]}
            continue
        except automata.LimitExceeded as error:
            yield row | {"outcome": "limit", "what": error.what, "right": True}
            continue
        size = compiled.size
        row |= {"blocks": size.spec, "d_model": size.d_model, "parameters": size.parameters}
        found = score(compiled, random_words(compiled, 8, 60, seed))
        certified = compiled.verify().is_certified
        right = found.accuracy == found.states == 1 and certified and row["solvable"]
        yield row | {"outcome": "compiled", "certified": certified, "right": right}


def mutants(program: Program, draw: random.Random) -> Iterator[Program]:
    """Yield endlessly copies of the program with one random entry of one table changed."""
    while True:
        number = draw.randrange(len(program.ops))
        op = program.ops[number]
        at = draw.randrange(len(op.branches))
        branch = op.branches[at]
        if not branch.rows:
            continue
        key = draw.choice(list(branch.rows))
        values = [*([HOLD] if op.kind == "flip-flop" else []), *range(program.fields[op.output].size)]
        changed = Branch(branch.wires, {**branch.rows, key: draw.choice([v for v in values if v != branch.rows[key]])})
        yield program.replace_op(number, replace(op, branches=(*op.branches[:at], changed, *op.branches[at + 1 :])))


def count_mutants(wanted: int) -> Row:
    """Change one table entry at a time until `wanted` changes change the language; count those that the certificate detects."""
    counts, seed = Counter(dict.fromkeys(("caught", "missed", "harmless", "harmless but refused"), 0)), 0
    while counts["change the language"] < wanted:
        seed += 1
        try:
            compiled = automata.compile(random_automaton(seed), max_params=300_000)
        except automata.AutomataError:
            continue
        if not compiled.program.ops:
            continue
        words = random_words(compiled, 100, 60, seed).numpy()
        expected = compiled.dfa.run(words)
        source = mutants(compiled.program, random.Random(seed))
        for _ in range(min(4, max(1, compiled.size.parameters // 500))):
            mutant = next(source)
            counts["tried"] += 1
            changes = bool((mutant.states(mutant.run(words)) != expected).any())
            searched = None if changes else check_product(mutant, compiled.dfa, PRODUCT_LIMIT)
            is_proved = check_program(mutant, compiled.dfa).is_proved
            if changes or searched is False:
                counts["change the language"] += 1
                counts["caught"] += not is_proved
                counts["missed"] += is_proved
            elif searched is None:
                counts["language unchanged on the words tried, product too large"] += 1
            else:
                counts["harmless"] += 1
                counts["harmless but refused"] += not is_proved
            if counts["change the language"] >= wanted:
                break
    return dict(counts)


def mutation_cases(options: Any) -> Iterator[Row]:
    """Yield one row, the counts of `count_mutants`."""
    yield stamped(count_mutants(20 if options.quick else 500))


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines about the random automata: the number of each outcome, and times of compiling."""
    outcomes = Counter(row["outcome"] for row in rows)
    lines = [f"{dict(outcomes)}, wrong: {sum(not row['right'] for row in rows)}"]
    for field, what in (("compile_ms", "compiled and proved"), ("weights_ms", "weights and model")):
        times = [row[field] for row in rows if row["outcome"] == "compiled"]
        lines.append(f"{what} in {statistics.median(times):.1f} ms (median), {max(times):.0f} ms (longest)")
    return lines


def no_page(path: Path) -> None:
    """Write no page: docs/automata.md quotes the rows."""


CASES = tuple(
    Measurement(suite="automata", name=name, rows=rows, folder="automata", file=name, replaces=True, write_page=no_page)
    for name, rows in {"table": named_cases, "million": long_cases, "random": random_cases, "mutants": mutation_cases}.items()
)
