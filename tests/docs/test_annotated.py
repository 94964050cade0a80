"""The annotated pages: their own code computes what the package computes, and the models on them learn."""

import re

import pytest


def read_differences(page):
    """Return the differences that a page prints, by the name of what it compares."""
    found = re.findall(r"^(.+): difference (\S+),", "\n".join(page.printed), re.MULTILINE)
    return {name: float(difference) for name, difference in found}


def test_mamba_page_computes_what_the_package_computes(run_page):
    differences = read_differences(run_page("docs/annotated/mamba.md", until="## A trained model"))
    assert differences.keys() == {"loop", "parallel scan", "layer", "block"}
    assert max(differences.values()) < 4e-6


@pytest.mark.slow
def test_mamba_page_trains_a_model(run_page):
    page = run_page("docs/annotated/mamba.md")
    assert page.names["accuracies"][24] > 0.95
    assert page.names["accuracies"][96] > 0.9
    assert page.names["step_ratio"] > 3
    assert "<svg" in page.printed[-1]


def test_aussm_page_computes_what_the_package_computes(run_page):
    differences = read_differences(run_page("docs/annotated/aussm.md", until="## A trained model"))
    assert differences.keys() == {"loop", "two sums", "layer"}
    assert max(differences.values()) < 5e-5


@pytest.mark.slow
def test_aussm_page_learns_parity_and_s6_does_not(run_page):
    page = run_page("docs/annotated/aussm.md")
    accuracies = page.names["accuracies"]
    assert accuracies["AUSSM", 24] > 0.95
    assert accuracies["AUSSM", 96] < accuracies["AUSSM", 24]
    assert max(accuracies["S6", length] for length in (24, 96)) < 0.75
    assert max(map(abs, page.names["angle_errors"])) < 0.1
    assert "<svg" in page.printed[-1]
