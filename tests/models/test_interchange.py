"""Models loaded from random checkpoints of transformers give the same logits and tokens."""

import json
import math

import pytest
import torch

from longscan.models import LanguageModel, from_transformers, generate

transformers = pytest.importorskip("transformers")

SHAPES = {
    "mamba": [
        {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 24, "state_size": 4},
        {"hidden_size": 24, "num_hidden_layers": 3, "vocab_size": 21, "state_size": 5, "expand": 1, "conv_kernel": 2},
        {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 11, "time_step_rank": 5, "tie_word_embeddings": False},
        {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 24, "use_conv_bias": False},
    ],
    "mamba2": [
        {"hidden_size": 16, "vocab_size": 24, "num_heads": 4, "head_dim": 8, "n_groups": 1, "state_size": 4},
        {"hidden_size": 24, "vocab_size": 21, "num_heads": 12, "head_dim": 4, "n_groups": 3, "state_size": 5},
        {"hidden_size": 16, "vocab_size": 11, "num_heads": 2, "head_dim": 8, "n_groups": 2, "expand": 1},
    ],
}
SHAPES["mamba2"][0] |= {"num_hidden_layers": 2}
SHAPES["mamba2"][1] |= {"num_hidden_layers": 3, "use_conv_bias": False}
SHAPES["mamba2"][2] |= {"num_hidden_layers": 1, "tie_word_embeddings": True, "conv_kernel": 3, "state_size": 8, "chunk_size": 16}
EVERY_SHAPE = pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind in SHAPES for shape in SHAPES[kind]], ids=str)


def make_transformers_model(kind, shape, **settings):
    """Return a model of transformers with random weights, also where the initial weights are zeros or ones."""
    config = {"mamba": transformers.MambaConfig, "mamba2": transformers.Mamba2Config}[kind](**shape, **settings)
    model = {"mamba": transformers.MambaForCausalLM, "mamba2": transformers.Mamba2ForCausalLM}[kind](config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "norm_f.weight", ".D", "conv1d.bias")):
                parameter += 0.3 * torch.randn_like(parameter)
    return model


@EVERY_SHAPE
def test_loaded_model_gives_the_same_logits_and_tokens(kind, shape, tmp_path):
    original = make_transformers_model(kind, shape)
    original.save_pretrained(tmp_path)
    tokens = torch.randint(0, shape["vocab_size"], (2, 90))
    with torch.no_grad():
        expected = original(tokens).logits
    prompt = tokens[:, :7]
    greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    expected_tokens = original.generate(prompt, max_new_tokens=25, **greedy)[:, 7:]
    for source in (original, tmp_path):
        loaded = from_transformers(source).eval()
        assert isinstance(loaded, LanguageModel)
        assert loaded.backbone.encoder.weight.shape[0] % 8 == 0
        with torch.no_grad():
            difference = (loaded(tokens) - expected).abs().max()
        assert difference < 1e-4, difference
        assert torch.equal(generate(loaded, prompt, 25, temperature=0)[0], expected_tokens)
    if shape.get("use_conv_bias", True):  # convolutions of this package always have a bias
        stacks = (original.backbone.layers, loaded.backbone.blocks)
        assert len({sum(part.numel() for part in stack.parameters()) for stack in stacks}) == 1


def test_generate_has_the_results_of_transformers_for_its_arguments():
    original = make_transformers_model("mamba", SHAPES["mamba"][0])
    prompt = torch.randint(0, 24, (3, 7))
    loaded = from_transformers(original).eval()
    mask = {"attention_mask": torch.ones_like(prompt)}
    plain = original.generate(prompt, do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0, **mask)
    eos = int(plain[0, 8])
    different = 0
    for options in (
        {"max_length": 19, "repetition_penalty": 1.3},
        {"max_new_tokens": 15, "eos_token_id": eos, "min_new_tokens": 6},
        {"max_new_tokens": 15, "eos_token_id": [eos, 3], "repetition_penalty": 0.7, "min_new_tokens": 4},
    ):
        expected = original.generate(prompt, do_sample=False, pad_token_id=0, **{"eos_token_id": None, **options}, **mask)
        assert torch.equal(loaded.generate(prompt, pad_token_id=0, **options), expected), options
        different += not torch.equal(expected[:, :9], plain[:, :9])
    assert different  # The options change what is generated.


def test_time_step_limit_is_kept_by_loading_and_saving(tmp_path):
    original = make_transformers_model("mamba2", SHAPES["mamba2"][0], time_step_limit=(0.001, 0.02))
    tokens = torch.randint(0, 24, (2, 40))
    loaded = from_transformers(original).eval()
    unclamped = from_transformers(make_transformers_model("mamba2", SHAPES["mamba2"][0])).eval()
    unclamped.load_state_dict(loaded.state_dict())
    with torch.no_grad():
        expected = original(tokens).logits
        assert (loaded(tokens) - expected).abs().max() < 1e-4
        assert (unclamped(tokens) - expected).abs().max() > 1e-3
    loaded.save_pretrained(tmp_path)
    reloaded = LanguageModel.from_pretrained(tmp_path)
    assert torch.equal(reloaded(tokens), loaded(tokens))


def test_sharded_checkpoint_can_be_loaded(tmp_path):
    original = make_transformers_model("mamba", SHAPES["mamba"][0])
    original.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    tokens = torch.randint(0, 24, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(from_transformers(tmp_path)(tokens), original(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, r"`model_type` must be one of mamba, mamba2, got 'gpt2'"),
        ({"hidden_act": "gelu"}, "`hidden_act` must be 'silu', .*, got 'gelu'"),
        ({"use_bias": True}, "`use_bias` must be False, .*, got True"),
        ({"layer_norm_epsilon": 1e-6}, "`layer_norm_epsilon` must be 1e-05, .*, got 1e-06"),
        ({"state_size": None}, "`state_size` must be a whole number of at least 1 in the configuration, got None"),
        ({"expand": "x"}, "`expand` must be a whole number .*, got 'x'"),
        ({"vocab_size": 999}, r"`vocab_size` must be at most the rows of the embedding, \d+, got 999"),
        ({"num_hidden_layers": 9}, "`num_hidden_layers` must be the number of layers with tensors, got 9"),
        ({"num_hidden_layers": 1}, "`source` must have the tensors of its configuration, got others: .*blocks.1"),
        ({"state_size": 5}, "`source` must have the tensors of its configuration, got others: .*size mismatch for backbone"),
    ],
)
def test_unsupported_configuration_raises(change, message, tmp_path):
    make_transformers_model("mamba", SHAPES["mamba"][0]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        from_transformers(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", r"config\.json is damaged \(Expecting property name"),
        ("config.json", b"[1]", r"config\.json is damaged \(it must be a mapping, got a list\)"),
        ("config.json", b"\xff", r"config\.json must be UTF-8 text, got the byte 0xff"),
        ("model.safetensors", b"x" * 40, r"model\.safetensors is damaged \("),
        ("model.safetensors.index.json", b"{}", r"index\.json: `weight_map` must give the name of a file .*, got None$"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../b"}}', r"index\.json: `weight_map` must give .*, got {'a'"),
    ],
)
def test_damaged_checkpoint_raises_and_names_the_file(name, content, message, tmp_path):
    make_transformers_model("mamba", SHAPES["mamba"][0]).save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        from_transformers(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_shard_raises(tmp_path):
    make_transformers_model("mamba", SHAPES["mamba"][0]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part_2.safetensors"}}')
    with pytest.raises(FileNotFoundError, match=r"part_2\.safetensors does not exist, but .*index\.json lists it$"):
        from_transformers(tmp_path)


def test_missing_files_or_another_kind_of_checkpoint_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        from_transformers(tmp_path)
    transformers.MambaModel(transformers.MambaConfig(**SHAPES["mamba"][0])).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"`source` must have the tensors of a causal language model"):
        from_transformers(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        from_transformers(tmp_path)


def test_a_folder_of_the_other_kind_raises_and_names_the_function_that_reads_it(tmp_path):
    original = make_transformers_model("mamba", SHAPES["mamba"][0])
    original.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"a mamba model of transformers; longscan\.models\.from_transformers reads"):
        LanguageModel.from_pretrained(tmp_path / "theirs")
    from_transformers(tmp_path / "theirs").save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"`source` must be .*, got .*ours.*LanguageModel\.from_pretrained"):
        from_transformers(tmp_path / "ours")


def test_a_folder_with_pickled_weights_raises_and_its_advice_makes_a_folder_that_is_read(tmp_path):
    original = make_transformers_model("mamba", SHAPES["mamba"][0])
    original.save_pretrained(tmp_path / "old")
    (tmp_path / "old/model.safetensors").unlink()
    index = tmp_path / "old/pytorch_model.bin.index.json"  # of weights in several files
    index.touch()
    for read in (from_transformers, LanguageModel.from_pretrained):
        with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is a pickle and is not read"):
            read(tmp_path / "old")
    index.unlink()
    torch.save(original.state_dict(), tmp_path / "old/pytorch_model.bin")
    with pytest.raises(FileNotFoundError) as raised:
        from_transformers(tmp_path / "old")
    advice = str(raised.value).split("`")[1]
    names = {"AutoModelForCausalLM": transformers.AutoModelForCausalLM, "NEW_FOLDER": str(tmp_path / "new")}
    eval(advice, names)
    tokens = torch.arange(6)[None]
    torch.testing.assert_close(from_transformers(tmp_path / "new")(tokens), original(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("read", [from_transformers, LanguageModel.from_pretrained])
def test_the_name_of_a_model_on_the_hub_raises_and_says_how_to_get_a_folder(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing is downloaded: .*snapshot_download\(name\)"):
        read("state-spaces/mamba-130m-hf")


@pytest.mark.parametrize(
    "source", [3, None, LanguageModel.from_spec("mamba", d_model=4, vocab_size=5)], ids=["int", "None", "own"]
)
def test_what_is_no_folder_and_no_model_of_transformers_raises(source):
    with pytest.raises(TypeError, match=f"`source` must be a folder or a model of transformers, got a {type(source).__name__}"):
        from_transformers(source)


def test_infinite_time_step_limit_can_be_written_in_two_ways(tmp_path):
    for infinity in (math.inf, {"__float__": "Infinity"}):
        original = make_transformers_model("mamba2", SHAPES["mamba2"][0])
        original.save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"time_step_limit": [0.0, infinity]}))
        assert from_transformers(tmp_path).config["blocks"][0]["options"]["dt_limit"] is None
