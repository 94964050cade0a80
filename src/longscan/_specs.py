"""The text of specs: names of blocks, groups and repetitions; and the letters that files of version 1 use instead of names.

A spec is the text form of a stack of blocks, from the input to the output:

    spec  = item+
    item  = (block | "(" spec ")") ["*" count]
    block = name | name "[" name "]" | a word of the letters m and a

"(mamba aussm)*2" is mamba aussm mamba aussm. A name is one of `STANDARD_BLOCKS`; `block[layer]` combines any block with any
layer. A word made only of m and a is the notation of the AUSSM paper, one block for each letter: m is mamba, a is aussm. "*count"
repeats the letter, the name or the group before it, so that "ma*2" is maa.

Files state `spec_version: 2`. Files without a version are of version 1, whose specs have one letter for each block. This module
needs no torch, because reports read the specs of records.
"""

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

log = logging.getLogger("longscan")
SPEC_VERSION: Literal[2] = 2
MAX_BLOCKS = 10_000  # more are a typing error: such a model would take hours to build

# Name in a spec -> the layer and the block around it, as in the layer's paper. None: no layer, or the layer without a block.
STANDARD_BLOCKS: Mapping[str, tuple[str | None, str | None]] = {
    "mamba": ("s6", "mamba"),
    "s6": ("s6", "mamba"),
    "mamba2": ("mamba2", "mamba2"),
    "mamba3": ("mamba3", "mamba3"),
    "gated_deltanet": ("gated_deltanet", "gated_deltanet"),
    "aussm": ("aussm", "aussm"),
    "pdssm": ("pdssm", "simple"),
    "s4d": ("s4d", "simple"),
    "s4": ("s4", "simple"),
    "lru": ("lru", "simple"),
    "s5": ("s5", "s5"),
    "s7": ("s7", "s5"),
    "linoss": ("linoss", "linoss"),
    "bidirectional": ("s6", "bidirectional"),
    "feed_forward": (None, "feed_forward"),
    "attention": ("attention", None),
    "mlstm": ("mlstm", "mamba"),
    "slstm": ("slstm", None),
    "gru": ("gru", None),
    "lstm": ("lstm", None),
}

# Letter of a version-1 spec -> name. m and a are also letters of the AUSSM paper's notation, which version 2 reads.
LETTERS: Mapping[str, str] = {
    "m": "mamba",
    "n": "mamba2",
    "p": "mamba3",
    "a": "aussm",
    "d": "s4d",
    "k": "s4",
    "l": "lru",
    "s": "s5",
    "e": "s7",
    "o": "linoss",
    "b": "bidirectional",
    "f": "feed_forward",
    "t": "attention",
    "x": "mlstm",
    "y": "slstm",
    "g": "gru",
    "h": "lstm",
}

_TOKEN = re.compile(r"(?P<name>[A-Za-z_]\w*\s*(?:\[[^\[\]]*\])?)|\*\s*(?P<count>\d*)|\S")
_SPEC_OPTION = re.compile(r"(--model\.spec[ =])([\"']?)([^\"'\s]+)")
_BLOCK_OPTIONS = re.compile(r"(--model\.block_options)([ =](?:'[^']*'|\"[^\"]*\"|\S+)|\.[a-z]\b)")
_AUSSM_NOTATION = re.compile(r"[ma()*\d\s]*")  # reads the same in both versions


def expand_spec(spec: str) -> list[tuple[str, int]]:
    """Return (name, position) of every block of a spec, with groups and repetitions written out.

    A name is as in the text, without blanks: "s4d", "mamba[s4d]", or "m" or "a" for a letter of a word of m and a. Whether such a
    name exists is not checked. Positions count characters from 1. Raises ValueError naming the position of a syntax error.
    """
    groups: list[list[tuple[str, int]]] = [[]]  # the blocks of the text and of each group that is open
    opened: list[int] = []
    repeatable = 0  # blocks at the end of groups[-1] that a "*" would repeat
    for match in _TOKEN.finditer(spec):
        token, position = match[0], match.start() + 1
        if match["name"] and re.fullmatch("[ma]+", token.strip()):
            groups[-1] += [(letter, position + i) for i, letter in enumerate(token.strip())]
            repeatable = 1
        elif match["name"]:
            groups[-1].append(("".join(token.split()), position))
            repeatable = 1
        elif token == "(":
            groups.append([])
            opened.append(position)
            repeatable = 0
        elif token == ")":
            if not opened:
                raise ValueError(f"`spec` must have a '(' before the ')' at position {position}, got {_quote(spec)}")
            start, inner = opened.pop(), groups.pop()
            if not inner:
                raise ValueError(f"`spec` must have a name in the group at position {start}, got {_quote(spec)}")
            groups[-1] += inner
            repeatable = len(inner)
        elif token == "[":
            needed = f"a name before the '[' at position {position} and a ']' after it"
            raise ValueError(f"`spec` must have {needed}, got {_quote(spec)}")
        elif match["count"] is None:
            found = f"got {token!r} in {_quote(spec)}; blanks separate blocks"
            raise ValueError(f"`spec` must have a name, '(', ')' or '*' at position {position}, {found}")
        else:
            if not repeatable:
                raise ValueError(f"`spec` must have a name or group before the '*' at position {position}, got {_quote(spec)}")
            digits = match["count"].lstrip("0")
            if not digits:
                raise ValueError(f"`spec` must have a number above 0 after the '*' at position {position}, got {_quote(spec)}")
            count = int(digits) if len(digits) <= len(str(MAX_BLOCKS)) else MAX_BLOCKS + 1
            if sum(map(len, groups)) + repeatable * (count - 1) > MAX_BLOCKS:
                raise ValueError(f"`spec` must have at most {MAX_BLOCKS:,} blocks, got {_quote(spec)}")
            groups[-1] += groups[-1][-repeatable:] * (count - 1)
            repeatable = 0
    if opened:
        raise ValueError(f"`spec` must have a ')' for the '(' at position {opened[-1]}, got {_quote(spec)}")
    if len(groups[0]) > MAX_BLOCKS:
        raise ValueError(f"`spec` must have at most {MAX_BLOCKS:,} blocks, got {_quote(spec)}")
    return groups[0]


def _quote(spec: str) -> str:
    return repr(spec if len(spec) <= 60 else f"{spec[:60]}...")


def format_names(names: Sequence[str]) -> str:
    """Return the spec of a stack of named blocks, with repetitions written as "name*3" and "(name other)*2"."""
    names, total = list(names), len(names)
    period = next((p for p in range(1, total + 1) if total % p == 0 and names[:p] * (total // p) == names), 0)
    if period == 1 < total:
        return f"{names[0]}*{total}"
    runs = [(name, len(list(run))) for name, run in groupby(names[:period])]
    unit = " ".join(name if count == 1 else f"{name}*{count}" for name, count in runs)
    return unit if period == total else f"({unit})*{total // period}"


def is_aussm_notation(spec: str) -> bool:
    """Return whether a spec has no letters other than m and a, so that versions 1 and 2 read it alike."""
    return _AUSSM_NOTATION.fullmatch(spec) is not None


def translate_letters(spec: str) -> str:
    """Return a version-1 spec in the names of version 2. Raises ValueError for other letters than those of version 1."""
    if is_aussm_notation(spec):
        return spec
    letters = [letter for letter, _ in expand_spec(re.sub(r"([^\W\d])", r"\1 ", spec))]
    for letter in letters:
        if letter not in LETTERS:
            raise ValueError(f"`spec` must have letters of version 1, {', '.join(LETTERS)}, got {letter!r} in {_quote(spec)}")
    return format_names([LETTERS[letter] for letter in letters])


def spec_names(spec: str) -> set[str]:
    """Return the names of the blocks in a version-2 spec, with m and a as "mamba" and "aussm"."""
    return {LETTERS[name] if name in ("m", "a") else name for name, _ in expand_spec(spec)}


def upgrade_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a settings, recipe or sweep file in the specs of version 2, without its entry `spec_version`.

    Specs and the keys of block options stand in the section `model`, in the sections `quick` and `settings` with a `model` of
    their own, and in the `space` of a sweep. Raises ValueError for an unknown version, and for a version-1 spec that is not
    written in letters.
    """
    content = dict(content)
    version = content.pop("spec_version", 1)
    if version not in (1, SPEC_VERSION) or isinstance(version, bool):
        raise ValueError(f"`spec_version` must be 1 or {SPEC_VERSION}, got {version!r}")
    for name in ("quick", "settings"):
        if isinstance(content.get(name), Mapping):
            content[name] = upgrade_settings({"spec_version": version, **content[name]})
    if version == 1 and isinstance(content.get("model"), Mapping):
        content["model"] = {name: _upgrade_value(f"model.{name}", value) for name, value in content["model"].items()}
    if version == 1 and isinstance(content.get("space"), Mapping):
        space = content["space"].items()
        content["space"] = {
            key: [upgrade_point(key, value) for value in values] if isinstance(values, list) else values for key, values in space
        }
    return content


def upgrade_point(key: str, value: Any) -> Any:
    """Return one value of a sweep's dimension, from version 1, in the specs of version 2.

    key: a setting, or several separated by commas, whose value is the list of theirs.
    """
    names = [name.strip() for name in str(key).split(",")]
    if len(names) > 1 and isinstance(value, list) and len(value) == len(names):
        return [_upgrade_value(name, part) for name, part in zip(names, value, strict=True)]
    return _upgrade_value(names[0], value)


def _upgrade_value(setting: str, value: Any) -> Any:
    """Return the value of a setting from a file of version 1 as version 2 writes it."""
    if setting == "model.block_options" and isinstance(value, Mapping):
        return {key if key in ("m", "a") else LETTERS.get(key, key): options for key, options in value.items()}
    if setting != "model.spec" or not isinstance(value, str):
        return value
    try:
        translated = translate_letters(value)
    except ValueError as error:
        if not _is_readable(value):
            raise ValueError(str(error).replace("`spec`", "`model.spec`", 1)) from None
        raise ValueError(
            f"`model.spec` must be letters of version 1 in a file without spec_version, got {value!r}; "
            f"add `spec_version: {SPEC_VERSION}` to the file"
        ) from None
    if translated != value and _is_readable(value):
        advice = f"add `spec_version: {SPEC_VERSION}` to the file to read names"
        log.warning("model.spec: %r is read as letters of version 1, which are %s; %s", value, translated, advice)
    return translated


def _is_readable(spec: str) -> bool:
    """Return whether version 2 reads a spec, where any name in brackets is taken to exist."""
    try:
        return all(name in STANDARD_BLOCKS or "[" in name for name in spec_names(spec))
    except ValueError:
        return False


def upgrade_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its spec and the options of its command as version 2 writes them, and with `spec_version`.

    Records without a spec, and those that state a version, are returned as they are.
    """
    row = dict(row)
    if row.get("spec") is None or "spec_version" in row:
        return row
    spec = _translate_or_keep(row["spec"])
    if row.get("model") == row["spec"]:  # a model without another name
        row["model"] = spec
    row |= {"spec": spec, "spec_version": SPEC_VERSION}
    if isinstance(row.get("command"), str):
        command = _SPEC_OPTION.sub(lambda found: found[1] + found[2] + _translated_word(found[3], found[2]), row["command"])
        row["command"] = _BLOCK_OPTIONS.sub(lambda found: found[1] + _translate_keys(found[2]), command)
    return row


def _translate_or_keep(spec: str) -> str:
    """Return the translation of a version-1 spec, or the text itself if it is no such spec."""
    try:
        return translate_letters(spec)
    except ValueError:
        return spec


def _translated_word(spec: str, quote: str) -> str:
    """Return the translation of a spec in a command, quoted for the shell unless it is in quotes already."""
    translated = _translate_or_keep(spec)
    return translated if quote else shlex.quote(translated)


def _translate_keys(options: str) -> str:
    """Return the text of block options, ".k" or " {k: {...}}", with names in place of letters other than m and a."""
    return re.sub(r"(?<=[.{ ])[b-ln-z](?=$|: ?\{)", lambda found: LETTERS.get(found[0], found[0]), options)
