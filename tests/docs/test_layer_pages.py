"""Tests of the statements on pages of layers about inputs that are not finite."""

import re

import pytest
import torch

from longscan.layers import LAYERS, SequenceModule


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_causal_layers_in_which_later_steps_reach_earlier_outputs_are_named(request, value):
    """`docs/layers.md` and the docstring name all layers in which a later value reaches earlier outputs."""
    page = (request.config.rootpath / "docs/layers.md").read_text("utf-8")
    texts = (re.sub(r"\s+", " ", text) for text in (page, SequenceModule.__doc__))
    sentence = r"finite(?: inputs)?[.:] (?P<names>[^.:]*) multiply later steps by zeros or transform whole sequences"
    named = [re.split(", | and ", re.search(sentence, text)["names"]) for text in texts]

    x = torch.randn(1, 24, 8)
    x[:, 12:] = value
    found = set()
    for name, kind in LAYERS.items():
        layer = kind(8).eval()
        with torch.no_grad():
            y = layer(x)[:, :12]
        if layer.causal and not y.isfinite().all():
            found.add(name)
    for names in named:
        assert {re.sub("[- ]", "_" if " " in name else "", name).lower() for name in names} == found
