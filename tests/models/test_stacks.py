import pytest
import torch

from longscan.models import SequenceModel, format_spec, parse_spec, place_rotary, replace_blocks


def test_replace_blocks_replaces_the_chosen_blocks():
    blocks = replace_blocks(parse_spec("mamba*4", d_state=8), positions=[1, 3])
    assert format_spec(blocks) == "(mamba aussm)*2"
    assert [entry["options"]["d_state"] for entry in blocks] == [8, 8, 8, 8]
    with_lru = replace_blocks(
        "mamba s4d mamba", positions=[2], replacement={"layer": "lru", "block": "simple", "options": {"d_state": 5}}
    )
    assert format_spec(with_lru) == "mamba s4d lru"
    assert with_lru[2]["options"] == {"d_state": 5}
    assert SequenceModel(blocks, d_model=4, d_output=2, d_input=1).stack[1].block.layer.d_state == 8


def test_random_replacement_depends_on_the_seed():
    stacks = [format_spec(replace_blocks("mamba*8 s4d", count=3, seed=seed)) for seed in range(20)]
    assert all([block["layer"] for block in parse_spec(stack)].count("aussm") == 3 and stack.endswith(" s4d") for stack in stacks)
    assert len(set(stacks)) > 10
    assert stacks[0] == format_spec(replace_blocks("mamba*8 s4d", count=3, seed=0))
    assert replace_blocks("mm", count=0) == parse_spec("mm")
    assert replace_blocks("mm", count=2) == parse_spec("aa")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of `positions` and `count` must be given, got None and None"),
        ({"positions": [0], "count": 1}, r"exactly one of `positions` and `count` must be given, got \[0\] and 1"),
        ({"positions": [1]}, r"`positions` must be those of mamba blocks, \[0, 2\], got 1"),
        ({"positions": [0, 0]}, r"`positions` must be whole numbers without repetitions, got \[0, 0\]"),
        ({"positions": [2.0]}, r"`positions` must be whole numbers without repetitions, got \[2\.0\]"),
        ({"positions": 2}, "`positions` must be whole numbers without repetitions, got 2"),
        ({"count": 3}, "`count` must be 0 to 2, .*, got 3"),
        ({"count": 1.5}, "`count` must be 0 to 2, .*, got 1.5"),
        ({"count": 0, "replaced": "mamab"}, "`replaced` must be one of .*, got 'mamab'"),
    ],
    ids=str,
)
def test_invalid_replacement_raises(options, message):
    with pytest.raises(ValueError, match=message):
        replace_blocks("mamba s4d mamba", **options)


def test_rotary_options_that_are_no_mapping_raise():
    with pytest.raises(ValueError, match="`options` must be a mapping of the settings of Rotary, got 10"):
        place_rotary("mamba", 10)


@pytest.mark.parametrize(("where", "positions"), [("all", [0, 1, 3, 5, 6]), ("first", [0]), ("every_other", [0, 3, 6])], ids=str)
def test_place_rotary_adds_rotary_options_to_the_chosen_blocks(where, positions):
    blocks = place_rotary("ma gru s4d attention aussm bidirectional", {"base": 10.0}, where)
    assert [index for index, entry in enumerate(blocks) if "rotary" in entry["options"]] == positions
    model = SequenceModel(blocks, d_model=4, d_output=2, d_input=1)
    assert model.stack[0].block.rotary.base == 10.0
    assert SequenceModel(**model.config).config == model.config


def test_invalid_place_of_rotary_raises():
    with pytest.raises(ValueError, match=r"`where` must be .*, got 'last'"):
        place_rotary("m", {}, "last")
    with pytest.raises(ValueError, match=r"`blocks` must have some of aussm, bidirectional.*, got none"):
        place_rotary("gru attention", {})


def test_spec_of_alternating_blocks():
    assert [block["layer"] for block in parse_spec("(mamba aussm)*4")] == ["s6", "aussm"] * 4
    assert [block["block"] for block in parse_spec("(mamba feed_forward)*2")] == ["mamba", "feed_forward"] * 2


def test_chunks_of_mamba_and_attention_equal_the_whole_sequence():
    """The blocks are Mamba, attention and feed-forward; padding does not change the outputs."""
    net = (
        SequenceModel.from_spec("(mamba attention feed_forward)*2", d_model=8, d_input=3, d_output=2, d_state=4, pooling="none")
        .double()
        .eval()
    )
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    whole = net(x)
    state, outputs = None, []
    for chunk in x.split([1, 5, 3], 1):
        y, state = net(chunk, state, return_state=True)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    valid = torch.arange(9) < torch.tensor([[9], [5]])
    torch.testing.assert_close(net(x, valid=valid)[1, :5], net(x[1:, :5])[0])
