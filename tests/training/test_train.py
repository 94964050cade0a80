"""Complete runs: their files, determinism, resuming, early stopping, evaluation, predictions, and failures."""

import csv
import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from longscan.engine import Callback, Engine, StepResult
from longscan.models import LanguageModel, SequenceModel, make_bidirectional
from longscan.tasks import TASKS, Batch
from longscan.tasks.dna import DnaLanguage
from longscan.training import (
    CurriculumSettings,
    LateLengthSettings,
    ModelSettings,
    Run,
    SettingError,
    Settings,
    TrainingSettings,
    parse_settings,
    record_run,
    train,
)
from longscan.training.checkpoint import find_checkpoint, read_checkpoint, read_tensors
from longscan.training.evaluate import evaluate
from longscan.training.run import build_model, commit, first_model
from made_up import MADE_UP
from run_files import have_equal_tensors, read_log, read_weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")


@pytest.fixture(autouse=True)
def _few_files(request: pytest.FixtureRequest) -> None:
    """Only one test reads the examples of answers; test_examples.py tests them."""
    if request.function is not test_run_writes_settings_logs_checkpoints_result_and_report:
        request.getfixturevalue("no_examples")


@pytest.fixture
def stateful_settings(tiny: Any) -> Any:
    """Return a function that makes settings with which a step depends on everything in a checkpoint."""

    def settings(**values: Any) -> Settings:
        return tiny(
            **{
                "steps": 12,
                "lr": 0.01,
                "schedule": "restarts",
                "restart_period": 3,
                "warmup": 2,
                "average": 0.9,
                "average_start": 0.2,
                "select": "average",
                "eval_every": 5,
                "checkpoint_every": 1,
                "curriculum": CurriculumSettings(start=4, end=8, threshold=0.2, every=2),
                "late_lengths": LateLengthSettings(share=0.5, start=0.7, shortest=6, longest=10),
                **values,
            }
        )

    return settings


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
def test_two_processes_do_not_train_in_one_folder(tiny: Any, tmp_path: Path, options: dict[str, bool]) -> None:
    folder = train(tiny(), tmp_path / "run").folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with FileLock(folder / "run.lock"), pytest.raises(SettingError, match="a folder in which no other process trains"):
        train(tiny(steps=8), folder, **options)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    train(tiny(steps=8), folder, **options)


def test_run_writes_settings_logs_checkpoints_result_and_report(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run", command="as typed")
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        *("settings.yaml", "metrics.jsonl", "metrics.csv", "tensorboard", "checkpoints", "run.lock"),
        *("result.json", "angles.json", "baselines.json", "examples.json", "report.html"),
    }
    result = run.result
    assert result is not None
    assert result["status"] == "finished"
    assert (result["task"], result["suite"], result["spec"], result["metric"]) == ("parity", "clean", "ma", "accuracy")
    assert (result["steps"], result["seed"], result["selected"], result["command"]) == (4, 0, "last", "as typed")
    assert result["params"] == sum(p.numel() for p in run.model().parameters())
    assert result["scaled"] == pytest.approx(2 * result["value"] - 1)
    assert result["constant"] == run.settings.task.constant_score("test")
    assert set(result["by_length"]) == {name.split("/")[1] for name in result["test"] if "/" in name}
    rows = read_log(run.folder)
    assert [(r["step"], r["split"]) for r in rows] == [
        *((1, "train"), (2, "train"), (2, "valid"), (3, "train"), (4, "train"), (4, "valid"), (4, "test"))
    ]
    assert rows[-1]["accuracy"] == result["value"]
    assert all({"loss", "accuracy", "lr", "grad_norm"} <= set(r) for r in rows if r["split"] == "train")
    with (run.folder / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(int(r["step"]), r["split"], float(r["loss"])) for r in table] == [(r["step"], r["split"], r["loss"]) for r in rows]
    assert isinstance(SequenceModel.from_pretrained(run.folder / "checkpoints" / "last"), SequenceModel)


def test_settings_are_read_from_the_run(tiny: Any, tmp_path: Path) -> None:
    settings = tiny(steps=1, lr_scale={"selector": 0.5}, betas=(0.8, 0.9))
    assert train(settings, tmp_path).settings == settings


def test_run_starts_from_the_weights_of_another(tiny: Any, tmp_path: Path) -> None:
    before = read_weights(train(tiny(), tmp_path / "before"))
    for folder in (tmp_path / "before", tmp_path / "before" / "checkpoints" / "last"):
        assert have_equal_tensors(first_model(tiny(start_from=str(folder))).state_dict(), before)
    after = train(tiny(start_from=str(tmp_path / "before"), steps=2, lr=1e-9), tmp_path / "after")
    assert not have_equal_tensors(read_weights(after), before)
    torch.testing.assert_close(read_weights(after), before, rtol=0, atol=1e-7)


def test_start_from_a_model_with_another_head_keeps_the_initial_head(tiny: Any, tmp_path: Path) -> None:
    base = tiny(model_values={"head": "affine"})
    sizes = {"d_model": 4, "d_state": 2, "vocab_size": 3}
    SequenceModel.from_spec("ma", d_output=7, pooling="none", **sizes).save_pretrained(tmp_path / "more")
    LanguageModel.from_spec("ma", pad_vocab_to=1, **sizes).save_pretrained(tmp_path / "language")
    for name in ("more", "language"):
        settings = replace(base, training=replace(base.training, start_from=str(tmp_path / name)))
        torch.manual_seed(3)
        initial = build_model(settings).state_dict()
        torch.manual_seed(3)
        loaded = first_model(settings).state_dict()
        changed = {key for key, value in loaded.items() if not torch.equal(value, initial[key])}
        assert {key.split(".")[0] for key in changed} == {"encoder", "blocks"}
        saved = read_tensors(tmp_path / name / "model.safetensors")
        assert all(torch.equal(loaded[key], saved.get(key, saved.get(f"backbone.{key}"))) for key in changed)


def test_start_from_other_shapes_or_a_missing_run_raises(tiny: Any, tmp_path: Path) -> None:
    train(tiny(), tmp_path / "before")
    wider = tiny(model_values={"d_model": 6}, start_from=str(tmp_path / "before"))
    with pytest.raises(SettingError, match=r"`training.start_from` must be .*blocks\.0.* is \[.*\] there and \[.*\] here"):
        train(wider, tmp_path / "wider")
    with pytest.raises(SettingError, match=r"`training.start_from` must be .*absent"):
        first_model(tiny(model_values={"spec": "m"}, start_from=str(tmp_path / "before")))
    with pytest.raises(SettingError, match=r"`training.start_from` must be a folder of a run or a saved model.*nothing'"):
        first_model(tiny(start_from=str(tmp_path / "nothing")))


BIDIRECTIONAL = {"spec": "bidirectional*2", "block_options": {"bidirectional": {"variant": "own"}}}


@pytest.mark.parametrize("two", [False, True], ids=["F1", "F1R1"])
def test_bidirectional_blocks_start_from_causal_ones(tiny: Any, tmp_path: Path, two: bool) -> None:
    """Blocks and encoder are those of `make_bidirectional`; norm and head are new. Their dropout may differ."""
    causal = tiny(model_values={"spec": "mamba*2", "block_options": {"mamba": {"dropout": 0.5}}})
    runs = [train(replace(causal, training=replace(causal.training, seed=seed)), tmp_path / str(seed)) for seed in (1, 2)]
    reverse = {"start_from_reverse": str(runs[1].folder)} if two else {}
    settings = tiny(model_values=BIDIRECTIONAL, start_from=str(runs[0].folder), **reverse)
    torch.manual_seed(3)
    initial = build_model(settings).state_dict()
    torch.manual_seed(3)
    loaded = first_model(settings).state_dict()
    expected = make_bidirectional(runs[0].model(), runs[1].model() if two else None).state_dict()
    new = {name for name in loaded if name.startswith(("norm.", "head."))}
    assert len(new) == 2
    assert all(torch.equal(loaded[name], (initial if name in new else expected)[name]) for name in loaded)
    name = "blocks.0.block.{}conv_weight"
    assert torch.equal(loaded[name.format("")], loaded[name.format("reverse_")]) != two
    assert train(settings, tmp_path / "after").result["status"] == "finished"


def test_bidirectional_blocks_that_cannot_start_from_a_model_raise(tiny: Any, tmp_path: Path) -> None:
    causal = str(train(tiny(model_values={"spec": "mamba*2"}), tmp_path / "causal").folder)
    one = str(train(tiny(model_values={"spec": "mamba"}), tmp_path / "one").folder)
    both = {"start_from": causal, "start_from_reverse": causal}
    name = "`training.start_from_reverse` must be"
    for model, sources, needed in (
        (BIDIRECTIONAL, {**both, "start_from_reverse": one}, f"{name} a causal model that can become bidirectional"),
        (BIDIRECTIONAL, {"start_from": one}, "`training.start_from` must be .*blocks.1.* absent there"),
        ({"spec": "bidirectional*2"}, {"start_from": causal}, "`model.block_options` must be .* variant own .*, got 'shared'"),
        ({"spec": "mamba*2"}, both, f"{name} left out, unless bidirectional blocks start from causal ones"),
        ({"spec": "mamba*2"}, {"start_from_reverse": causal}, f"{name} left out, unless start_from is given"),
        (BIDIRECTIONAL, {**both, "start_from_reverse": str(tmp_path)}, f"{name} a folder of a run or a saved model"),
    ):
        with pytest.raises(SettingError, match=needed):
            first_model(tiny(model_values=model, **sources))


def test_mask_token_of_pretraining_is_left_out(tiny: Any, tmp_path: Path) -> None:
    sizes = {"d_model": 4, "d_state": 2, "d_output": 2, "pooling": "none"}
    for vocab_size in (4, 5):
        SequenceModel.from_spec("ma", vocab_size=vocab_size, **sizes).save_pretrained(tmp_path / str(vocab_size))
    settings = tiny(start_from=str(tmp_path / "4"))
    encoder = read_tensors(tmp_path / "4" / "model.safetensors")["encoder.weight"]
    assert settings.task.vocab_size == 3
    assert torch.equal(first_model(settings).state_dict()["encoder.weight"], encoder[:3])
    with pytest.raises(SettingError, match=r"encoder.weight is \[5, 4\] there and \[3, 4\] here"):
        first_model(tiny(start_from=str(tmp_path / "5")))


def test_blocks_that_are_not_causal_raise_where_inputs_contain_the_targets(tiny: Any, tmp_path: Path) -> None:
    MADE_UP["dna_language"](tmp_path)
    base = tiny(model_values=BIDIRECTIONAL)
    with pytest.raises(SettingError, match=r"`model.spec` must be causal blocks, .* dna_language contain the targets, got 'bi"):
        build_model(replace(base, task=DnaLanguage(data_dir=str(tmp_path))))
    assert not build_model(replace(base, task=DnaLanguage(data_dir=str(tmp_path), objective="masked"))).causal


def test_overwriting_run_can_start_from_another_run_but_not_from_itself(tiny: Any, tmp_path: Path) -> None:
    before = read_weights(train(tiny(), tmp_path / "before"))
    train(tiny(seed=1), tmp_path / "run")
    run = train(tiny(start_from=str(tmp_path / "before"), steps=2, lr=1e-9), tmp_path / "run", overwrite=True)
    torch.testing.assert_close(read_weights(run), before, rtol=0, atol=1e-7)
    with pytest.raises(SettingError, match=r"`training.start_from` must be .* not the run that is overwritten, got '.*last'"):
        train(tiny(start_from=str(tmp_path / "run" / "checkpoints" / "last")), tmp_path / "run", overwrite=True)
    assert run.result is not None


def test_resumed_run_does_not_read_start_from(tiny: Any, tmp_path: Path) -> None:
    train(tiny(), tmp_path / "before")
    settings = tiny(start_from=str(tmp_path / "before"), steps=2)
    train(settings, tmp_path / "run")
    shutil.rmtree(tmp_path / "before")
    longer = replace(settings, training=replace(settings.training, steps=4))
    assert train(longer, tmp_path / "run", resume=True).result is not None


def test_evaluation_of_a_run_equals_its_result(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path)
    assert run.result is not None
    scores = run.evaluate("test")
    assert scores.loss == pytest.approx(run.result["test"]["loss"], rel=1e-6)
    assert {**scores.values} == {k: v for k, v in run.result["test"].items() if k != "loss"}
    assert math.isfinite(run.evaluate("train").loss)
    with pytest.raises(SettingError, match=r"`split` must be .*, got 'future'"):
        run.evaluate("future")


def test_evaluation_does_not_depend_on_the_batch_size(tiny: Any) -> None:
    settings = tiny()
    model = SequenceModel.from_spec("ma", d_model=4, d_output=2, vocab_size=3, pooling="none", backend="eager")
    small, large = (evaluate(model, settings.task, "test", batch_size=size) for size in (5, 24))
    assert small.loss == pytest.approx(large.loss, rel=1e-6)
    assert small.values == large.values
    assert model.training


def test_same_settings_give_the_same_run_with_and_without_prefetching(stateful_settings: Any, tmp_path: Path) -> None:
    first = train(stateful_settings(), tmp_path / "a")
    second = train(stateful_settings(prefetch=0), tmp_path / "b")
    assert have_equal_tensors(read_weights(first), read_weights(second))
    assert read_log(first.folder) == read_log(second.folder)
    other = train(stateful_settings(seed=1), tmp_path / "c")
    assert not have_equal_tensors(read_weights(first), read_weights(other))


def test_data_seed_is_independent_of_the_seed_of_the_weights(tiny: Any, tmp_path: Path) -> None:
    losses = {}
    for seed, data_seed in ((1, 0), (1, 1), (2, 0), (1, None)):
        settings = tiny(seed=seed, data_seed=data_seed, steps=1)
        torch.manual_seed(seed)
        model = build_model(settings)
        batch = settings.task.batch("train", 0, settings.training.batch_size, seed if data_seed is None else data_seed)
        expected = settings.task.loss(model(batch.inputs, valid=batch.valid), batch).item()
        losses[seed, data_seed] = read_log(train(settings, tmp_path / f"{seed} {data_seed}").folder)[0]["loss"]
        assert losses[seed, data_seed] == pytest.approx(expected, rel=1e-5)
    assert losses[1, None] == losses[1, 1]
    assert len({losses[1, 0], losses[1, 1], losses[2, 0]}) == 3


class KillAt(Callback):
    """Raise an error after a number of updates."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, engine: Engine, result: StepResult) -> None:
        if engine.step == self.step:
            raise RuntimeError("killed")


def test_resumed_run_equals_an_uninterrupted_run(stateful_settings: Any, tmp_path: Path) -> None:
    whole = train(stateful_settings(), tmp_path / "whole")
    assert whole.result is not None
    for last_step in range(1, 12, 3):
        folder = tmp_path / f"killed {last_step}"
        with pytest.raises(RuntimeError, match="killed"):
            train(stateful_settings(), folder, callbacks=[KillAt(last_step)])
        torch.manual_seed(99)
        parts = train(stateful_settings(), folder, resume=True)
        for which in ("last", "best", "average"):
            assert have_equal_tensors(read_weights(parts, which), read_weights(whole, which)), (last_step, which)
        assert read_log(parts.folder) == read_log(whole.folder), last_step
        assert parts.result is not None
        assert parts.result["test"] == whole.result["test"], last_step


def test_resuming_a_finished_run_does_not_change_it(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path)
    before = (run.folder / "result.json").read_text()
    train(tiny(), tmp_path, resume=True)
    assert (run.folder / "result.json").read_text() == before


def test_more_steps_continue_a_finished_run(tiny: Any, tmp_path: Path) -> None:
    longer = train(tiny(steps=8), tmp_path / "long")
    train(tiny(steps=4), tmp_path / "short")
    extended = train(tiny(steps=8), tmp_path / "short", resume=True)
    assert have_equal_tensors(read_weights(extended), read_weights(longer))
    assert read_log(extended.folder) == read_log(longer.folder)
    with pytest.raises(SettingError, match=r"^`training\.steps` must be at least 8 with --resume, .*, got 4"):
        train(tiny(steps=4), tmp_path / "short", resume=True)


@pytest.mark.parametrize("values", [{"lr": 0.5}, {"seed": 4}, {"curriculum": CurriculumSettings(start=4, end=8)}])
def test_resuming_with_other_settings_raises(tiny: Any, tmp_path: Path, values: dict[str, Any]) -> None:
    train(tiny(), tmp_path)
    with pytest.raises(SettingError, match=f"`training.{next(iter(values))}` must be .* with --resume"):
        train(tiny(**values), tmp_path, resume=True)


def test_training_into_the_directory_of_a_run_without_overwrite_raises(tiny: Any, tmp_path: Path) -> None:
    train(tiny(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingError, match="must be a directory without a run, unless --resume"):
        train(tiny(), tmp_path)
    train(tiny(steps=2), tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert max(row["step"] for row in read_log(tmp_path)) == 2


def test_overwrite_removes_nothing_from_a_folder_without_a_run(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    train(tiny(steps=2), tmp_path, overwrite=True)
    assert (tmp_path / "checkpoints" / "notes.txt").read_text() == "mine"


def test_run_whose_loss_is_not_finite_fails(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(lr=1e30, steps=20, clip=0.0, checkpoint_every=1), tmp_path)
    result = run.result
    assert result is not None
    assert result["status"] == "failed"
    assert result["value"] is None
    assert "was not finite at step" in result["failure"]
    assert result["steps"] < 20
    assert all(torch.isfinite(value).all() for value in read_weights(run).values())
    record_run(run, tmp_path / "runs" / "x.jsonl")
    assert json.loads((tmp_path / "runs" / "x.jsonl").read_text())["status"] == "failed"
    assert train(tiny(lr=1e30, steps=20, clip=0.0, checkpoint_every=1), tmp_path, resume=True).result == result


@pytest.mark.parametrize("select", ["last", "best", "average"])
def test_selected_weights_are_saved_and_scored_on_test(tiny: Any, tmp_path: Path, select: str) -> None:
    run = train(tiny(steps=6, lr=0.05, average=1.0, select=select), tmp_path)
    assert run.result is not None
    assert run.result["selected"] == select
    expected = run.evaluate("test", select)
    assert expected.values["accuracy"] == run.result["value"]
    assert expected.loss == pytest.approx(run.result["test"]["loss"], rel=1e-6)
    assert set(run.result["valid"]) == {"last", "best", "average"}
    valid = [row for row in read_log(run.folder) if row["split"] == "valid"]
    assert run.result["valid"]["last"] == valid[-1]["accuracy"]
    assert run.result["valid"]["average"] == valid[-1]["average_accuracy"]
    best = max(valid, key=lambda row: (row["accuracy"], -row["loss"]))
    assert run.result["valid"]["best"] == best["accuracy"]
    assert read_checkpoint(run.checkpoint("best"))["step"] == best["step"]


def test_average_is_the_mean_of_the_weights_since_its_start(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(steps=8, average=1.0, average_start=0.5, select="average"), tmp_path / "a")
    parts = [read_weights(train(tiny(steps=steps), tmp_path / f"{steps}")) for steps in (5, 6, 7, 8)]
    for name, value in read_weights(run, "average").items():
        assert torch.allclose(value, torch.stack([part[name] for part in parts]).mean(0), atol=1e-6)


def test_the_loss_may_decide_which_validation_is_the_best(tiny: Any, tmp_path: Path) -> None:
    """The AUSSM repository's runs on weather do so. Here the best loss and the best accuracy are at different validations."""
    run = train(tiny(steps=10, lr=0.1, seed=3, eval_every=1, select="best", best_by="loss"), tmp_path)
    valid = [row for row in read_log(run.folder) if row["split"] == "valid"]
    best = min(valid, key=lambda row: row["loss"])
    assert best["accuracy"] < max(row["accuracy"] for row in valid)
    assert read_checkpoint(run.checkpoint("best"))["step"] == best["step"]


def test_patience_stops_a_run_without_improvement(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(steps=50, lr=1e-30, eval_every=1, patience=3), tmp_path)
    assert run.result is not None
    assert run.result["steps"] == 4
    assert run.result["stopped_early"]
    assert train(tiny(steps=50, lr=1e-30, eval_every=1, patience=3), tmp_path, resume=True).result == run.result


def test_run_that_stops_before_its_average_starts_selects_the_last_weights(tiny: Any, tmp_path: Path) -> None:
    settings = tiny(steps=50, lr=1e-30, eval_every=1, patience=2, average=1.0, average_start=0.9, select="average")
    run = train(settings, tmp_path)
    assert run.result is not None
    assert run.result["selected"] == "last"
    assert run.evaluate("test").values["accuracy"] == run.result["value"]


@pytest.mark.parametrize("settings", [{}, {"average": 0.5, "select": "average"}])
def test_solved_at_stops_the_run(tiny: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    run = train(tiny(steps=50, eval_every=2, solved_at=1e-9, solved_for=3, **settings), tmp_path / "solved")
    assert run.result is not None
    assert (run.result["steps"], run.result["stopped_early"]) == (6, True)
    run = train(tiny(steps=10, eval_every=2, solved_at=1.1, solved_for=1, **settings), tmp_path / "never")
    assert run.result is not None
    assert (run.result["steps"], run.result["stopped_early"]) == (10, False)


def test_curriculum_is_in_the_log(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(steps=6, curriculum=CurriculumSettings(start=4, end=7, threshold=0.0, every=2)), tmp_path)
    assert [row["max_length"] for row in read_log(run.folder) if row["split"] == "train"] == [4, 4, 6, 6, 7, 7]


def test_sum_reduction_multiplies_the_gradient_by_the_number_of_targets(tiny: Any, tmp_path: Path) -> None:
    mean, total = (train(tiny(steps=1, loss_reduction=kind), tmp_path / kind) for kind in ("mean", "sum"))
    assert read_log(total.folder)[0]["grad_norm"] == pytest.approx(8 * read_log(mean.folder)[0]["grad_norm"], rel=1e-4)
    assert read_log(total.folder)[0]["loss"] == pytest.approx(read_log(mean.folder)[0]["loss"], rel=1e-6)


def test_label_smoothing_changes_the_gradient_and_not_the_logged_loss(tiny: Any, tmp_path: Path) -> None:
    plain, smooth = (train(tiny(steps=1, label_smoothing=smoothing), tmp_path / f"{smoothing}") for smoothing in (0.0, 0.2))
    assert read_log(plain.folder)[0]["loss"] == read_log(smooth.folder)[0]["loss"]
    settings = tiny(steps=1)
    torch.manual_seed(0)
    model = build_model(settings)
    batch = settings.task.batch("train", 0, settings.training.batch_size, 0)
    logits, targets = model(batch.inputs, valid=batch.valid)[batch.loss_mask], batch.targets[batch.loss_mask]
    log_probabilities = logits.log_softmax(-1)
    expected = -0.8 * log_probabilities.gather(-1, targets[:, None]).mean() - 0.2 * log_probabilities.mean()
    norm = torch.stack([g.norm() for g in torch.autograd.grad(expected, list(model.parameters()))]).norm().item()
    assert read_log(smooth.folder)[0]["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert read_log(plain.folder)[0]["grad_norm"] != pytest.approx(norm, rel=1e-2)


def test_label_smoothing_without_classes_raises() -> None:
    task = TASKS["fitzhugh_nagumo"]()
    with pytest.raises(SettingError, match=r"`training.label_smoothing` must be 0, as fitzhugh_nagumo has no classes, got 0.1"):
        Settings(task=task, training=TrainingSettings(label_smoothing=0.1))
    with pytest.raises(ValueError, match=r"`smoothing` must be 0, as fitzhugh_nagumo has no classes, got 0.1"):
        task.loss(torch.zeros(1), Batch(torch.zeros(1)), smoothing=0.1)


def test_bfloat16_changes_losses_and_not_the_dtype_of_weights(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(precision="bfloat16", steps=2), tmp_path / "half")
    full = train(tiny(steps=2), tmp_path / "full")
    assert all(value.dtype == torch.float32 for value in read_weights(run).values())
    loss, exact = read_log(run.folder)[0]["loss"], read_log(full.folder)[0]["loss"]
    assert loss != exact
    assert loss == pytest.approx(exact, rel=0.05)


def test_run_restores_the_number_of_threads(tiny: Any, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    train(tiny(steps=1, threads=2), tmp_path)
    assert torch.get_num_threads() == before


def test_training_and_prediction_with_series_of_unequal_length(tmp_path: Path) -> None:
    settings = Settings(
        task=TASKS["uea"](dataset="JapaneseVowels"),
        model=ModelSettings(spec="m", d_model=4, d_state=2, backend="eager"),
        training=TrainingSettings(steps=2, batch_size=16, eval_batches=1, test_batches=2, threads=1),
    )
    run = train(settings, tmp_path / "run")
    assert run.result is not None
    confusion = run.result["confusion"]
    assert sum(map(sum, confusion)) == 32
    assert len(confusion) == len(run.result["classes"]) == 9
    assert not (run.folder / "angles.json").exists()
    path = tmp_path / "series.csv"
    path.write_text("\n".join(",".join("0.1" for _ in range(12)) for _ in range(5)))
    rows = run.predict(path)
    assert len(rows) == 1
    assert rows[0]["class"] in run.result["classes"]
    with pytest.raises(SettingError, match=r"absent\.csv"):
        run.predict(tmp_path / "absent.csv")


def test_predictions_equal_those_of_the_model(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(batch_size=2), tmp_path / "run")
    path = tmp_path / "questions.txt"
    path.write_text("1 0 1\n1 1\n0 0 0 1\n")
    rows = run.predict(path)
    examples = run.settings.task.read_inputs(path)
    with torch.no_grad():
        expected = run.settings.task.decode(run.model()(examples.inputs, valid=examples.valid), examples)
    assert [row["question"] for row in rows] == ["1 0 1", "1 1", "0 0 0 1"]
    assert [row["answer"] for row in rows] == [row["answer"] for row in expected]


def test_example_numbers_of_predictions_continue_over_batches(tmp_path: Path) -> None:
    argv = ["--task", "fitzhugh_nagumo", "--task.train_size", "24", "--task.valid_size", "10", "--task.test_size", "12"]
    argv += ["--model.spec", "gru", "--model.d_model", "4", "--training.steps", "1", "--training.batch_size", "2"]
    argv += ["--training.eval_batches", "1", "--training.test_batches", "1"]
    run = train(parse_settings(argv), tmp_path / "run")
    np.save(tmp_path / "new.npy", np.random.default_rng(0).normal(size=(3, 5, 1)))
    rows = run.predict(tmp_path / "new.npy")
    assert [(row["example"], row["step"]) for row in rows] == [(example, step) for example in range(3) for step in range(5)]


def test_angles_are_those_of_single_symbols(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(model_values={"spec": "ama"}), tmp_path)
    angles = json.loads((tmp_path / "angles.json").read_text())
    assert len(angles) == 2
    model = run.model()
    first = next(iter(angles.values()))
    assert first["symbols"] == ["0", "1", "_"]
    assert [len(theta) for theta in first["theta"]] == [8, 8, 8]
    block = model.blocks[0]
    with torch.no_grad():
        x = model.encoder(torch.arange(3)).unsqueeze(1)
        inner = block.block.in_proj(block.norm(x)).chunk(2, -1)[0][:, 0]
        u = inner * block.block.conv_weight[:, -1] + block.block.conv_bias
        expected = block.block.layer.angles(u).flatten(1)
    assert torch.allclose(torch.tensor(first["theta"]), expected, atol=1e-6)


def test_model_without_rotations_writes_no_angles(tiny: Any, tmp_path: Path) -> None:
    train(tiny(model_values={"spec": "mm"}, steps=1), tmp_path)
    assert not (tmp_path / "angles.json").exists()


def test_record_of_a_run_is_appended_to_a_file(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run")
    target = tmp_path / "runs" / "parity.jsonl"
    record_run(run, target)
    record_run(run, target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(rows) == 2
    assert rows[0]["task"] == "parity"
    assert rows[0]["value"] == run.result["value"]
    with pytest.raises(SettingError, match="the run cannot be recorded"):
        record_run(run, tmp_path / "elsewhere" / "parity.jsonl")


def test_commit_is_that_of_a_checkout_of_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed in a checkout of another project has no commit."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    package = tmp_path / "longscan"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr("longscan.__file__", str(package / "__init__.py"))
    monkeypatch.setenv("LONGSCAN_COMMIT", "0123abc")
    assert commit() == "0123abc", "files without git history"
    monkeypatch.setenv("LONGSCAN_COMMIT", "main")
    with pytest.raises(SettingError, match="`LONGSCAN_COMMIT` must be 7 to 40 hexadecimal digits, got 'main'"):
        commit()
    monkeypatch.delenv("LONGSCAN_COMMIT")
    assert commit() == "unknown"
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "other"]):
        subprocess.run([*git, *arguments], check=True)
    assert commit() == "unknown"
    for arguments in (["add", "longscan"], ["commit", "-q", "-m", "this"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert commit() == head
    (package / "__init__.py").write_text("changed")
    assert commit() == f"{head}+changes"


def test_recording_an_unfinished_run_raises(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run")
    (run.folder / "result.json").unlink()
    with pytest.raises(SettingError, match="has not ended"):
        record_run(run, tmp_path / "runs" / "parity.jsonl")


def test_model_of_a_run_that_has_not_ended_is_read_with_a_warning(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(tiny(), tmp_path / "run")
    run.model()
    assert not caplog.messages
    (run.folder / "result.json").unlink()
    run.model("last")
    assert not caplog.messages
    run.model()
    steps = run.settings.training.steps
    assert caplog.messages == [f"{run.folder}: the run has not ended; the weights are those after {steps} of {steps} updates"]


def test_reading_the_model_of_a_run_does_not_change_the_random_state_of_torch(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run")
    torch.manual_seed(5)
    model = run.model()
    run.evaluate("valid")
    assert torch.rand(3).equal(torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert have_equal_tensors(model.state_dict(), read_weights(run, "selected"))
    assert {x.device.type for x in model.state_dict().values()} == {"cpu"}


def test_arguments_of_another_kind_raise_before_the_folder_is_made(tiny: Any, tmp_path: Path) -> None:
    wrong: Any
    for wrong in (print, [print], [Callback], Callback()):
        with pytest.raises(SettingError, match=r"`callbacks(\[0\])?` must be (a list|an instance of Callback), got "):
            train(tiny(), tmp_path / "run", callbacks=wrong)
    for wrong in ({"task": "parity"}, None):
        with pytest.raises(TypeError, match="`settings` must be Settings, such as of parse_settings, got a "):
            train(wrong, tmp_path / "run")
    wrong = 7
    with pytest.raises(TypeError, match="`out` must be a str or a path, got 7"):
        train(tiny(), wrong)
    with pytest.raises(TypeError, match="`folder` must be a str or a path, got 7"):
        Run(wrong)
    assert not (tmp_path / "run").exists()
    with pytest.raises(TypeError, match="`path` must be a str or a path, got 7"):
        train(tiny(), tmp_path / "run").predict(wrong)


def test_loading_a_checkpoint_of_another_model_raises(tiny: Any, tmp_path: Path) -> None:
    run = train(tiny(), tmp_path / "run")
    text = (run.folder / "settings.yaml").read_text()
    (run.folder / "settings.yaml").write_text(text.replace("d_model: 4", "d_model: 6"))
    with pytest.raises(SettingError, match="does not fit the model"):
        Run(run.folder).model()


def test_training_on_an_endless_split_without_number_of_batches_raises(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny()
    kind = type(settings.task)
    size = kind.size
    monkeypatch.setattr(kind, "size", lambda self, split: None if split == "valid" else size(self, split))
    with pytest.raises(SettingError, match=r"`training\.eval_batches` must be .*, got 0"):
        train(settings, tmp_path)
    assert not list(tmp_path.iterdir())
    train(replace(settings, training=replace(settings.training, eval_batches=1)), tmp_path)


@pytest.mark.parametrize(
    ("missing", "message"), [(["generators"], r"damaged .*checksum"), (["generators", "checksum"], r"damaged .*generators")]
)
def test_resuming_from_a_damaged_checkpoint_raises(tiny: Any, tmp_path: Path, missing: list[str], message: str) -> None:
    """The checksum detects a missing entry. A state of version 0.1 has no checksum and raises when the entry is needed."""
    run = train(tiny(), tmp_path)
    folder = find_checkpoint(tmp_path / "checkpoints" / "last")
    assert folder is not None
    state = json.loads((folder / "state.json").read_text())
    for name in missing:
        del state[name]
    (folder / "state.json").write_text(json.dumps(state))
    (run.folder / "result.json").unlink()
    with pytest.raises(SettingError, match=message):
        train(tiny(), tmp_path, resume=True)
