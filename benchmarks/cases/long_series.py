"""Accuracy, time and memory of classifiers on series of thousands of steps: events, bases of genomes, joined gestures.

- events: a part of N-MNIST, the coordinates and polarities of the events of a camera that sees digits, at the times when they
  occur. `SSMClassifier` reads the times as elapsed times, the other methods as a fourth channel.
- bases: windows of four species from the regions of ENCODE, one channel for each base; the region ENm001 to fit, ENm002 to test.
- gestures: recordings of UWaveGestureLibrary one after another; the label is the gesture that `MAJORITY` of them are. Recordings
  of the training part to fit, of the test part to test.

Each method has its default settings and runs in a separate process, whose peak of memory beyond the series is recorded, after a
fit to a few made-up series, so that neither compilation nor the loading of libraries is counted. Those of aeon read series that
are padded on the right with zeros to the longest. No setting is chosen by test scores. Seconds of the processor, which waiting
for other processes does not change, are recorded next to those of the clock.

A row that is in the file is not measured again: delete rows to replace them. Data are read from the folder LONGSCAN_DATA.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cases.classification import KEY, METHODS, compile_kernels, read_set
from harness import CPU, ROOT, Row, measurements, provenance
from longscan.report.records import Record, read_records
from longscan.tasks.dna.fasta import read_fasta
from longscan.tasks.events.files import read_nmnist, read_sample_list
from page import mark_uncommitted, recorded_keys, write_section

EVENTS_EACH = 100  # recordings of each part
SPECIES = ("human", "mouse", "dog", "cow")
BASES_STEPS, BASES_TRAIN, BASES_TEST = 6000, 20, 25  # steps of a window, windows of each species
GESTURES_JOINED, MAJORITY, GESTURES_TRAIN, GESTURES_TEST = 20, 8, 64, 64  # recordings of a series; series of each part
NAMES = ("SSMClassifier", "constant", "MiniRocket", "MultiRocket-Hydra", "QUANT")
SECONDS = ("fit", "predict")  # of the processor in the table, of the clock where a row has no others
QUICK_SERIES, QUICK_STEPS = 8, 500  # of each part
PAGE, SECTION = ROOT / "docs/howto/accuracy.md", "long series"

Series = list[np.ndarray]  # (L_i, C) each


class Part(NamedTuple):
    """Series of a set, (L_i, C) each, their labels, and the times of their steps where these are irregular, (L_i,) each."""

    series: Series
    labels: np.ndarray
    times: Series | None = None


def _folder() -> Path:
    folder = os.environ.get("LONGSCAN_DATA")
    if not folder:
        raise SystemExit("long_series: LONGSCAN_DATA must be the folder that has events, dna and uea, got nothing")
    return Path(folder)


def read_events(*, train: bool) -> Part:
    """Return recordings of N-MNIST; series have the channels x, y and polarity."""
    found = sorted((_folder() / "events").rglob("train1K.txt" if train else "test100.txt"))
    if not found:
        raise SystemExit("long_series: LONGSCAN_DATA/events must have NMNISTsmall, with train1K.txt and test100.txt, got nothing")
    rows = read_sample_list(found[0])
    series, times, labels = [], [], []
    for number, label in rows[:: max(1, len(rows) // EVENTS_EACH)][:EVENTS_EACH]:
        stream = read_nmnist(found[0].parent / f"{number}.bs2")
        series.append(np.stack([stream.x, stream.y, stream.p], 1).astype(np.float64))
        times.append(np.maximum.accumulate(stream.t + 1e-3 * np.arange(len(stream.t))))  # events of one moment, in their order
        labels.append(label)
    return Part(series, np.array(labels), times)


def read_bases(*, train: bool) -> Part:
    """Return windows of genomes at equal distances."""
    region, count = ("ENm001", BASES_TRAIN) if train else ("ENm002", BASES_TEST)
    series, labels = [], []
    for species in SPECIES:
        (path,) = (_folder() / "dna").rglob(f"{species}.{region}.fa")
        bases = np.concatenate([codes for _, codes in read_fasta(path)])
        for first in np.linspace(0, len(bases) - BASES_STEPS, count).astype(int):
            series.append((bases[first : first + BASES_STEPS, None] == np.arange(4)).astype(np.float64))
            labels.append(species)
    return Part(series, np.array(labels))


def read_gestures(*, train: bool) -> Part:
    """Return series of gestures one after another, in a random order."""
    part = read_set("UWaveGestureLibrary")[0 if train else 1]
    random, kinds = np.random.default_rng(0 if train else 1), np.unique(part.labels)
    series, labels = [], []
    for number in range(GESTURES_TRAIN if train else GESTURES_TEST):
        label = kinds[number % len(kinds)]
        own, others = np.flatnonzero(part.labels == label), np.flatnonzero(part.labels != label)
        rows = np.r_[random.choice(own, MAJORITY), random.choice(others, GESTURES_JOINED - MAJORITY)]
        series.append(np.concatenate([part.series[row] for row in random.permutation(rows)]))
        labels.append(label)
    return Part(series, np.array(labels))


SETS: dict[str, Callable[..., Part]] = {"events": read_events, "bases": read_bases, "gestures": read_gestures}


def _shorten(part: Part) -> Part:
    rows = np.random.default_rng(0).permutation(len(part.series))[:QUICK_SERIES]
    short = [part.series[row][:QUICK_STEPS] for row in rows]
    times = None if part.times is None else [part.times[row][:QUICK_STEPS] for row in rows]
    return Part(short, part.labels[rows], times)


def _resident(name: str) -> float:
    """Return a figure of the memory of this process in MiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text("utf-8").splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) / 1024


def _clocks() -> tuple[float, float]:
    """Return the seconds of the clock and those of the processor in this process."""
    return time.perf_counter(), time.process_time()


def fit_and_score(data: str, name: str, seed: int, threads: int, quick: bool) -> Row:
    """Fit a method to the training part of a set and return what was measured, in a separate process."""
    torch.set_num_threads(threads)
    train, test = (SETS[data](train=part) for part in (True, False))
    train, test = (_shorten(train), _shorten(test)) if quick else (train, test)
    method = METHODS[name]
    compile_kernels(name)
    longest = max(map(len, train.series + test.series))
    options: list[dict[str, Any]] = [{}, {}]
    if train.times is not None and test.times is not None:
        if name == "SSMClassifier":
            options = [{"times": train.times}, {"times": test.times}]
        else:
            train, test = (Part(_with_gaps(part), part.labels) for part in (train, test))
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # resets the peak
    started = _clocks()
    model = method.build(seed)
    model.fit(method.convert(train.series, longest), train.labels, **options[0])
    fitted = _clocks()
    answers = model.predict(method.convert(test.series, longest), **options[1])
    predicted = _clocks()
    return {
        "set": data,
        "method": name,
        "seed": seed,
        "accuracy": float(np.mean(answers == test.labels)),
        "n_train": len(train.series),
        "n_test": len(test.series),
        "longest": longest,
        "fit_seconds": fitted[0] - started[0],
        "predict_seconds": predicted[0] - fitted[0],
        "fit_processor_seconds": fitted[1] - started[1],
        "predict_processor_seconds": predicted[1] - fitted[1],
        "peak_mib": max(0.0, _resident("VmHWM") - before),
        "threads": threads,
        **({} if method.package is None else {method.package: version(method.package)}),
    }


def _with_gaps(part: Part) -> Series:
    """Return the series with the time since the step before as a further channel."""
    assert part.times is not None, "called for series with times"
    gaps = [np.diff(times, prepend=times[0]) for times in part.times]
    return [np.column_stack([values, gap]) for values, gap in zip(part.series, gaps, strict=True)]


def rows_of(options: Any, *, name: str) -> Iterator[Row]:
    """Yield the rows of a method that are not in the file."""
    path = (options.out or ROOT / "results/classification") / f"{options.name or 'long_series'}.jsonl"
    context = multiprocessing.get_context("spawn")
    for seed in range(1 if not METHODS[name].random or options.quick else options.runs):
        for data in SETS:
            if time.perf_counter() < options.end and (options.quick or (data, name, seed) not in recorded_keys(path, KEY)):
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    row = pool.submit(fit_and_score, data, name, seed, torch.get_num_threads(), options.quick).result()
                yield row | provenance(CPU, uses_triton=False)


def write_page(path: Path) -> None:
    """Write the table of a file of records into the page of the documentation."""
    write_section(path, PAGE, SECTION, table(read_records(path)))


def table(rows: Sequence[Record]) -> str:
    """Return a Markdown table with a line for each set and method: accuracy, seconds and memory.

    Accuracies and seconds are means over the seeds, memory is the largest.
    """
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for row in rows:
        found.setdefault((row["set"], row["method"]), {})[row["seed"]] = row
    lines = ["| Set | Steps at most | Method | Seeds | Accuracy | Fit, s | Predict, s | Peak, MiB |", "|" + "---|" * 8]
    for data in SETS:
        for name in NAMES:
            of_seed = list(found.get((data, name), {}).values())
            if not of_seed:
                continue
            means = {
                part: float(np.mean([row.get(f"{part}_processor_seconds", row[f"{part}_seconds"]) for row in of_seed]))
                for part in SECONDS
            }
            lines.append(
                f"| {data} | {of_seed[0]['longest']:,} | {name} | {len(of_seed)} | "
                f"{np.mean([row['accuracy'] for row in of_seed]):.3f} | {means[SECONDS[0]]:.1f} | "
                f"{means[SECONDS[1]]:.1f} | {max(row['peak_mib'] for row in of_seed):,.0f} |"
            )
    return "\n".join(lines) + "\n" + mark_uncommitted(rows, "method")


CASES = measurements("long_series", NAMES, rows_of, write_page, folder="classification")
