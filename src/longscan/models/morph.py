"""New models from the weights of pretrained ones: a bidirectional model from causal ones, and a model with another head.

The bidirectional models are those of the thesis "Deep Learning with State Spaces for Efficient Sequence Modeling" (section 16),
where they are called morphs. F1 copies the convolution, the layer and the rotary positions of each block of a causal model into
both directions of a bidirectional block. F1R1 takes the reverse direction from a second causal model, pretrained on reversed
sequences. Projections, norms and encoder come from one of the two. To keep the time scales of both alike, the thesis proposes to
train the second model from a copy of the first (`copy.deepcopy`) with `next_tokens(reverse=True)`.
"""

from typing import Literal, cast

import torch
from torch import nn

from longscan.blocks.bidirectional import BidirectionalBlock
from longscan.blocks.gated import GatedBlock
from longscan.blocks.mamba import VARIANTS
from longscan.models.language_model import LanguageModel
from longscan.models.pooling import Pooling
from longscan.models.sequence_model import Head, SequenceModel
from longscan.models.spec import BlockSpec, setting_names

# Arguments of `SequenceModel` on which the weights of the encoder, the positions and the blocks' norms depend.
ENCODING = ("vocab_size", "d_input", "image_shape", "positions", "max_length", "norm")


def backbone_of(model: SequenceModel | LanguageModel) -> SequenceModel:
    """Return the `SequenceModel` inside a language model, or the model itself."""
    return model.backbone if isinstance(model, LanguageModel) else model


def with_head(
    model: SequenceModel | LanguageModel, d_output: int, *, pooling: Pooling = "mean", head: Head = "linear"
) -> SequenceModel:
    """Return a `SequenceModel` with copies of the encoder, positions, blocks and final norm of `model`, and a new head.

    Args:
        model: the model to copy from. The vocabulary of a language model includes the rows of its padding.
        d_output, pooling, head: as in `SequenceModel`.
    """
    old = backbone_of(model)
    new = SequenceModel(**{**old.config, "d_output": d_output, "pooling": pooling, "head": head}).to(old.encoder.weight)
    for name in ("encoder", "blocks", "norm", "start"):
        getattr(new, name).load_state_dict(getattr(old, name).state_dict())
    _copy_positions(old, new)
    return new


def _copy_positions(old: SequenceModel, new: SequenceModel) -> None:
    """Copy the learned positions of a model, if it has any, to one with the same settings."""
    if old.positions is not None and new.positions is not None:
        new.positions.load_state_dict(old.positions.state_dict())


def make_bidirectional(
    forward: SequenceModel | LanguageModel,
    reverse: SequenceModel | LanguageModel | None = None,
    *,
    projections: Literal["forward", "reverse"] = "forward",
    keep_head: bool = False,
) -> SequenceModel:
    """Return a bidirectional model with the weights of causal ones: F1, or F1R1 with a reverse model.

    Args:
        forward: the model whose convolutions and layers become the forward direction, and without `reverse` also the reverse one.
            Of a language model only the backbone is used.
        reverse: the model whose convolutions and layers become the reverse direction; its blocks and width are those of
            `forward`.
        projections: the model that gives in_proj, out_proj, the blocks' norms, the encoder and the absolute positions. The
            thesis's text names the forward one; its code takes in_proj and out_proj of the reverse one.
        keep_head: also copy the last norm and the head of `forward`; in the thesis they are new.

    Blocks other than gated ones (mamba, aussm) are copied from the model that gives the projections. Sequences start from states
    of zero, also where the causal models have learned ones. Raises ValueError if the models differ or have no gated block.
    """
    forward = backbone_of(forward)
    reverse = forward if reverse is None else backbone_of(reverse)
    if reverse.config["blocks"] != forward.config["blocks"] or reverse.d_model != forward.d_model:
        raise ValueError("`reverse` must have the blocks and the width of the forward model, got others")
    if projections not in ("forward", "reverse"):
        raise ValueError(f"`projections` must be 'forward' or 'reverse', got {projections!r}")
    source = forward if projections == "forward" else reverse
    for name in ENCODING:
        if source.config[name] != forward.config[name]:
            wanted = f"{name}={forward.config[name]!r} like the forward model, with projections='reverse'"
            raise ValueError(f"`reverse` must have {wanted}, got {source.config[name]!r}")
    entries = [
        _bidirectional_entry(entry, block.block) if isinstance(block.block, GatedBlock) else entry
        for entry, block in zip(forward.entries, forward.stack, strict=True)
    ]
    if entries == forward.entries:
        raise ValueError("`forward` must have a gated block (mamba or aussm), got none")
    new = SequenceModel(**{**forward.config, "blocks": entries, "initial_state": "zero"}).to(forward.encoder.weight)
    new.encoder.load_state_dict(source.encoder.state_dict())
    _copy_positions(source, new)
    for index, target in enumerate(new.stack):
        old_forward, old_reverse, old = (model.stack[index] for model in (forward, reverse, source))
        target.norm.load_state_dict(old.norm.state_dict())
        if isinstance(target.block, BidirectionalBlock) and isinstance(old_forward.block, GatedBlock):
            gated = (old_forward.block, cast("GatedBlock", old_reverse.block), cast("GatedBlock", old.block))
            _copy_weights(target.block, *gated)
        else:
            target.block.load_state_dict(old.block.state_dict())
    if keep_head:
        new.norm.load_state_dict(forward.norm.state_dict())
        new.head.load_state_dict(forward.head.state_dict())
    return new


def _bidirectional_entry(entry: BlockSpec, block: GatedBlock) -> BlockSpec:
    """Return the entry of a bidirectional block, with a convolution for each direction, around the layer of a gated block."""
    layer = cast("str", entry["layer"])
    layer_settings, _ = setting_names(layer, entry["block"])
    options = {name: value for name, value in entry["options"].items() if name in layer_settings}
    if entry["options"].get("variant") == "aussm":
        options = {**VARIANTS["aussm"], **options}
    block_options = {
        "expand": block.d_inner // block.d_model,
        "d_conv": block.d_conv,
        "activation": entry["options"].get("activation", "auto"),
        "dropout": block.dropout.p,
        "rotary": entry["options"].get("rotary"),
        "variant": "own",
    }
    return BlockSpec(layer=layer, block="bidirectional", options={**block_options, **options})


@torch.no_grad()
def _copy_weights(target: BidirectionalBlock, forward: GatedBlock, reverse: GatedBlock, projections: GatedBlock) -> None:
    """Copy the weights of gated blocks into both directions and the projections of a bidirectional one."""
    target.in_proj.load_state_dict(projections.in_proj.state_dict())
    target.out_proj.load_state_dict(projections.out_proj.state_dict())
    target.layer.load_state_dict(forward.layer.state_dict())
    cast("nn.Module", target.reverse_layer).load_state_dict(reverse.layer.state_dict())
    pairs = (
        (target.conv_weight, forward.conv_weight),
        (target.conv_bias, forward.conv_bias),
        (target.reverse_conv_weight, reverse.conv_weight),
        (target.reverse_conv_bias, reverse.conv_bias),
    )
    for new, old in pairs:
        if new is not None and old is not None:
            new.copy_(old)
    for new_rotary, old_rotary in ((target.rotary, forward.rotary), (target.reverse_rotary, reverse.rotary)):
        if new_rotary is not None and old_rotary is not None:
            new_rotary.load_state_dict(old_rotary.state_dict())
