"""Pendulum, neuron, walker and activity: physics, published splits, gaps, damaged files, and real files if present."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from longscan.tasks._random import CounterRNG
from longscan.tasks.dynamics import FitzHughNagumo, HumanActivity, Pendulum, Walker, activity
from longscan.tasks.dynamics.fitzhugh_nagumo import solve_rk4, solve_with_scipy
from longscan.tasks.dynamics.pendulum import render_images, simulate_angles, visible_fraction
from longscan.tasks.pictures import draw_examples
from made_up import MADE_UP


class ZeroNoiseRNG(CounterRNG):
    """A generator whose normal numbers are zero."""

    def normal(self, shape):
        return np.zeros(shape)


def test_pendulum_without_noise_loses_energy():
    angles = simulate_angles(ZeroNoiseRNG(("still",), 0), 200)
    assert angles.shape == (200, 100)
    speeds = np.diff(np.unwrap(angles, axis=1), axis=1) / 0.01
    energy = 0.5 * speeds**2 + 29.43 * np.cos(angles[:, 1:] + np.pi)
    assert (np.diff(energy[:, [0, 30, 60, 98]], axis=1) < 0.5).all(), "friction reduces the energy"
    assert np.abs(simulate_angles(CounterRNG(("noise",), 0), 5)).max() <= np.pi


def test_pendulum_has_the_constants_of_the_published_generator():
    """x'' = -29.43 sin x - 0.1 x' with gravity 9.81 over an inertia of 1/3, friction 0.1 and frames of 0.01 s."""
    x = np.unwrap(simulate_angles(ZeroNoiseRNG(("still",), 0), 50), axis=1)
    acceleration = np.diff(x, 2, axis=1) / 0.01**2
    velocity = (x[:, 2:] - x[:, :-2]) / 0.02
    regressors = np.stack([np.sin(x[:, 1:-1]).ravel(), velocity.ravel()], axis=1)
    gravity, friction = np.linalg.lstsq(regressors, acceleration.ravel(), rcond=None)[0]
    assert gravity == pytest.approx(-29.43, rel=5e-3)
    assert friction == pytest.approx(-0.1, rel=0.1)


def test_images_show_the_angle():
    images = render_images(np.array([0.0, np.pi / 2])).reshape(2, 24, 24)
    up, right = images
    assert up[16:21, 11:13].min() > 180
    assert up[:10].max() == up[:, :9].max() == 0
    assert np.allclose(up.T, right), "rotated by 90 degrees"
    assert render_images(np.array([[1.0]])).shape == (1, 1, 576)


def test_frames_of_pendulum_are_irregular_and_noisy():
    task = Pendulum(train_size=40, valid_size=10, test_size=10)
    batch = task.batch("train", 0, 40)
    assert batch.inputs.shape == (40, 50, 576)
    assert 0 <= batch.inputs.min() < batch.inputs.max() <= 1
    assert (batch.elapsed[:, 0] == 1).all()
    assert (batch.elapsed >= 1).all()
    assert (batch.elapsed.sum(1) <= 100).all()
    assert len(batch.elapsed.sum(1).unique()) > 1
    assert torch.allclose((batch.targets**2).sum(-1), torch.ones(40, 50), atol=1e-5)
    visible = visible_fraction(CounterRNG(("share",), 0), 300)
    assert (visible[:, :5] == 1).all()
    assert 0.2 < visible.mean() < 0.8
    all_frames = Pendulum(train_size=4, valid_size=4, test_size=4, frames=100).batch("train", 0, 4)
    assert (all_frames.elapsed == 1).all()


def test_elapsed_time_can_be_a_channel(tmp_path):
    sizes = {"train_size": 4, "valid_size": 4, "test_size": 4}
    plain, task = Pendulum(**sizes), Pendulum(**sizes, elapsed="channel")
    expected, batch = plain.batch("test", 0, 4), task.batch("test", 0, 4)
    assert task.d_input == plain.d_input + 1 == batch.inputs.shape[2]
    assert batch.elapsed is None
    assert torch.equal(batch.inputs[..., :-1], expected.inputs)
    assert torch.equal(batch.inputs[..., -1], expected.elapsed)
    assert torch.equal(batch.targets, expected.targets)
    assert draw_examples(task, tmp_path / "pendulum.png").exists()
    assert (FitzHughNagumo(**sizes, elapsed="channel").batch("train", 0, 2).inputs[..., -1] == 1).all(), "equal steps"
    np.save(tmp_path / "one.npy", np.zeros((5, plain.d_input)))
    from_file = task.read_inputs(tmp_path / "one.npy")
    assert from_file.inputs.shape[2] == task.d_input
    assert (from_file.inputs[..., -1] == 1).all()


def test_neuron_spikes_like_the_published_solution():
    starts = np.array([-0.9, 0.0, 0.7])
    voltages = solve_rk4(starts)
    assert voltages.shape == (3, 1001)
    assert np.array_equal(voltages[:, 0], starts)
    published = solve_with_scipy(starts)
    assert np.abs(voltages - published)[:, :20].max() < 0.01
    assert np.sqrt(np.mean((voltages - published) ** 2)) < 0.5, "the same spikes, shifted by the solver's errors"
    crossings = np.abs(np.sign(voltages[:, 1:]) - np.sign(voltages[:, :-1])).sum(1) / 2
    assert (crossings > 5).all(), "the neuron spikes"
    task = FitzHughNagumo(train_size=8, valid_size=4, test_size=4)
    batch = task.batch("train", 0, 8)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert task.metric == "rmse"
    assert 0 < task.baselines()["persistence"] < 0.2
    assert task.constant_score() > 1, "the voltage varies more than it changes in a step"


@pytest.fixture
def folder(request, tmp_path):
    MADE_UP[request.param](tmp_path)
    return tmp_path


@pytest.mark.parametrize("folder", ["walker"], indirect=True)
def test_walker_predicts_the_next_step_and_has_the_published_splits(folder):
    task = Walker(data_dir=str(folder))
    batch = task.batch("train", 0, 500)
    assert batch.inputs.shape[1:] == (64, 3)
    assert 0.08 < (batch.elapsed > 1).float().mean() < 0.12
    rollouts = {path.name: np.load(path).astype(np.float32) for path in folder.glob("*.npy")}
    successors = {states[step].tobytes(): states[step + 1] for states in rollouts.values() for step in range(len(states) - 1)}
    for row in (0, 3):
        for now, after in zip(batch.inputs[row].numpy(), batch.targets[row].numpy(), strict=True):
            assert np.array_equal(successors[now.tobytes()], after), "the target is the next step"
    undropped = Walker(data_dir=str(folder), dropped=0.0)
    assert (undropped.batch("train", 0, 9).elapsed == 1).all()
    assert [undropped.size(split) for split in undropped.splits] == [15 * 6, 2 * 6, 3 * 6]
    names = sorted(rollouts)
    np.random.RandomState(125487).shuffle(names)
    test_split_states = {states.tobytes() for name in names[:3] for states in rollouts[name]}
    assert all(step.tobytes() in test_split_states for step in undropped.batch("test", 0, 99).inputs.numpy().reshape(-1, 3))


@pytest.mark.parametrize("folder", ["walker"], indirect=True)
def test_walker_needs_ten_rollouts(folder):
    paths = sorted(folder.glob("*.npy"))
    for path in paths[10:]:
        path.unlink()
    assert Walker(data_dir=str(folder)).size("test") > 0
    paths[9].unlink()
    with pytest.raises(FileNotFoundError, match=r"at least 10 of .* with 9$"):
        Walker(data_dir=str(folder), dropped=0.2).size("test")


@pytest.mark.parametrize("folder", ["walker"], indirect=True)
def test_damaged_rollout_raises(folder):
    path = folder / "rollout_004.npy"
    valid = path.read_bytes()
    for content, message in (
        (valid[:500], "rollout_004.npy must be an .npy file"),
        (b"", "rollout_004.npy must be an .npy file"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Walker(data_dir=str(folder), dropped=0.2).size("train")
    for array, message in (
        (np.zeros((9, 4)), "must have 3 channels, like the files before it, got 4"),
        (np.zeros(9), "floats of shape"),
        (np.full((9, 3), np.nan), "must contain finite values, got .* at step 0"),
        (np.array([[{}]]), "must be an .npy file of numbers"),
    ):
        np.save(path, array)
        with pytest.raises(ValueError, match=message):
            Walker(data_dir=str(folder), dropped=0.3).size("train")
    (folder / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"`data_dir` must be a folder with at least 10 of .* with 0"):
        Walker(data_dir=str(folder / "empty")).size("train")


@pytest.mark.parametrize("folder", ["human_activity"], indirect=True)
def test_activities_have_the_splits_and_times_of_the_data(folder):
    by_person = HumanActivity(data_dir=str(folder), test_person="B")
    assert [by_person.size(split) for split in by_person.splits] == [3 * 2 * 8, 2 * 8, 2 * 8]
    batch = by_person.batch("test", 0, 16)
    assert (batch.elapsed[:, 0] == 5).sum() == 2, "only windows at the start of a sequence begin with 5"
    assert (batch.inputs[..., :4].sum(-1) == 1).all()
    assert set(batch.targets.unique().tolist()) == {0, 1, 3}
    lines = (folder / "ConfLongDemo_JSI.txt").read_text().splitlines()
    first, second = (line.split(",") for line in lines[300:302])
    assert batch.inputs[0, 1, 4:].tolist() == pytest.approx([float(x) for x in second[4:7]], abs=1e-6)
    assert batch.elapsed[0, 1].item() == pytest.approx((int(second[2]) - int(first[2])) / 1e6, rel=1e-3)
    published = HumanActivity(data_dir=str(folder), protocol="published")
    assert [published.size(split) for split in published.splits] == [53, 5, 14], "without the last sequence"
    metrics = by_person.metrics("test")
    assert {"balanced_accuracy", "macro_f1"} <= set(metrics)
    output = torch.nn.functional.one_hot(torch.full_like(batch.targets, 3), 7).float()
    by_person.update(metrics, output, batch)
    assert metrics["balanced_accuracy"].compute().item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("folder", ["human_activity"], indirect=True)
def test_files_of_activities_are_read_as_windows_that_do_not_overlap(folder):
    path = folder / "ConfLongDemo_JSI.txt"
    series = activity._read(path, labelled=False)
    batch = HumanActivity(data_dir=str(folder), test_person="B").read_inputs(path)
    starts = [(item, start) for item in series for start in range(0, len(item.times) - 31, 32)]
    assert len(starts) > 2 * len(series)
    assert batch.inputs.shape == (len(starts), 32, 7)
    for row, (item, start) in enumerate(starts):
        assert np.array_equal(batch.inputs[row], item.inputs[start : start + 32])
        first = 5 if start == 0 else (item.times[start] - item.times[start - 1]) / 10
        assert batch.elapsed[row, 0].item() == pytest.approx(first), "as in the windows for training"


@pytest.mark.parametrize("folder", ["human_activity"], indirect=True)
def test_damaged_activities_raise(folder):
    path = folder / "ConfLongDemo_JSI.txt"
    valid = path.read_text().splitlines()
    for number, (line, message) in enumerate(
        (
            ("A01,1,2", "JSI.txt:2: the line must have 8 columns .*, got 3"),
            (valid[1].replace("walking", "flying"), "JSI.txt:2: the activity must be one of .*, got 'flying'"),
            (valid[1].replace("0-000-0", "9-000-0"), "JSI.txt:2: the tag must be one of .*, got '0[12]9-000-"),
            (",".join([*valid[1].split(",")[:4], "x", "1", "2", "walking"]), "JSI.txt:2: ticks, x, y and z must be numbers"),
            (",".join([*valid[1].split(",")[:4], "inf", "1", "2", "walking"]), "JSI.txt:2: x, y and z must be finite, got "),
        )
    ):
        path.write_text("\n".join([valid[0], line, *valid[2:]]))
        with pytest.raises(ValueError, match=message):
            HumanActivity(data_dir=str(folder), test_person="ABCDE"[number]).size("train")
    path.write_text("\n".join(line for line in valid if line[0] in "AB"))
    with pytest.raises(ValueError, match="must contain windows of each of the persons A to E, got none for"):
        HumanActivity(data_dir=str(folder), protocol="person", test_person="C").size("train")


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Pendulum, {"frames": 101}, "^`?frames"),
        (Pendulum, {"train_size": 0}, "^`?train_size"),
        (Walker, {"elapsed": "none"}, "^`?elapsed"),
        (FitzHughNagumo, {"test_size": 0}, "^`?test_size"),
        (Walker, {"dropped": 1.0}, "^`?dropped"),
        (HumanActivity, {"test_person": "F"}, "^`?test_person"),
    ],
)
def test_invalid_setting_raises(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


ROOT = Path(os.environ.get("LONGSCAN_TEST_DATA", "/nowhere")) / "activity"


@pytest.mark.skipif(not ROOT.is_dir(), reason="LONGSCAN_TEST_DATA names no folder with activity/")
def test_real_rollouts_have_the_published_sizes():
    task = Walker(data_dir=str(ROOT))
    assert [task.size(split) for split in task.splits] == [9_669, 1_284, 1_936]
    assert task.d_input == 17
