import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longscan._specs import (
    LETTERS,
    STANDARD_BLOCKS,
    expand_spec,
    format_names,
    translate_letters,
    upgrade_record,
    upgrade_settings,
)
from longscan.blocks import BLOCKS
from longscan.layers import LAYERS
from longscan.models import format_spec, parse_spec


def expanded_names(spec: str) -> list[str]:
    return [name for name, _ in expand_spec(spec)]


@pytest.mark.parametrize(
    ("spec", "blocks"),
    [
        ("mamba", ["mamba"]),
        ("s4d*3", ["s4d"] * 3),
        ("(mamba aussm)*2", ["mamba", "aussm"] * 2),
        ("mamba[s4d]*2 gru", ["mamba[s4d]", "mamba[s4d]", "gru"]),
        ("mamba [ s4d ]", ["mamba[s4d]"]),
        ("((mamba*2)aussm)*2", ["mamba", "mamba", "aussm"] * 2),
        (" s4 (lru) *2 ", ["s4", "lru", "lru"]),
        ("ma", ["m", "a"]),
        ("ma*2", ["m", "a", "a"]),
        ("(ma)*2s4d", ["m", "a", "m", "a", "s4d"]),
        ("m*12", ["m"] * 12),
        ("(" * 3000 + "m" + ")" * 3000, ["m"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_spec_expands_to_blocks(spec, blocks):
    assert expanded_names(spec) == blocks


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "`spec` must have at least one block, such as 'mamba', got none"),
        ("mamba s4e", r"at position 7, got .*: no layer or block is called 's4e'; did you mean s4 or s4d"),
        ("Mamba", r"at position 1, got .*: no layer or block is called 'Mamba'; did you mean mamba"),
        ("zzz", "no layer or block is called 'zzz'; there are attention, aussm, bidirectional, "),
        ("s4d simple", r"at position 5, got .*: the block 'simple' needs a layer, such as simple\[s4d\]"),
        ("mamba[s8d]", r"at position 1, got .*: no layer is called 's8d'; did you mean s4d"),
        ("mamba[mamba]", r"no layer is called 'mamba'; did you mean s6\?$"),
        ("simple[ssd]", r"no layer is called 'ssd'; did you mean mamba2\?$"),
        ("mamba[S4D-Lin]", r"no layer is called 'S4D-Lin'; did you mean s4d\?$"),
        ("simple[S4-DPLR]", r"no layer is called 'S4-DPLR'; did you mean s4\?$"),
        ("mamba1", r"no layer or block is called 'mamba1'; did you mean mamba\?$"),
        ("ssm", r"did you mean s4d\?; in the letters of earlier versions this is 's5\*2 mamba'"),
        ("transformer*2", r"no layer or block is called 'transformer'; did you mean attention\?$"),
        ("transformer[s4d]", "no block is called 'transformer'; there are aussm, bidirectional, "),
        ("mambo[s4d]", r"at position 1, got .*: no block is called 'mambo'; did you mean mamba"),
        ("feed_forward[s4d]", "the block 'feed_forward' takes no layer$"),
        ("feed_forward[gated_deltanet]", "the block 'feed_forward' takes no layer$"),
        ("qqq[s4d]", "; there are aussm, .*; a layer of your own is known once its module is imported$"),
        ("sss", r"at position 1, got .*: no layer or block is called 'sss'; in the letters of earlier versions this is 's5\*3'"),
        ("(md)*2", r"at position 2, got .*: .* in the letters of earlier versions this is '\(mamba s4d\)\*2'"),
        ("mambda", r"no layer or block is called 'mambda'; did you mean mamba or mamba3 or mamba2\?$"),
        ("sd", "did you mean s4d.*in the letters of earlier versions this is 's5 s4d'"),
        ("m|a", r"must have a name, .* at position 2, got '\|'"),
        ("mmaba", r"no layer or block is called 'mmaba'; did you mean mamba or mamba3 or mamba2\?$"),
        ("mamba,aussm", r"at position 6, got ',' in 'mamba,aussm'; blanks separate blocks$"),
        ("mamba[s4d", r"must have a name before the '\[' at position 6 and a '\]' after it"),
        ("(ma", r"must have a \'\)\' for the \'\(\' at position 1"),
        ("m(a(m)", r"must have a \'\)\' for the \'\(\' at position 2"),
        ("ma)*2", r"must have a '\(' before the '\)' at position 3"),
        ("m()", "must have a name in the group at position 2"),
        ("*2m", r"must have a name or group before the '\*' at position 1"),
        ("(m)*2*3", r"must have a name or group before the '\*' at position 6"),
        ("ma*", r"number above 0 after the '\*' at position 3"),
        ("ma*0", r"number above 0 after the '\*' at position 3"),
        ("m*-1", r"number above 0 after the '\*' at position 2"),
        ("s4d*10001", "must have at most 10,000 blocks"),
        ("((s4d*100)*100)*2", "must have at most 10,000 blocks"),
        ("s4d*" + "9" * 5000, "must have at most 10,000 blocks"),
        ("m" * 10_001, "must have at most 10,000 blocks"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_spec_raises_with_position_and_similar_names(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_spec(spec)


# Trees of names, groups and repetitions: the spec and the expected names.
PAIRS = ["mamba[s4d]", "simple[s5]", "bidirectional[lru]"]
NAME = st.sampled_from(sorted(STANDARD_BLOCKS.keys() - {"s6"}) + PAIRS).map(lambda name: (name, [name]))
TREES = st.recursive(
    NAME,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(
            lambda items: ("(" + " ".join(item[0] for item in items) + ")", [name for item in items for name in item[1]])
        ),
        st.tuples(inner, st.integers(1, 3)).map(lambda pair: (f"({pair[0][0]})*{pair[1]}", pair[0][1] * pair[1])),
    ),
    max_leaves=8,
)


@settings(max_examples=max(10, settings().max_examples))  # six cases have no repeated group of four names or more
@given(trees=st.lists(st.tuples(TREES, st.integers(1, 4)), min_size=1, max_size=3))
def test_format_spec_and_parse_spec_are_inverse_for_any_nesting(trees):
    """A spec is a list of repeated trees."""
    spec = "".join(f"({text})*{count}" for (text, _), count in trees)
    expanded = [name for (_, inner), count in trees for name in inner * count]
    assert expanded_names(spec) == expanded_names(format_names(expanded)) == expanded
    blocks = parse_spec(spec)
    assert parse_spec(format_spec(blocks)) == blocks == parse_spec(blocks)


@given(letters=st.text(sorted(LETTERS), min_size=1, max_size=12), count=st.integers(1, 3))
def test_letters_of_version_1_translate_to_the_same_blocks(letters, count):
    """Specs that consist of m and a are not changed."""
    translated = translate_letters(f"({letters})*{count}")
    assert (translated == f"({letters})*{count}") == (set(letters) <= {"m", "a"})
    pairs = [(block["layer"], block["block"]) for block in parse_spec(translated)]
    assert pairs == [STANDARD_BLOCKS[LETTERS[letter]] for letter in letters * count]


def test_standard_blocks_and_letters_refer_to_existing_layers_and_blocks():
    for layer, block in STANDARD_BLOCKS.values():
        assert layer is None or layer in LAYERS
        assert block is None or block in BLOCKS
    assert set(LAYERS) <= set(STANDARD_BLOCKS), "the name of each layer is a spec of its standard block"
    assert {STANDARD_BLOCKS[name] for name in LETTERS.values()} <= set(STANDARD_BLOCKS.values())  # newer layers have no letter
    assert not any(set(name) <= {"m", "a"} for name in {*LAYERS, *BLOCKS}), (
        "specs of m and a have the notation of the AUSSM paper"
    )


def test_spec_with_brackets_is_a_layer_in_a_block():
    assert parse_spec("mamba[s4d]") == [{"layer": "s4d", "block": "mamba", "options": {}}]
    assert parse_spec("simple[s4] mamba[s6] s5[s7] s6") == parse_spec("s4 mamba s7 mamba")


def test_block_options_are_keyed_by_name_and_d_state_is_set_for_layers():
    options = {"aussm": {"d_state": 4, "phase_dt": True}, "mamba": {"recompute": True}, "mamba[s4d]": {"init": "inv"}}
    assert parse_spec("ma gru mamba[s4d]", d_state=8, block_options=options) == [
        {"layer": "s6", "block": "mamba", "options": {"recompute": True, "d_state": 8}},
        {"layer": "aussm", "block": "aussm", "options": {"d_state": 4, "phase_dt": True}},
        {"layer": "gru", "block": None, "options": {}},
        {"layer": "s4d", "block": "mamba", "options": {"init": "inv", "d_state": 8}},
    ]
    assert parse_spec("ma", block_options={"a": {"d_state": 4}, "aussm": {"phase_dt": True}})[1]["options"] == {
        "d_state": 4,
        "phase_dt": True,
    }


def test_list_of_blocks_has_optional_keys_and_any_combination():
    assert parse_spec([{"layer": "gru"}]) == [{"layer": "gru", "block": None, "options": {}}]
    combined = parse_spec([{"layer": "s4d", "block": "mamba", "options": {"init": "legs", "expand": 1}}])
    assert format_spec(combined) == "mamba[s4d]"
    with pytest.raises(ValueError, match="`blocks` must be blocks that a spec can name, got the layer 's4d' without"):
        format_spec(parse_spec([{"layer": "s4d"}]))


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("ma", {"s4d": {}}, "`block_options` must be named by the blocks of the spec 'ma', got 's4d'"),
        ("s4d", {"d": {}}, "no layer or block is called 'd'; .*'s4d' in the letters of earlier versions"),
        (
            "ma",
            {"a": {"d_state": 3}, "aussm": {"d_state": 4}},
            "`block_options` must give each option once, got 'd_state' by 'aussm'",
        ),
        ("ma", {"a": {"d_stat": 3}}, r"the options of block 1 \(aussm\) of `spec` must be among .*; did you mean d_state\?"),
        ("gru mamba", {"gru": {"d_conv": 3}}, r"the options of block 0 \(gru\) of `spec` must be among none, got 'd_conv'"),
        ([{"layer": "s8"}], None, "the layer of block 0 of `spec` must be one of attention, aussm.*, got 's8'"),
        (
            [{"layer": "s6", "block": "mambo"}],
            None,
            "the block of block 0 of `spec` must be one of aussm, bidirectional.*, got 'mambo'",
        ),
        (["mamba", "s4d"], None, r"`spec` must be one text, such as .*, or a list of mappings, got \['mamba', 's4d'\]"),
        ([{"block": "mamba"}], None, r"block 0 of `spec` must have the key 'layer' .*, got \['block'\]"),
        (
            [{"layer": None, "block": "mamba"}],
            None,
            "the layer of block 0 of `spec` must be a name of a layer, got None",
        ),
        (
            [{"layer": "s6", "block": "feed_forward"}],
            None,
            "must be None, as the block 'feed_forward' contains no layer, got 's6'",
        ),
        ([{"layer": None}], None, "the layer of block 0 of `spec` must be a name of a layer, got None"),
        (
            "feed_forward",
            {"feed_forward": {"expand": 2}},
            r"the options of block 0 \(feed_forward\) of `spec` must be among d_hidden, .*, got 'expand'",
        ),
        ([{"layer": "s6", "option": {}}], None, r"block 0 of `spec` must have the key 'layer' .*, got \['layer', 'option'\]"),
        ([{"layer": "s6"}], {"mamba": {}}, "`block_options` must be None with a list of blocks"),
        ([], None, "got an empty list"),
        ([{"layer": []}], None, r"the layer of block 0 of `spec` must be one of attention, .*, got \[\]"),
        ([{"layer": "s6", "block": {}}], None, r"the block of block 0 of `spec` must be one of aussm, .*, got \{\}"),
        ([{"layer": "s6", "options": [1]}], None, r"the options of block 0 of `spec` must be a mapping, got \[1\]"),
        ("m", "m", "`block_options` must be a mapping of names of blocks to mappings of options, got 'm'"),
        ("m", {"m": 3}, r"`block_options` must be a mapping of names of blocks to mappings of options, got \{'m': 3\}"),
        (3, None, "`spec` must be a text or a list of blocks, got 3"),
        (b"mamba", None, "`spec` must be a text or a list of blocks, got b'mamba'"),
        ("ma", {"a": {"phase_dt": "no"}}, r"phase_dt of block 1 \(aussm\) of `spec` must be true or false, got 'no'"),
        ("m", {"m": {"recompute": 3}}, r"recompute of block 0 \(mamba\) of `spec` must be true or false, got 3"),
        ("a", {"a": {"d_state": "x"}}, r"d_state of .* must be a whole number of at least 1, got 'x'"),
        ("m", {"m": {"d_conv": 2.5}}, r"d_conv of .* must be a whole number of at least 0, got 2.5"),
        ("a", {"a": {"phase_grid": True}}, r"phase_grid of .* must be a whole number of at least 2 or None, got True"),
        ("bidirectional", {"bidirectional": {"layer_options": 3}}, r"must be among .*, got 'layer_options'"),
        ("m", {"m": {"rotary": "theta"}}, r"rotary of .* must be a mapping or None, got 'theta'"),
        ("a", {"a": {"angle_spread": "wide"}}, r"angle_spread of .* must be a number above 0 or None, got 'wide'"),
    ],
)
def test_invalid_lists_or_options_raise(spec, options, message):
    with pytest.raises(ValueError, match=message):
        parse_spec(spec, block_options=options)


@pytest.mark.parametrize("d_state", ["16", -1, 2.5, True])
def test_invalid_d_state_raises_also_without_a_layer_that_has_it(d_state):
    with pytest.raises(ValueError, match=f"^`d_state` must be a whole number of at least 1 or None, got {d_state!r}$"):
        parse_spec("gru", d_state=d_state)


def test_settings_without_a_version_are_upgraded_from_letters(caplog):
    settings = {
        "model": {"spec": "mfmf", "d_model": 4, "block_options": {"f": {"d_hidden": 64}, "m": {"d_conv": 2}}},
        "quick": {"model": {"spec": "e"}, "training": {"lr": 1}},
        "space": {"model.spec, model.block_options": [["bb", {"b": {}}], ["ma", {"a": {}}]], "model.spec": ["d", "m*2"]},
    }
    assert upgrade_settings(settings) == {
        "model": {
            "spec": "(mamba feed_forward)*2",
            "d_model": 4,
            "block_options": {"feed_forward": {"d_hidden": 64}, "m": {"d_conv": 2}},
        },
        "quick": {"model": {"spec": "s7"}, "training": {"lr": 1}},
        "space": {
            "model.spec, model.block_options": [["bidirectional*2", {"bidirectional": {}}], ["ma", {"a": {}}]],
            "model.spec": ["s4d", "m*2"],
        },
    }
    assert not caplog.records
    assert upgrade_settings({"model": {"spec": "mamba"}}) == {"model": {"spec": "mamba aussm mamba bidirectional aussm"}}
    assert "'mamba' is read as letters of version 1" in caplog.text
    assert "add `spec_version: 2`" in caplog.text


def test_settings_of_version_2_are_not_changed():
    settings = {"model": {"spec": "lstm", "block_options": {"lstm": {}}}, "quick": {"model": {"spec": "s4d*2"}}}
    assert upgrade_settings({"spec_version": 2, **settings}) == settings


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"model": {"spec": "s4d*6"}},
            "`model.spec` must be letters .*, got 's4d.6'; add `spec_version: 2`",
        ),
        (
            {"quick": {"model": {"spec": "mamba[s4d]"}}},
            "must be letters .*, got 'mamba.s4d.'; add `spec_version: 2`",
        ),
        ({"model": {"spec": "mz"}}, "`model.spec` must have letters of version 1, .*, got 'z' in 'mz'"),
        ({"spec_version": 3}, "`spec_version` must be 1 or 2, got 3"),
        ({"spec_version": True}, "`spec_version` must be 1 or 2, got True"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_upgraded_raise(content, message):
    with pytest.raises(ValueError, match=message):
        upgrade_settings(content)


def test_records_of_version_1_are_upgraded_to_names():
    command = "longscan train --model.spec kk --model.block_options '{k: {dropout: 0.3}}' --steps 9"
    row = upgrade_record({"spec": "kk", "model": "kk", "command": command})
    assert row == {
        "spec": "s4*2",
        "spec_version": 2,
        "model": "s4*2",
        "command": "longscan train --model.spec 's4*2' --model.block_options '{s4: {dropout: 0.3}}' --steps 9",
    }
    assert upgrade_record(row) == row
    assert upgrade_record({"spec": "ma", "model": "Hybrid", "command": "longscan train --model.spec=ma"}) == {
        "spec": "ma",
        "spec_version": 2,
        "model": "Hybrid",
        "command": "longscan train --model.spec=ma",
    }
    assert upgrade_record({"op": "short_conv"}) == {"op": "short_conv"}
