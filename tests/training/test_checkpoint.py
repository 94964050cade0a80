"""Checkpoints: a kill at any moment leaves one, damage is seen, nothing is lost on the way to disk and back."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from longscan.training import SettingError, TrainingSettings
from longscan.training.checkpoint import (
    find_checkpoint,
    generator_states,
    optimizer_tensors,
    read_checkpoint,
    read_tensors,
    restore_generators,
    restore_optimizer,
    write_checkpoint,
    write_tensors,
)
from longscan.training.trainer import build_optimizer


def save(target: Path, value: float) -> None:
    write_checkpoint(
        target, lambda folder: write_tensors(folder / "x.safetensors", {"x": torch.tensor([value])}), {"step": value}
    )


def load(target: Path) -> tuple[float, float]:
    folder = find_checkpoint(target)
    assert folder is not None
    return read_checkpoint(folder)["step"], read_tensors(folder / "x.safetensors")["x"].item()


class Kill(BaseException):
    """Nothing in the code under test catches this, as nothing survives SIGKILL."""


@pytest.mark.parametrize("when", range(12))
def test_a_kill_at_any_call_to_the_file_system_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    target = tmp_path / "last"
    save(target, 1.0)
    calls = 0

    def killing(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > when:
                raise Kill
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for owner, name in (
            (os, "mkdir"),
            (os, "rename"),
            (os, "fsync"),
            (os, "open"),
            (os, "unlink"),
            (os, "rmdir"),
            (shutil, "rmtree"),
        ):
            patch.setattr(owner, name, killing(getattr(owner, name)))
        try:
            save(target, 2.0)
        except Kill:
            killed = True
        else:
            killed = False
    assert load(target) in ((1.0, 1.0), (2.0, 2.0))
    assert killed or load(target) == (2.0, 2.0)
    save(target, 3.0)
    assert load(target) == (3.0, 3.0)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_between_the_renames_the_one_before_is_found(tmp_path: Path) -> None:
    target = tmp_path / "last"
    save(target, 1.0)
    target.rename(tmp_path / "last.previous")
    assert load(target) == (1.0, 1.0)


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_damage_names_the_file(tmp_path: Path, damage: bytes | None) -> None:
    target = tmp_path / "last"
    save(target, 1.0)
    path = target / "x.safetensors"
    if damage is None:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        damage = bytes(content)
    path.write_bytes(damage)
    with pytest.raises(SettingError, match=r"x\.safetensors is damaged"):
        read_checkpoint(target)
    path.unlink()
    with pytest.raises(SettingError, match=r"x\.safetensors is missing"):
        read_checkpoint(target)


def test_damaged_state_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "last"
    save(target, 1.0)
    (target / "state.json").write_text("{")
    with pytest.raises(SettingError, match=r"state\.json is damaged"):
        read_checkpoint(target)


def test_optimizer_goes_on_as_if_never_saved(tmp_path: Path) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 6).view(2, 3)).square().sum().backward()
            optimizer.step()

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Linear(3, 2)
        return model, build_optimizer(model, TrainingSettings(weight_decay=0.1))

    whole, optimizer = make()
    train(whole, optimizer, 7)
    part, optimizer = make()
    train(part, optimizer, 4)
    write_tensors(tmp_path / "o.safetensors", optimizer_tensors(optimizer, part))
    resumed, optimizer = make()
    resumed.load_state_dict(part.state_dict())
    restore_optimizer(optimizer, resumed, read_tensors(tmp_path / "o.safetensors"))
    train(resumed, optimizer, 3)
    assert torch.equal(resumed.weight, whole.weight)
    assert torch.equal(resumed.bias, whole.bias)


def test_generators_go_on_through_json() -> None:
    torch.manual_seed(3)
    torch.randn(5)
    text = json.dumps(generator_states())
    expected = torch.randn(7)
    torch.manual_seed(0)
    restore_generators(json.loads(text))
    assert torch.equal(torch.randn(7), expected)
