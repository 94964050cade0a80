"""The pages that go through AUSSM's appendices: what they say is what their own blocks found."""

import math

import pytest


def drawings(page):
    return sum("<svg" in text for text in page.printed)


def test_each_class_has_a_system_outside_it(run_page):
    page = run_page("docs/theory/expressivity.md")
    names = page.names
    assert len(names["inclusions"]) == 4
    assert max(names["inclusions"].values()) < 1e-12
    assert names["tone_errors"].pop("complex") < 1e-12
    assert min(names["tone_errors"].values()) > 1 - 1e-9  # up to 32 states: no better than none
    assert names["explained"].pop(1) == pytest.approx(1)
    assert max(map(abs, names["explained"].values())) < 1e-9
    assert names["parity_error"] < 1e-9
    assert names["rank_one"] == pytest.approx(math.sqrt(0.5))
    clock = names["one_clock"]
    assert clock[0.1] > 2
    assert clock[10] / clock[100] == pytest.approx(10, rel=0.3)  # a digit for a digit
    assert clock[100] / clock[1000] == pytest.approx(10, rel=0.3)
    assert names["two_clocks"] < 1e-9
    assert names["blocks"] == {"C6": 1, "D4": 2, "S3": 2, "A4": 2, "S4": 3, "A5": None}
    assert names["counted"]["C6"][-1] == pytest.approx(1)
    assert names["counted"]["A5"][-1] == pytest.approx(1 / 60, rel=0.05)
    assert names["dense_right"] == names["stacked_right"] == 1
    assert names["refused"]
    assert names["apart"]["AUSSM"] == pytest.approx(1, abs=1e-3)
    assert names["apart"]["S6"] < 0.05
    assert drawings(page) == 2
