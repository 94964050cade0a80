"""Checkpoints: a kill at any moment leaves a valid one, damage raises, and saving and loading keep all states."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from longscan.training import SettingError, TrainingSettings, train, trainer
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
from longscan.training.logs import RunLog
from longscan.training.trainer import build_optimizer


def save_value(target: Path, value: float) -> None:
    write_checkpoint(
        target, lambda folder: write_tensors(folder / "x.safetensors", {"x": torch.tensor([value])}), {"step": value}
    )


def load_value(target: Path) -> tuple[float, float]:
    folder = find_checkpoint(target)
    assert folder is not None
    return read_checkpoint(folder)["step"], read_tensors(folder / "x.safetensors")["x"].item()


class Kill(BaseException):
    """An exception that the tested code does not catch, like SIGKILL."""


@pytest.mark.parametrize("n_calls", range(12))
def test_kill_at_any_file_system_call_leaves_a_valid_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_calls: int
) -> None:
    target = tmp_path / "last"
    save_value(target, 1.0)
    calls = 0

    def raise_after_calls(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > n_calls:
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
            patch.setattr(owner, name, raise_after_calls(getattr(owner, name)))
        try:
            save_value(target, 2.0)
        except Kill:
            killed = True
        else:
            killed = False
    assert load_value(target) in ((1.0, 1.0), (2.0, 2.0))
    assert killed or load_value(target) == (2.0, 2.0)
    save_value(target, 3.0)
    assert load_value(target) == (3.0, 3.0)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_previous_checkpoint_is_used_between_the_renames(tmp_path: Path) -> None:
    target = tmp_path / "last"
    save_value(target, 1.0)
    target.rename(tmp_path / "last.previous")
    assert load_value(target) == (1.0, 1.0)


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_damaged_or_missing_tensors_raise_and_name_the_file(tmp_path: Path, damage: bytes | None) -> None:
    target = tmp_path / "last"
    save_value(target, 1.0)
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


def test_damaged_state_raises_and_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "last"
    save_value(target, 1.0)
    (target / "state.json").write_text("{")
    with pytest.raises(SettingError, match=r"state\.json is damaged"):
        read_checkpoint(target)


def test_restored_optimizer_gives_the_same_updates(tmp_path: Path) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 6).view(2, 3)).square().sum().backward()
            optimizer.step()

    def make_model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Linear(3, 2)
        return model, build_optimizer(model, TrainingSettings(weight_decay=0.1))

    whole, optimizer = make_model_and_optimizer()
    train(whole, optimizer, 7)
    part, optimizer = make_model_and_optimizer()
    train(part, optimizer, 4)
    write_tensors(tmp_path / "o.safetensors", optimizer_tensors(optimizer, part))
    resumed, optimizer = make_model_and_optimizer()
    resumed.load_state_dict(part.state_dict())
    restore_optimizer(optimizer, resumed, read_tensors(tmp_path / "o.safetensors"))
    train(resumed, optimizer, 3)
    assert torch.equal(resumed.weight, whole.weight)
    assert torch.equal(resumed.bias, whole.bias)


def test_restored_generators_give_the_same_numbers() -> None:
    torch.manual_seed(3)
    torch.randn(5)
    text = json.dumps(generator_states())
    expected = torch.randn(7)
    torch.manual_seed(0)
    restore_generators(json.loads(text))
    assert torch.equal(torch.randn(7), expected)


def test_folders_of_a_checkpoint_are_made(tmp_path: Path) -> None:
    target = tmp_path / "run" / "checkpoints" / "last"
    save_value(target, 3.0)
    assert load_value(target) == load_value(target)
    assert sorted(path.name for path in target.parent.iterdir()) == ["last"]


def test_rows_of_the_log_reach_the_disk_before_a_checkpoint_from_which_a_run_resumes(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    write = trainer.write_checkpoint
    monkeypatch.setattr(RunLog, "flush", lambda _: events.append("flush"))
    monkeypatch.setattr(trainer, "write_checkpoint", lambda target, *rest: events.append(target.name) or write(target, *rest))
    train(tiny(steps=4, eval_every=2, select="best"), tmp_path / "run")
    assert events.count("flush") == events.count("last") >= 2
    assert [events[index - 1] for index, name in enumerate(events) if name == "last"] == ["flush"] * events.count("last")
