import pytest
import torch

from longscan.models import SequenceModel, expand_spec, parse_spec, place_rotary, replace_blocks, shorthand


def test_chosen_mamba_blocks_become_aussm():
    blocks = replace_blocks(parse_spec("m*4", d_state=8), at=[1, 3])
    assert shorthand(blocks) == "mama"
    assert [entry["options"]["d_state"] for entry in blocks] == [8, 8, 8, 8]
    other = replace_blocks("mdm", at=[2], by={"layer": "lru", "block": "simple", "options": {"d_state": 5}})
    assert shorthand(other) == "mdl"
    assert other[2]["options"] == {"d_state": 5}
    assert SequenceModel(blocks, d_model=4, d_output=2, d_input=1).stack[1].block.layer.d_state == 8


def test_random_subsets_are_drawn_by_their_seed():
    stacks = [shorthand(replace_blocks("m*8d", count=3, seed=seed)) for seed in range(20)]
    assert all(stack.count("a") == 3 and stack.endswith("d") for stack in stacks)
    assert len(set(stacks)) > 10
    assert stacks[0] == shorthand(replace_blocks("m*8d", count=3, seed=0))
    assert shorthand(replace_blocks("mm", count=0)) == "mm"
    assert shorthand(replace_blocks("mm", count=2)) == "aa"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "at, count: got None and None"),
        ({"at": [0], "count": 1}, r"at, count: got \[0\] and 1"),
        ({"at": [1]}, r"at: got 1, expected places of mamba blocks: \[0, 2\]"),
        ({"count": 3}, "count: got 3, expected 0 to 2"),
    ],
    ids=str,
)
def test_impossible_replacements_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        replace_blocks("mdm", **options)


@pytest.mark.parametrize(("where", "places"), [("all", [0, 1, 3, 5, 6]), ("first", [0]), ("every_other", [0, 3, 6])], ids=str)
def test_rotary_positions_stand_where_they_are_put(where, places):
    blocks = place_rotary("magdtab", {"base": 10.0}, where)
    assert [index for index, entry in enumerate(blocks) if "rotary" in entry["options"]] == places
    model = SequenceModel(blocks, d_model=4, d_output=2, d_input=1)
    assert model.stack[0].block.rotary.base == 10.0
    assert SequenceModel(**model.config).config == model.config


def test_impossible_places_are_named():
    with pytest.raises(ValueError, match="where: got 'last'"):
        place_rotary("m", {}, "last")
    with pytest.raises(ValueError, match="blocks: none of them can have rotary positions, expected some of aussm, bidirectional"):
        place_rotary("gt", {})


def test_interleaved_stacks():
    assert expand_spec("(ma)*4") == "mamamama"
    assert expand_spec("(mf)*2") == "mfmf"


def test_mamba_and_attention_take_turns():
    """(mt)*2 with feed-forward between: pieces give what the whole gives, padding changes nothing."""
    net = SequenceModel.from_spec("(mtf)*2", d_model=8, d_input=3, d_output=2, d_state=4, pooling="none").double().eval()
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    whole = net(x)
    state, outputs = None, []
    for piece in x.split([1, 5, 3], 1):
        y, state = net(piece, state, return_state=True)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    valid = torch.arange(9) < torch.tensor([[9], [5]])
    torch.testing.assert_close(net(x, valid=valid)[1, :5], net(x[1:, :5])[0])
