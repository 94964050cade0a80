"""The rotation angle that each input symbol gives each AUSSM layer."""

from typing import Any

import torch
from torch import Tensor, nn

from longscan.layers import AUSSM
from longscan.tasks import Task


@torch.no_grad()
def symbol_angles(model: nn.Module, task: Task) -> dict[str, Any]:
    """{layer name: {"symbols": [...], "theta": [[D * N angles in radians] for each symbol]}}.

    Empty for a model without AUSSM layers and for a task without symbols.

    A symbol's angle is the one at the first position of the sequence that holds this symbol alone: its embedding goes through the
    blocks below the layer and through the layer's own projection and convolution. What came before would add to it in general.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, AUSSM)}
    symbols = task.symbols
    if not layers or symbols is None:
        return {}
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen[name] = args[0]

        return note

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    was_training = model.training
    try:
        device = next(model.parameters()).device
        model.eval()(torch.arange(len(symbols), device=device).unsqueeze(1))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return {
        name: {"symbols": list(symbols), "theta": layer.angles(seen[name][:, 0]).flatten(1).double().cpu().tolist()}
        for name, layer in layers.items()
    }
