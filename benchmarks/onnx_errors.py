"""Measure the errors of the ONNX graph of every layer against the layer, and write the table of docs/howto/export.md.

python benchmarks/onnx_errors.py [docs/howto/export.md]
"""

import math
import sys
import tempfile
import warnings
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

from longscan.layers import LAYERS
from longscan.layers.state import state_tensors
from longscan.models import export_onnx

BEGIN, END = "<!-- onnx errors -->", "<!-- end of onnx errors -->"
FURTHER = {"s6": [{"complex_state": True}], "attention": [{"window": 8}]}


def error(module: nn.Module, example: Tensor, step: bool) -> str:
    """Return the largest error of any output relative to its largest number, rounded up to a power of ten, or the failure.

    step: measure the graph of one step from the state after `example`, not that of the whole sequence.
    """
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "layer.onnx"
        try:
            export_onnx(module, path, example, step=step)
        except Exception as problem:  # the table shows the message of the exporter
            return str(problem).strip().splitlines()[0]
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs, expected = [example], [module(example)]
        if step:
            state = module(example, return_state=True)[1]
            y, after = module.step(example[:, 0], state)
            inputs, expected = [example[:, 0], *state_tensors(state)], [y, *state_tensors(after)]
        names = ["x", *(f"state_{i}" for i in range(len(inputs)))]
        graph_inputs = {part.name for part in session.get_inputs()}
        found = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=False) if name in graph_inputs})
    errors = [
        ((torch.from_numpy(one) - other).abs().max() / other.abs().max().clamp(min=1)).item()
        for one, other in zip(found, expected, strict=True)
        if other.numel()
    ]
    return f"1e{math.ceil(math.log10(max(*errors, 1e-12)))}"


def table() -> str:
    """Return the table: a row for every layer, and for settings that change its equations."""
    rows = ["| Layer | Settings | forward | step |", "|---|---|---|---|"]
    for name, layer in LAYERS.items():
        for options in [{}, *FURTHER.get(name, [])]:
            torch.manual_seed(0)
            module = layer(8, **options).eval().requires_grad_(False)
            example = torch.randn(2, 32, 8)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cells = [error(module, example, step) for step in (False, True)]
            settings = ", ".join(f"{key}={value!r}" for key, value in options.items())
            rows.append(f"| `{name}` | {f'`{settings}`' if settings else ''} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    return "\n".join(rows)


def main() -> None:
    """Write the table between the markers of the page."""
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/howto/export.md")
    text = page.read_text()
    before, rest = text.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
