"""Changes to the list of blocks of a stack: other blocks at some positions, rotary positions in some blocks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from longscan._types import NonNegativeInt, matches_type
from longscan.blocks import BLOCKS
from longscan.layers._registry import parameter_names
from longscan.models.spec import BlockSpec, parse_spec

Where = Literal["all", "first", "every_other"]
AUSSM_BLOCK: Mapping[str, Any] = {"layer": "aussm", "block": "aussm"}
ROTARY_BLOCKS = tuple(name for name in sorted(BLOCKS) if "rotary" in parameter_names(BLOCKS[name]))


def replace_blocks(
    blocks: str | Sequence[Mapping[str, Any]],
    *,
    positions: Sequence[int] | None = None,
    count: int | None = None,
    seed: int = 0,
    replaced: str = "mamba",
    replacement: Mapping[str, Any] = AUSSM_BLOCK,
) -> list[BlockSpec]:
    """Return a stack with some of its blocks replaced, as in the hybrids of the AUSSM paper, which replace Mamba blocks by AUSSM.

    Args:
        blocks: a spec, or a list of blocks.
        positions: positions of the blocks to replace, from 0. Exactly one of this and count is given.
        count: number of blocks to replace, at random positions.
        seed: of the random positions.
        replaced: name in `BLOCKS` of the blocks that may be replaced.
        replacement: the new block, an entry of a list of blocks. Its option d_state is by default that of the block it replaces.

    Returns the list of blocks. Raises ValueError if there is another block at one of the positions, or fewer than count blocks,
    and for a name that no block has.
    """
    if replaced not in BLOCKS:
        raise ValueError(f"`replaced` must be one of {', '.join(sorted(BLOCKS))}, got {replaced!r}")
    entries = parse_spec(blocks)
    candidates = [index for index, entry in enumerate(entries) if entry["block"] == replaced]
    if (positions is None) == (count is None):
        raise ValueError(f"exactly one of `positions` and `count` must be given, got {positions} and {count}")
    if count is not None:
        if not matches_type(count, NonNegativeInt) or count > len(candidates):
            raise ValueError(f"`count` must be 0 to {len(candidates)}, the number of {replaced} blocks, got {count}")
        positions = sorted(np.random.default_rng(seed).choice(candidates, count, replace=False).tolist()) if count else []
    chosen = list(positions) if isinstance(positions, Iterable) else None
    if chosen is None or not matches_type(chosen, list[NonNegativeInt]) or len(set(chosen)) < len(chosen):
        raise ValueError(f"`positions` must be whole numbers without repetitions, got {positions!r}")
    for index in chosen:
        if index not in candidates:
            raise ValueError(f"`positions` must be those of {replaced} blocks, {candidates}, got {index}")
        options = dict(replacement.get("options") or {})
        if "d_state" in entries[index]["options"]:
            options.setdefault("d_state", entries[index]["options"]["d_state"])
        entries[index] = parse_spec([{**replacement, "options": options}])[0]
    return entries


def place_rotary(blocks: str | Sequence[Mapping[str, Any]], options: Mapping[str, Any], where: Where = "all") -> list[BlockSpec]:
    """Return a stack with rotary positions in some of the blocks that take them.

    Args:
        blocks: a spec, or a list of blocks.
        options: settings of `longscan.blocks.Rotary`.
        where: "all" of the blocks that take rotary positions, the "first" of them, or "every_other" one from the first on.

    Returns the list of blocks. Raises ValueError if no block takes rotary positions.
    """
    if where not in ("all", "first", "every_other"):
        raise ValueError(f"`where` must be 'all', 'first' or 'every_other', got {where!r}")
    if not isinstance(options, Mapping):
        raise ValueError(f"`options` must be a mapping of the settings of Rotary, got {options!r}")
    entries = parse_spec(blocks)
    positions = [index for index, entry in enumerate(entries) if entry["block"] in ROTARY_BLOCKS]
    if not positions:
        raise ValueError(f"`blocks` must have some of {', '.join(ROTARY_BLOCKS)}, which take rotary positions, got none")
    for index in {"all": positions, "first": positions[:1], "every_other": positions[::2]}[where]:
        entries[index]["options"]["rotary"] = dict(options)
    return entries
