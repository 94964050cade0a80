"""Fixtures that write generated run directories and records in the layout of those of training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml


def write_run(
    folder: Path, *, steps: int = 2000, every: int = 50, symbols: int = 3, entries: int = 128, n_classes: int = 4, **changes: Any
) -> Path:
    """Write a finished run with curves, confusion matrix, scores by length and angles; `changes` are fields of result.json."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    settings = {
        "spec_version": 2,
        "task": {
            "name": "cycle_navigation",
            "suite": "aussm",
            "vocab_size": 12,
            "train_length": [6, 40],
            "test_length": [41, 256],
        },
        "model": {
            "spec": "ma",
            "d_model": 16,
            "d_state": 8,
            "pooling": "none",
            "head": "linear",
            "block_options": {"a": {"phase_dt": False}},
        },
        "training": {
            "steps": steps,
            "batch_size": 256,
            "lr": 0.003,
            "schedule": "restarts",
            "clip": 1.0,
            "seed": 3,
            "patience": None,
        },
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    rows = []
    for step in range(1, steps + 1):
        done = 1 / (1 + np.exp(-(step / steps - 0.5) * 14))
        noise = rng.normal(0, 0.02)
        train = {
            "step": step,
            "split": "train",
            "loss": 2.1 * (1 - done) + 0.002 + abs(noise) * (1 - done),
            "accuracy": min(done + noise, 1.0),
        }
        rows.append(train | {"lr": 0.003 * (0.5 + 0.5 * np.cos(np.pi * step / steps)), "seconds": step * 0.02})
        if step % every == 0:
            rows.append(
                {"step": step, "split": "valid", "loss": 2.3 * (1 - done) + 0.01, "accuracy": 0.98 * done, "seconds": step * 0.02}
            )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    confusion = rng.integers(0, 12, (n_classes, n_classes)) + np.diag(rng.integers(80, 140, n_classes))
    result = {
        "task": "cycle_navigation",
        "suite": "aussm",
        "spec": "ma",
        "spec_version": 2,
        "seed": 3,
        "metric": "accuracy",
        "value": 0.9431,
        "scaled": 0.935,
        "constant": 0.131,
        "constant_scaled": 0.0069,
        "steps": steps,
        "seconds": 754.2,
        "device": "cpu (2 threads)",
        "params": 6112,
        "status": "finished",
        "commit": "0123abc",
        "date": "2026-11-21",
        "versions": {"longscan": "0.1.0", "torch": "2.13.0"},
        "command": "longscan train --config recipes/aussm/cycle_navigation.yaml --out runs/cycle_navigation",
        "confusion": confusion.tolist(),
        "classes": [str(i) for i in range(n_classes)],
        "selected": "last",
        "by_length": {"41-64": 0.999, "65-96": 0.991, "97-128": 0.98, "129-192": 0.951, "193-256": 0.902},
    }
    (folder / "result.json").write_text(json.dumps(result | changes), "utf-8")
    theta = [rng.vonmises(2 * np.pi * s / 8, 40, entries).tolist() for s in range(symbols)]
    (folder / "angles.json").write_text(
        json.dumps({"blocks.1.layer": {"symbols": [str(s) for s in range(symbols)], "theta": theta}}), "utf-8"
    )
    return folder


def run_row(**changes: Any) -> dict[str, Any]:
    """Return a valid row of results/runs with changed fields."""
    row = {
        "paper": "AUSSM",
        "task": "parity",
        "suite": "aussm",
        "model": "hybrid",
        "spec": "ma",
        "spec_version": 2,
        "seed": 0,
        "metric": "accuracy",
        "value": 0.99,
        "scaled": 0.98,
        "constant": 0.5,
        "constant_scaled": 0.0,
        "baselines": {},
        "published": "r036",
        "steps": 9000,
        "seconds": 700.0,
        "device": "cpu",
        "params": 6000,
        "recipe": "recipes/aussm/parity.yaml",
        "commit": "0123abc",
        "date": "2026-11-21",
        "status": "finished",
        "command": "longscan train --config recipes/aussm/parity.yaml --training.seed 0",
    }
    return row | changes


def bench_row(**changes: Any) -> dict[str, Any]:
    """Return a valid row of results/bench with changed fields."""
    row = {
        "op": "selective_scan",
        "backend": "cpu",
        "peer": None,
        "shape": {"B": 8, "L": 1024, "D": 256, "N": 16},
        "dtype": "float32",
        "device": "cpu, 2 threads",
        "forward_ms": 10.0,
        "forward_backward_ms": 40.0,
        "peak_mib": 65.0,
        "error_vs_float64": 2e-7,
        "runs": 5,
        "commit": "0123abc",
        "date": "2026-11-21",
        "torch": "2.13.0",
        "triton": None,
        "command": "make bench",
    }
    return row | changes


def write_results(folder: Path) -> Path:
    """Write a results folder with five seeds of a model (one failed), three of another, an unpublished task, and measurements."""
    scaled = (1.0, 0.998, 0.41, 0.995)
    runs = [run_row(seed=i, value=0.5 + s / 2, scaled=s) for i, s in enumerate(scaled)]
    runs.append(run_row(seed=4, value=None, scaled=None, status="failed"))
    mamba = {"model": "Mamba", "spec": "mm", "recipe": "recipes/aussm/parity_mamba.yaml", "published": "r018"}
    runs += [run_row(seed=i, value=0.5 + s / 2, scaled=s, **mamba) for i, s in enumerate((0.01, 0.03, -0.01))]
    own = {
        "paper": None,
        "task": "BasicMotions",
        "suite": "archive",
        "published": None,
        "recipe": "recipes/quickstart/basic_motions.yaml",
    }
    runs.append(run_row(value=0.975, scaled=0.967, constant=0.25, baselines={"1-NN Euclidean": 0.675}, **own))
    peers = [
        {},
        {"backend": "eager", "forward_ms": 31.0, "forward_backward_ms": 150.0, "peak_mib": 210.0},
        {"backend": None, "peer": "plain torch loop", "forward_ms": 331.0, "forward_backward_ms": 1900.0, "peak_mib": 900.0},
        {"backend": None, "peer": "mambapy", "forward_ms": 210.0, "forward_backward_ms": 900.0, "error_vs_float64": None},
    ]
    bench = [bench_row(**p) for p in peers] + [bench_row(date="2026-11-01", forward_ms=99.0)]
    gpu = {"device": "NVIDIA H100", "op": "unitary_scan", "triton": "3.6"}
    bench += [bench_row(**gpu, backend=b, forward_ms=t, forward_backward_ms=None) for b, t in (("triton", 0.5), ("eager", 4.2))]
    for kind, rows in (("runs", runs), ("bench", bench)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / "made_up.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return folder


def write_seeds(path: Path, **changes: Any) -> Path:
    """Write a record of three seeds trained together, one of which reaches the best score and loses it again."""
    scores = ((0.0, 0.02, 0.1), (0.3, 0.02, 1.0), (0.4, -0.02, 1.0), (0.5, -0.02, 0.2))
    rows = [
        {"step": 500 * i, "train": [0.5] * 3, "loss": [1.0] * 3, "last": list(row), "seconds": 7.0 * i}
        for i, row in enumerate(scores, 1)
    ]
    record = {
        "task": "parity",
        "suite": "aussm",
        "spec": "mm",
        "spec_version": 2,
        "seeds": [0, 1, 2],
        "constant_scaled": 0.022,
        "success": 0.99,
        "rows": rows,
        "settings": {
            "task": {"name": "parity", "eval_lengths": [41, 256]},
            "model": {"spec": "mm"},
            "training": {"steps": 2000},
            "about": {"paper": "AUSSM", "model": "AUSSM Hybrid", "published": ["r036"]},
        },
        "steps": 2000,
        "seconds": 28.0,
        "device": "cpu",
        "commit": "0123abc",
        "date": "2026-11-21T18:57:11Z",
        "torch": "2.13.0",
        "command": "python benchmarks/seeds.py recipes/aussm/parity.yaml --model.spec mm",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record | changes), "utf-8")
    return path


@pytest.fixture(scope="session")
def make_seeds():
    """Return the function make_seeds(path, **changes), which writes a record of seeds trained together."""
    return write_seeds


@pytest.fixture(scope="session")
def make_results():
    """Return the function make_results(folder), which writes a results folder."""
    return write_results


@pytest.fixture
def new_run_row():
    """Return the function new_run_row(**changes), which returns a valid row of results/runs."""
    return run_row


@pytest.fixture
def new_bench_row():
    """Return the function new_bench_row(**changes), which returns a valid row of results/bench."""
    return bench_row


@pytest.fixture(scope="session")
def make_run():
    """Return the function make_run(folder, **options), which writes a run directory."""
    return write_run
