"""The results and the output of the commands; the command line and Python give the same run."""

import csv
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

import longscan
from command_lines import replace_options
from longscan.cli import COMMANDS, _console, main
from longscan.cli._console import ERROR_DELAY
from longscan.layers import LAYERS
from longscan.models import STANDARD_BLOCKS
from longscan.tasks import TASKS
from longscan.training import ModelSettings, Run, Settings, TrainingSettings, parse_settings, train
from longscan.training.checkpoint import read_tensors


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory, tiny_argv: list[str]) -> Path:
    """Return the folder of a run that the tests of this file share."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "--out", str(folder), *tiny_argv]) == 0
    return folder


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """Return the folder of a copy of the trained run, which a test may change."""
    return shutil.copytree(trained_run, tmp_path / "run")


def test_program_prints_one_error_and_exits_with_its_code(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from longscan.cli import main; sys.exit(main())",
        "train",
        "--out",
        str(tmp_path / "r"),
    ]
    completed = subprocess.run([*command, "--task", "parity", "--training.lr", "-1"], capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert completed.stdout == ""
    assert completed.stderr == "longscan: `training.lr` must be a number above 0, got -1\n"


@pytest.mark.parametrize(("rank", "waits"), [(None, []), ("0", []), ("1", [ERROR_DELAY])])
def test_only_the_first_process_of_a_machine_prints_an_error_immediately(
    rank: str | None, waits: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert main(["train"]) == 2
    assert waited == waits
    assert capsys.readouterr().err.count("longscan: ") == 1


@pytest.mark.slow
def test_processes_of_torchrun_print_an_error_once(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text("import sys; from longscan.cli import main; sys.exit(main())")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), "train"]
    arguments = ["--task", "parity", "--out", str(tmp_path / "r"), "--training.lr", "-1"]
    completed = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert completed.returncode != 0
    assert completed.stderr.count("longscan: `training.lr` must be a number above 0, got -1\n") == 1


def test_train_prints_the_score_the_constant_and_the_report(
    run_command: Callable[..., str], tmp_path: Path, tiny_argv: list[str]
) -> None:
    lines = run_command("train", "--out", tmp_path / "run", *tiny_argv).splitlines()
    result = Run(tmp_path / "run").result
    assert result is not None
    assert lines == [
        f"test accuracy: {result['value']:.4f} (scaled {result['scaled']:.4f}, weights: last)",
        f"best constant predictor: {result['constant']:.4f} (scaled {result['constant_scaled']:.4f})",
        f"report: {tmp_path / 'run' / 'report.html'}",
    ]
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    argv = ["longscan", "train", "--out", str(tmp_path / "run"), *tiny_argv]
    assert shlex.split(result["command"]) == argv, "the recorded command can be repeated"


def test_python_gives_the_run_of_the_command_line(run: Path, tmp_path: Path) -> None:
    settings = Settings(
        task=TASKS["parity"](train_lengths=(3, 8), eval_lengths=(9, 12), valid_size=8, test_size=8),
        model=ModelSettings(d_model=4, d_state=2, backend="eager"),
        training=TrainingSettings(batch_size=4, threads=1, device="cpu", steps=2),
    )
    assert Run(run).settings == settings
    other = train(settings, tmp_path / "python")
    left, right = (read_tensors(folder / "checkpoints" / "last" / "model.safetensors") for folder in (run, other.folder))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert other.result is not None
    assert other.result["value"] == json.loads((run / "result.json").read_text())["value"]


def test_later_settings_replace_earlier_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(
        "task: {name: parity, suite: aussm}\nmodel: {d_model: 8, block_options: {a: {angle_spread: 3}}}\ntraining: {lr: 1e-2}\n"
    )
    second.write_text("model: {d_model: 16}\ntraining: {curriculum: {start: 8}}\n")
    options = ["--model.block_options.a.phase_dt", "true", "--model.block_options.m.d_conv=2"]
    argv = ["--config", str(first), "--config", str(second), "--training.curriculum.end", "20", "--training.lr=0.5", *options]
    settings = parse_settings(argv)
    assert settings.task.suite == "aussm"
    assert settings.model.d_model == 16
    assert settings.model.block_options == {"a": {"angle_spread": 3, "phase_dt": True}, "m": {"d_conv": 2}}
    assert (settings.training.lr, settings.training.curriculum.start, settings.training.curriculum.end) == (0.5, 8, 20)
    assert settings.about.recipe == str(second)
    assert parse_settings(["--config", str(first)]).training.lr == 0.01


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["", "sys.argv[1:]"])
def test_recorded_command_is_that_of_the_own_program(tmp_path: Path, tiny_argv: list[str], arguments: str) -> None:
    """A program that registers a layer and calls `main` is needed to repeat the run."""
    program = tmp_path / "own.py"
    lines = ["import sys", "from longscan.cli import main", "if __name__ == '__main__':", f"    sys.exit(main({arguments}))"]
    program.write_text("\n".join(lines) + "\n")
    argv = [*replace_options(tiny_argv, "--steps", "1"), "--out", str(tmp_path / "run")]
    subprocess.run([sys.executable, str(program), "train", *argv], check=True, capture_output=True)
    result = Run(tmp_path / "run").result
    assert result is not None
    assert shlex.split(result["command"]) == ["python", str(program), "train", *argv]


def test_spec_can_be_a_list_of_blocks(tmp_path: Path, tiny_argv: list[str]) -> None:
    """Recipes and the command line accept the list of `SequenceModel.from_spec`; the result names the blocks."""
    path, out = tmp_path / "recipe.yaml", tmp_path / "run"
    blocks = [{"layer": "s6", "block": "mamba", "options": {"d_conv": 2}}, {"layer": "gru"}, {"layer": "gru"}]
    path.write_text(yaml.safe_dump({"task": {"name": "parity"}, "model": {"spec": blocks}}))
    assert parse_settings(["--config", str(path)]).model.spec == blocks
    assert parse_settings(["--task", "parity", "--model.spec", json.dumps(blocks)]).model.spec == blocks
    assert main(["train", "--config", str(path), *tiny_argv, "--out", str(out)]) == 0
    run = Run(out)
    assert run.settings.model.spec == blocks
    assert run.result is not None
    assert run.result["spec"] == "mamba gru*2"
    assert run.model().config["blocks"][0]["options"]["d_conv"] == 2
    path.write_text(yaml.safe_dump({"task": {"name": "parity"}, "model": {"spec": [{"layer": "grue"}]}}))
    assert main(["train", "--config", str(path), *tiny_argv, "--out", str(tmp_path / "other")]) == 2


def test_settings_written_to_yaml_are_read_unchanged(tmp_path: Path) -> None:
    argv = ["--task", "parity", "--task.train_lengths", "[4, 9]", "--training.betas", "[0.8, 0.99]", "--training.lr", "1e-05"]
    settings = parse_settings(argv)
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(settings.as_dict()))
    read_settings = parse_settings(["--config", str(path), "--task.name", "parity"])
    assert read_settings.as_dict() | {"about": None} == settings.as_dict() | {"about": None}
    assert read_settings.task == settings.task


def test_resume_uses_the_settings_of_the_run(run: Path) -> None:
    assert main(["train", "--out", str(run), "--resume", "--steps", "4", "--checkpoint-every", "1"]) == 0
    result = Run(run).result
    assert result is not None
    assert result["steps"] == 4
    assert Run(run).settings.training.checkpoint_every == 1


def test_overwrite_replaces_the_run(run: Path, tiny_argv: list[str]) -> None:
    assert main(["train", f"--out={run}", "--overwrite", *replace_options(tiny_argv, "--steps", "1")]) == 0
    result = Run(run).result
    assert result is not None
    assert result["steps"] == 1


def test_failed_run_exits_with_1(tmp_path: Path, tiny_argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--training.lr", "1e30", "--training.clip", "0", "--steps", "9"]
    assert main(["train", "--out", str(tmp_path / "run"), *replace_options(tiny_argv, *options)]) == 1
    assert "failed: the loss or the norm of its gradient was not finite" in capsys.readouterr().err


def test_train_and_record_append_to_the_records(run_command: Callable[..., str], tmp_path: Path, tiny_argv: list[str]) -> None:
    target = tmp_path / "runs" / "parity.jsonl"
    assert "recorded in" in run_command("train", "--out", tmp_path / "run", *tiny_argv, "--record", target)
    assert "recorded in" in run_command("record", tmp_path / "run", "--results", target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["task"] for row in rows] == ["parity", "parity"]


def test_eval_prints_the_scores(run_command: Callable[..., str], run: Path) -> None:
    result = Run(run).result
    assert result is not None
    text = run_command("eval", run)
    assert f"{result['value']:.4f}" in text
    assert f"{result['constant']:.4f}" in text
    assert "accuracy/9-12" not in text
    assert "accuracy/" in run_command("eval", run, "--by-length")
    assert f"test split, weights: {result['selected']}" in text
    assert "valid split, weights: best" in run_command("eval", run, "--split", "valid", "--checkpoint", "best")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_brackets_and_colons_of_names_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run: Path, *, is_terminal: bool
) -> None:
    """They are no markup of rich and no names of emoji."""
    _console.stdout.cache_clear()
    if is_terminal:
        for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200"}.items():
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(run.parent)
    try:
        run.rename(run.parent / "a [v1] :star:")
        assert main(["eval", "a [v1] :star:"]) == 0
        out = capsys.readouterr().out
    finally:
        _console.stdout.cache_clear()
    assert "a [v1] :star:, test split" in out
    assert ("┃" in out) == is_terminal


def test_predict_writes_a_table(run_command: Callable[..., str], run: Path, tmp_path: Path) -> None:
    examples = tmp_path / "questions.txt"
    examples.write_text("1 0 1\n\n0 0\n")
    rows = list(csv.DictReader(io.StringIO(run_command("predict", run, examples))))
    assert [row["question"] for row in rows] == ["1 0 1", "0 0"]
    assert all(row["answer"] in "01" and 0.5 <= float(row["probability"]) <= 1 for row in rows)
    (tmp_path / "table.csv").write_text("former")
    with (tmp_path / "table.csv").open() as former:
        assert run_command("predict", run, examples, "--out", tmp_path / "table.csv") == f"answers: {tmp_path / 'table.csv'}\n"
        assert former.read() == "former", "a new file takes its place, so that no reader sees an incomplete table"
    (tmp_path / "link").symlink_to(tmp_path / "behind.csv")  # which does not exist yet
    for out in ("new folder/[1].csv", "link"):
        run_command("predict", run, examples, "--out", tmp_path / out)
    reader, writer = os.pipe()
    assert main(["predict", str(run), str(examples), "--out", f"/dev/fd/{writer}"]) == 0  # such as /dev/stdout
    os.close(writer)
    with open(reader) as file:
        assert list(csv.DictReader(file)) == rows
    for table in ("table.csv", "new folder/[1].csv", "behind.csv"):
        with (tmp_path / table).open() as file:
            assert list(csv.DictReader(file)) == rows


def listed_names(text: str) -> list[str]:
    """Return the names of a list in groups."""
    return re.findall(r"^  (\w+) ", text, re.MULTILINE)


def test_tasks_and_layers_commands_list_every_name_in_groups(run_command: Callable[..., str]) -> None:
    tasks, settings, layers = run_command("tasks"), run_command("tasks", "--settings"), run_command("layers")
    assert sorted(listed_names(tasks)) == sorted(TASKS), "one entry for each task, with its full name"
    assert sorted(listed_names(settings)) == sorted(TASKS)
    assert sorted(listed_names(layers)) == sorted({*STANDARD_BLOCKS, *LAYERS})
    for text in (tasks, settings, layers):
        assert "\n   " not in text, "each entry is one line, as standard output is no terminal"
    assert tasks.startswith("Your own series\n  series_classes ")
    for options, whole in (([], tasks), (["--settings"], settings)):
        one = run_command("tasks", "parity", *options)
        assert listed_names(one) == ["parity"]
        assert re.findall(r"^  parity +(.*)$", one, re.MULTILINE) == re.findall(r"^  parity +(.*)$", whole, re.MULTILINE)
    assert layers.split()[6] == "mamba"
    assert "Others" not in tasks + layers, "every task and layer of the package is in a group"
    words = " ".join(tasks.split())
    assert "endless / 1,000 / 10,000; 2 classes; length 255; constant accuracy about 0.51" in words
    assert "train_lengths (None)" in " ".join(settings.split())
    entries = dict(zip(listed_names(layers), re.split(r"^  \w+ ", layers, flags=re.MULTILINE)[1:], strict=True))
    assert "causal, streaming" in entries["mamba"]
    assert "causal" not in entries["bidirectional"]
    assert "irregular" in entries["bidirectional"]


@pytest.mark.parametrize("argv", [["tasks"], ["tasks", "--settings"], ["layers"]])
def test_lists_fit_a_narrow_terminal(run_command: Callable[..., str], monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    console = Console(width=80, force_terminal=True, soft_wrap=True, no_color=True)
    monkeypatch.setattr("longscan.cli._console.stdout", lambda: console)
    text = run_command(*argv).partition("Sizes are")[0].partition("block[layer]")[0]
    assert sorted(listed_names(text)) == sorted({*STANDARD_BLOCKS, *LAYERS} if argv == ["layers"] else TASKS)
    assert max(map(len, text.splitlines())) <= 80


def test_closed_output_pipe_ends_the_command_without_error_message(run: Path, tmp_path: Path) -> None:
    examples = tmp_path / "questions.txt"
    examples.write_text(f"{'1 0 ' * 40}\n" * 500)  # its table is larger than the buffer of a pipe, 64 KiB
    program = "import sys; from longscan.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "predict", str(run), str(examples)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "question,answer,probability\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_full_disk_under_standard_output_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["tasks"], ["reproduce", "list"]):
        with open("/dev/full", "w") as full:
            monkeypatch.setattr(sys, "stdout", full)
            assert main(argv) == 2
            assert capsys.readouterr().err == "longscan: No space left on device\n"


def test_characters_that_the_encoding_of_standard_output_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["reproduce", "list"]) == 0
    out.flush()
    assert b"min: GPU minutes of all seeds and settings, expected; \\u2013: no rate" in out.buffer.getvalue()


def test_list_whose_reader_has_ended_ends_without_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["reproduce", "list"]) == 1
        assert capsys.readouterr().err == ""


def test_command_without_standard_output_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `longscan tasks >&-`, where Python has no sys.stdout."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["layers"]) == 0
    sys.stdout.close()  # the one that `main` opened


@pytest.mark.parametrize(("command", "marker"), [("train", "settings.yaml"), ("sweep", "sweep.yaml")])
def test_interrupted_command_says_how_to_continue(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_argv: list[str],
    command: str,
    marker: str,
) -> None:
    def raise_interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("longscan.training.trainer.train", raise_interrupt)
    monkeypatch.setattr("longscan.training.run_sweep", raise_interrupt)
    assert main([command, "--out", "a run", *tiny_argv]) == 130
    assert capsys.readouterr().err == "longscan: stopped\n", "nothing has begun that could continue"
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / marker).write_text("")
    assert main([command, "--out", "a run", *tiny_argv]) == 130
    advice = f"`longscan {command} --out 'a run' --resume` continues from the last checkpoint"
    assert capsys.readouterr().err == f"longscan: stopped; {advice}\n"


def test_report_writes_the_page_of_a_run_and_of_results(run_command: Callable[..., str], run: Path, tmp_path: Path) -> None:
    (run / "report.html").unlink()
    assert run_command("report", run) == f"report: {run / 'report.html'}\n"
    assert (run / "report.html").exists()
    run_command("record", run, "--results", tmp_path / "results" / "runs" / "parity.jsonl")
    page = tmp_path / "page.html"
    run_command("report", tmp_path / "results", "--out", page)
    assert "parity" in page.read_text()
    run_command("report", tmp_path / "results")
    assert (tmp_path / "results" / "report.html").exists()


def test_package_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["longscan", "layers"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("longscan", run_name="__main__")
    assert ended.value.code == 0
    assert "aussm" in capsys.readouterr().out


def test_help_names_every_command_and_setting(run_command: Callable[..., str]) -> None:
    text = run_command("--help")
    assert all(name in text for name in COMMANDS)
    assert run_command("--version") == f"longscan {longscan.__version__}\n"
    settings = run_command("train", "--task", "parity", "--help")
    assert "--task.train_lengths" in settings
    assert "--training.curriculum.start" in settings
    assert "learning rate of AdamW after warm-up" in settings
    assert "--task.train_lengths" not in run_command("train", "--help")
    for name in set(COMMANDS) - {"train"}:
        assert f"longscan {name}" in run_command(name, "--help")


@pytest.mark.parametrize("columns", ["80", "100", "300"])
def test_help_fits_the_terminal_and_100_columns(run_command: Callable[..., str], monkeypatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    argvs = [[name] for name in COMMANDS if name != "train"] + [["train", "--task", "parity"], ["train", "--task", "forecast"]]
    pages = [run_command("--help"), *(run_command(*argv, "--help") for argv in argvs)]
    assert [line for line in pages[0].splitlines() if len(line) > 100] == []
    lines = [line for page in pages[1:] for line in page.splitlines() if not line.startswith("usage: ")]
    assert [line for line in lines if len(line) > min(100, int(columns))] == []


def test_no_arguments_show_the_help_and_fail() -> None:
    assert main([]) == 2
