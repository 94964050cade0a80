"""Which rows the layers with a convolution form compute by FFT, and which step by step."""

from typing import Any

import pytest
import torch

from longscan.layers import LAYERS
from longscan.layers.convolution import ConvolutionLayer


@pytest.mark.parametrize("name", ["s4", "s4d"])
@pytest.mark.parametrize(
    ("shape", "arguments", "convolved"),
    [
        ((1, 2, 4), {}, True),
        ((3, 5, 4), {"valid": torch.ones(3, 5, dtype=torch.bool)}, True),
        ((3, 1, 4), {}, False),
        ((1, 5, 4), {"elapsed": torch.ones(1, 5)}, False),
        ((1, 5, 4), {"seq_idx": torch.zeros(1, 5, dtype=torch.int64)}, False),
    ],
)
def test_rows_of_several_even_steps_are_convolved(
    name: str, shape: tuple[int, ...], arguments: dict[str, Any], convolved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "s4" and "elapsed" in arguments:
        pytest.skip("S4 has no elapsed times")
    calls: list[str] = []
    layer = LAYERS[name](4, d_state=4)
    assert isinstance(layer, ConvolutionLayer)
    for method in ("convolve", "recur"):
        original = getattr(layer, method)
        monkeypatch.setattr(layer, method, lambda *args, o=original, m=method, **more: calls.append(m) or o(*args, **more))
    layer(torch.randn(shape), **arguments)
    assert calls == ["convolve" if convolved else "recur"]
