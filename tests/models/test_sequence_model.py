import copy
import json

import numpy as np
import pytest
import torch

from longscan.layers import make_layer, parameter_options
from longscan.layers.state import map_state, state_tensors
from longscan.models import SequenceModel

SIZES = {"d_model": 6, "d_output": 3, "d_state": 4}
POOLINGS = ("mean", "last", "none")


def make_tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 7, (batch, length))


def make_model(spec: str = "ma", **options) -> SequenceModel:
    return SequenceModel.from_spec(spec, vocab_size=7, **{**SIZES, **options}).double().eval()


@pytest.mark.parametrize("spec", ["mamba", "aussm", "s4d", "lru", "gru", "lstm", "(ma)*2 s4d lru gru lstm"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_outputs_have_the_shape_of_the_pooling_and_all_parameters_have_gradients(spec, pooling):
    net = make_model(spec, pooling=pooling)
    y = net(make_tokens(2, 9))
    assert y.shape == ((2, 9, 3) if pooling == "none" else (2, 3))
    y.square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_model_is_embedding_residual_blocks_pooling_norm_and_head():
    """A residual block is x + block(RMSNorm(x)); the head has no bias."""
    net = make_model("am")
    inputs = make_tokens(2, 5)
    x = net.encoder(inputs)
    for residual in net.stack:
        x = x + residual.block(residual.norm(x))
    torch.testing.assert_close(net(inputs), net.norm(x.mean(1)) @ net.head.weight.T)
    assert sum(parameter.numel() for parameter in net.head.parameters()) == 18


def test_vector_inputs_are_encoded_by_a_linear_map():
    net = SequenceModel.from_spec("m", d_input=4, pooling="last", head="mlp", **SIZES)
    inputs = torch.randn(2, 5, 4)
    x = net.stack[0](inputs @ net.encoder.weight.T + net.encoder.bias)
    hidden = torch.nn.functional.gelu(net.head[0](net.norm(x[:, -1])))
    torch.testing.assert_close(net(inputs), net.head[2](hidden))
    assert net(inputs.double()).dtype == torch.float32


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("initial_state", ["zero", "learned"])
@pytest.mark.parametrize("grad_enabled", [True, False])
def test_streaming_equals_whole(pooling, initial_state, grad_enabled):
    """Outputs and states of single steps, and of chunks with padding, equal those of one call."""
    with torch.set_grad_enabled(grad_enabled):
        assert_streaming_equals_whole(pooling, initial_state)


@pytest.mark.parametrize("spec", ["mamba", "slstm", "s4", "pdssm", "mamba3", "attention", "feed_forward s5"])
@pytest.mark.parametrize("rows", [1, 3])
def test_step_with_a_state_of_another_batch_size_raises(spec, rows):
    """Some layers would broadcast the state of a single row over all rows."""
    model = SequenceModel.from_spec(spec, d_model=8, d_state=4, d_output=3, d_input=2, pooling="none")
    with pytest.raises(ValueError, match=f"`state` must have 2 rows, .* got {rows}"):
        model.step(torch.randn(2, 2), model.initial_state(rows))


def assert_streaming_equals_whole(pooling: str, initial_state: str) -> None:
    net = make_model("mamba aussm s4d lru", pooling=pooling, initial_state=initial_state)
    with torch.no_grad():
        for start in net.start:
            start.normal_()
    inputs, elapsed = make_tokens(3, 12), torch.rand(3, 12, dtype=torch.float64)
    valid = (torch.arange(12) >= torch.tensor([[0], [5], [0]])) & (torch.arange(12) < torch.tensor([[12], [12], [7]]))
    inputs = torch.where(valid, inputs, 99)  # no token has this number
    whole, final = net(inputs, elapsed=elapsed, valid=valid, return_state=True)
    state, outputs = net.initial_state(3), []
    for t in range(12):
        y, state = net.step(inputs[:, t], state, elapsed=elapsed[:, t], active=valid[:, t])
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1) if pooling == "none" else outputs[-1], whole)
    torch.testing.assert_close(state_tensors(state), state_tensors(final))
    state, outputs = None, []
    for chunk in (slice(0, 4), slice(4, 4), slice(4, 12)):
        y, state = net(inputs[:, chunk], state, elapsed=elapsed[:, chunk], valid=valid[:, chunk], return_state=True)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1) if pooling == "none" else outputs[-1], whole)
    torch.testing.assert_close(state_tensors(state), state_tensors(final))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("spec", ["ma", "s4d", "lru gru"])
def test_padding_does_not_change_outputs_and_gradients(spec, pooling):
    """Rows are padded on the left or the right with tokens outside of the vocabulary."""
    net = make_model(spec, pooling=pooling)
    rows = [make_tokens(1, length) for length in (9, 4, 1)]
    expected = torch.cat([net(row)[:, -1] if pooling == "none" else net(row) for row in rows])
    expected_grads = torch.autograd.grad(expected.square().sum(), list(net.parameters()))
    for left in (False, True):
        inputs, valid = torch.full((3, 10), 99), torch.zeros(3, 10, dtype=torch.bool)
        for index, row in enumerate(rows):
            steps = slice(10 - row.shape[1], 10) if left else slice(0, row.shape[1])
            inputs[index, steps], valid[index, steps] = row[0], True
        y = net(inputs, valid=valid)
        if pooling == "none":
            assert torch.equal(y[~valid], torch.zeros_like(y[~valid]))
            ends = torch.full((3,), 9) if left else valid.sum(1) - 1
            y = y[torch.arange(3), ends]
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), list(net.parameters())), expected_grads)


def test_packed_sequences_equal_separate_sequences():
    net = make_model("mamba aussm s4d lru lstm", pooling="none")
    first, second = make_tokens(1, 5), make_tokens(1, 8)
    seq_idx = torch.tensor([[0] * 5 + [1] * 8])
    packed = net(torch.cat([first, second], 1), seq_idx=seq_idx)
    torch.testing.assert_close(packed, torch.cat([net(first), net(second)], 1))


def test_nan_in_the_padding_does_not_change_outputs_and_gradients():
    net = SequenceModel.from_spec("ma", d_input=2, **SIZES)
    inputs, valid = torch.randn(2, 6, 2), torch.arange(6) < torch.tensor([[6], [3]])
    results = []
    for filler in (0.0, float("nan")):
        elapsed = torch.where(valid, torch.tensor(0.7), filler)
        y = net(torch.where(valid.unsqueeze(-1), inputs, filler), valid=valid, elapsed=elapsed)
        results.append([y, *torch.autograd.grad(y.sum(), list(net.parameters()))])
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("norm", ["rms", "layer", "post"])
def test_norms_and_heads_work_with_steps_padding_and_configurations(norm):
    """The last norm has the type of the other norms; there is none with "post"."""
    net = make_model("mamba feed_forward", norm=norm, head="affine", pooling="none")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # so that norms do not have their initial scales and shifts
    headless = make_model("mamba feed_forward", norm=norm, head="none", pooling="none", d_output=6)
    headless.load_state_dict({name: value for name, value in net.state_dict().items() if not name.startswith("head")})
    inputs, valid = make_tokens(2, 9), torch.arange(9) < torch.tensor([[9], [4]])
    whole = net(inputs, valid=valid)
    torch.testing.assert_close(net(inputs), headless(inputs) @ net.head.weight.T + net.head.bias)
    torch.testing.assert_close(whole[1, :4], net(inputs[1:, :4])[0])
    assert not whole[1, 4:].any()
    state, outputs = net.initial_state(2), []
    for t in range(9):
        y, state = net.step(inputs[:, t], state, active=valid[:, t])
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), whole)
    assert isinstance(net.norm, torch.nn.Identity) == (norm == "post")
    assert SequenceModel(**net.config).config == net.config


def test_learned_states_have_gradients_and_start_at_zero():
    net, plain = make_model("ma", initial_state="learned"), make_model("ma")
    plain.load_state_dict(net.state_dict(), strict=False)
    inputs = make_tokens(2, 5)
    torch.testing.assert_close(net(inputs), plain(inputs))
    net(inputs).sum().backward()
    assert len(net.start) == 4  # the states of convolution and scan of two blocks
    assert all(start.grad is not None and start.grad.abs().sum() > 0 for start in net.start)
    assert all(parameter_options(start).keep_float32 for start in net.start)


def test_saved_model_can_be_loaded(tmp_path):
    net = make_model(
        "(ma)*2 gru", pooling="last", head="mlp", initial_state="learned", block_options={"a": {"angle_spread": 3.0}}
    )
    net.to(torch.bfloat16)
    net.save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    loaded = SequenceModel.from_pretrained(tmp_path / "model")
    assert loaded.config == net.config
    assert json.loads((tmp_path / "model" / "config.json").read_text()) == {"spec_version": 2, **net.config}
    for (name, saved), (_, parameter) in zip(net.named_parameters(), loaded.named_parameters(), strict=True):
        assert saved.dtype == parameter.dtype, name
        assert torch.equal(saved, parameter), name
        assert parameter_options(saved) == parameter_options(parameter), name
    inputs = make_tokens(2, 5)
    assert torch.equal(net(inputs), loaded(inputs))
    net.save_pretrained(tmp_path / "model")  # the second save overwrites the first


def test_directory_without_a_model_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist; a saved model is a folder"):
        SequenceModel.from_pretrained(tmp_path)
    (tmp_path / "settings.yaml").touch()
    with pytest.raises(FileNotFoundError, match=r"longscan\.training\.Run\(.*\)\.model\(\) reads the model of a run"):
        SequenceModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", r"config\.json is damaged"),
        ("config.json", b"[1]", r"config\.json is damaged \(it must be a mapping of settings, got a list"),
        ("config.json", b"{}", r"config\.json must have the settings .*d_model.* of SequenceModel"),
        ("model.safetensors", b"x" * 40, r"model\.safetensors is damaged"),
    ],
)
def test_damaged_model_raises_and_names_the_file(tmp_path, name, content, message):
    make_model().save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        SequenceModel.from_pretrained(tmp_path)


def test_state_of_another_model_raises():
    net, other = make_model("ma"), make_model("m")
    state = other.initial_state(2)
    for call in (lambda state: net(make_tokens(2, 3), state=state), lambda state: net.step(make_tokens(2, 3)[:, 0], state)):
        with pytest.raises(ValueError, match="`state` must have the states of 2 blocks, got 1"):
            call(state)
        with pytest.raises(TypeError, match="`state` must be the ModelState of an earlier call, got a list"):
            call([])
    with pytest.raises(ValueError, match=r"`d_input` must be a whole number of at least 1 or None, got 1\.5"):
        SequenceModel.from_spec("m", d_model=4, d_output=2, d_input=1.5)


@pytest.mark.parametrize(
    ("options", "others", "message"),
    [
        ({}, {"pooling": "none"}, "with pooling, got one without"),
        ({"pooling": "none"}, {}, "without pooling, got one with"),
        ({"positions": "sinusoidal"}, {}, "with absolute positions, got one without"),
        ({}, {"positions": "sinusoidal"}, "without absolute positions, got one with"),
    ],
)
def test_state_of_a_model_with_other_parts_raises(options, others, message):
    """Such a state made a model without pooling return pooled outputs, and the other way round."""
    net, state = make_model("ma", **options), make_model("ma", **others).initial_state(2)
    for call in (lambda: net(make_tokens(2, 3), state=state), lambda: net.step(make_tokens(2, 3)[:, 0], state)):
        with pytest.raises(ValueError, match=f"^`state` must be that of a model {message}$"):
            call()


def test_failed_write_leaves_the_old_model(tmp_path, monkeypatch):
    net = make_model()
    net.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def raise_error(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", raise_error)
    with torch.no_grad():
        net.norm.weight.add_(1)
    with pytest.raises(OSError, match="disk full"):
        net.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_bfloat16_model_has_float32_states():
    net = make_model("mamba aussm s4d lru gru lstm", pooling="mean").to(torch.bfloat16)
    y, state = net(make_tokens(2, 6), return_state=True)
    assert y.dtype == torch.bfloat16
    floats = [leaf for leaf in state_tensors(state) if leaf.is_floating_point()]
    assert {leaf.dtype for leaf in floats} == {torch.float32}
    y, _ = net.step(torch.tensor([1, 2]), state)
    assert y.isfinite().all()


def test_residual_stream_is_float32_under_autocast():
    model = SequenceModel.from_spec("ma", d_model=8, d_state=4, d_input=3, d_output=2, pooling="none")
    dtypes = []
    for block in model.stack:
        block.register_forward_hook(lambda _, inputs, outputs: dtypes.extend([inputs[0].dtype, outputs[0].dtype]))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 9, 3))
    assert dtypes == [torch.float32] * 4


def test_selected_rows_of_a_state_continue_their_sequences():
    net = make_model("ma")
    inputs = make_tokens(3, 5)
    _, state = net(inputs, return_state=True)
    rows = torch.tensor([2, 0])
    next_inputs = make_tokens(3, 4)
    torch.testing.assert_close(net(next_inputs[rows], state.select_rows(rows)), net(next_inputs, state)[rows])
    assert state.nbytes == sum(leaf.nbytes for leaf in state_tensors(state))


def test_model_compiles_to_one_graph():
    net = make_model("mamba aussm lru", pooling="none")
    compiled = torch.compile(net, fullgraph=True, backend="eager")  # tests/contracts compiles the gradients of the blocks
    inputs, valid = make_tokens(2, 4), torch.ones(2, 4, dtype=torch.bool)
    torch.testing.assert_close(compiled(inputs, valid=valid), net(inputs, valid=valid))


def test_deep_copy_is_independent():
    net = make_model("ma")
    copied = copy.deepcopy(net)
    with torch.no_grad():
        copied.norm.weight.zero_()
    assert torch.equal(net.norm.weight, torch.ones_like(net.norm.weight))
    assert map_state(torch.clone, net.initial_state(1)).pooled is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 3, "d_input": 2}, "exactly one of `vocab_size` and `d_input` must be given, got 3 and 2"),
        ({}, "exactly one of `vocab_size` and `d_input` must be given, got None and None"),
        ({"vocab_size": 0}, "`vocab_size` must .*got 0"),
        ({"d_input": 2, "d_output": 0}, "`d_output` must .*got 0"),
        ({"d_input": 2, "pooling": "max"}, "`pooling` must .*got 'max'"),
        ({"d_input": 2, "head": "cubic"}, "`head` must .*got 'cubic'"),
        ({"d_input": 2, "initial_state": "random"}, "`initial_state` must .*got 'random'"),
        ({"d_input": 2, "norm": "group"}, "`norm` must .*got 'group'"),
        ({"d_input": 2, "head": "none"}, r"`d_output` must .*got 3"),
        ({"d_input": 2, "backend": "cuda"}, "`backend` must be one of auto, .*, got 'cuda'"),
        ({"d_input": 2, "spec": "mZ"}, "at position 1, got .*: no layer or block is called 'mZ'"),
    ],
)
def test_invalid_setting_raises(options, message):
    settings = {"spec": "m", **SIZES, **options}
    with pytest.raises(ValueError, match=message):
        SequenceModel.from_spec(**settings)


def test_invalid_inputs_raise():
    net, vectors = make_model(), SequenceModel.from_spec("gru", d_input=2, **SIZES)
    with pytest.raises(ValueError, match=r"`inputs` must be integer tokens .*, got torch\.float32 \(2, 3\)"):
        net(torch.randn(2, 3))
    for dtype in (torch.bool, torch.complex64):
        with pytest.raises(ValueError, match=rf"`inputs` must be integer tokens .*, got {dtype} \(2, 3\)"):
            net(torch.ones(2, 3).to(dtype))
    with pytest.raises(ValueError, match="`inputs` must be tokens from 0 to 6, got 7"):
        net(torch.tensor([[1, 7]]))
    with pytest.raises(ValueError, match="`inputs` must be tokens from 0 to 6, got -1"):
        net(torch.tensor([[1, -1]]))
    with pytest.raises(ValueError, match=r"`inputs` must have shape \(batch, length, 2\), got \(2, 3\)"):
        vectors(torch.randn(2, 3))
    with pytest.raises(TypeError, match="`inputs` must be a tensor, got a ndarray"):
        vectors(torch.randn(2, 3, 2).numpy())
    with pytest.raises(TypeError, match=r"`inputs` must be real numbers, got torch\.complex64"):
        vectors(torch.ones(2, 3, 2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"`elapsed` must be None, as block 0 \(gru\) takes no elapsed times"):
        vectors(torch.randn(2, 3, 2), elapsed=torch.ones(2, 3))
    with pytest.raises(ValueError, match="`seq_idx` must be None with pooling="):
        net(make_tokens(1, 3), seq_idx=torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="`seq_idx` must be None with initial_state='learned'"):
        make_model(pooling="none", initial_state="learned")(make_tokens(1, 3), seq_idx=torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"`valid` must have one run .*, got more in row 0"):
        net(make_tokens(1, 3), valid=torch.tensor([[True, False, True]]))


def test_invalid_arguments_of_a_step_raise_by_their_own_names():
    tokens, vectors = make_model(), SequenceModel.from_spec("s4d", d_input=2, **SIZES)
    for net, inputs, wrong, shape in (
        (tokens, torch.zeros(3, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64), r"\(batch,\), got \(3, 1\)"),
        (vectors, torch.zeros(3, 2), torch.zeros(3, 1, 2), r"\(batch, 2\), got \(3, 1, 2\)"),
    ):
        state = net.initial_state(3)
        with pytest.raises(ValueError, match=f"^`inputs` must have shape {shape}$"):
            net.step(wrong, state)
        with pytest.raises(TypeError, match="`inputs` must be a tensor, got a list"):
            net.step(inputs.tolist(), state)
        with pytest.raises(ValueError, match=r"^`elapsed` must have shape \(3,\), got \(3, 1\)$"):
            net.step(inputs, state, elapsed=torch.ones(3, 1))
        with pytest.raises(TypeError, match=r"^`active` must have dtype torch\.bool, got torch\.float32$"):
            net.step(inputs, state, active=torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_tokens_can_be_integers_of_any_width(dtype):
    net, tokens = make_model(pooling="none"), make_tokens(2, 5)
    y = net(tokens)
    assert torch.equal(net(tokens.to(dtype)), y)
    torch.testing.assert_close(net.step(tokens[:, 0].to(dtype), net.initial_state(2))[0], y[:, 0])


@pytest.mark.parametrize("value", [2.0, True, [[True] * 3] * 2, np.ones((2, 3), bool)], ids=["float", "bool", "list", "array"])
def test_what_comes_with_the_inputs_must_be_tensors(value):
    net, layer, x = make_model("s4d", pooling="none"), make_layer("s4d", 4, {}), torch.randn(2, 3, 4)
    for name in ("elapsed", "valid", "seq_idx"):
        with pytest.raises(TypeError, match=f"`{name}` must be a tensor or None, got a "):
            net(make_tokens(2, 3), **{name: value})
    with pytest.raises(TypeError, match="`gate` must be a tensor or None, got a "):
        layer(x, gate=value)
    for name in ("elapsed", "active"):
        with pytest.raises(TypeError, match=f"`{name}` must be a tensor or None, got a "):
            net.step(make_tokens(2, 1)[:, 0], net.initial_state(2), **{name: value})
        with pytest.raises(TypeError, match=f"`{name}` must be a tensor or None, got a "):
            layer.step(x[:, 0], layer.initial_state(2), **{name: value})
