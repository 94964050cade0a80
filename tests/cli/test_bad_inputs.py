"""A wrong argument, file or directory gives an error of one line that names it, with exit code 2, before anything is written."""

import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import seeds
from command_lines import replace_options
from longscan._argparse import check_given_once
from longscan._errors import SettingError
from longscan.cli import main
from longscan.ops import dispatch
from longscan.training import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_argv: list[str]) -> Path:
    """Return the directory of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["train", "--out", str(folder), *tiny_argv]) == 0
    return folder


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--model.d_modle", "4"], ["model.d_modle", "unknown setting", "did you mean d_model"]),
        (["--training.curriculum.stop", "4"], ["training.curriculum.stop", "unknown setting", "start"]),
        (["--task.size", "4"], ["task.size", "unknown setting", "train_size"]),
        (["--bogus", "4"], ["--bogus", "unknown argument"]),
        (["--training.lr", "-0.1"], ["training.lr", "-0.1", "above 0"]),
        (["--training.lr", "fast"], ["training.lr", "'fast'", "a number"]),
        (["--training.lr", "inf"], ["training.lr", "inf"]),
        (["--steps", "0"], ["training.steps", "0", "at least 1"]),
        (["--steps", "some"], ["steps", "'some'", "whole number"]),
        (["--training.batch_size", "2.5"], ["training.batch_size", "got 2.5", "whole number"]),
        (["--training.schedule", "linear"], ["training.schedule", "'linear'", "constant, cosine, restarts"]),
        (["--training.betas", "[0.9, 1.0]"], ["training.betas", "1.0", "below 1"]),
        (["--training.lr_scale.angles", "0.1"], ["training.lr_scale", "angles", "selector"]),
        (["--training.schedule", "cosine", "--training.lr_min", "1"], ["training.lr_min", "1.0", "at most lr"]),
        (["--training.warmup", "3"], ["training.warmup", "3", "at most steps (2)"]),
        (["--training.select", "average"], ["training.select", "'average'", "training.average is above 0"]),
        (["--training.patience", "3", "--training.eval_every", "0"], ["training.patience", "eval_every"]),
        (["--training.solved_at", "0.9", "--training.eval_every", "0"], ["training.solved_at", "eval_every"]),
        (["--training.curriculum.start", "50"], ["training.curriculum.start", "50", "training.curriculum.end (40)"]),
        (["--training.curriculum.start", "2"], ["training.curriculum.start", "2", "shortest"]),
        (["--training.late_lengths.shortest", "41"], ["training.late_lengths.shortest", "41"]),
        (["--training.late_lengths.shortest", "1", "--training.late_lengths.share", "0.5"], ["training.late_lengths", "(1, 40)"]),
        (["--training.device", "tpu"], ["training.device", "'tpu'", "cpu"]),
        (["--training.threads", "-1"], ["training.threads", "-1"]),
        (["--training.threads", "100000"], ["training.threads", "100000", "1024"]),
        (["--training.seed", "99999999999999999999999"], ["training.seed", "below 2^63"]),
        (["--training.seed", str(2**63)], ["training.seed", "below 2^63"]),
        (["--training.data_seed", str(2**63)], ["training.data_seed", "below 2^63"]),
        (["--training.batch_size", "100000000000000"], ["training.batch_size", "100000000000000", "memory"]),
        (["--model.spec", "(ma)*999999"], ["model.spec", "(ma)*999999", "10,000 blocks"]),
        (["--model.spec", "m*1" + "0" * 5000], ["model.spec", "10,000 blocks"]),
        (["--model.spec", "((m*100)*100)*2"], ["model.spec", "10,000 blocks"]),
        (["--model.spec", "(" * 3000 + "m" + ")" * 2999], ["model.spec", "must have a ')' for the '(' at position 1"]),
        (["--about.published", "[zz]"], ["about.published", "'zz'", "published.json"]),
        (["--about.published", "[r036, r0018]"], ["about.published[1]", "'r0018'", "published.json"]),
        (["--model.spec", "mza"], ["model.spec", "'mza'", "position 1"]),
        (["--model.spec", "ma sss"], ["model.spec", "'sss'", "position 4", "'mamba aussm s5*3'"]),
        (["--model.block_options.e.dropout", "0.1"], ["block_options", "'e'", "'s7' in the letters of earlier versions"]),
        (["--model.spec", ""], ["model.spec", "at least one block"]),
        (["--model.d_model", "0"], ["model.d_model", "0"]),
        (["--model.pooling", "mean"], ["model.pooling", "'mean'", "none"]),
        (["--model.block_options.a.speed", "3"], ["aussm", "'speed'"]),
        (["--model.block_options.a", "3"], ["model.block_options"]),
        (["--model.backend", "quantum"], ["model.backend", "'quantum'"]),
        (["--task.suite", "dirty"], ["task.suite", "'dirty'", "clean, aussm"]),
        (["--task.train_lengths", "[9, 3]"], ["task.train_lengths", "9, 3"]),
        (["--task.vocab_size", "7"], ["task.vocab_size", "7"]),
        (["--task", "chess"], ["task.name", "'chess'", "parity"]),
        (["--training.lr"], ["--training.lr", "expected one argument"]),
        (["--config"], ["--config", "expected one argument"]),
        (["--resume", "--overwrite"], ["--overwrite"]),
        (["--data-dir", "somewhere"], ["--data-dir", "'somewhere'", "parity", "data_dir"]),
        (["--data-dir"], ["--data-dir", "parity", "no setting data_dir"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_wrong_setting_fails(
    run_failing_command: Callable[..., str],
    tmp_path: Path,
    finished: Path,
    tiny_argv: list[str],
    options: list[str],
    names: list[str],
) -> None:
    out = finished if "--resume" in options else tmp_path / "run"
    line = run_failing_command("train", "--out", out, *replace_options(tiny_argv, *options))
    assert [name for name in names if name not in line] == [], line
    assert out == finished or not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_missing_device_fails(run_failing_command: Callable[..., str], tmp_path: Path, tiny_argv: list[str]) -> None:
    argv = replace_options(tiny_argv, "--training.device", "cuda")
    assert "training.device" in run_failing_command("train", "--out", tmp_path / "run", *argv)
    line = run_failing_command("doctor", "--device", "cuda")
    assert "`--device` must be one of the devices that torch finds here (cpu), got 'cuda'" in line


def test_recipe_outside_a_clone_says_where_recipes_are(
    run_failing_command: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = run_failing_command("train", "--config", "recipes/aussm/parity.yaml", "--out", "run")
    assert line.endswith("; the folder recipes is in the repository, not in an installed package: run the command in a clone")
    assert "clone" not in run_failing_command("train", "--config", "other/parity.yaml", "--out", "run")


@pytest.mark.parametrize("backend", ["triton", "cpu"])
def test_unavailable_backend_fails(
    run_failing_command: Callable[..., str], tmp_path: Path, tiny_argv: list[str], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for op in ("short_conv", "selective_scan", "unitary_scan"):
        monkeypatch.setitem(dispatch._unusable, op, "the compiled CPU kernels are not installed")
    out = tmp_path / "run"
    argv = replace_options(tiny_argv, "--model.backend", backend)
    line = run_failing_command("train", "--out", out, *argv)
    assert line.startswith("longscan: `model.backend` must be 'auto', 'eager' or another that can run ")
    assert not out.exists()
    assert main(["train", "--out", str(out), *tiny_argv]) == 0
    files = sorted(out.rglob("*"))
    assert "model.backend" in run_failing_command("train", "--out", out, *argv, "--overwrite")
    assert sorted(out.rglob("*")) == files, "the existing run is not changed"
    settings = out / "settings.yaml"
    settings.write_text(settings.read_text().replace("backend: eager", f"backend: {backend}"))
    assert main(["eval", str(out)]) == 0, "the run of another device can be scored on the CPU"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"task: {name: parity\ntraining: [", ["c.yaml", "line 2", "not YAML"]),
        (b"- 1\n- 2\n", ["c.yaml", "a list", "task, model, training, about"]),
        (b"", ["c.yaml", "nothing"]),
        (b"\xff\xfe\x00", ["c.yaml", "not YAML"]),
        (b"trainer: {lr: 1}", ["c.yaml", "'trainer'", "training"]),
        (b"training: 3", ["c.yaml", "training", "3"]),
        (b"training: {learning_rate: 1}", ["training.learning_rate", "unknown setting"]),
        (b"training: {curriculum: 3}", ["training.curriculum", "3", "start, end"]),
        (b"training: {curriculum: {begin: 3}}", ["training.curriculum.begin", "unknown setting", "start"]),
        (b"training: {lr: -1}", ["training.lr", "-1"]),
        (b"task: {name: chess}", ["task.name", "'chess'"]),
        (b"model: {d_model: wide}", ["model.d_model", "'wide'", "whole number"]),
    ],
)
def test_invalid_config_file_fails(
    run_failing_command: Callable[..., str], tmp_path: Path, content: bytes, names: list[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    options = [] if b"chess" in content else ["--task", "parity"]
    line = run_failing_command("train", "--out", tmp_path / "run", "--config", path, *options)
    assert [name for name in names if name not in line] == [], line


@pytest.mark.parametrize("setting", ["--model.d_model=9999999", "--task.eval_lengths=[41,99999999]"])
def test_settings_that_need_too_much_memory_fail(
    run_failing_command: Callable[..., str], tmp_path: Path, tiny_argv: list[str], setting: str
) -> None:
    assert "needs more memory than there is here" in run_failing_command(
        "train", *replace_options(tiny_argv, setting), "--out", str(tmp_path / "run")
    )


def test_missing_task_or_config_fails(run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    assert "must be given a file of your own, `--task` or `--config`, got none of them" in run_failing_command(
        "train", "--out", tmp_path / "run"
    )
    assert "absent.yaml" in run_failing_command("train", "--out", tmp_path / "run", "--config", tmp_path / "absent.yaml")


def test_missing_out_fails(run_failing_command: Callable[..., str], tiny_argv: list[str]) -> None:
    assert "`--out` must be" in run_failing_command("train", *tiny_argv)
    assert "`--out` must be" in run_failing_command("train", "--resume")
    assert "--out: expected one argument" in run_failing_command("train", *tiny_argv, "--out")


def test_missing_or_damaged_data_fail(run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    argv = ["train", "--out", tmp_path / "run", "--task", "uea", "--task.data_dir", tmp_path, "--task.dataset", "Mine"]
    line = run_failing_command(*argv)
    assert "Mine_TRAIN.ts" in line
    assert str(tmp_path) in line
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"Mine_{part}.ts").write_text("@problemName Mine\n@classLabel true a b\n@data\n1,2,x:a\n")
    line = run_failing_command(*argv)
    assert "Mine_TRAIN.ts" in line
    assert "4" in line  # the line of the file


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("train --task parity --out a --training.lr 0.1 --training.lr=0.2", "--training.lr 0.1 and --training.lr=0.2"),
        ("train --task parity --out a --training.steps 3 --steps 4", "--training.steps 3 and --steps 4"),
        ("train --task parity --task.name copy --out a", "--task parity and --task.name copy"),
        ("train --out a --task parity --out b", "--out a and --out b"),
        (
            "train --task parity --out a --model.block_options.s4d.p 1 --model.block_options.s4d.p 2",
            "--model.block_options.s4d.p 1",
        ),
        ("train pumps.csv --label worn --task.label broken", "--label worn and --task.label broken"),
        ("show parity --task copy", "--task parity and --task copy"),
        ("sweep --task parity --out a --seeds 2 --seeds 3", "--seeds 2 and --seeds 3"),
        ("predict runs/a new.csv --out a.csv --out b.csv", "--out a.csv and --out b.csv"),
        ("automata a* --length 3 --length 4", "--length 3 and --length 4"),
    ],
)
def test_option_that_is_given_twice_fails(
    run_failing_command: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line = run_failing_command(*argv.split())
    assert f"must be given once, got {message}" in line
    assert line.startswith("longscan: `--")
    assert not list(tmp_path.iterdir())


def test_option_that_is_given_twice_as_the_same_object_fails() -> None:
    with pytest.raises(SettingError, match="`--steps` must be given once, got --steps=3 and --steps=3"):
        check_given_once(["--steps=3"] * 2, (), {})


@pytest.mark.parametrize("command", ["train", "sweep", "show"])
def test_data_dir_is_the_setting_of_the_task(run_failing_command: Callable[..., str], tmp_path: Path, command: str) -> None:
    options = ["--task", "uea", "--task.dataset", "Mine", "--out", tmp_path / "out"]
    messages = {run_failing_command(command, *options, name, tmp_path / "data") for name in ("--data-dir", "--task.data_dir")}
    assert len(messages) == 1
    assert str(tmp_path / "data") in messages.pop()


def test_curriculum_of_a_task_without_lengths_fails(run_failing_command: Callable[..., str], tmp_path: Path) -> None:
    argv = ["train", "--out", tmp_path / "run", "--task", "uea"]
    assert "training.curriculum.start" in run_failing_command(*argv, "--training.curriculum.start", "4")
    assert "training.late_lengths.share" in run_failing_command(*argv, "--training.late_lengths.share", "0.5")


def test_directory_of_another_kind_fails(
    run_failing_command: Callable[..., str], tmp_path: Path, finished: Path, tiny_argv: list[str]
) -> None:
    assert "must be a directory without a run" in run_failing_command("train", "--out", finished, *tiny_argv)
    assert "is not the directory of a run" in run_failing_command("train", "--out", tmp_path, "--resume", *tiny_argv)
    assert "training.seed" in run_failing_command("train", "--out", finished, "--resume", *tiny_argv, "--training.seed", "7")
    (tmp_path / "file").write_text("")
    assert "got the file" in run_failing_command("train", "--out", tmp_path / "file", *tiny_argv)
    for command in ("eval", "record", "predict"):
        options = {"record": ["--results", "r.jsonl"], "predict": ["questions.txt"]}.get(command, [])
        assert "is not the directory of a run" in run_failing_command(command, tmp_path, *options)


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize("name", ["file/run", "file/a/run", "link", "/proc/run", "long"])
def test_out_that_cannot_be_written_fails(
    run_failing_command: Callable[..., str], tmp_path: Path, tiny_argv: list[str], command: str, name: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "absent" / "further")
    out = tmp_path / (name if name != "long" else "x" * 999)
    before = sorted(tmp_path.iterdir())
    line = run_failing_command(command, "--out", out, *tiny_argv)
    assert line.startswith(f"longscan: `--out` must be a directory that can be written, got {out} (")
    assert sorted(tmp_path.iterdir()) == before
    run_failing_command(command, "--out", out, *tiny_argv, "--resume")


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("elsewhere/r.jsonl", "must be a JSON Lines file in a folder called runs"),
        ("bench/r.jsonl", "must be a JSON Lines file in a folder called runs"),
        ("runs", "must be a JSON Lines file in a folder called runs"),
        ("file/runs/r.jsonl", "must be a file that can be written, got"),
        ("/proc/runs/r.jsonl", "must be a file that can be written, got"),
        ("runs/damaged.jsonl", "damaged.jsonl, line 1"),
    ],
)
def test_record_that_cannot_be_written_fails_before_the_run(
    run_failing_command: Callable[..., str], tmp_path: Path, tiny_argv: list[str], command: str, name: str, message: str
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "damaged.jsonl").write_text("{\n")
    (tmp_path / "file").write_text("")
    line = run_failing_command(command, "--out", tmp_path / "out", *tiny_argv, "--record", tmp_path / name)
    assert line.startswith(("longscan: `--record` must be ", "longscan: --record: "))
    assert message in line
    assert not (tmp_path / "out").exists()


def test_damaged_run_fails(run_failing_command: Callable[..., str], tmp_path: Path, finished: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    weights = run / "checkpoints" / "last" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert "model.safetensors is damaged" in run_failing_command("eval", run)
    assert "model.safetensors is damaged" in run_failing_command("train", "--out", run, "--resume", "--steps", "4")
    weights.unlink()
    assert "model.safetensors is missing" in run_failing_command("eval", run)
    weights.write_bytes(content)
    (run / "result.json").write_text("{")
    assert "result.json is damaged" in run_failing_command("record", run, "--results", tmp_path / "runs" / "r.jsonl")
    (run / "settings.yaml").write_text("task: [")
    assert "got text that is not YAML" in run_failing_command("eval", run)
    shutil.rmtree(run / "checkpoints")
    shutil.copy(finished / "settings.yaml", run)
    (run / "result.json").unlink()
    assert "no checkpoint" in run_failing_command("eval", run)
    assert "has not ended" in run_failing_command("record", run, "--results", tmp_path / "runs" / "r.jsonl")


def test_wrong_arguments_of_other_commands_fail(run_failing_command: Callable[..., str], tmp_path: Path, finished: Path) -> None:
    assert "the command must be one of" in run_failing_command("dance")
    assert "`--split` must be one of train, valid, test, got 'future'" in run_failing_command(
        "eval", finished, "--split", "future"
    )
    line = run_failing_command("eval", finished, "--checkpoint", "best_of_all")
    assert line.endswith("has no checkpoint 'best_of_all'; it has selected, last, best")
    assert "`--count` must be a whole number of at least 1" in run_failing_command("show", "parity", "--count", "0")
    assert "--fast" in run_failing_command("eval", finished, "--fast")
    assert "run" in run_failing_command("eval")
    assert "questions.txt" in run_failing_command("predict", finished, tmp_path / "questions.txt")
    (tmp_path / "questions.txt").write_text("1 0\n1 7\n")
    line = run_failing_command("predict", finished, tmp_path / "questions.txt")
    assert "questions.txt:2" in line
    assert "'7'" in line
    (tmp_path / "questions.txt").write_text("1 0\n")
    for out, reason in ((tmp_path / "questions.txt" / "x.csv", "Not a directory"), (tmp_path, "a file, not a folder")):
        line = run_failing_command("predict", finished, tmp_path / "questions.txt", "--out", out, "--checkpoint", "absent")
        assert "`--out` must be a file" in line, "found before the model is read"
        assert reason in line
        assert ".writing" not in line
    assert "runs" in run_failing_command("record", finished, "--results", tmp_path / "elsewhere" / "r.jsonl")
    assert "which does not exist" in run_failing_command("report", tmp_path / "absent")
    assert "which is a file" in run_failing_command("report", tmp_path / "questions.txt")
    assert f"it contains the runs {finished}" in run_failing_command("report", finished.parent)
    assert not (finished.parent / "report.html").exists()
    assert f"it contains the runs {finished}" in run_failing_command("eval", finished.parent)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.yaml").write_text("")
    assert run_failing_command("eval", tmp_path / "sweep").endswith("a sweep, whose runs are in its folders trials and seeds")
    assert run_failing_command("predict", finished).startswith("longscan: `file` must be given (new examples in the form")
    assert "--out" in run_failing_command("report", finished, "--out", tmp_path / "page.html")
    (tmp_path / "bench").mkdir()
    line = run_failing_command("report", tmp_path, "--out", "/proc/page.html")
    assert line == "longscan: /proc/page.html: No such file or directory"
    assert "`all` is an unknown argument; `--help` lists" in run_failing_command("layers", "all")


def test_scores_by_length_and_missing_values_of_series_fail(
    run_failing_command: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [
        "--task",
        "uea",
        "--model.spec",
        "m",
        "--model.d_model",
        "2",
        "--model.d_state",
        "1",
        "--training.eval_batches",
        "1",
    ]
    options += ["--training.test_batches", "1", "--training.batch_size", "2", "--steps", "1", "--model.backend", "eager"]
    assert main(["train", "--out", str(tmp_path / "run"), *options]) == 0
    assert "--by-length" in run_failing_command("eval", tmp_path / "run", "--by-length")
    examples = tmp_path / "new.ts"
    channels = [":".join(["1,2,3"] * 6), ":".join(["1,?,3", "1,2,NaN", *["1,2,3"] * 4]), ":".join(["?,2,3", *["1,2,3"] * 5])]
    examples.write_text("@problemName New\n@classLabel false\n@data\n" + "\n".join(channels) + "\n")
    counts = "3 missing values ('?', 'NaN' or nothing) in 2 of its 3 series"
    assert f"{examples} has {counts}" in run_failing_command("predict", tmp_path / "run", examples)
    argv = ("predict", tmp_path / "run", examples, "--missing")
    assert "`--missing` must be refuse, as in training" in run_failing_command(*argv, "mask")
    assert "longscan: `--missing` must be one of refuse, fill, mask, got 'skip'" in run_failing_command(*argv, "skip")
    assert "one of refuse, fill, mask" in run_failing_command(*argv, "drop")
    capsys.readouterr()
    monkeypatch.setattr(logging.root, "handlers", [])  # without handlers warnings go to standard error, as in a program
    assert main(["predict", str(tmp_path / "run"), str(examples), "--missing", "fill"]) == 0
    completed = capsys.readouterr()
    assert len(completed.out.splitlines()) == 4
    (line,) = completed.err.splitlines()
    assert line == f"{examples}: {counts} were filled by linear interpolation within their series"
    assert Run(tmp_path / "run").settings.model.spec == "m"


@pytest.mark.parametrize("options", [["--training.lr", "-1"], ["--backend", "quantum"], ["--model.spec", "mza"]])
def test_wrong_setting_of_the_benchmark_of_seeds_fails(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ROOT / "recipes" / "aussm" / "parity.yaml"
    with pytest.raises(SystemExit) as exit_info:
        seeds.main([str(recipe), "--out", str(tmp_path / "x.json"), *options])
    captured = capsys.readouterr()
    assert (exit_info.value.code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    setting = "model.backend" if options[0] == "--backend" else options[0].lstrip("-")
    assert line.startswith((f"seeds.py: `{setting}` must be ", f"seeds.py: {setting}: "))
    assert not (tmp_path / "x.json").exists()
