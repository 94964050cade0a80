"""Figures of records that notes in claims.json quote, read from results/ when the page is written."""

from collections.abc import Callable

from counted import records, scaling

FIGURE_2 = 2048  # the longest sequence of figure 2 of the AUSSM paper

Values = dict[str, object]


def beaten_forms() -> dict[str, dict[int, tuple[bool, bool]]]:
    """Return form in PyTorch -> length -> whether our kernel takes less time, and less memory, on an H200, for figure 2."""
    ours = scaling("unitary_scan", "triton", None)
    forms = {name: scaling("unitary_scan", None, name) for name in ("loop over the steps", "separable")}
    return {
        name: {n: (ours[n][0] < time, ours[n][1] < memory) for n, (time, memory) in measured.items() if n <= FIGURE_2}
        for name, measured in forms.items()
    }


def ratios_to_s6(length: int) -> tuple[float, float]:
    """Return the ratios of time and of memory of our AUSSM kernel to our S6 kernel, forward and backward, at a length."""
    (time, memory), (s6_time, s6_memory) = (scaling(op, "triton", None)[length] for op in ("unitary_scan", "selective_scan"))
    return time / s6_time, memory / s6_memory


def _a13() -> Values:
    lengths = sorted(scaling("unitary_scan", None, "loop over the steps"))
    return {"count": len(lengths), "low": lengths[0], "high": f"{lengths[-1]:,}"}


def _a14() -> Values:
    slower = sorted({n for form in beaten_forms().values() for n, (faster, _) in form.items() if not faster})
    time, memory = ratios_to_s6(FIGURE_2)
    return {
        "slower": ", ".join(map(str, slower)) or "no",
        "time": time,
        "memory": memory,
        "time_long": ratios_to_s6(16_384)[0],
    }


def _a22() -> Values:
    rows = records("automata/random.jsonl")
    solvable = [row["outcome"] for row in rows if row["solvable"]]
    return {
        "total": f"{len(rows):,}",
        "solvable": len(solvable),
        "compiled": solvable.count("compiled"),
        "limit": solvable.count("limit"),
        "uncommitted": sum(row["commit"].endswith("+changes") for row in rows),
    }


VALUES: dict[str, Callable[[], Values]] = {"A13": _a13, "A14": _a14, "A22": _a22}


def fill_note(identity: str, note: str) -> str:
    """Return a note with the figures of its claim's records in place of the names in braces."""
    return note.format_map(VALUES[identity]()) if identity in VALUES else note
