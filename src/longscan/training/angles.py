"""The rotation angles of AUSSM layers for each input symbol."""

from typing import Any

import torch
from torch import Tensor, nn

from longscan.layers import AUSSM
from longscan.tasks import Task


@torch.no_grad()
def symbol_angles(model: nn.Module, task: Task) -> dict[str, Any]:
    """Return {layer name: {"symbols": [...], "theta": [[D * N angles in radians] for each symbol]}}.

    Empty for a model without AUSSM layers and for a task without symbols. The angles of a symbol are those for a sequence of this
    symbol alone, after the blocks below the layer and the layer's own projection and convolution; inside a longer sequence they
    also depend on the symbols before.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, AUSSM)}
    symbols = task.symbols
    if not layers or symbols is None:
        return {}
    inputs: dict[str, Tensor] = {}

    def record_input_of(name: str) -> Any:
        def record(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs[name] = args[0]

        return record

    hooks = [layer.register_forward_pre_hook(record_input_of(name)) for name, layer in layers.items()]
    was_training = model.training
    try:
        device = next(model.parameters()).device
        model.eval()(torch.arange(len(symbols), device=device).unsqueeze(1))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return {
        name: {"symbols": list(symbols), "theta": layer.angles(inputs[name][:, 0]).flatten(1).double().cpu().tolist()}
        for name, layer in layers.items()
    }
