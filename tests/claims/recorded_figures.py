"""Figures of the records in results/ for the notes in claims.json, read when docs/claims.md is written."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from claim_helpers import read_results, read_scaling

from longscan.report.statistics import mean_interval

FIGURE_2 = 2048  # the longest sequence of figure 2 of the AUSSM paper

Values = dict[str, object]


def kernel_wins_by_form() -> dict[str, dict[int, tuple[bool, bool]]]:
    """Return whether our kernel takes (less time, less memory) than each form in PyTorch, by length, on an H200."""
    ours = read_scaling("unitary_scan", "triton", None)
    forms = {name: read_scaling("unitary_scan", None, name) for name in ("loop over the steps", "separable")}
    return {
        name: {n: (ours[n][0] < time, ours[n][1] < memory) for n, (time, memory) in measured.items() if n <= FIGURE_2}
        for name, measured in forms.items()
    }


def ratios_to_s6(length: int) -> tuple[float, float]:
    """Return time and memory of our AUSSM kernel relative to our S6 kernel, for forward and backward at a length."""
    (time, memory), (s6_time, s6_memory) = (read_scaling(op, "triton", None)[length] for op in ("unitary_scan", "selective_scan"))
    return time / s6_time, memory / s6_memory


def _a13() -> Values:
    lengths = sorted(read_scaling("unitary_scan", None, "loop over the steps"))
    return {"count": len(lengths), "low": lengths[0], "high": f"{lengths[-1]:,}"}


def _a14() -> Values:
    slower = sorted({n for form in kernel_wins_by_form().values() for n, (faster, _) in form.items() if not faster})
    time, memory = ratios_to_s6(FIGURE_2)
    return {
        "slower": ", ".join(map(str, slower)) or "no",
        "time": time,
        "memory": memory,
        "time_long": ratios_to_s6(16_384)[0],
    }


def _a22() -> Values:
    rows = read_results("automata/random.jsonl")
    solvable = [row["outcome"] for row in rows if row["solvable"]]
    return {
        "total": f"{len(rows):,}",
        "solvable": len(solvable),
        "compiled": solvable.count("compiled"),
        "limit": solvable.count("limit"),
        "uncommitted": sum(row["commit"].endswith("+changes") for row in rows),
    }


def trained_scores(task: str, model: str, scale: float) -> list[float]:
    """Return the test scores of a model on one of S7's generated tasks times a scale, the mean of the runs of each seed."""
    rows = [row for row in read_results("runs/s7.jsonl") if row["task"] == task and row["model"] == model]
    # The convolutions of the pendulum are the recipe's, a linear map of its pixels is another setting.
    rows = [row for row in rows if "--model.encoder" not in row["command"]]
    return [scale * fmean(row["value"] for row in rows if row["seed"] == seed) for seed in sorted({row["seed"] for row in rows})]


def _scores_text(task: str, scale: float, digits: int) -> Values:
    """Return mean and half of the 95 % interval of S7 and S5."""
    texts = {}
    for model in ("S7", "S5"):
        mean, half = mean_interval(trained_scores(task, model, scale))
        texts[model.lower()] = f"{mean:.{digits}f} ± {half:.{digits}f}"
    return texts


def _s19() -> Values:
    return _scores_text("pendulum", 1e3, 2)


def _s20() -> Values:
    return _scores_text("fitzhugh_nagumo", 1e2, 3)


def pretraining_rows(name: str) -> list[dict[str, Any]]:
    """Return the records of results/runs/pretraining.jsonl whose folder begins with a name."""
    return [row for row in read_results("runs/pretraining.jsonl") if f"--out runs/pretraining/{name}" in row["command"]]


def share_of_masked_time() -> float:
    """Return the time of an update of pretraining on the next base as a share of that of one on masked bases, on an H100."""
    (forward,), (masked,) = pretraining_rows("rate-forward"), pretraining_rows("rate-masked")
    share: float = masked["replayed_updates_per_second"] / forward["replayed_updates_per_second"]
    return share


def _t42() -> Values:
    texts: Values = {"share": f"{share_of_masked_time():.2f}"}
    for name, folder in (("masked", "masked-tuned"), ("f1", "f1_long-tuned"), ("none", "bi-tuned")):
        mean, half = mean_interval([row["value"] for row in pretraining_rows(folder)])
        texts[name] = f"{mean:.3f} ± {half:.3f}"
    for name, folders in (
        ("all_masked", ("pretraining_1024/tuned-masked",)),
        ("all_f1", ("pretraining_1024/tuned-f1",)),
        ("all_none", ("pretraining_1024/tuned-bi",)),
        ("half_masked", ("pretraining_half_rate/tuned-masked", "pretraining_1024/tuned-lr4")),
        ("half_f1", ("pretraining_half_rate/tuned-f1",)),
    ):
        found: dict[int, float] = {}
        for row in read_results("runs/pretraining.jsonl"):
            if any(f"--out runs/{folder}-" in row["command"] for folder in folders):
                found.setdefault(row["seed"], row["value"])  # the first run of a seed: only runs on a plateau were repeated
        mean, half = mean_interval(list(found.values()))
        assert set(found) == set(range(5))
        texts[name] = f"{mean:.3f} ± {half:.3f}"
    return texts


def _m04() -> Values:
    rows = [row for row in read_results("runs/mamba_lra.jsonl") if row["row"].startswith("mamba_lra/table1/image/")]
    return {row["row"].rpartition("/")[2]: f"{row['value']:.3f}" for row in rows if row["status"] == "finished"}


VALUES: dict[str, Callable[[], Values]] = {
    "A13": _a13,
    "A14": _a14,
    "A22": _a22,
    "M04": _m04,
    "S19": _s19,
    "S20": _s20,
    "T42": _t42,
}


def fill_note(identity: str, note: str) -> str:
    """Return a note in which figures of records replace the names in braces."""
    return note.format_map(VALUES[identity]()) if identity in VALUES else note
