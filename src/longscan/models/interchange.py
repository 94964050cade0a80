"""Conversion of Mamba and Mamba-2 checkpoints of the transformers library to models of this package.

The package transformers is not imported. In float32 the logits agree up to rounding, with one exception: step by step,
transformers does not clamp Mamba-2's step sizes (time_step_limit), so its steps differ from its own whole sequence. Here they do
not differ.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longscan._errors import one_line
from longscan._files import read_text
from longscan._types import PositiveInt, matches_type
from longscan.blocks.residual import EPSILON
from longscan.models.language_model import LanguageModel
from longscan.models.saving import NO_DOWNLOAD, SHARDS, pickle_advice
from longscan.ops.dispatch import Backend

Settings = Mapping[str, Any]


def from_transformers(source: Any, *, backend: Backend = "auto") -> LanguageModel:
    """Return a `LanguageModel`, in torch's default dtype, with the weights of a checkpoint of transformers.

    Args:
        source: a folder with config.json and model.safetensors (or its shards and their index), or a `MambaForCausalLM` or
            `Mamba2ForCausalLM`.
        backend: backend of every op, "auto" to choose for each call.

    Raises ValueError naming a property that models of this package do not have: another architecture, biases in the projections,
    another activation, another epsilon of the norms, naming an entry of the configuration that is missing or does not fit the
    tensors, and naming a damaged file. Raises FileNotFoundError naming a missing file.
    """
    if isinstance(source, (str, Path)):
        config, tensors = _read(Path(source))
    elif hasattr(getattr(source, "config", None), "to_dict"):
        config, tensors = source.config.to_dict(), source.state_dict()
    else:
        raise TypeError(f"`source` must be a folder or a model of transformers, got a {type(source).__name__}")
    if "model_type" not in config and "blocks" in config:
        raise ValueError(
            f"`source` must be a checkpoint of transformers, got {source}, which `save_pretrained` of this package wrote; the "
            "`from_pretrained` of its class, such as LanguageModel.from_pretrained, reads it"
        )
    kind = config.get("model_type")
    if kind not in _CONVERTERS:
        raise ValueError(f"`model_type` must be one of {', '.join(_CONVERTERS)}, got {kind!r}")
    for name, wanted in (("hidden_act", "silu"), ("use_bias", False), ("layer_norm_epsilon", EPSILON)):
        if config.get(name, wanted) != wanted:
            raise ValueError(f"`{name}` must be {wanted!r}, as in models of this package, got {config[name]!r}")
    for name in (*_SIZES, *(_MAMBA2_SIZES if kind == "mamba2" else ())):
        if not matches_type(config.get(name), PositiveInt):
            raise ValueError(f"`{name}` must be a whole number of at least 1 in the configuration, got {config.get(name)!r}")
    tensors = {name.replace("embedding.weight", "embeddings.weight"): tensor for name, tensor in tensors.items()}
    embedding, head = tensors.get("backbone.embeddings.weight"), tensors.get("lm_head.weight")
    if embedding is None:
        raise ValueError(f"`source` must have the tensors of a causal language model, got such as {next(iter(tensors), None)!r}")
    if len(embedding) < config["vocab_size"]:
        raise ValueError(f"`vocab_size` must be at most the rows of the embedding, {len(embedding)}, got {config['vocab_size']}")
    tied = head is None or torch.equal(head, embedding)
    layer, options, rename = _CONVERTERS[kind](config)
    entry = {"layer": layer, "block": "mamba" if layer == "s6" else layer, "options": options}
    # New weights on "meta" draw no numbers from torch's random generator, which is that of the whole program.
    with torch.device("meta"):
        model = LanguageModel(
            [entry] * config["num_hidden_layers"],
            d_model=config["hidden_size"],
            vocab_size=config["vocab_size"],
            tied=tied,
            backend=backend,
        )
    model.to_empty(device="cpu")
    weights = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"backbone\.layers\.(\d+)\.(.+)", name)
        if match:
            if match[2] not in rename:
                raise ValueError(f"`source` must have tensors of {kind} alone, got {name!r}")
            inner = rename[match[2]]
            weights[f"backbone.blocks.{match[1]}.{inner}"] = tensor.squeeze(1) if inner == "block.conv_weight" else tensor
    for index in range(config["num_hidden_layers"]):  # a convolution without bias is one with a bias of zero
        name = f"backbone.blocks.{index}.block.conv_bias"
        convolution = weights.get(name.replace("bias", "weight"))
        if convolution is None:
            raise ValueError(f"`num_hidden_layers` must be the number of layers with tensors, got {config['num_hidden_layers']}")
        weights.setdefault(name, torch.zeros(len(convolution)))
    weights |= {"backbone.norm.weight": tensors["backbone.norm_f.weight"], "backbone.encoder.weight": _pad_rows(embedding, model)}
    if head is not None and not tied:
        weights["lm_head"] = _pad_rows(head, model)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:  # names the tensors of other sizes
        raise ValueError(f"`source` must have the tensors of its configuration, got others: {one_line(error)}") from None
    return model


def _mamba(config: Settings) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return the layer, its options, and a mapping from the parameter names of a Mamba checkpoint to ours."""
    rank = config.get("time_step_rank", "auto")
    options = {
        "expand": config["expand"],
        "d_conv": config["conv_kernel"],
        "d_state": config["state_size"],
        "dt_rank": math.ceil(config["hidden_size"] / 16) if rank == "auto" else rank,
    }
    inner = {"x_proj.weight": "x_proj", "dt_proj.weight": "dt_proj", "dt_proj.bias": "dt_bias", "A_log": "A_log", "D": "D"}
    return "s6", options, _BLOCK_NAMES | {f"mixer.{there}": f"block.layer.{here}" for there, here in inner.items()}


def _mamba2(config: Settings) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return the same as `_mamba` for a Mamba-2 checkpoint."""
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
    return "mamba2", options, _BLOCK_NAMES | inner | {"mixer.norm.weight": "block.norm_weight"}


_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size", "expand", "conv_kernel", "state_size")
_MAMBA2_SIZES = ("head_dim", "n_groups")
_BLOCK_NAMES = {
    "norm.weight": "norm.weight",
    "mixer.in_proj.weight": "block.in_proj.weight",
    "mixer.conv1d.weight": "block.conv_weight",
    "mixer.conv1d.bias": "block.conv_bias",
    "mixer.out_proj.weight": "block.out_proj.weight",
}
_CONVERTERS: dict[str, Callable[[Settings], tuple[str, dict[str, Any], dict[str, str]]]] = {"mamba": _mamba, "mamba2": _mamba2}


def _number(value: Any) -> float:
    """Return a number of a config.json, in which infinity is written {"__float__": "Infinity"}."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def _pad_rows(rows: Tensor, model: LanguageModel) -> Tensor:
    """Return `rows` with zero rows appended, as many rows as the embedding of the model has."""
    missing = model.backbone.encoder.weight.shape[0] - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the content of config.json and the tensors in a folder.

    Raises FileNotFoundError naming a missing file, ValueError naming a damaged one.
    """
    single, index = folder / "model.safetensors", folder / SHARDS
    for path in (folder / "config.json", index if index.is_file() else single):
        if not path.is_file():
            text = f"{path} does not exist; a checkpoint is a folder with config.json and model.safetensors"
            text += pickle_advice(folder)
            raise FileNotFoundError(text if folder.is_dir() else text + NO_DOWNLOAD)
    shards = _listed_shards(index) if index.is_file() else [single.name]
    tensors = {name: tensor for shard in shards for name, tensor in _read_tensors(folder / shard).items()}
    return _read_mapping(folder / "config.json"), tensors


def _listed_shards(index: Path) -> list[str]:
    """Return the names of the files that an index lists.

    Raises ValueError if it lists anything but names of files of its folder.
    """
    listed = _read_mapping(index).get("weight_map")
    names = set(listed.values()) if isinstance(listed, dict) else set()
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ValueError(f"{index}: `weight_map` must give the name of a file of this folder for each tensor, got {listed!r:.60}")
    return sorted(names)


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (it must be a mapping, got a {type(content).__name__})")
    return content


def _read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, but {SHARDS} lists it")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
