"""Figures of examples, facts of tasks, and baselines of runs."""

import json
from pathlib import Path

import pytest
from PIL import Image

from longscan.cli import main
from longscan.tasks import TASKS
from longscan.tasks.listing import task_facts
from longscan.tasks.pictures import draw_examples
from made_up import MADE_UP

DRAWN_TASKS = ("parity", "listops", "pathfinder", "forecast", "pendulum", "walker", "events", "species", "lra_image")


@pytest.mark.parametrize("name", DRAWN_TASKS)
def test_draw_examples_writes_an_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    task = TASKS[name](**(MADE_UP[name](tmp_path / "data") if name in MADE_UP else {}))
    path = draw_examples(task, tmp_path / "pictures" / "x.png", split="valid", count=2)
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 100
        assert len(image.convert("L").getcolors(256) or ()) > 10, "the image is not empty"
    with pytest.raises(ValueError, match=r"^`count` must be a whole number of at least 1, got 0$"):
        draw_examples(task, tmp_path / "x.png", count=0)


def test_every_task_has_a_plot_kind() -> None:
    for name, cls in TASKS.items():
        if name not in MADE_UP:
            assert cls().plot_kind in ("text", "series")


def test_task_facts_of_generated_missing_and_present_data(tmp_path: Path) -> None:
    generated = task_facts(TASKS["parity"]())
    assert (generated.sizes, generated.classes, generated.length, generated.available) == (
        (None, 1000, 10_000),
        2,
        255,
        "generated",
    )
    missing = task_facts(TASKS["lra_text"]())
    assert missing.available == "no"
    assert missing.sizes is None
    assert "LONGSCAN_DATA" in (missing.missing or "")
    present = task_facts(TASKS["walker"](**MADE_UP["walker"](tmp_path)))
    assert present.available == "yes"
    assert present.constant is not None


def test_show_writes_an_image_or_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "parity", "--out", str(tmp_path / "p.png"), "--count", "2"]) == 0
    assert (tmp_path / "p.png").exists()
    for argv, message in (
        (["show", "parity", "--count", "0"], "count"),
        (["show", "parities"], "task.name"),
        (["show", "parity", "--model.d_model=4"], "--model.d_model"),
        (["show", "parity", "--training.steps", "4"], "--training.steps"),
        (["show", "parity", "--split", "dev"], "split"),
        (["show", "lra_text"], "data_dir"),
    ):
        assert main(argv) == 2
        assert message in capsys.readouterr().err


def test_baselines_are_part_of_the_record(tmp_path: Path, tiny_argv: list[str]) -> None:
    run = str(tmp_path / "run")
    assert main(["train", *tiny_argv, "--out", run]) == 0
    assert main(["baselines", run]) == 0
    scores = json.loads((tmp_path / "run" / "baselines.json").read_text())
    assert set(scores) == {"constant"}
    target = tmp_path / "results" / "runs" / "x.jsonl"
    assert main(["record", run, "--results", str(target)]) == 0
    assert json.loads(target.read_text())["baselines"] == scores
    (tmp_path / "run" / "baselines.json").write_text("{")
    assert main(["record", run, "--results", str(target)]) == 2


@pytest.mark.slow
def test_baselines_of_series_beat_the_constant() -> None:
    pytest.importorskip("aeon")
    task = TASKS["uea"]()
    scores = task.baselines("test") | task.fitted_baselines("test")
    assert scores["constant"] == 0.25
    assert scores["minirocket"] > 0.9
    assert scores["dtw_1nn"] > 0.8
