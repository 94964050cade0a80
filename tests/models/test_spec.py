import pytest
from hypothesis import given
from hypothesis import strategies as st

from longscan.blocks import BLOCKS
from longscan.layers import LAYERS
from longscan.models import LETTERS, expand_spec, parse_spec, shorthand


@pytest.mark.parametrize(
    ("spec", "letters"),
    [
        ("ma", "ma"),
        ("ma*2", "maa"),
        ("(ma)*4", "mamamama"),
        ("m*2(ad)*2l", "mmadadl"),
        ("((m*2)a)*2", "mmamma"),
        (" m (a) *2 ", "maa"),
        ("m*12", "m" * 12),
        ("(m)*2*3", None),
    ],
)
def test_examples(spec, letters):
    if letters is None:
        with pytest.raises(ValueError, match="position 6 without a letter or group"):
            expand_spec(spec)
    else:
        assert expand_spec(spec) == letters


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "got no letters, expected at least one of m, "),
        ("mZa", r"'Z' at position 2; the letters are m \(s6\), .*a \(aussm\), d \(s4d\)"),
        ("m|a", r"'\|' at position 2"),
        ("(ma", "opens a group at position 1 that no"),
        ("m(a(m)", "opens a group at position 2 that no"),
        ("ma)*2", r"has a '\)' at position 3 that no"),
        ("m()", "empty group at position 2"),
        ("*2m", r"'\*' at position 1 without a letter"),
        ("ma*", r"number of at least 1 after the '\*' at position 3"),
        ("ma*0", r"number of at least 1 after the '\*' at position 3"),
        ("m*-1", r"number of at least 1 after the '\*' at position 2"),
    ],
)
def test_errors_name_the_position(spec, message):
    with pytest.raises(ValueError, match=message):
        expand_spec(spec)


# Trees of letters, groups and repetitions, written as a spec and expanded by hand.
LETTER = st.sampled_from(sorted(LETTERS)).map(lambda letter: (letter, letter))
TREES = st.recursive(
    LETTER,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(
            lambda items: ("(" + "".join(item[0] for item in items) + ")", "".join(item[1] for item in items))
        ),
        st.tuples(inner, st.integers(1, 3)).map(lambda pair: (f"({pair[0][0]})*{pair[1]}", pair[0][1] * pair[1])),
    ),
    max_leaves=8,
)


@given(trees=st.lists(st.tuples(TREES, st.integers(1, 4)), min_size=1, max_size=3))
def test_any_nesting_expands_and_comes_back(trees):
    """Each of a list of trees repeated; canonical list and shorthand are each other's inverse."""
    spec = "".join(f"({text})*{count}" for (text, _), count in trees)
    letters = "".join(expanded * count for (_, expanded), count in trees)
    assert expand_spec(spec) == letters
    blocks = parse_spec(spec)
    assert shorthand(blocks) == letters
    assert parse_spec(shorthand(blocks)) == blocks == parse_spec(blocks)


def test_letters_stand_for_names_that_exist():
    for layer, block in LETTERS.values():
        assert layer in LAYERS if block is None else layer is None or layer in LAYERS
        assert block is None or block in BLOCKS


def test_options_go_by_letter_and_by_layer():
    blocks = parse_spec("mag", d_state=8, block_options={"a": {"d_state": 4, "phase_dt": True}, "m": {"recompute": True}})
    assert blocks == [
        {"layer": "s6", "block": "mamba", "options": {"recompute": True, "d_state": 8}},
        {"layer": "aussm", "block": "aussm", "options": {"d_state": 4, "phase_dt": True}},
        {"layer": "gru", "block": None, "options": {}},
    ]


def test_lists_may_leave_out_what_is_empty_and_combine_anything():
    assert parse_spec([{"layer": "gru"}]) == [{"layer": "gru", "block": None, "options": {}}]
    combined = parse_spec([{"layer": "s4d", "block": "mamba", "options": {"init": "legs", "expand": 1}}])
    with pytest.raises(ValueError, match="block 0 is s4d in mamba, which has no letter"):
        shorthand(combined)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("ma", {"d": {}}, "'d' is not a letter of the spec 'ma'"),
        ("ma", {"a": {"d_stat": 3}}, r"block 1 \(aussm\) has no setting 'd_stat'; its settings are .*d_state"),
        ("gm", {"g": {"d_conv": 3}}, r"block 0 \(gru\) has no setting 'd_conv'"),
        ([{"layer": "s8"}], None, "block 0 has the layer 's8'; the layers are attention, aussm"),
        ([{"layer": "s6", "block": "mambo"}], None, "block 0 has the block 'mambo'; the blocks are aussm, bidirectional"),
        ([{"block": "mamba"}], None, r"block 0 has the keys \['block'\], expected 'layer'"),
        ([{"layer": None, "block": "mamba"}], None, "block 0 has the layer None in the block 'mamba', which needs a layer"),
        ([{"layer": "s6", "block": "feed_forward"}], None, r"in the block 'feed_forward', which needs no layer \(None\)"),
        ([{"layer": None}], None, "block 0 has the layer None in the block None, which needs a layer"),
        ("mf", {"f": {"expand": 2}}, r"block 1 \(feed_forward\) has no setting 'expand'; its settings are d_hidden"),
        ([{"layer": "s6", "option": {}}], None, r"block 0 has the keys \['layer', 'option'\]"),
        ([{"layer": "s6"}], {"m": {}}, "block_options: go by letter"),
        ([], None, "got an empty list"),
        (3, None, "spec: got 3, expected letters or a list of blocks"),
        ("ma", {"a": {"phase_dt": "no"}}, r"block 1 \(aussm\): phase_dt got 'no', needed true or false"),
        ("m", {"m": {"recompute": 3}}, r"block 0 \(s6\): recompute got 3, needed true or false"),
        ("a", {"a": {"d_state": "x"}}, r"d_state got 'x', needed whole number"),
        ("m", {"m": {"d_conv": 2.5}}, r"d_conv got 2.5, needed whole number"),
        ("a", {"a": {"phase_grid": True}}, r"phase_grid got True, needed whole number or None"),
        ("b", {"b": {"layer_options": 3}}, r"has no setting 'layer_options'"),
        ("m", {"m": {"rotary": "theta"}}, r"rotary got 'theta', needed mapping or None"),
        ("a", {"a": {"angle_spread": "wide"}}, r"angle_spread got 'wide', needed finite number or None"),
    ],
)
def test_impossible_lists_and_options_are_named(spec, options, message):
    with pytest.raises(ValueError, match=message):
        parse_spec(spec, block_options=options)
