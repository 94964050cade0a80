"""Saved models: saving is deterministic, damage raises, and a kill during saving leaves a complete model."""

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from longscan._specs import STANDARD_BLOCKS
from longscan.layers.parameters import parameter_options
from longscan.models import Forecaster, LanguageModel, SequenceModel, SiameseModel, from_transformers
from longscan.models.base import PretrainedModel
from longscan.models.saving import CONFIG, WEIGHTS, save_tensors


def make_model(pooling: str = "mean", seed: int = 0) -> SequenceModel:
    torch.manual_seed(seed)
    return SequenceModel.from_spec("ma", d_model=4, d_state=2, d_output=2, d_input=3, pooling=pooling)  # type: ignore[arg-type]


def test_same_model_is_saved_as_the_same_bytes(tmp_path: Path) -> None:
    contents = set()
    for number in range(8):
        make_model().save_pretrained(tmp_path / str(number))
        contents.add((tmp_path / str(number) / WEIGHTS).read_bytes())
    assert len(contents) == 1


def test_numpy_numbers_are_saved_as_plain_numbers(tmp_path: Path) -> None:
    d_model: Any = numpy.int64(4)
    SequenceModel.from_spec("s6", d_model=d_model, d_state=numpy.int32(2), d_output=2, d_input=3).save_pretrained(tmp_path)
    config = SequenceModel.from_pretrained(tmp_path).config
    assert type(config["d_model"]) is int
    assert config["blocks"][0]["options"]["d_state"] == 2


def test_changed_bit_of_the_weights_raises(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[-7] ^= 1
    (tmp_path / WEIGHTS).write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged \(its tensors do not have the checksum"):
        SequenceModel.from_pretrained(tmp_path)


def test_weights_without_a_checksum_can_be_loaded(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    save_file(load_file(tmp_path / WEIGHTS), tmp_path / WEIGHTS)
    SequenceModel.from_pretrained(tmp_path)


def test_wrong_configuration_raises_and_names_the_file(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**config, "pooling": "most"}))
    with pytest.raises(ValueError, match=r"config\.json is damaged \(`pooling` must .*got 'most'"):
        SequenceModel.from_pretrained(tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps({**config, "d_output": 3}))
    with pytest.raises(
        ValueError,
        match=r"model\.safetensors must have the weights of the model of config\.json, got others \(size mismatch for head",
    ):
        SequenceModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("n_moved", [0, 1])
def test_kill_between_the_files_leaves_the_old_or_the_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_moved: int
) -> None:
    """Both models have tensors of the same names and shapes, so that only the configuration distinguishes them."""

    class KilledError(BaseException):
        pass

    old, new = make_model("mean"), make_model("last", seed=1)
    old.save_pretrained(tmp_path)
    replace, moved = os.replace, 0

    def replace_or_kill(*paths: Path) -> None:
        nonlocal moved
        if moved == n_moved:
            raise KilledError
        moved += 1
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_or_kill)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process removes no files
        with pytest.raises(KilledError):
            new.save_pretrained(tmp_path)
    loaded, expected = SequenceModel.from_pretrained(tmp_path), new if n_moved else old
    assert loaded.config == expected.config
    x = torch.randn(2, 5, 3)
    assert torch.equal(loaded(x), expected(x))
    old.save_pretrained(tmp_path)
    assert SequenceModel.from_pretrained(tmp_path).config == old.config


SIZES: dict[str, Any] = {"d_model": 4, "d_state": 2}
MODELS: dict[str, Callable[[], PretrainedModel]] = {
    "sequence": lambda: SequenceModel.from_spec("ma", **SIZES, d_output=2, d_input=3, head="mlp"),
    "language": lambda: LanguageModel.from_spec("s4d*2", **SIZES, vocab_size=9, tied=False),
    "forecaster": lambda: Forecaster.from_spec("mamba[lru]", **SIZES, d_input=2, horizon=3, normalise=True),
    "siamese": lambda: SiameseModel.from_spec("(mamba gru)*2", **SIZES, d_output=2, vocab_size=9, interaction="concat"),
}


READ: dict[str, Callable[[], PretrainedModel]] = {
    **MODELS,
    "image": lambda: SequenceModel.from_spec("s5", **SIZES, d_output=2, d_input=48, image_shape=(1, 6, 8)),
    "positions": lambda: SequenceModel.from_spec(
        "attention", d_model=4, d_output=2, d_input=3, positions="learned", max_length=9
    ),
    "learned state": lambda: LanguageModel.from_spec("(mamba2 slstm)", d_model=4, vocab_size=9, initial_state="learned"),
    "every layer": lambda: SequenceModel.from_spec(
        " ".join(sorted(STANDARD_BLOCKS)), d_model=8, d_state=4, d_input=2, d_output=3
    ),
}


@pytest.mark.parametrize("build", READ.values(), ids=READ)
def test_reading_a_model_does_not_change_the_random_state_of_torch(build: Callable[[], PretrainedModel], tmp_path: Path) -> None:
    model = build()
    model.save_pretrained(tmp_path)
    torch.manual_seed(5)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.rand(3).equal(torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert [(name, x.dtype, x.device) for name, x in loaded.state_dict().items()] == [
        (name, x.dtype, x.device) for name, x in model.state_dict().items()
    ]
    marks, expected = ([parameter_options(x) for x in one.parameters()] for one in (loaded, model))
    assert marks == expected


def test_reading_a_checkpoint_of_transformers_does_not_change_the_random_state_of_torch() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=2, vocab_size=11, state_size=4)
    source = transformers.MambaForCausalLM(config).to(torch.float16)
    torch.manual_seed(5)
    loaded = from_transformers(source)
    assert torch.rand(3).equal(torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert {(x.dtype, x.device.type) for x in loaded.state_dict().values()} == {(torch.float32, "cpu")}
    assert any(parameter_options(x).role != "dense" for x in loaded.parameters())


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_every_model_has_a_configuration_and_can_be_saved(build: Callable[[], PretrainedModel], tmp_path: Path) -> None:
    model = build()
    assert model.config.keys() == inspect.signature(type(model)).parameters.keys()
    assert type(model)(**model.config).config == model.config
    model.config["blocks"].clear()
    assert model.config["blocks"], "the configuration is a copy"
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / CONFIG).read_text()) == {"spec_version": 2, **model.config}
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config == model.config
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


def test_configuration_of_a_later_version_raises(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**config, "spec_version": 3}))
    with pytest.raises(ValueError, match=r"config\.json: `spec_version` must be at most 2, got 3"):
        SequenceModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("read", [SequenceModel.from_pretrained, from_transformers])
def test_weights_in_a_pickle_raise_and_say_how_to_convert_them(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is a pickle and is not read: transformers writes"):
        read(tmp_path)


def test_checkpoint_of_transformers_in_several_files_raises_and_names_its_reader(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"model_type": "mamba"}')
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"longscan\.models\.from_transformers reads a checkpoint"):
        LanguageModel.from_pretrained(tmp_path)


def test_error_of_the_system_while_tensors_are_written_is_an_os_error(tmp_path: Path) -> None:
    """Such as a full disk, which safetensors reports by an exception of its own."""
    with pytest.raises(FileNotFoundError) as raised:
        save_tensors({"x": torch.zeros(2)}, tmp_path / "absent" / "model.safetensors")
    assert raised.value.filename == str(tmp_path / "absent")
