"""Saved models: the same bytes each time, damage is found, and a save that was killed half-way leaves a whole model."""

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

from longscan.models import Forecaster, LanguageModel, SequenceModel, SiameseModel
from longscan.models.base import PretrainedModel
from longscan.models.saving import CONFIG, WEIGHTS


def model(pooling: str = "mean", seed: int = 0) -> SequenceModel:
    torch.manual_seed(seed)
    return SequenceModel.from_spec("ma", d_model=4, d_state=2, d_output=2, d_input=3, pooling=pooling)  # type: ignore[arg-type]


def test_the_same_model_is_saved_as_the_same_bytes(tmp_path: Path) -> None:
    found = set()
    for number in range(8):
        model().save_pretrained(tmp_path / str(number))
        found.add((tmp_path / str(number) / WEIGHTS).read_bytes())
    assert len(found) == 1


def test_numpy_numbers_are_saved_as_plain_numbers(tmp_path: Path) -> None:
    d_model: Any = numpy.int64(4)
    SequenceModel.from_spec("s6", d_model=d_model, d_state=numpy.int32(2), d_output=2, d_input=3).save_pretrained(tmp_path)
    config = SequenceModel.from_pretrained(tmp_path).config
    assert type(config["d_model"]) is int
    assert config["blocks"][0]["options"]["d_state"] == 2


def test_one_changed_bit_of_the_weights_is_found(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[-7] ^= 1
    (tmp_path / WEIGHTS).write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged \(its tensors do not have the checksum"):
        SequenceModel.from_pretrained(tmp_path)


def test_weights_without_a_checksum_are_read(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    save_file(load_file(tmp_path / WEIGHTS), tmp_path / WEIGHTS)
    SequenceModel.from_pretrained(tmp_path)


def test_errors_name_the_file_that_is_wrong(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**config, "pooling": "most"}))
    with pytest.raises(ValueError, match=r"config\.json: damaged \(`pooling` must .*got 'most'"):
        SequenceModel.from_pretrained(tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps({**config, "d_output": 3}))
    with pytest.raises(ValueError, match=r"model\.safetensors: is of another model than config\.json \(size mismatch for head"):
        SequenceModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("moves", [0, 1])
def test_a_kill_between_the_files_leaves_the_old_or_the_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """Both have tensors of the same names and shapes, so that nothing but the settings tells which they belong to."""

    class KilledError(BaseException):
        pass

    old, new = model("mean"), model("last", seed=1)
    old.save_pretrained(tmp_path)
    replace, made = os.replace, 0

    def stop(*paths: Path) -> None:
        nonlocal made
        if made == moves:
            raise KilledError
        made += 1
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # what is killed removes nothing
        with pytest.raises(KilledError):
            new.save_pretrained(tmp_path)
    found, expected = SequenceModel.from_pretrained(tmp_path), new if moves else old
    assert found.config == expected.config
    x = torch.randn(2, 5, 3)
    assert torch.equal(found(x), expected(x))
    old.save_pretrained(tmp_path)
    assert SequenceModel.from_pretrained(tmp_path).config == old.config


SIZES: dict[str, Any] = {"d_model": 4, "d_state": 2}
MODELS: dict[str, Callable[[], PretrainedModel]] = {
    "sequence": lambda: SequenceModel.from_spec("ma", **SIZES, d_output=2, d_input=3, head="mlp"),
    "language": lambda: LanguageModel.from_spec("s4d*2", **SIZES, vocab_size=9, tied=False),
    "forecaster": lambda: Forecaster.from_spec("mamba[lru]", **SIZES, d_input=2, horizon=3, normalise=True),
    "siamese": lambda: SiameseModel.from_spec("(mamba gru)*2", **SIZES, d_output=2, vocab_size=9, interaction="concat"),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_all_models_are_configured_and_saved_alike(build: Callable[[], PretrainedModel], tmp_path: Path) -> None:
    made = build()
    assert made.config.keys() == inspect.signature(type(made)).parameters.keys()
    assert type(made)(**made.config).config == made.config
    made.config["blocks"].clear()
    assert made.config["blocks"], "the configuration is a copy"
    made.save_pretrained(tmp_path)
    assert json.loads((tmp_path / CONFIG).read_text()) == {"spec_version": 2, **made.config}
    again = type(made).from_pretrained(tmp_path)
    assert again.config == made.config
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in made.state_dict().items())


def test_a_configuration_of_a_later_version_is_refused(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**config, "spec_version": 3}))
    with pytest.raises(ValueError, match=r"config\.json: `spec_version` must be at most 2, got 3"):
        SequenceModel.from_pretrained(tmp_path)
