"""Changes to the canonical list of a stack: other blocks in some places, rotary positions in some blocks."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from longscan.blocks import BLOCKS
from longscan.layers._registry import parameter_names
from longscan.models.spec import BlockSpec, parse_spec

Where = Literal["all", "first", "every_other"]
AUSSM_BLOCK: Mapping[str, Any] = {"layer": "aussm", "block": "aussm"}
ROTARY_BLOCKS = tuple(name for name in sorted(BLOCKS) if "rotary" in parameter_names(BLOCKS[name]))


def replace_blocks(
    blocks: str | Sequence[Mapping[str, Any]],
    *,
    at: Sequence[int] | None = None,
    count: int | None = None,
    seed: int = 0,
    replaced: str = "mamba",
    by: Mapping[str, Any] = AUSSM_BLOCK,
) -> list[BlockSpec]:
    """A stack with some of its blocks replaced, as the hybrids of the AUSSM paper replace Mamba blocks by AUSSM.

    Args:
        blocks: a spec or a canonical list.
        at: places in the stack, from 0; exactly one of this and count.
        count: how many, drawn without replacement by `seed`.
        replaced: the block that may be replaced, by its name in `BLOCKS`.
        by: what comes in its place, an entry of a canonical list. Its d_state is that of the block it replaces unless given.

    ValueError where a place holds another block, or where there are fewer than count.
    """
    entries = parse_spec(blocks)
    places = [index for index, entry in enumerate(entries) if entry["block"] == replaced]
    if (at is None) == (count is None):
        raise ValueError(f"at, count: got {at} and {count}, needed exactly one of them")
    if count is not None:
        if not 0 <= count <= len(places):
            raise ValueError(f"count: got {count}, needed 0 to {len(places)}, as many {replaced} blocks as there are")
        at = sorted(np.random.default_rng(seed).choice(places, count, replace=False).tolist()) if count else []
    for index in at or ():
        if index not in places:
            raise ValueError(f"at: got {index}, needed places of {replaced} blocks: {places}")
        options = dict(by.get("options") or {})
        if "d_state" in entries[index]["options"]:
            options.setdefault("d_state", entries[index]["options"]["d_state"])
        entries[index] = parse_spec([{**by, "options": options}])[0]
    return entries


def place_rotary(blocks: str | Sequence[Mapping[str, Any]], options: Mapping[str, Any], where: Where = "all") -> list[BlockSpec]:
    """A stack with rotary positions in all, the first, or every other one of the blocks that can have them.

    options: settings of `longscan.blocks.Rotary`. ValueError where no block can have them.
    """
    if where not in ("all", "first", "every_other"):
        raise ValueError(f"where: got {where!r}, needed 'all', 'first' or 'every_other'")
    entries = parse_spec(blocks)
    places = [index for index, entry in enumerate(entries) if entry["block"] in ROTARY_BLOCKS]
    if not places:
        raise ValueError(f"blocks: none of them can have rotary positions, needed some of {', '.join(ROTARY_BLOCKS)}")
    for index in {"all": places, "first": places[:1], "every_other": places[::2]}[where]:
        entries[index]["options"]["rotary"] = dict(options)
    return entries
