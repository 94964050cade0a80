import math

import pytest
import torch

from longscan.layers import parameter_options
from longscan.layers.state import state_tensors
from longscan.models import LanguageModel, SequenceModel


def make_model(spec: str = "ma", **options) -> LanguageModel:
    return LanguageModel.from_spec(spec, **{"d_model": 6, "vocab_size": 11, "d_state": 4, **options}).double().eval()


def make_tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 11, (batch, length))


@pytest.mark.parametrize("tied", [True, False])
def test_logits_come_from_the_embedding_or_a_head(tied):
    net = make_model(tied=tied)
    inputs = make_tokens(2, 5)
    features = net.backbone(inputs)
    weight = net.backbone.encoder.weight if tied else net.lm_head
    assert weight.shape == (16, 6)
    torch.testing.assert_close(net(inputs), features @ weight[:11].T)
    assert len(list(net.parameters())) == len(list(net.backbone.parameters())) + (not tied)


def test_tokens_of_the_vocabulary_padding_raise_and_have_no_gradient():
    net = make_model(pad_vocab_to=8)
    with pytest.raises(ValueError, match="`inputs` must be tokens from 0 to 10, got 11"):
        net(torch.tensor([[3, 11]]))
    with pytest.raises(ValueError, match="`inputs` must be tokens from 0 to 10, got 12"):
        net.step(torch.tensor([12]), net.initial_state(1))
    with pytest.raises(ValueError, match="`inputs` must be tokens from 0 to 10, got 11"):
        net.backbone(torch.tensor([[3, 11]]))
    net(make_tokens(2, 5)).square().sum().backward()
    grad = net.backbone.encoder.weight.grad
    assert grad[11:].abs().max() == 0
    assert grad[:11].abs().min() > 0
    assert make_model(pad_vocab_to=1).backbone.encoder.weight.shape[0] == 11
    with pytest.raises(ValueError, match=r"`pad_vocab_to` must .*got 0"):
        make_model(pad_vocab_to=0)


def test_a_call_checks_its_tokens_once(monkeypatch):
    """Each check reads the smallest and the largest token, for which the host waits for a GPU."""
    checks = []
    aminmax = torch.aminmax
    monkeypatch.setattr(torch, "aminmax", lambda tokens: checks.append(tokens) or aminmax(tokens))
    net, tokens = make_model(), make_tokens(2, 5)
    _, state = net(tokens, return_state=True)
    assert len(checks) == 1
    net.step(tokens[:, 0], state)
    assert len(checks) == 2


def test_steps_and_packed_sequences_equal_whole_sequences():
    net = make_model("mamba aussm s4d gru")
    inputs, valid = make_tokens(2, 9), torch.arange(9) < torch.tensor([[9], [6]])
    whole, final = net(inputs, valid=valid, return_state=True)
    state, outputs = net.initial_state(2), []
    for t in range(9):
        y, state = net.step(inputs[:, t], state, active=valid[:, t])
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), whole)
    torch.testing.assert_close(state_tensors(state), state_tensors(final))
    seq_idx = torch.tensor([[0] * 4 + [1] * 5] * 2)
    packed = net(inputs, seq_idx=seq_idx)
    torch.testing.assert_close(packed, torch.cat([net(inputs[:, :4]), net(inputs[:, 4:])], 1))


def test_initial_values_are_those_of_mamba_language_models():
    torch.manual_seed(0)
    net = LanguageModel.from_spec("(mamba bidirectional)*2", d_model=64, vocab_size=500)
    assert net.backbone.encoder.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for residual in net.backbone.stack:
        weight = residual.block.out_proj.weight
        assert weight.abs().max().item() == pytest.approx(1 / math.sqrt(128) / 2, rel=0.02)
    loss = torch.nn.functional.cross_entropy(net(torch.randint(0, 500, (2, 30))).flatten(0, 1), torch.randint(0, 500, (60,)))
    assert loss.item() == pytest.approx(math.log(500), rel=0.02)


@pytest.mark.parametrize(
    "options", [{}, {"tied": False, "pad_vocab_to": 1, "norm": "layer", "initial_state": "learned"}], ids=str
)
def test_saved_model_can_be_loaded(options, tmp_path):
    net = make_model("mamba bidirectional", **options)
    net.save_pretrained(tmp_path)
    loaded = LanguageModel.from_pretrained(tmp_path)
    inputs = make_tokens(2, 5)
    torch.testing.assert_close(loaded.eval()(inputs), net(inputs))
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in net.state_dict().items())
    assert loaded.config == net.config
    message = r"config.json must have settings of SequenceModel, got pad_vocab_to, tied; LanguageModel.from_pretrained reads it"
    with pytest.raises(ValueError, match=message):
        SequenceModel.from_pretrained(tmp_path)


def test_properties_and_errors_follow_from_the_blocks():
    assert make_model().causal
    assert make_model().streaming
    two_sided = make_model("mamba bidirectional")
    assert not two_sided.causal
    with pytest.raises(ValueError, match=r"each block must run step by step for `step`, got block 1 \(bidirectional\)"):
        two_sided.step(torch.tensor([1]), two_sided.initial_state(1))
    with pytest.raises(
        ValueError, match=r"each block must keep the length of the sequence for a language model, got block 1 \(s5\)"
    ):
        make_model("mamba s5", block_options={"s5": {"stride": 2}})
    assert parameter_options(make_model(tied=False).lm_head).role == "dense"
