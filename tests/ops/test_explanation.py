"""The table that `explain` prints for a model."""

from typing import Any

import pytest

from longscan.ops import _explain as module
from longscan.ops._explain import Explanation, Row

CALLS = ("whole", "packed", "step")


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([3], "3"),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0-2"),
        ([4, 5, 6, 7], "4-7"),
        ([0, 2, 4], "0,2,4"),
        ([0, 2, 4, 6], "0,2,4,6"),
        ([1, 3, 5, 7, 9], "1,3,...,9"),
        ([0, 1, 2, 4, 5], "0,1,2,4,5"),
    ],
)
def test_numbers_of_blocks_are_short(indices: list[int], text: str) -> None:
    assert module._format_indices(indices) == text


def test_public_names_of_functions() -> None:
    names = ("__matmul__", "__rmatmul__", "fft_rfft", "linalg_matrix_power", "linear")
    assert [module._public_name(name) for name in names] == ["matmul", "matmul", "rfft", "matrix_power", "linear"]


def test_equal_rows_of_blocks_are_one_row() -> None:
    """Rows of modules outside of blocks stay as they are, and rows that differ stay apart."""
    scan = Row("", "linear_scan", "cpu", CALLS, "native kernel")
    rows = [
        Row("backbone.embedding", "embedding", "torch", ("whole",), "torch's own"),
        *(Row(f"backbone.blocks.{i}.layer", *scan_values(scan)) for i in (0, 1, 2)),
        Row("backbone.blocks.3.layer", "linear_scan", "eager", CALLS, "asked for"),
        *(Row(f"backbone.blocks.{i}.norm", "rms_norm", "torch", CALLS, "torch's own") for i in (0, 2)),
    ]
    merged = module._merge_blocks(rows)
    assert [(row.module, row.backend) for row in merged] == [
        ("backbone.embedding", "torch"),
        ("backbone.blocks.0-2.layer", "cpu"),
        ("backbone.blocks.3.layer", "eager"),
        ("backbone.blocks.0,2.norm", "torch"),
    ]
    assert merged[1].part == "linear_scan"


def scan_values(row: Row) -> tuple[Any, ...]:
    return row.part, row.backend, row.calls, row.reason


def test_table_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "verdicts_path", lambda: "/cache/doctor.json")
    long = "a reason of so many words that it does not fit into what is left of the line for the last of the five columns"
    rows = (
        Row("", "embedding", "torch", ("whole", "packed"), "torch's own"),
        Row("blocks.0.block.layer", "selective_scan", "cpu", CALLS, "native kernel"),
        Row("blocks.1.block.layer", "selective_scan", "cpu", CALLS, "native kernel"),
        Row("a.module.whose.name.has.more.than.thirty.letters", "mamba_step", None, ("step",), long),
    )
    expected = """\
LanguageModel on cpu, torch.float32

module                          part            backend  calls          why
(itself)                        embedding       torch    whole, packed  torch's own
blocks.0,1.block.layer          selective_scan  cpu      all            native kernel
a.module.whose.name.has.more.t  mamba_step      none     step           a reason of so many words
han.thirty.letters                                                      that it does not fit into
                                                                        what is left of the line for
                                                                        the last of the five columns

calls: whole, rows of several steps; packed, rows of several sequences; step, one step without
gradients"""
    explanation = Explanation("LanguageModel on cpu, torch.float32", CALLS, rows)
    assert str(explanation) == repr(explanation) == expected
    by_doctor = Row("head", "linear_scan", "eager", ("whole",), "slower", by_doctor=True)
    text = str(Explanation("A model", ("whole",), (by_doctor,)))
    assert text.endswith("calls: whole, rows of several steps\nVerdicts of `longscan doctor`: /cache/doctor.json")
    assert "head    linear_scan  eager    all    slower" in text
