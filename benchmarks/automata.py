"""What the compiler of automata shows, measured on real models on the CPU.

    python benchmarks/automata.py table      the named cases on every backend of a CPU: all words up to length 8, 1,000 of
                                             length 1,000, and where there are sinks 1,000 that keep out of them; about half an
                                             hour of one core
    python benchmarks/automata.py million    a word of 1,000,000 letters for four of them, on every backend; as long again
    python benchmarks/automata.py random     1,000 random automata of 2 to 10 states: compiled and certified, or refused rightly
    python benchmarks/automata.py mutants    500 single-entry corruptions of compiled cascades that change the language
    python benchmarks/automata.py survival   what of the exact weights survives noise, bfloat16, weight decay and training
    ... --quick                              a few of each, nothing written
    ... --backends triton                    of `table` and `million`: these backends; triton needs a GPU, and the models go there
    ... --resume                             of these two: keep the rows that the file has, measure the others
    ... --draw                               of `survival`: only draw the picture again from the rows

Writes a file of its name into DIR, table.jsonl and so on, and survival.png; DIR is results/automata unless --out is given. Exits
with 1 where an answer is wrong.
"""

import argparse
import datetime
import json
import random
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from sympy.combinatorics import Permutation as SympyPermutation
from sympy.combinatorics import PermutationGroup as SympyGroup

from longscan import automata
from longscan.automata.certificate import check_product, check_program
from longscan.automata.compiler import words_up_to
from longscan.automata.program import HOLD, Branch, Program
from longscan.automata.scoring import random_words, score
from longscan.report.records import check_record, read_records
from longscan.training.records import commit, device_name

ROOT = Path(__file__).parents[1]
BACKENDS = ("eager", "cpu", "reference")
LONG = ("parity", "mod 5", "S3", "flip-flop and parity")
PRODUCT_LIMIT = 5_000
CELLS = 20_000_000  # numbers in a residual stream at once

Done = Mapping[tuple[str, str | None], int]  # case and backend, which a refusal lacks -> batches of words


def named_cases(
    quick: bool, only: Sequence[str] = (), backends: Sequence[str] = BACKENDS, done: Done = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """The named cases: a row for each case and backend that is not `done`, or one with the reason of the refusal."""
    for name in only or automata.NAMED:
        dfa = automata.named(name)
        for backend in backends[: 2 if quick else None]:
            if (name, None) in done or done.get((name, backend), 0) >= (3 if dfa.minimise().sinks else 2):
                continue
            try:
                compiled, seconds = timed_compile(dfa, backend=backend)
            except automata.NonSolvableError as error:
                yield {"case": name, "states": dfa.minimise().size, "refused": str(error)}
                break
            compiled.model.to(device_of(backend))
            monoid = automata.analyse(dfa).monoid
            size = compiled.size
            memories = {"counters": list(size.counters), "flip_flops": list(size.flip_flops)}
            row = {
                "case": name, "backend": backend, "dtype": "float32", "states": compiled.dfa.size,
                "monoid": None if monoid is None else monoid.size, **memories,
                "blocks": size.spec, "d_model": size.d_model, "parameters": size.parameters,
                "compile_ms": round(1e3 * seconds[0], 2), "weights_ms": round(1e3 * seconds[1], 2),
                "certificate": str(compiled.verify()),
            }  # fmt: skip
            short = words_up_to(compiled.dfa, 8 if len(compiled.dfa.alphabet) == 2 or not quick else 5)
            thousand = random_words(compiled, 20 if quick else 1000, 100 if quick else 1000)
            batches = [short, thousand]
            if compiled.dfa.sinks:  # where uniform words soon stay
                batches.append(random_words(compiled, *thousand.shape, shun_sinks=True))
            yield row | {"words": [list(words.shape) for words in batches], **mistakes(compiled, *batches)}


def device_of(backend: str) -> torch.device:
    """Where the models of a backend run."""
    return torch.device("cuda" if backend == "triton" else "cpu")


def long_cases(
    quick: bool, only: Sequence[str] = (), backends: Sequence[str] = BACKENDS, done: Done = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """One word of a million letters, a row for each of four cases and backend that is not `done`."""
    for backend in backends[: 2 if quick else None]:
        for name in only or LONG:
            if (name, backend) in done:
                continue
            compiled = automata.compile(automata.named(name), backend=backend)
            compiled.model.to(device_of(backend))
            words = random_words(compiled, 1, 10_000 if quick else 1_000_000, seed=1)
            row = {"case": name, "backend": backend, "dtype": "float32", "words": [list(words.shape)]}
            yield row | mistakes(compiled, words)


def mistakes(compiled: automata.Compiled, *batches: torch.Tensor) -> dict[str, Any]:
    """Prefixes tried, and how many answers and states were wrong."""
    started, wrong, prefixes = time.perf_counter(), 0, 0
    for words in batches:
        rows = max(1, CELLS // (words.shape[1] * compiled.plan.d_model))
        for part in words.split(rows):
            found = score(compiled, part)
            wrong += round((1 - found.accuracy) * found.prefixes) + round((1 - found.states) * found.prefixes)
            prefixes += found.prefixes
    return {"prefixes": prefixes, "wrong": wrong, "seconds": round(time.perf_counter() - started, 1)}


def timed_compile(dfa: automata.DFA, repeats: int = 3, **options: Any) -> tuple[automata.Compiled, tuple[float, float]]:
    """The compiled language, and the least CPU times (seconds) of compiling it, the proof included, and of making the model."""
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
    """2 to 10 states, two or three letters, uniform targets, each state accepting with probability a half."""
    draw = random.Random(seed)
    states, letters = draw.randint(2, 10), draw.randint(2, 3)
    delta = tuple(tuple(draw.randrange(states) for _ in range(letters)) for _ in range(states))
    return automata.DFA(tuple("abc"[:letters]), delta, 0, frozenset(q for q in range(states) if draw.random() < 0.5))


def solvable_by_points(dfa: automata.DFA) -> bool:
    """Whether the transition monoid has solvable groups only, by another way than the compiler's, with sympy.

    Every group of the monoid acts faithfully on the image of its identity; so all are solvable iff for every image set P the
    group of permutations of the points of P by words that take P to itself is. Its generators: Schreier's, on the graph of sets
    of one size.
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
        maps = {root: {q: q for q in root}}  # a word from the root to each set, as a map of points
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


def random_cases(quick: bool, seeds: Sequence[int] = (0, 1000)) -> Iterator[dict[str, Any]]:
    """Random automata: compiled and certified, refused (rightly or not), or over a limit; a row for each seed."""
    for seed in range(30) if quick else range(*seeds):
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
        certified = compiled.verify().holds
        right = found.accuracy == found.states == 1 and certified and row["solvable"]
        yield row | {"outcome": "compiled", "certified": certified, "right": right}


def mutants(program: Program, draw: random.Random) -> Iterator[Program]:
    """The program with one entry of one table changed, again and again."""
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
        yield program.replaced(number, replace(op, branches=(*op.branches[:at], changed, *op.branches[at + 1 :])))


def mutation_cases(quick: bool) -> dict[str, Any]:
    """Corruptions of one table entry until enough of them change the language; how many of those pass the certificate."""
    wanted, counts, seed = 20 if quick else 500, Counter[str](), 0
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
            holds = check_program(mutant, compiled.dfa).holds
            if changes or searched is False:
                counts["change the language"] += 1
                counts["caught"] += not holds
                counts["missed"] += holds
            elif searched is None:
                counts["language unchanged on the words tried, product too large"] += 1
            else:
                counts["harmless"] += 1
                counts["harmless but refused"] += not holds
            if counts["change the language"] >= wanted:
                break
    return dict(counts)


def survival_cases(quick: bool) -> Iterator[dict[str, Any]]:
    """Accuracy of compiled parity and S3 by length, after noise, casts, decay and training."""
    from survival import changes

    for name in ("parity", "S3"):
        yield from changes(name, quick)


def stamp(backend: str) -> dict[str, Any]:
    """What every row says about where it comes from."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"commit": commit(), "date": now, "device": device_name(device_of(backend)), "torch": torch.__version__}


def write_row(path: Path, row: dict[str, Any], command: str, *, first: bool) -> None:
    """One JSON line, at once: a run that is stopped leaves what it has measured. The first row starts the file afresh."""
    if first:
        path.unlink(missing_ok=True)
    record = row | stamp(row.get("backend", "cpu")) | {"command": command}
    check_record("automata", record)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Lines about the random automata."""
    outcomes = Counter(row["outcome"] for row in rows)
    times = sorted(row["compile_ms"] for row in rows if row["outcome"] == "compiled")
    weights = sorted(row["weights_ms"] for row in rows if row["outcome"] == "compiled")
    blocks = sorted(len(row["blocks"]) for row in rows if row["outcome"] == "compiled")
    return [
        f"{dict(outcomes)}, wrong: {sum(not row['right'] for row in rows)}",
        f"compiled and proved in {statistics.median(times):.1f} ms (median), {times[-1]:.0f} ms (longest); "
        f"weights and model in {statistics.median(weights):.1f} ms (median), {weights[-1]:.0f} ms (longest); "
        f"{statistics.median(blocks):.0f} blocks (median), {blocks[-1]} (most)",
    ]


def main() -> int:
    """Run one of the five."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("table", "million", "random", "mutants", "survival"))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "automata")
    parser.add_argument("--only", nargs="+", default=(), help="of `table` and `million`: these cases")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=(*BACKENDS, "triton"))
    parser.add_argument("--resume", action="store_true", help="of `table` and `million`: only what the file lacks, onto its end")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 1000), help="of `random`: from the first to before the second")
    parser.add_argument("--draw", action="store_true", help="of `survival`: only the picture, from the rows of the file")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.resume and given.what not in ("table", "million"):
        parser.error(f"--resume: got it for {given.what}, expected table or million")
    if given.draw and given.what != "survival":
        parser.error(f"--draw: got it for {given.what}, expected survival")
    if given.draw:
        from survival import draw

        draw(read_records(given.out / "survival.jsonl"), given.out / "survival.png")
        return 0
    torch.set_num_threads(1)
    command = shlex.join(["python", "benchmarks/automata.py", *sys.argv[1:]])
    if given.what == "mutants":
        counts = mutation_cases(given.quick)
        print(counts)
        if not given.quick:
            write_row(given.out / "mutants.jsonl", counts, command, first=True)
        return int(counts.get("missed", 0) > 0)
    rows: list[dict[str, Any]] = []
    path = given.out / f"{given.what}.jsonl"
    kept = read_records(path) if given.resume and path.is_file() else []
    done = {(row["case"], row.get("backend")): len(row.get("words", ())) for row in kept}
    chosen = {"only": given.only, "backends": given.backends, "done": done}
    table, million = partial(named_cases, **chosen), partial(long_cases, **chosen)
    drawn = partial(random_cases, seeds=given.seeds)
    cases = {"table": table, "million": million, "random": drawn, "survival": survival_cases}[given.what]
    for row in cases(given.quick):
        rows.append(row)
        if not given.quick:
            write_row(path, row, command, first=len(rows) == 1 and not given.resume)
        if given.what != "random" or not row["right"]:
            print(row, flush=True)
    if given.what == "random":
        print("\n".join(summary(rows)))
    if given.what == "survival" and not given.quick:
        from survival import draw

        draw(rows, given.out / "survival.png")
    return int(any(row.get("wrong", 0) or not row.get("right", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
