"""Run directories and records made up for the tests, in the layout that training writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml


def write_run(
    folder: Path, *, steps: int = 2000, every: int = 50, symbols: int = 3, entries: int = 128, n_classes: int = 4, **changes: Any
) -> Path:
    """A finished run with curves, confusion matrix, scores by length and angles; `changes` replace fields of result.json."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    settings = {
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


@pytest.fixture(scope="session")
def make_run():
    """Writes a made-up run directory: make_run(folder, **options)."""
    return write_run
