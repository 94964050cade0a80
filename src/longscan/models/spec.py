"""Stacks of blocks: the canonical list of `{"layer", "block", "options"}`, and specs, the text form of such lists.

The grammar of specs is that of `longscan._specs`: "(mamba aussm)*4", "s4d*6", "mamba[s4d]*4", "ma".
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypedDict, cast

from longscan._errors import nearest, quote
from longscan._specs import LETTERS, STANDARD_BLOCKS, expand_spec, format_names, translate_letters
from longscan._types import PositiveInt, describe_type, matches_type
from longscan.blocks import BLOCKS
from longscan.layers import LAYERS, SequenceModule, make_layer
from longscan.layers._registry import find_common_name, parameter_names
from longscan.layers._settings import declared_types
from longscan.ops.dispatch import Backend

MISTYPED = 0.85  # similarity of two names of which one is a typing error: "s4dd" and "s4d" have .86, "sd" and "s4d" .80
MISTYPED_LONG = 0.75  # the same for names of five letters and more: "mmaba" and "mamba" have .80


class BlockSpec(TypedDict):
    """One block of the canonical list: names in LAYERS and BLOCKS, one of which may be None, and the options of both."""

    layer: str | None
    block: str | None
    options: dict[str, Any]


class UnknownNameError(KeyError):
    """A name in a spec that no layer or block has.

    Args:
        kind: what the name is to be, such as "layer or block".
        name: the name.
        known: the names that exist.

    Attributes:
        reason: the message without names that exist.
        similar: names that it may stand for, which the message suggests. If there are none, the message lists all names.
    """

    def __init__(self, kind: str, name: str, known: set[str]) -> None:
        common = find_common_name(name, known)
        self.reason = f"no {kind} is called {name!r}"
        self.similar = [common] if common else get_close_matches(name.lower(), sorted(known), 3)
        hint = f"did you mean {' or '.join(self.similar)}?" if self.similar else f"there are {', '.join(sorted(known))}"
        super().__init__(f"{self.reason}; {hint}")


def find_block(name: str) -> tuple[str | None, str | None]:
    """Return the layer and the block of a name in a spec, as names in LAYERS and BLOCKS.

    name: "m", "a", a name of `STANDARD_BLOCKS`, another layer (without a block), or "block[layer]".
    Raises KeyError with the reason if there is no such layer or block, or if the block needs a layer.
    """
    name = LETTERS[name] if name in ("m", "a") else name
    block, bracket, layer = name.removesuffix("]").partition("[")
    if bracket:
        for kind, given, known in (("block", block, set(BLOCKS)), ("layer", layer, set(LAYERS))):
            if given not in known:
                raise UnknownNameError(kind, given, known)
        if "layer" not in parameter_names(BLOCKS[block]):
            raise KeyError(f"the block {block!r} takes no layer")
        return layer, block
    if name in STANDARD_BLOCKS:
        return STANDARD_BLOCKS[name]
    if name in LAYERS:
        return name, None
    if name in BLOCKS:
        if "layer" in parameter_names(BLOCKS[name]):
            raise KeyError(f"the block {name!r} needs a layer, such as {name}[s4d]")
        return None, name
    raise UnknownNameError("layer or block", name, {*STANDARD_BLOCKS, *LAYERS, *BLOCKS})


def _parse_text(spec: str) -> list[tuple[str | None, str | None]]:
    """Return the (layer, block) pairs of a spec. Raises ValueError naming what is wrong, and its position."""
    found = []
    for name, position in expand_spec(spec):
        try:
            found.append(find_block(name))
        except KeyError as error:
            reason = _explain_unknown_name(spec, name, error) if isinstance(error, UnknownNameError) else error.args[0]
            raise ValueError(f"`spec` must be valid at position {position}, got {spec[:60]!r}: {reason}") from None
    if not found:
        raise ValueError("`spec` must have at least one block, such as 'mamba', got none")
    return found


def _explain_unknown_name(spec: str, name: str, error: UnknownNameError) -> str:
    """Return an error message for an unknown name in a spec, with a translation if the spec is in the letters of version 1.

    A name that is similar to an existing one is treated as a typing error, not as letters.
    """
    message = str(error.args[0])
    cutoff = MISTYPED if len(name) < 5 else MISTYPED_LONG
    if get_close_matches(name.lower(), {*STANDARD_BLOCKS, *LAYERS, *BLOCKS}, 1, cutoff):
        return message
    own = "" if error.similar else "; a layer of your own is known once its module is imported"
    try:
        letters = f"; in the letters of earlier versions this is {translate_letters(spec)!r}"
    except ValueError:
        return f"{message}{own}"
    return f"{message if error.similar else error.reason}{letters}{own}"


def parse_spec(
    spec: str | Sequence[Mapping[str, Any]],
    *,
    d_state: int | None = None,
    block_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[BlockSpec]:
    """Return the canonical list of a spec.

    Args:
        spec: a text such as `(mamba aussm)*4`, `s4d*6`, `mamba[s4d]*4` or `ma`, or a list of `{"layer", "block", "options"}`,
            where "block" and "options" may be missing.
        d_state: added to the options of every layer that has this setting and is not given it.
        block_options: name of a block as in a spec -> its options, for specs that are texts. "m" and "a" are short for "mamba"
            and "aussm".

    Raises ValueError if a name does not exist, or an option is no setting of the layer or its block or has another type.
    """
    if not isinstance(spec, (str, Sequence)) or isinstance(spec, (bytes, bytearray)):
        raise ValueError(f"`spec` must be a text or a list of blocks, got {spec!r}")
    if not matches_type(d_state, PositiveInt | None):
        raise ValueError(f"`d_state` must be {describe_type(PositiveInt | None)}, got {d_state!r}")
    if not matches_type(block_options, Mapping[str, Mapping[str, Any]] | None):
        raise ValueError(f"`block_options` must be a mapping of names of blocks to mappings of options, got {block_options!r}")
    if isinstance(spec, str):
        pairs = _parse_text(spec)
        options_of = _options_of_pairs(spec, pairs, block_options or {})
        entries = [BlockSpec(layer=pair[0], block=pair[1], options=dict(options_of.get(pair, {}))) for pair in pairs]
    else:
        if block_options:
            raise ValueError(
                "`block_options` must be None with a list of blocks, whose entries have options themselves, got a mapping"
            )
        if not all(isinstance(entry, Mapping) for entry in spec):
            needed = "one text, such as 'mamba s4d*2', or a list of mappings"
            raise ValueError(f"`spec` must be {needed}, got {quote(list(spec), 60)}")
        entries = [_complete_entry(index, given) for index, given in enumerate(spec)]
        if not entries:
            raise ValueError("`spec` must have at least one block, got an empty list")
    for index, entry in enumerate(entries):
        layer_settings, block_settings = setting_names(entry["layer"], entry["block"])
        label = block_label(entry)
        for name, value in entry["options"].items():
            if name not in layer_settings | block_settings:
                known = ", ".join(sorted(layer_settings | block_settings)) or "none"
                near = nearest(name, layer_settings | block_settings)
                hint = f"; did you mean {near}?" if near else ""
                raise ValueError(f"the options of block {index} ({label}) of `spec` must be among {known}, got {name!r}{hint}")
            owner = LAYERS[str(entry["layer"])] if name in layer_settings else BLOCKS[str(entry["block"])]
            declared = declared_types(owner)[name]
            if not matches_type(value, declared):
                needed = describe_type(declared)
                raise ValueError(f"{name} of block {index} ({label}) of `spec` must be {needed}, got {value!r}")
        if d_state is not None and "d_state" in layer_settings:
            entry["options"].setdefault("d_state", d_state)
    return entries


def _options_of_pairs(
    spec: str, pairs: Sequence[tuple[str | None, str | None]], block_options: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str | None, str | None], dict[str, Any]]:
    """Return (layer, block) -> options. Raises ValueError for a key that the spec does not use, and for an option given twice."""
    found: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    for key, options in block_options.items():
        try:
            pair = find_block(key)
        except KeyError as error:
            letter = f"; {LETTERS[key]!r} in the letters of earlier versions" if key in LETTERS else ""
            raise ValueError(
                f"`block_options` must be named by the blocks of the spec, got {key!r}: {error.args[0]}{letter}"
            ) from None
        if pair not in pairs:
            raise ValueError(f"`block_options` must be named by the blocks of the spec {spec[:60]!r}, got {key!r}")
        earlier = found.setdefault(pair, {})
        if twice := earlier.keys() & options.keys():
            raise ValueError(f"`block_options` must give each option once, got {min(twice)!r} by {key!r} and by another name")
        earlier.update(options)
    return found


def _complete_entry(index: int, given: Mapping[str, Any]) -> BlockSpec:
    """Return one entry of a list with its missing keys. Raises ValueError naming what does not exist."""
    unknown = set(given) - {"layer", "block", "options"}
    if unknown or "layer" not in given:
        raise ValueError(
            f"block {index} of `spec` must have the key 'layer' and may have 'block' and 'options', got {sorted(given)}"
        )
    layer, block, options = given["layer"], given.get("block"), given.get("options") or {}
    if not isinstance(options, Mapping):
        raise ValueError(f"the options of block {index} of `spec` must be a mapping, got {options!r}")
    if layer is not None and not (isinstance(layer, str) and layer in LAYERS):
        raise ValueError(f"the layer of block {index} of `spec` must be one of {', '.join(sorted(LAYERS))}, got {layer!r}")
    if block is not None and not (isinstance(block, str) and block in BLOCKS):
        raise ValueError(
            f"the block of block {index} of `spec` must be one of {', '.join(sorted(BLOCKS))} or None, got {block!r}"
        )
    has_no_layer = block is not None and "layer" not in parameter_names(BLOCKS[block])
    if (layer is None) != has_no_layer:
        needed = f"None, as the block {block!r} contains no layer" if has_no_layer else "a name of a layer"
        raise ValueError(f"the layer of block {index} of `spec` must be {needed}, got {layer!r}")
    return BlockSpec(layer=layer, block=block, options=dict(options))


def block_label(entry: BlockSpec) -> str:
    """Return the shortest name of a block in a spec, such as "s4d" or "mamba[s4d]"; the layer's name where specs have none."""
    pair = (entry["layer"], entry["block"])
    for name, standard in STANDARD_BLOCKS.items():
        if standard == pair:
            return name
    return f"{pair[1]}[{pair[0]}]" if pair[0] and pair[1] else str(pair[0] or pair[1])


def format_spec(blocks: Sequence[BlockSpec]) -> str:
    """Return the spec of a canonical list without its options, the inverse of `parse_spec`.

    Raises ValueError for a layer without a block if its name in a spec means the layer in a block.
    """
    names = [block_label(entry) for entry in blocks]
    for index, (name, entry) in enumerate(zip(names, blocks, strict=True)):
        if find_block(name) != (entry["layer"], entry["block"]):
            raise ValueError(
                f"`blocks` must be blocks that a spec can name, got the layer {name!r} without a block in block {index}, while "
                f"{name!r} in a spec means this layer in a block"
            )
    return format_names(names)


def setting_names(layer: str | None, block: str | None) -> tuple[set[str], set[str]]:
    """Return the names of the options of a layer and of a block, without the width, the backend and the layer itself."""
    fixed = {"d_model", "backend", "layer", "layer_options"}
    layer_settings = set(parameter_names(LAYERS[layer]) - fixed) if layer else set()
    block_settings = set(parameter_names(BLOCKS[block]) - fixed) if block else set()
    return layer_settings, block_settings


def build_block(entry: BlockSpec, d_model: int, backend: Backend) -> SequenceModule:
    """Return the module that an entry of the canonical list describes, with new weights."""
    layer = entry["layer"]
    if entry["block"] is None:
        return make_layer(cast("str", layer), d_model, entry["options"], backend)
    block: Callable[..., SequenceModule] = BLOCKS[entry["block"]]
    if layer is None:
        return block(d_model, **entry["options"])
    _, block_settings = setting_names(layer, entry["block"])
    outer = {name: value for name, value in entry["options"].items() if name in block_settings}
    inner = {name: value for name, value in entry["options"].items() if name not in block_settings}
    return block(d_model, layer=layer, **outer, layer_options=inner, backend=backend)
