"""Which path training takes: generators that a run resumes with, padded batches, runs that fail last, the help of settings."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from inspect import getdoc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longscan._errors import SettingError
from longscan.engine import NonFiniteLossError
from longscan.tasks import TASKS
from longscan.training import ModelSettings, TrainingSettings, train
from longscan.training import trainer as trainer_module
from longscan.training.checkpoint import generator_states
from longscan.training.parsing import settings_parser, upgrade
from longscan.training.pictures import Example, _draw_ablations
from longscan.training.processes import run_jobs
from longscan.training.run import build_model
from longscan.training.space import read_config
from longscan.training.stacked import _Member
from longscan.training.trainer import Trainer
from run_files import have_equal_tensors, read_weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")


def test_a_resumed_run_draws_the_dropout_of_one_that_was_not_stopped(tiny: Any, tmp_path: Path) -> None:
    settings = tiny(steps=4, model_values={"spec": "m", "block_options": {"m": {"dropout": 0.5}}})
    whole = train(settings, tmp_path / "whole", test=False)
    train(replace(settings, training=replace(settings.training, steps=2)), tmp_path / "parts", test=False)
    torch.rand(7)
    resumed = train(settings, tmp_path / "parts", resume=True, test=False)
    assert have_equal_tensors(read_weights(resumed), read_weights(whole))


def test_a_process_that_the_run_did_not_have_keeps_its_generators(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(steps=2), tmp_path / "run", test=False)
    restored: list[Any] = []
    monkeypatch.setattr(trainer_module, "restore_generators", restored.append)
    states = [generator_states(), {"cpu": "second"}]
    read = trainer_module.read_checkpoint
    monkeypatch.setattr(
        trainer_module,
        "read_checkpoint",
        lambda folder: read(folder) | {"generators": states[0], "generators_of_others": states[1:]},
    )
    with trainer_module.open_accelerator(tiny().training, tmp_path / "run") as accelerator:
        trainer = Trainer(tiny(), tmp_path / "run", accelerator, "", resume=True, progress=False, test=False)
        for process in (0, 1, 2):
            trainer.accelerator = SimpleNamespace(process_index=process)  # type: ignore[assignment]
            trainer.restore()
    assert restored == states


@pytest.mark.parametrize("capture", [False, True])
def test_batches_on_a_cpu_keep_their_widths(capture: bool, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def widen(_: Any) -> Any:
        raise AssertionError("only captured updates need batches of one width")

    monkeypatch.setattr(trainer_module, "widen_batches", widen)
    assert train(tiny(steps=2, capture=capture), tmp_path / "run", test=False).result["steps"] == 2


def member_that_fails(where: str, error: BaseException | None, closed: list[Any]) -> _Member:
    """Return a member whose engine raises an error in one of its methods; `closed` gets what its context sees."""

    def act(name: str) -> None:
        if name == where and error is not None:
            raise error

    @contextmanager
    def opened() -> Any:
        try:
            yield iter(())
        except NonFiniteLossError as seen:
            closed.append(seen)
        else:
            closed.append(None)

    engine = SimpleNamespace(step=3, finish=lambda: act("finish"), end_step=lambda *_: act("end_step"))
    trainer: Any = SimpleNamespace(engine=engine, open=opened, received_signals=set())
    member = _Member(trainer)
    member.open()
    assert not member.is_closed
    return member


@pytest.mark.parametrize("error", [NonFiniteLossError("nan"), None])
def test_a_run_of_several_may_fail_at_its_end(error: NonFiniteLossError | None) -> None:
    closed: list[Any] = []
    member = member_that_fails("finish", error, closed)
    member.finish()
    assert member.is_closed
    assert closed == [error]


def test_a_run_of_several_may_fail_at_a_step_and_stops_on_signals_only() -> None:
    closed: list[Any] = []
    error = NonFiniteLossError("nan")
    member = member_that_fails("end_step", error, closed)
    member.end_step((None, None, None), set())  # type: ignore[arg-type]
    assert (member.is_closed, closed) == (True, [error])
    interrupted = member_that_fails("end_step", KeyboardInterrupt(), closed)
    interrupted.end_step((None, None, None), {15})  # type: ignore[arg-type]
    assert interrupted.trainer.received_signals == {15}
    assert not interrupted.is_closed
    with pytest.raises(KeyboardInterrupt):
        interrupted.end_step((None, None, None), set())  # type: ignore[arg-type]


def test_help_of_settings_names_the_task_with_its_settings_alone() -> None:
    parser, types = settings_parser(TASKS["parity"])
    described = {group.title: group.description for group in parser._action_groups if group.title and "settings" in group.title}
    assert described["task settings"] == f"parity: {getdoc(TASKS['parity'])}"
    assert described["model settings"] == getdoc(ModelSettings)
    assert described["training settings"] == getdoc(TrainingSettings)
    assert {"task.train_lengths", "model.spec", "training.lr"} <= types.keys()
    others = settings_parser(None)[0]._action_groups
    assert "task settings" not in [group.title for group in others]


def test_specs_that_cannot_be_upgraded_name_the_file() -> None:
    with pytest.raises(SettingError, match=r"^a.yaml: "):
        upgrade("a.yaml", {"spec_version": 1, "model": {"spec": "?"}})


def test_a_folder_of_a_sweep_with_wrong_fields_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"^{tmp_path} is not the directory of a sweep: it has no sweep.yaml"):
        read_config(tmp_path)
    (tmp_path / "sweep.yaml").write_text("name: a\n")
    with pytest.raises(SettingError, match=r"sweep.yaml is damaged: it has no name, settings or space"):
        read_config(tmp_path)
    (tmp_path / "sweep.yaml").write_text("spec_version: 2\nname: a\nspace: {}\nseeds: 0\nsettings: {task: {name: parity}}\n")
    with pytest.raises(SettingError, match=r"sweep.yaml: `seeds` must be at least 1, as no setting is searched, got 0"):
        read_config(tmp_path)


def test_a_sequence_of_one_step_has_no_state_to_clear(tiny: Any) -> None:
    from matplotlib.figure import Figure

    settings = tiny()
    model: Any = build_model(settings).eval()
    for length, expected in ((1, []), (2, [1]), (4, [1, 2, 3])):
        axes = Figure().subplots()
        tokens = torch.zeros(1, length, dtype=torch.int64)
        with torch.no_grad():
            _draw_ablations(axes, model, settings.task, Example(tokens, None, length - 1, 0, "0"))
        _, *blocks = axes.lines
        assert [list(line.get_xdata()) for line in blocks] == [expected] * len(blocks)
        assert len(blocks) == 2


def test_no_jobs_need_no_time() -> None:
    assert run_jobs([], ["0"], 2, 100.0) == {}


def test_a_thread_trains_without_catching_signals(tiny: Any, tmp_path: Path) -> None:
    """Only the main thread may handle signals."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(train, tiny(steps=2), tmp_path / "run", test=False).result()
    assert run.result["steps"] == 2


def test_seconds_of_a_run_are_those_of_its_training(tiny: Any, tmp_path: Path) -> None:
    begin = time.perf_counter()
    run = train(tiny(steps=2), tmp_path / "run", test=False)
    assert 0 < run.result["seconds"] <= time.perf_counter() - begin
