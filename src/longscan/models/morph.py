"""From pretrained models to others: a bidirectional model out of causal ones, another head.

Morphs of the thesis "State space models for long sequences" (section 16): F1 copies the convolution and the layer of each block
of a causal model, and its rotary positions, into both directions of a bidirectional block; F1R1 takes the reverse direction from
a second model, which was pretrained on reversed sequences. Projections, norms and encoder come from one of the two. A reverse
model that starts from the first (`copy.deepcopy`) and goes on with `next_tokens(reverse=True)` is the thesis's proposal to keep
their time scales together.
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


def backbone_of(model: SequenceModel | LanguageModel) -> SequenceModel:
    """The stack of a language model, or the model itself."""
    return model.backbone if isinstance(model, LanguageModel) else model


def with_head(
    model: SequenceModel | LanguageModel, d_output: int, *, pooling: Pooling = "mean", head: Head = "linear"
) -> SequenceModel:
    """A `SequenceModel` with the encoder, the blocks and the last norm of `model`, copied, and a new head.

    d_output, pooling, head: as in `SequenceModel`. The vocabulary of a language model's encoder includes its padding.
    """
    old = backbone_of(model)
    new = SequenceModel(**{**old.config, "d_output": d_output, "pooling": pooling, "head": head}).to(old.encoder.weight)
    for name in ("encoder", "blocks", "norm", "start"):
        getattr(new, name).load_state_dict(getattr(old, name).state_dict())
    return new


def make_bidirectional(
    forward: SequenceModel | LanguageModel,
    reverse: SequenceModel | LanguageModel | None = None,
    *,
    projections: Literal["forward", "reverse"] = "forward",
    keep_head: bool = False,
) -> SequenceModel:
    """F1, or F1R1 with a reverse model: a bidirectional model out of causal ones; of language models, without their heads.

    Args:
        forward: its blocks' convolutions and layers become the forward direction, and without `reverse` the other one, too.
        reverse: its convolutions and layers become the reverse direction; blocks of the same kind and sizes.
        projections: the model that gives in_proj, out_proj, the blocks' norms and the encoder. The thesis's text says the forward
            one; its code takes in_proj and out_proj of the reverse one.
        keep_head: copy the last norm and the head of `forward` as well; they start afresh in the thesis.

    Blocks that are no gated blocks are copied. ValueError where the models do not fit, or hold no gated block.
    """
    forward = backbone_of(forward)
    other = forward if reverse is None else backbone_of(reverse)
    if other.config["blocks"] != forward.config["blocks"] or other.d_model != forward.d_model:
        raise ValueError("reverse: its blocks or its width are not those of the forward model")
    if projections not in ("forward", "reverse"):
        raise ValueError(f"projections: got {projections!r}, needed 'forward' or 'reverse'")
    source = forward if projections == "forward" else other
    entries = [
        _two_sided(entry, block.block) if isinstance(block.block, GatedBlock) else entry
        for entry, block in zip(forward.entries, forward.stack, strict=True)
    ]
    if entries == forward.entries:
        raise ValueError("forward: it has no gated block (mamba, aussm) that could read in both directions")
    new = SequenceModel(**{**forward.config, "blocks": entries, "initial_state": "zero"}).to(forward.encoder.weight)
    new.encoder.load_state_dict(source.encoder.state_dict())
    for index, target in enumerate(new.stack):
        ahead, back, given = (model.stack[index] for model in (forward, other, source))
        target.norm.load_state_dict(given.norm.state_dict())
        if isinstance(target.block, BidirectionalBlock) and isinstance(ahead.block, GatedBlock):
            _fill(target.block, ahead.block, cast("GatedBlock", back.block), cast("GatedBlock", given.block))
        else:
            target.block.load_state_dict(given.block.state_dict())
    if keep_head:
        new.norm.load_state_dict(forward.norm.state_dict())
        new.head.load_state_dict(forward.head.state_dict())
    return new


def _two_sided(entry: BlockSpec, block: GatedBlock) -> BlockSpec:
    """The bidirectional block with convolutions of its own around the layer of a gated block."""
    layer = cast("str", entry["layer"])
    layer_settings, _ = setting_names(layer, entry["block"])
    options = {name: value for name, value in entry["options"].items() if name in layer_settings}
    if entry["options"].get("variant") == "aussm":
        options = {**VARIANTS["aussm"], **options}
    around = {
        "expand": block.d_inner // block.d_model,
        "d_conv": block.d_conv,
        "activation": entry["options"].get("activation", "auto"),
        "dropout": block.dropout.p,
        "rotary": entry["options"].get("rotary"),
        "variant": "own",
    }
    return BlockSpec(layer=layer, block="bidirectional", options={**around, **options})


@torch.no_grad()
def _fill(target: BidirectionalBlock, ahead: GatedBlock, back: GatedBlock, projections: GatedBlock) -> None:
    target.in_proj.load_state_dict(projections.in_proj.state_dict())
    target.out_proj.load_state_dict(projections.out_proj.state_dict())
    target.layer.load_state_dict(ahead.layer.state_dict())
    cast("nn.Module", target.reverse_layer).load_state_dict(back.layer.state_dict())
    pairs = (
        (target.conv_weight, ahead.conv_weight),
        (target.conv_bias, ahead.conv_bias),
        (target.reverse_conv_weight, back.conv_weight),
        (target.reverse_conv_bias, back.conv_bias),
    )
    for new, old in pairs:
        if new is not None and old is not None:
            new.copy_(old)
    for turned, before in ((target.rotary, ahead.rotary), (target.reverse_rotary, back.rotary)):
        if turned is not None and before is not None:
            turned.load_state_dict(before.state_dict())
