"""What notes in claims.json say of the papers' printed figures, checked on published.json. No outcome rests on these tests."""

import math

import numpy as np
import pytest
from counted import MAMBA_LRA_SIZES as TABLE_3
from counted import figures, printed

from longscan.report.published import _data, published_row
from published_settings import FORMAL, SERIES, WEATHER

# AUSSM


def aussm_table_1() -> dict[str, list[float]]:
    """Model -> the nine scaled accuracies."""
    return {model: figures(1 + 9 * i, 9) for i, model in enumerate(("xLSTM", "Mamba", "AUSSM", "hybrid"))}


def test_the_hybrid_and_xlstm_have_one_mean():
    table = aussm_table_1()
    means = {model: np.mean(row) for model, row in table.items()}
    assert means["hybrid"] == pytest.approx(means["xLSTM"], abs=1e-9)
    assert means["hybrid"] == pytest.approx(0.5689, abs=5e-5)
    difference = np.array(table["hybrid"]) - np.array(table["xLSTM"])
    assert [(difference > 0).sum(), (difference == 0).sum(), (difference < 0).sum()] == [4, 2, 3]
    assert np.sqrt(9) * difference.mean() / difference.std(ddof=1) < 1.86  # a one-sided t test at 5 % with 8 degrees of freedom


def test_the_hybrid_is_ahead_of_mamba_on_uea():
    margins = np.array(figures(65, 6)) - np.array(figures(58, 6))
    assert (margins > 0).all()
    assert margins.min() == pytest.approx(0.6)
    assert margins.argmin() == 0
    assert margins.min() < published_row("r065")["std"]


def test_the_means_of_uea():
    for first, rounded in ((37, 36.5), (44, 34.0), (51, 44.2), (58, 28.9), (65, 35.2)):
        mean, (average,) = np.mean(figures(first, 6)), figures(first + 6, 1)
        assert abs(mean - average) < 0.1
        assert average in (rounded, round(rounded - 0.1, 1))
        assert math.floor(10 * mean) / 10 == pytest.approx(average)  # cut after the first digit, all of them


GRID = {
    "layers": {"ma", "am", "mm", "aa"},
    "d": {8, 16, 32, 64},
    "n": {8, 16, 32},
    "decay": {0, 1e-3, 1e-2},
    "lr": {1e-4, 1e-3, 1e-2},
}


GRID_SERIES = {"d": {16, 64, 128}, "n": {16, 64, 128}, "decay": {0}, "lr": {1e-5, 1e-4, 1e-3}}  # no decay is printed


def test_some_chosen_settings_lie_outside_the_grids():
    outside = set()
    for table, grid in ((FORMAL, GRID), (SERIES | {"weather": WEATHER}, GRID_SERIES)):
        for task, row in table.items():
            settings = dict(zip(("layers", "d", "n", "decay", "lr"), row, strict=True))
            outside |= {(task, name) for name, choices in grid.items() if settings[name] not in choices}
    assert outside == {("majority_count", "decay"), ("majority", "decay"), ("ethanol_concentration", "decay")}


# S7


def test_the_gains_of_the_reparametrisation():
    values = figures(192, 18)
    gains = np.array(values[1::2]) - np.array(values[::2])
    assert len(gains) == 9
    assert gains.min() == pytest.approx(0.16)
    assert gains.max() == pytest.approx(3.2)


def test_the_differences_of_the_constants():
    table = np.array(figures(210, 9)).reshape(3, 3)  # (1/2, 1/2), (1, 1/2), (1, 1)
    assert (table.argmax(1) == 1).all()
    behind = (table.max(1, keepdims=True) - table)[:, [0, 2]]
    assert behind.min() == pytest.approx(0.3)
    assert behind.max() == pytest.approx(1.24)


def s7_table_2() -> dict[str, list[float]]:
    """Task or average -> Mega, S4, S5, Mamba, LRU, S7."""
    names = ("listops", "text", "retrieval", "image", "pathfinder", "pathx", "average")
    return {name: figures(98 + 6 * i, 6) for i, name in enumerate(names)}


def test_mamba_is_behind_on_average_and_ahead_on_three_tasks():
    table = s7_table_2()
    ahead = {task for task, (*_, mamba, _, s7) in table.items() if mamba > s7}
    assert ahead == {"image", "pathfinder", "pathx"}
    assert table["average"][5] == 71.82
    assert table["average"][3] == 66.59


def test_s7_is_the_best_of_the_table_on_two_tasks():
    table = s7_table_2()
    assert {task for task, row in table.items() if max(row) == row[5]} == {"listops", "retrieval"}
    assert (table["listops"][5], table["retrieval"][5]) == (63.77, 91.80)


def test_the_headline_is_the_best_run():
    mean, best = published_row("r190"), published_row("r191")
    assert best["value"] == 0.114
    assert (mean["value"], mean["std"]) == (0.120, 0.005)
    assert best["value"] < mean["value"] - mean["std"]


def test_another_dense_method_is_better():
    lsn, sgn, cnn_s5 = figures(93, 3)
    assert lsn == 80.7
    assert max(lsn, sgn, cnn_s5) == cnn_s5 == 81.2


def test_with_and_without_are_swapped_in_the_text():
    without, with_it = figures(196, 2)
    assert (without, with_it) == (87.8, 88.2)
    assert with_it == published_row("r097")["value"]


def test_the_averages_of_table_2():
    table = s7_table_2()
    means = np.mean([row for task, row in table.items() if task != "average"], axis=0)
    assert np.abs(means - table["average"]).max() <= 0.01 + 1e-9
    assert printed(134, 6) == [88.21, 86.09, 87.46, 66.59, 86.30, 71.82]


TABLE_11 = {
    "event/dvs_gesture", "event/shd", "event/ssc", "eigenworms", "har", "walker2d", "lra/image", "lra/listops", "lra/pathfinder",
    "lra/retrieval", "lra/text",
}  # fmt: skip


def test_three_tasks_have_no_row():
    tables = ("Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Table 6", "Figure 2 (table)")
    own = [row for row in _data()["results"] if row["paper"] == "S7" and row["model"] == "S7" and row["table"] in tables]
    tasks = {row["task_key"] for row in own} - {"lra/avg6", "pendulum/speed"}
    assert tasks - TABLE_11 == {"lra/pathx", "pendulum/mse", "fhn/l2"}
    assert len(TABLE_11 & tasks) == 11


# Thesis


def table_4() -> dict[str, list[float]]:
    """Model -> IMDB, Cifar10 numerical and categorical, Pathfinder numerical and categorical, and the average."""
    names = ("Simple-s4d", "Simple-s4", "Mamba-s6", "Mamba-s4d", "Mamba-s4")
    return {name: figures(266 + 6 * i, 6) for i, name in enumerate(names)}


def test_s4_and_s4d_differ_in_both_directions():
    table = {name: np.array(row[:5]) for name, row in table_4().items()}
    differences = np.concatenate([table["Simple-s4d"] - table["Simple-s4"], table["Mamba-s4d"] - table["Mamba-s4"]])
    assert np.abs(differences).max() == pytest.approx(10.2)
    assert differences.min() < -2
    assert differences.max() > 5


def test_numerical_pictures_beat_categorical_ones_in_the_table():
    gains = np.array([row[1] - row[2] for row in table_4().values()])
    assert (gains.min(), gains.max()) == pytest.approx((8.2, 14.6))


def test_categorical_pathfinder_beats_numerical_in_the_table():
    gains = np.array([row[4] - row[3] for row in table_4().values()])
    assert (gains.min(), gains.max()) == pytest.approx((1.1, 19.5))


def test_the_simple_block_wins_some_tasks():
    table = {name: np.array(row[:5]) for name, row in table_4().items()}
    gains = {layer: table[f"Mamba-{layer}"] - table[f"Simple-{layer}"] for layer in ("s4d", "s4")}
    assert [gains[layer][0] for layer in ("s4d", "s4")] == pytest.approx([13.3, 10.7])
    assert all(gain[4] < 0 for gain in gains.values())
    assert gains["s4"][1] == pytest.approx(83.8 - 87.0)
    for gain in gains.values():
        assert gain[0] > 2.5 * max(gain[1:])


def test_s6_trails_on_pictures_in_the_table():
    table = table_4()
    for other in ("Mamba-s4d", "Mamba-s4"):
        assert all(table["Mamba-s6"][task] < table[other][task] for task in (1, 2, 3, 4))
    assert abs(table["Mamba-s6"][0] - table["Mamba-s4d"][0]) < 1
    assert abs(table["Mamba-s6"][0] - table["Mamba-s4"][0]) < 1


def test_totals_that_are_not_sums():
    columns = ("s4d", "Normed", "Theta:10000", "Trainable", "B", "C", "Delta", "X", "NoPosEmb", "Total")
    first, second, total = np.array(printed(296, 30)).reshape(3, 10)
    sums = dict(zip(columns, zip(first + second, total, strict=True), strict=True))
    wrong = {name: (int(found), int(given)) for name, (found, given) in sums.items() if found != given}
    assert wrong == {"Normed": (31, 26), "Theta:10000": (28, 35), "Trainable": (26, 24), "C": (21, 24)}
    with pytest.raises(AssertionError, match="withdrawn"):
        figures(326, 9)


def test_which_columns_the_averages_take():
    own = table_4()
    values, averages = np.array([row[:5] for row in own.values()]), np.array([row[5] for row in own.values()])
    fits = {
        (picture, path)
        for picture in (1, 2)
        for path in (3, 4)
        if np.abs(values[:, [0, picture, path]].mean(1) - averages).max() <= 0.051
    }
    assert fits == {(1, 4)}  # numerical Cifar10, categorical Pathfinder
    others = np.array([figures(first, 4) for first in (246, 250, 254, 258, 262)])
    assert np.abs(others[:, :3].mean(1) - others[:, 3]).max() <= 0.051


# Long range tasks with Mamba


def rows_of_table_1() -> dict[str, tuple[list[float], float]]:
    """Model -> its five accuracies (ListOps, Text, Retrieval, Image, Path-32) and the printed average."""
    starts = {"Mamba": 394, "MHFA": 401, "Transformer": 407, "Performer": 413, "RoPE [26]": 419}
    with_path_x = {"RoPE [2]": 425, "S4": 432, "S4D": 439, "S5": 446}
    rows = {name: (figures(first, 5), figures(first + 5, 1)[0]) for name, first in starts.items() if name != "Mamba"}
    rows["Mamba"] = (figures(394, 5), figures(400, 1)[0])  # Path-64 stands between
    return rows | {name: (figures(first, 5), figures(first + 6, 1)[0]) for name, first in with_path_x.items()}


def test_the_printed_averages():
    rows = rows_of_table_1()
    for name in ("Mamba", "MHFA"):
        values, average = rows[name]
        assert round(float(np.mean(values)), 2) == average
    assert all(np.array(rows["Mamba"][0]) > rows["MHFA"][0])
    assert rows["Mamba"][1] - rows["MHFA"][1] == pytest.approx(8.09)


def test_mamba_is_smaller_but_for_image():
    assert {task for task, (ours, theirs) in TABLE_3.items() if ours > theirs} == {"Image"}


def test_models_beyond_600_thousand():
    limit = published_row("r458")["value"]
    assert limit == 600
    large = {(task, model) for task, pair in TABLE_3.items() for model, size in zip("ma", pair, strict=True) if size > limit}
    assert {task for task, model in large if model == "m"} == {"ListOps", "Text", "Retrieval"}
    assert {task for task, model in large if model == "a"} == {"ListOps", "Text", "Retrieval", "Path-32"}


def test_one_transformer_is_ahead():
    average = {name: value for name, (_, value) in rows_of_table_1().items()}
    transformers = ("MHFA", "Transformer", "Performer", "RoPE [26]", "RoPE [2]")
    assert average["Mamba"] < min(average[name] for name in ("S4", "S4D", "S5"))
    assert [name for name in transformers if average[name] > average["Mamba"]] == ["RoPE [2]"]
    assert average["RoPE [2]"] == 72.19


def test_an_average_that_is_not_one():
    rows = rows_of_table_1()
    off = {name for name, (values, average) in rows.items() if abs(np.mean(values) - average) > 0.011}
    assert off == {"RoPE [26]"}
    values, average = rows["RoPE [26]"]
    assert average == 64.59
    assert np.mean(values) == pytest.approx(64.206)
