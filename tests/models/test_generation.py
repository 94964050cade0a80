import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longscan.layers.state import state_tensors
from longscan.models import LanguageModel, SequenceModel, generate, sample, stream


def make_model(spec: str = "ma", **options) -> LanguageModel:
    torch.manual_seed(1)
    net = LanguageModel.from_spec(spec, d_model=6, vocab_size=11, d_state=4, **options).double().eval()
    with torch.no_grad():
        net.backbone.encoder.weight *= 40  # gives logits that differ clearly between tokens
    return net


def test_greedy_tokens_equal_those_of_forward_passes():
    """Each token is the most probable one after all tokens before it."""
    net = make_model("mamba aussm lru")
    prompt = torch.randint(0, 11, (3, 5))
    tokens, _ = generate(net, prompt, 7, temperature=0)
    text = prompt
    for _ in range(7):
        text = torch.cat([text, net(text)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(tokens, text[:, 5:])


def test_generation_continues_from_a_state():
    net, prompt = make_model(), torch.randint(0, 11, (2, 4))
    whole, _ = generate(net, prompt, 8, temperature=0)
    first, state = generate(net, prompt, 3, temperature=0)
    second, _ = generate(net, first[:, -1:], 5, state=state, temperature=0)
    assert torch.equal(torch.cat([first, second], 1), whole)


def test_padding_does_not_change_generated_tokens():
    net = make_model()
    short, long = torch.randint(0, 11, (1, 3)), torch.randint(0, 11, (1, 6))
    expected = torch.cat([generate(net, row, 5, temperature=0)[0] for row in (short, long)])
    for left in (False, True):
        pad = torch.full((1, 3), 99)
        rows = torch.cat([torch.cat([pad, short] if left else [short, pad], 1), long])
        valid = rows != 99
        assert torch.equal(generate(net, rows, 5, valid=valid, temperature=0)[0], expected)


def test_rows_stop_at_the_stop_token_with_the_state_of_that_step():
    net, prompt = make_model(), torch.randint(0, 11, (4, 3))
    unstopped, _ = generate(net, prompt, 9, temperature=0)
    stop = int(unstopped[0, 2])
    stopped, state = generate(net, prompt, 9, temperature=0, stop=stop)
    for row in range(4):
        hits = (unstopped[row] == stop).nonzero()
        end = int(hits[0]) if len(hits) else 8
        assert torch.equal(stopped[row, : end + 1], unstopped[row, : end + 1])
        assert (stopped[row, end + 1 :] == stop).all()
    end = int((unstopped[0] == stop).nonzero()[0])
    _, early = generate(net, prompt[:1], end + 1, temperature=0)
    torch.testing.assert_close(state_tensors(state.select_rows(slice(0, 1))), state_tensors(early))


def sample_frequencies(logits: torch.Tensor, **options) -> torch.Tensor:
    samples = sample(logits.expand(40_000, -1), generator=torch.Generator().manual_seed(0), **options)
    return torch.bincount(samples, minlength=logits.shape[-1]) / len(samples)


def test_samples_follow_the_distribution():
    logits = torch.tensor([[0.5, 0.1, 0.3, 0.05, 0.05]]).log()
    torch.testing.assert_close(sample_frequencies(logits), logits[0].exp(), atol=0.01, rtol=0)
    sharp = torch.softmax(2 * logits[0], -1)
    torch.testing.assert_close(sample_frequencies(logits, temperature=0.5), sharp, atol=0.01, rtol=0)
    two = torch.tensor([0.625, 0, 0.375, 0, 0])
    torch.testing.assert_close(sample_frequencies(logits, top_k=2), two, atol=0.01, rtol=0)
    for top_p, expected in ((0.7, two), (0.79, two), (0.5, torch.eye(5)[0]), (1.0, logits[0].exp())):
        torch.testing.assert_close(sample_frequencies(logits, top_p=top_p), expected, atol=0.01, rtol=0)
    three = torch.tensor([5, 1, 3, 0, 0]) / 9
    for min_p, expected in ((0.15, three), (0.3, two), (0.0, logits[0].exp()), (1.0, torch.eye(5)[0])):
        torch.testing.assert_close(sample_frequencies(logits, min_p=min_p), expected, atol=0.01, rtol=0)
    assert torch.equal(sample_frequencies(logits, temperature=0), torch.eye(5)[0])
    assert torch.equal(sample_frequencies(logits, top_k=1), torch.eye(5)[0])


def test_streaming_state_has_a_constant_size():
    net = make_model("mamba aussm s4d lru gru lstm")
    text = torch.randint(0, 11, (1, 300))
    sizes = set()
    state = net.initial_state(1)
    for t in range(300):
        _, state = net.step(text[:, t], state)
        sizes.add(state.nbytes)
    assert len(sizes) == 1
    outputs = torch.cat(list(stream(net, text.split([1, 99, 200], 1))), 1)
    torch.testing.assert_close(outputs, net(text))
    assert not outputs.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "`temperature` must be .*, got -1.0"),
        ({"top_k": 0}, "`top_k` must be .*, got 0"),
        ({"top_p": 0.0}, "`top_p` must be .*, got 0.0"),
        ({"min_p": 1.5}, "`min_p` must be a number from 0 to 1 or None, got 1.5"),
        ({"steps": -1}, "`steps` must be .*, got -1"),
        ({"steps": 2.5}, "`steps` must be .*, got 2.5"),
        ({"top_k": 2.5}, "`top_k` must be .*, got 2.5"),
        ({"stop": 1.5}, r"`stop` must be a token below vocab_size .*, got 1.5"),
        ({"stop": 99}, r"`stop` must be a token below vocab_size .*, got 99"),
        ({"prompt": torch.zeros(1, 0, dtype=torch.int64)}, r"`prompt` must have shape .*, got \(1, 0\)"),
        ({"valid": torch.zeros(1, 1, dtype=torch.bool)}, "`valid` must have at least one token in each row"),
    ],
    ids=str,
)
def test_invalid_inputs_raise(options, message):
    arguments = {"prompt": torch.zeros(1, 1, dtype=torch.int64), "steps": 2, **options}
    with pytest.raises(ValueError, match=message):
        generate(make_model(), **arguments)


@pytest.mark.parametrize("shape", [(5,), (1, 2, 5), (1, 0)])
def test_logits_of_another_shape_raise(shape):
    with pytest.raises(ValueError, match=r"`logits` must have shape \(batch, tokens >= 1\), got "):
        sample(torch.zeros(shape))


def test_generation_with_a_model_that_is_not_causal_raises():
    two_sided = make_model("mamba bidirectional")
    with pytest.raises(ValueError, match=r"each block must run step by step for `generate`, got block 1 \(bidirectional\)"):
        generate(two_sided, torch.zeros(1, 1, dtype=torch.int64), 1)
    net = SequenceModel.from_spec("bidirectional", d_model=4, d_output=2, d_input=1)
    with pytest.raises(ValueError, match="each block must run step by step for `stream`, got block 0"):
        next(iter(stream(net, [torch.zeros(1, 2, 1)])))


class RecordingStreamer:
    """A streamer that stores what it gets."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        assert not self.ended
        self.values.append(value)

    def end(self) -> None:
        self.ended += 1


def test_generate_with_the_arguments_of_transformers_gives_the_same_tokens():
    net, prompt = make_model(), torch.randint(0, 11, (2, 4))
    expected, _ = generate(net, prompt, 6, temperature=0)
    assert torch.equal(net.generate(prompt, max_new_tokens=6), torch.cat([prompt, expected], 1))
    assert net.generate(prompt).shape == (2, 24)
    assert torch.equal(net.generate(prompt, max_new_tokens=0), prompt)
    options = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    expected, _ = generate(net, prompt, 6, **options, generator=torch.Generator().manual_seed(3))
    samples = net.generate(prompt, max_new_tokens=6, do_sample=True, **options, generator=torch.Generator().manual_seed(3))
    assert torch.equal(samples[:, 4:], expected)


def test_several_continuations_of_each_row_follow_one_another():
    net, prompt = make_model(), torch.randint(0, 11, (2, 4))
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    options = {"max_new_tokens": 6, "do_sample": True, "repetition_penalty": 1.2, "min_p": 0.05}
    found = net.generate(
        prompt, attention_mask=mask, num_return_sequences=3, generator=torch.Generator().manual_seed(3), **options
    )
    repeated, masks = prompt[[0, 0, 0, 1, 1, 1]], mask[[0, 0, 0, 1, 1, 1]]
    expected = net.generate(repeated, attention_mask=masks, generator=torch.Generator().manual_seed(3), **options)
    assert torch.equal(found, expected)
    assert len(found.unique(dim=0)) > 2


def test_padding_is_no_earlier_occurrence_of_its_token():
    net, short = make_model(), torch.tensor([[3, 5, 7]])
    options = {"max_new_tokens": 6, "repetition_penalty": 5.0}
    expected = net.generate(short, **options)[:, 3:]
    for token in range(11):
        padded, mask = torch.tensor([[token, 3, 5, 7]]), torch.tensor([[0, 1, 1, 1]])
        assert torch.equal(net.generate(padded, attention_mask=mask, **options)[:, 4:], expected)


def test_generate_ends_when_every_row_has_ended():
    net, prompt = make_model(), torch.randint(0, 11, (2, 3))
    tokens, _ = generate(net, prompt, 9, temperature=0)
    eos = [int(tokens[0, 1]), int(tokens[1, 3])]
    ends = [min(int((row == token).nonzero()[0]) for token in eos if token in row) for row in tokens]
    found = net.generate(prompt, max_new_tokens=9, eos_token_id=eos, pad_token_id=10)[:, 3:]
    assert found.shape[1] == max(ends) + 1 < 9
    first = net.generate(prompt, max_new_tokens=9, eos_token_id=eos[0])
    for same in (np.int64(eos[0]), torch.tensor(eos[0]), np.array(eos[:1]), {eos[0]}, (np.int64(eos[0]),)):
        assert torch.equal(net.generate(prompt, max_new_tokens=9, eos_token_id=same), first)
    for row, end in enumerate(ends):
        assert torch.equal(found[row, : end + 1], tokens[row, : end + 1])
        assert (found[row, end + 1 :] == 10).all()


def test_generate_ignores_padding_and_fills_streamers():
    net, short = make_model(), torch.randint(0, 11, (1, 3))
    streamer = RecordingStreamer()
    expected = net.generate(short, max_new_tokens=4, streamer=streamer)
    assert torch.equal(torch.cat([streamer.values[0], *(value[:, None] for value in streamer.values[1:])], 1), expected)
    assert (len(streamer.values), streamer.ended) == (5, 1)
    padded, mask = torch.cat([torch.zeros_like(short), short], 1), torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert torch.equal(net.generate(padded, max_new_tokens=4, attention_mask=mask)[:, 6:], expected[:, 3:])


def test_streamer_of_transformers_prints_the_tokens(capsys):
    transformers = pytest.importorskip("transformers")

    class Tokenizer:
        def decode(self, tokens, **_):
            return "".join(f"{int(token)}," for token in tokens)

    net, prompt = make_model(), torch.randint(0, 11, (1, 4))
    tokens = net.generate(prompt, max_new_tokens=5, streamer=transformers.TextStreamer(Tokenizer()))
    assert capsys.readouterr().out.strip() == "".join(f"{token}," for token in tokens[0].tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "`max_new_tokens` must be .*, got -1"),
        ({"temperature": 0.5}, "`temperature` must be 1.0 unless do_sample=True, got 0.5"),
        ({"top_k": 3}, "`top_k` must be None unless do_sample=True, got 3"),
        ({"num_return_sequences": 2}, "`num_return_sequences` must be 1 unless do_sample=True, got 2"),
        ({"num_return_sequences": 0}, "`num_return_sequences` must be a whole number of at least 1, got 0"),
        ({"max_length": 0}, r"`max_length` must be at least the length of the prompt \(1\), got 0"),
        ({"max_length": 5, "max_new_tokens": 4}, r"`max_length` must be None if max_new_tokens is given \(4\), got 5"),
        ({"min_new_tokens": 21}, r"`min_new_tokens` must lie between 0 and the number of new tokens \(20\), got 21"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be a number above 0, got 0.0"),
        ({"max_new_tokens": 2.5}, "`max_new_tokens` must be a whole number of at least 0 or None, got 2.5"),
        ({"max_length": "9"}, "`max_length` must be a whole number of at least 0 or None, got '9'"),
        ({"min_new_tokens": 0.5}, "`min_new_tokens` must lie between 0 and the number of new tokens .*, got 0.5"),
        ({"do_sample": True, "top_p": float("nan")}, "`top_p` must be a number above 0, at most 1 or None, got nan"),
        ({"do_sample": True, "temperature": "1"}, "`temperature` must be a number of at least 0, got '1'"),
        ({"eos_token_id": [1, 11]}, r"`eos_token_id` must be a token below vocab_size \(11\), got 11"),
        ({"eos_token_id": "a"}, r"`eos_token_id` must be a token below vocab_size \(11\), got a"),
        ({"eos_token_id": [1.5]}, r"`eos_token_id` must be a token below vocab_size \(11\), got 1\.5"),
        ({"eos_token_id": 1, "pad_token_id": 11}, r"`pad_token_id` must be a token below vocab_size \(11\), got 11"),
        ({"attention_mask": torch.ones(1, 2)}, r"`attention_mask` must have the shape of input_ids \(1, 1\), got \(1, 2\)"),
        ({"attention_mask": torch.full((1, 1), 0.5)}, "`attention_mask` must have only the values 0 and 1, got others"),
        ({"attention_mask": torch.zeros(1, 1)}, "`attention_mask` must have at least one token in each row"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.int64)}, r"`input_ids` must have shape .*, got \(1, 0\)"),
    ],
    ids=str,
)
def test_invalid_arguments_of_generate_raise(options, message):
    arguments = {"input_ids": torch.zeros(1, 1, dtype=torch.int64), **options}
    with pytest.raises(ValueError, match=message):
        make_model().generate(**arguments)


def test_prompts_that_are_no_tensors_raise():
    with pytest.raises(TypeError, match="`input_ids` must be a tensor, got a list"):
        make_model().generate([[1, 2]])
    with pytest.raises(TypeError, match="`prompt` must be a tensor, got a list"):
        generate(make_model(), [[1, 2]], 1)


def test_values_of_padding_have_no_effect_with_a_repetition_penalty():
    net, mask = make_model(), torch.tensor([[0, 0, 1, 1, 1]])
    found = []
    for padding in (3, -1, 99):
        prompt = torch.tensor([[padding, padding, 4, 5, 6]])
        found.append(net.generate(prompt, attention_mask=mask, max_new_tokens=4, repetition_penalty=1.5)[:, 2:])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32], ids=str)
def test_prompts_of_every_dtype_of_integers_give_the_same_tokens(dtype):
    """Tokens of bytes cannot count the steps of a long prompt, and torch would take them for a mask as an index."""
    model = make_model()
    prompt = torch.randint(0, 9, (2, 300))
    given = prompt.to(dtype)
    tokens, _ = generate(model, prompt, 4, temperature=0)
    assert generate(model, given, 4, temperature=0)[0].equal(tokens)
    assert generate(model, given[:, :1], 4, temperature=0)[0].equal(generate(model, prompt[:, :1], 4, temperature=0)[0])
    options = {"max_new_tokens": 4, "repetition_penalty": 1.2}
    assert model.generate(given, **options).equal(model.generate(prompt, **options))
    valid = torch.arange(300) > torch.tensor([[5], [0]])
    assert model(given, valid=valid).equal(model(prompt, valid=valid))


def test_masks_states_and_streamers_of_another_kind_raise():
    model = make_model()
    prompt = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(TypeError, match="`valid` must be a tensor or None, got a list"):
        generate(model, prompt, 2, valid=[[True] * 3] * 2)
    with pytest.raises(ValueError, match=r"`valid` must have shape \(2, 3\), got \(3,\)"):
        generate(model, prompt, 2, valid=torch.ones(3, dtype=torch.bool))
    with pytest.raises(TypeError, match="`attention_mask` must be a tensor, got a list"):
        model.generate(prompt, attention_mask=[[1] * 3] * 2)
    with pytest.raises(TypeError, match="`streamer` must have the methods put and end, got a int"):
        model.generate(prompt, streamer=3)
    with pytest.raises(ValueError, match="`input_ids` must be integer tokens"):
        model.generate(prompt.float(), repetition_penalty=2.0)
    with pytest.raises(TypeError, match="`inputs` must be a tensor, got a list"):
        model([[1, 2]])
    for batch in ("2", 2.0, -1):
        with pytest.raises(ValueError, match="`batch` must be a whole number of at least 0"):
            model.initial_state(batch)


def test_logits_without_a_most_likely_token_raise():
    for largest in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match=f"`logits` must have a finite largest number in each row, got {largest} in row 1"):
            sample(torch.tensor([[0.0, 1.0], [largest, 0.0]]), temperature=0)
    with pytest.raises(ValueError, match="got -inf in row 0"):
        sample(torch.full((1, 3), -torch.inf))
    with pytest.raises(ValueError, match=r"`logits` must be real numbers, got torch\.complex64"):
        sample(torch.zeros(1, 3, dtype=torch.complex64))
    with pytest.raises(TypeError, match="`logits` must be a tensor, got a list"):
        sample([[0.0, 1.0]])
    diverged = make_model()
    torch.nn.init.constant_(diverged.backbone.norm.weight, torch.nan)
    with pytest.raises(ValueError, match=r"the model's logits after the prompt must have a finite largest number .*, got nan"):
        generate(diverged, torch.zeros(1, 3, dtype=torch.int64), 2, temperature=0)


def test_model_without_tokens_raises():
    for model in (make_model().backbone, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=f"`model` must be a LanguageModel, got a {type(model).__name__}"):
            generate(model, torch.zeros(1, 3, dtype=torch.int64), 2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_later_logits_without_a_most_likely_token_raise(temperature, monkeypatch):
    model, calls = make_model(), iter(range(9))
    step, prompt = model.step, torch.zeros(2, 3, dtype=torch.int64)

    def diverge(*args, **named):
        logits, state = step(*args, **named)
        logits[1, 4:] += torch.nan if next(calls) == 1 else 0
        return logits, state

    monkeypatch.setattr(model, "step", diverge)
    needed = "the model's logits after 2 new tokens must have a finite largest number in each row, got nan in row 1"
    with pytest.raises(ValueError, match=needed):
        generate(model, prompt, 6, temperature=temperature)
    calls = iter(range(9))
    with pytest.raises(ValueError, match=needed):
        model.generate(prompt, max_new_tokens=6, do_sample=temperature > 0)
    calls = iter(range(9))
    assert generate(model, prompt, 2, temperature=temperature)[0].shape == (2, 2)


class HostReads(TorchDispatchMode):
    """Counts the tensors whose value Python reads, for which the host waits for a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
        return func(*args, **(kwargs or {}))


def test_logits_are_not_read_at_every_token(monkeypatch):
    monkeypatch.setattr("longscan.models.sequence_model.check_tokens", lambda *_, **__: None)  # it reads tokens on the CPU
    model, counts = make_model(), []
    for steps in (2, 7):
        with HostReads() as reads:
            generate(model, torch.zeros(2, 3, dtype=torch.int64), steps, temperature=0)
            model.generate(torch.zeros(2, 3, dtype=torch.int64), max_new_tokens=steps)
        counts.append(reads.count)
    assert counts[0] == counts[1] > 0


def test_step_checks_tokens_on_the_cpu_and_reads_none_from_another_device(monkeypatch):
    """Reading a value would wait for a GPU at every token; tensors on the device "meta" have no values to read."""
    monkeypatch.setattr("longscan.models.sequence_model.values_unavailable", lambda *_: False)
    model = make_model()
    with pytest.raises(ValueError, match="`inputs` must be tokens from 0 to 10, got 11"):
        model.step(torch.tensor([11]), model.initial_state(1))
    model = model.to("meta")
    for active in (None, torch.ones(1, dtype=torch.bool, device="meta")):
        logits, state = model.step(torch.zeros(1, dtype=torch.int64, device="meta"), model.initial_state(1), active=active)
        model.backbone.step(torch.zeros(1, dtype=torch.int64, device="meta"), state)
        assert logits.shape == (1, 11)


def test_number_of_a_row_selects_the_state_of_this_row():
    model = make_model()
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    _, state = generate(model, prompt, 2, temperature=0)
    one = state.select_rows(1)
    _, after = model.step(torch.tensor([3]), one)
    assert after.select_rows(-1).nbytes == one.nbytes == state.nbytes // 2
    assert model.step(torch.tensor([3]), state.select_rows([1]))[0].equal(model.step(torch.tensor([3]), one)[0])
