"""Language models of the transformers library as models of this package: its Mamba and Mamba-2, config and safetensors.

Nothing of transformers is imported. In float32 the logits are the same but for rounding. One difference is left: transformers
does not clamp Mamba-2's step sizes (time_step_limit) when it goes step by step; here a step is what the whole sequence is.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longscan.blocks.residual import EPSILON
from longscan.models.language_model import LanguageModel

INDEX = "model.safetensors.index.json"
Settings = Mapping[str, Any]


def from_transformers(source: Any, *, backend: str = "auto") -> LanguageModel:
    """The language model in a checkpoint of transformers.

    Args:
        source: a folder with config.json and model.safetensors (or its shards and their index), or a `MambaForCausalLM` or
            `Mamba2ForCausalLM`.
        backend: of every op.

    Returns a `LanguageModel` in torch's default dtype. ValueError names what a model of this package does not have: another
    architecture, biases in the projections, another activation, another epsilon of the norms.
    """
    if isinstance(source, (str, Path)):
        config, tensors = _read(Path(source))
    else:
        config, tensors = source.config.to_dict(), source.state_dict()
    kind = config.get("model_type")
    if kind not in _KINDS:
        raise ValueError(f"model_type: got {kind!r}, needed one of {tuple(_KINDS)}")
    for name, wanted in (("hidden_act", "silu"), ("use_bias", False), ("layer_norm_epsilon", EPSILON)):
        if config.get(name, wanted) != wanted:
            raise ValueError(f"{name}: got {config[name]!r}, needed {wanted!r}, which models here have")
    tensors = {name.replace("embedding.weight", "embeddings.weight"): tensor for name, tensor in tensors.items()}
    embedding, head = tensors.get("backbone.embeddings.weight"), tensors.get("lm_head.weight")
    if embedding is None:
        raise ValueError(f"source: got tensors such as {next(iter(tensors), None)!r}, needed those of a causal language model")
    tied = head is None or torch.equal(head, embedding)
    layer, options, rename = _KINDS[kind](config)
    entry = {"layer": layer, "block": "mamba" if layer == "s6" else layer, "options": options}
    model = LanguageModel(
        [entry] * config["num_hidden_layers"],
        d_model=config["hidden_size"],
        vocab_size=config["vocab_size"],
        tied=tied,
        backend=backend,
    )
    weights = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"backbone\.layers\.(\d+)\.(.+)", name)
        if found:
            inner = rename[found[2]]
            weights[f"backbone.blocks.{found[1]}.{inner}"] = tensor.squeeze(1) if inner == "block.conv_weight" else tensor
    for index in range(config["num_hidden_layers"]):  # a convolution without bias is one whose bias is zero
        name = f"backbone.blocks.{index}.block.conv_bias"
        weights.setdefault(name, torch.zeros(len(weights[name.replace("bias", "weight")])))
    weights |= {"backbone.norm.weight": tensors["backbone.norm_f.weight"], "backbone.encoder.weight": _padded(embedding, model)}
    if head is not None and not tied:
        weights["lm_head"] = _padded(head, model)
    model.load_state_dict(weights)
    return model


def _mamba(config: Settings) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Layer, options, and the names of a block's parameters there and here, of a Mamba model."""
    rank = config.get("time_step_rank", "auto")
    options = {
        "expand": config["expand"],
        "d_conv": config["conv_kernel"],
        "d_state": config["state_size"],
        "dt_rank": math.ceil(config["hidden_size"] / 16) if rank == "auto" else rank,
    }
    inner = {"x_proj.weight": "x_proj", "dt_proj.weight": "dt_proj", "dt_proj.bias": "dt_bias", "A_log": "A_log", "D": "D"}
    return "s6", options, _AROUND | {f"mixer.{there}": f"block.layer.{here}" for there, here in inner.items()}


def _mamba2(config: Settings) -> tuple[str, dict[str, Any], dict[str, str]]:
    """As `_mamba`, of a Mamba-2 model."""
    low, high = (_number(limit) for limit in config.get("time_step_limit", (0.0, math.inf)))
    options = {
        "expand": config["expand"],
        "d_conv": config["conv_kernel"],
        "d_state": config["state_size"],
        "head_dim": config["head_dim"],
        "groups": config["n_groups"],
        "dt_limit": None if (low, high) == (0.0, math.inf) else [low, high],
    }
    inner = {f"mixer.{name}": f"block.heads.{name}" for name in ("A_log", "D", "dt_bias")}
    return "mamba2", options, _AROUND | inner | {"mixer.norm.weight": "block.norm_weight"}


_AROUND = {
    "norm.weight": "norm.weight",
    "mixer.in_proj.weight": "block.in_proj.weight",
    "mixer.conv1d.weight": "block.conv_weight",
    "mixer.conv1d.bias": "block.conv_bias",
    "mixer.out_proj.weight": "block.out_proj.weight",
}
_KINDS: dict[str, Callable[[Settings], tuple[str, dict[str, Any], dict[str, str]]]] = {"mamba": _mamba, "mamba2": _mamba2}


def _number(value: Any) -> float:
    """A number of a config, where infinity is written {"__float__": "Infinity"}."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def _padded(rows: Tensor, model: LanguageModel) -> Tensor:
    """As many rows as the model's embedding has, zeros behind those of the checkpoint."""
    missing = model.backbone.encoder.weight.shape[0] - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors of a folder; FileNotFoundError names what is missing."""
    from safetensors.torch import load_file

    single, index = folder / "model.safetensors", folder / INDEX
    for path in (folder / "config.json", index if index.is_file() else single):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; a checkpoint is a folder with config.json and model.safetensors")
    shards = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {single.name}
    tensors = {name: tensor for shard in sorted(shards) for name, tensor in load_file(folder / shard).items()}
    return json.loads((folder / "config.json").read_text()), tensors
