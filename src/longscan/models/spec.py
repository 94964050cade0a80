"""Which blocks a model stacks: a string of letters, shorthand for a list of `{"layer", "block", "options"}`.

    spec  = item+        item  = (letter | "(" spec ")") ["*" count]

`*count` repeats the letter or the group before it: "ma*2" is maa, "(ma)*4" is mamamama. Blanks are ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, cast

from longscan._types import describe_type, matches_type
from longscan.blocks import BLOCKS
from longscan.layers import LAYERS, SequenceModule, make_layer
from longscan.layers._registry import parameter_names
from longscan.layers._settings import declared_types

LETTERS: dict[str, tuple[str | None, str | None]] = {  # letter -> layer and block around it; None: no layer, or the layer alone
    "m": ("s6", "mamba"),
    "n": ("mamba2", "mamba2"),
    "p": ("mamba3", "mamba3"),
    "a": ("aussm", "aussm"),
    "d": ("s4d", "simple"),
    "k": ("s4", "simple"),
    "l": ("lru", "simple"),
    "s": ("s5", "s5"),
    "e": ("s7", "s5"),
    "o": ("linoss", "linoss"),
    "b": ("s6", "bidirectional"),
    "f": (None, "feed_forward"),
    "t": ("attention", None),
    "x": ("mlstm", "mamba"),
    "y": ("slstm", None),
    "g": ("gru", None),
    "h": ("lstm", None),
}


LONGEST = 10_000  # letters of a spec: more are a slip, and would be built for hours


class BlockSpec(TypedDict):
    """One block: names in LAYERS and BLOCKS, one of which may be None, and the settings of either."""

    layer: str | None
    block: str | None
    options: dict[str, Any]


def expand_spec(spec: str) -> str:
    """The letters of a spec, groups and repetitions written out; ValueError names what is wrong and where (counted from 1)."""
    try:
        letters, end = _items(spec, 0, opened=None)
    except RecursionError:
        raise ValueError("spec: its groups are nested too deeply") from None
    if end < len(spec):
        raise ValueError(f"spec: {spec!r} has a ')' at position {end + 1} that no '(' opens")
    if not letters:
        raise ValueError("spec: got no letters, expected at least one of " + ", ".join(LETTERS))
    return letters


def _items(spec: str, at: int, opened: int | None) -> tuple[str, int]:
    """The letters from `at` to the end or to the ')' that closes the group opened at `opened`; and where that is."""
    letters, latest = "", ""
    while at < len(spec):
        character = spec[at]
        if character == ")":
            break
        if character == "(":
            latest, close = _items(spec, at + 1, opened=at)
            if not latest:
                raise ValueError(f"spec: {spec!r} has an empty group at position {at + 1}")
            letters, at = letters + latest, close + 1
        elif character == "*":
            count, at = _count(spec, at, latest)
            if len(letters) + len(latest) * (count - 1) > LONGEST:
                raise ValueError(f"spec: {spec[:40]!r} stands for more than {LONGEST:,} letters")
            letters, latest = letters + latest * (count - 1), ""
        elif character.isspace():
            at += 1
        elif character in LETTERS:
            letters, latest, at = letters + character, character, at + 1
        else:
            known = ", ".join(f"{letter} ({layer or block})" for letter, (layer, block) in LETTERS.items())
            raise ValueError(f"spec: {spec!r} has {character!r} at position {at + 1}; the letters are {known}")
    if opened is not None and at == len(spec):
        raise ValueError(f"spec: {spec!r} opens a group at position {opened + 1} that no ')' closes")
    return letters, at


def _count(spec: str, at: int, latest: str) -> tuple[int, int]:
    """The number after the '*' at `at`, and the position behind it."""
    if not latest:
        raise ValueError(f"spec: {spec!r} has a '*' at position {at + 1} without a letter or group before it")
    end = at + 1
    while end < len(spec) and spec[end] in "0123456789":
        end += 1
    digits = spec[at + 1 : end].lstrip("0")
    if not digits:
        raise ValueError(f"spec: {spec!r} needs a number of at least 1 after the '*' at position {at + 1}")
    return (int(digits) if len(digits) <= len(str(LONGEST)) else LONGEST + 2), end


def settings_of(layer: str | None, block: str | None) -> tuple[set[str], set[str]]:
    """The names of the settings that the layer and the block take, besides the width and each other."""
    fixed = {"d_model", "backend", "layer", "layer_options"}
    layer_settings = set(parameter_names(LAYERS[layer]) - fixed) if layer else set()
    block_settings = set(parameter_names(BLOCKS[block]) - fixed) if block else set()
    return layer_settings, block_settings


def parse_spec(
    spec: str | Sequence[Mapping[str, Any]],
    *,
    d_state: int | None = None,
    block_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[BlockSpec]:
    """The canonical list of a spec.

    Args:
        spec: letters, or a list of `{"layer", "block", "options"}`, where "block" and "options" may be missing.
        d_state: put into the options of every layer that has this setting and is not given it.
        block_options: letter -> options, for specs of letters.

    Raises ValueError where a name does not exist or a setting is not one of the layer or its block.
    """
    if not isinstance(spec, (str, Sequence)):
        raise ValueError(f"spec: got {spec!r}, expected letters or a list of blocks")
    options_of = {letter: dict(options) for letter, options in (block_options or {}).items()}
    if isinstance(spec, str):
        letters = expand_spec(spec)
        for letter in options_of:
            if letter not in letters:
                raise ValueError(f"block_options: {letter!r} is not a letter of the spec {spec!r}")
        entries = [BlockSpec(layer=LETTERS[x][0], block=LETTERS[x][1], options=dict(options_of.get(x, {}))) for x in letters]
    else:
        if options_of:
            raise ValueError("block_options: go by letter; with a list of blocks, put the options into its entries")
        entries = [_entry(index, given) for index, given in enumerate(spec)]
        if not entries:
            raise ValueError("spec: got an empty list, expected at least one block")
    for index, entry in enumerate(entries):
        layer_settings, block_settings = settings_of(entry["layer"], entry["block"])
        kind = entry["layer"] or entry["block"]
        for name, value in entry["options"].items():
            if name not in layer_settings | block_settings:
                known = ", ".join(sorted(layer_settings | block_settings))
                raise ValueError(f"spec: block {index} ({kind}) has no setting {name!r}; its settings are {known}")
            made = LAYERS[str(entry["layer"])] if name in layer_settings else BLOCKS[str(entry["block"])]
            declared = declared_types(made)[name]
            if not matches_type(value, declared):
                raise ValueError(f"spec: block {index} ({kind}): {name} got {value!r}, needed {describe_type(declared)}")
        if d_state is not None and "d_state" in layer_settings:
            entry["options"].setdefault("d_state", d_state)
    return entries


def _entry(index: int, given: Mapping[str, Any]) -> BlockSpec:
    """One entry of a list, checked and completed."""
    unknown = set(given) - {"layer", "block", "options"}
    if unknown or "layer" not in given:
        raise ValueError(f"spec: block {index} has the keys {sorted(given)}, expected 'layer', and 'block' or 'options'")
    layer, block = given["layer"], given.get("block")
    if layer is not None and layer not in LAYERS:
        raise ValueError(f"spec: block {index} has the layer {layer!r}; the layers are {', '.join(sorted(LAYERS))}")
    if block is not None and block not in BLOCKS:
        raise ValueError(f"spec: block {index} has the block {block!r}; the blocks are {', '.join(sorted(BLOCKS))}, or none")
    alone = block is not None and "layer" not in parameter_names(BLOCKS[block])
    if (layer is None) != alone:
        needed = "no layer (None)" if alone else "a layer"
        raise ValueError(f"spec: block {index} has the layer {layer!r} in the block {block!r}, which needs {needed}")
    return BlockSpec(layer=layer, block=block, options=dict(given.get("options") or {}))


def shorthand(blocks: Sequence[BlockSpec]) -> str:
    """The letters of a canonical list, options left out; ValueError where a combination of layer and block has no letter."""
    letter_of = {names: letter for letter, names in LETTERS.items()}
    letters = ""
    for index, entry in enumerate(blocks):
        names = (entry["layer"], entry["block"])
        if names not in letter_of:
            raise ValueError(f"spec: block {index} is {names[0]} in {names[1]}, which has no letter")
        letters += letter_of[names]
    return letters


def build_block(entry: BlockSpec, d_model: int, backend: str) -> SequenceModule:
    """The block that an entry of the canonical list describes."""
    layer = entry["layer"]
    if entry["block"] is None:
        return make_layer(cast("str", layer), d_model, entry["options"], backend)
    block: Callable[..., SequenceModule] = BLOCKS[entry["block"]]
    if layer is None:
        return block(d_model, **entry["options"])
    _, block_settings = settings_of(layer, entry["block"])
    outer = {name: value for name, value in entry["options"].items() if name in block_settings}
    inner = {name: value for name, value in entry["options"].items() if name not in block_settings}
    return block(d_model, layer=layer, **outer, layer_options=inner, backend=backend)
