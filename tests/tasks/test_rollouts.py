"""New rollouts: the policy search, the files, resuming and errors, on a made-up environment; the real walker where installed."""

import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from longscan.tasks.dynamics import Walker, rollouts
from longscan.tasks.dynamics.rollouts import LONGEST, SHORTEST, main, make_rollouts

WITHOUT_MUJOCO = find_spec("gymnasium") is None or find_spec("mujoco") is None


class Balance:
    """A rod that tips over unless it is pushed back: state (angle, speed, a constant), two actions of -2 .. 2 that add up."""

    observation_space = SimpleNamespace(shape=(3,))
    action_space = SimpleNamespace(shape=(2,), low=np.full(2, -2.0, np.float32), high=np.full(2, 2.0, np.float32))

    def reset(self, *, seed):
        self.state = np.array([*np.random.default_rng(seed).uniform(-0.05, 0.05, 2), 1.0])
        return self.state, {}

    def step(self, action):
        assert (np.abs(action) <= 2).all()
        angle, speed, constant = self.state
        speed = speed + 0.05 * angle + 0.02 * action.sum()
        self.state = np.array([angle + 0.1 * speed, 0.98 * speed, constant])
        fell = abs(self.state[0]) > 0.5
        return self.state, 1.0 - abs(self.state[0]), bool(fell), False, {}


class Falling(Balance):
    """Falls at once, whatever is done."""

    def step(self, action):
        return super().step(action)[0], 0.0, True, False, {}


def balance():
    return Balance()


def falling():
    return Falling()


SMALL = {"search_steps": 20_000, "processes": 1, "make": balance}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Twelve rollouts and their bytes."""
    folder = tmp_path_factory.mktemp("rollouts") / "new" / "folder"
    paths = make_rollouts(folder, count=12, **SMALL)
    return folder, [path.read_bytes() for path in paths]


def test_the_search_finds_policies_that_balance(made):
    folder, _ = made
    still = rollouts.Policy(np.zeros((2, 3)), np.zeros(2))
    lengths = [len(rollouts._episode(Balance(), still, 0.1, ("still", number), LONGEST).states) for number in range(20)]
    assert max(lengths) < SHORTEST, "without a policy it falls"
    states = [np.load(path) for path in sorted(folder.glob("*.npy"))]
    assert {(item.dtype.str, item.shape[1]) for item in states} == {("<f8", 3)}
    assert all(SHORTEST <= len(item) <= LONGEST for item in states)
    assert max(map(len, states)) == LONGEST
    assert len({item[0].tobytes() for item in states}) == 12, "each starts elsewhere"
    policies = np.load(folder / "policies.npz")
    assert policies["weights"].shape == (4, 2, 3)
    assert len(np.unique(policies["weights"].reshape(4, -1), axis=0)) > 1, "stages differ"


def test_steps_follow_one_another(made):
    folder, _ = made
    angle, speed, _ = np.load(folder / "episode_0003.npy").T
    assert np.allclose(np.diff(angle), 0.1 * speed[1:] / 0.98)


def test_the_task_reads_them(made):
    folder, _ = made
    task = Walker(data_dir=str(folder))
    assert task.batch("train", 0, 4).inputs.shape == (4, 64, 3)
    assert 0 < task.baselines()["persistence"] < 0.1


def test_processes_change_nothing_and_seeds_do(made, tmp_path):
    _, contents = made
    paths = make_rollouts(tmp_path / "two", count=3, **SMALL | {"processes": 2})
    assert [path.read_bytes() for path in paths] == contents[:3]
    paths = make_rollouts(tmp_path / "other", count=1, seed=1, **SMALL)
    assert paths[0].read_bytes() != contents[0]


def test_a_stopped_run_goes_on(made, tmp_path, monkeypatch):
    _, contents = made
    whole, made_again = rollouts._rollout, []

    def stopping(make, policies, seed, number):
        made_again.append(number)
        if len(made_again) == 3:
            raise KeyboardInterrupt
        return whole(make, policies, seed, number)

    monkeypatch.setattr(rollouts, "_rollout", stopping)
    with pytest.raises(KeyboardInterrupt):
        make_rollouts(tmp_path, count=4, **SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episode_0000.npy", "episode_0001.npy", "policies.npz"]
    (tmp_path / "episode_0000.npy").unlink()
    monkeypatch.setattr(rollouts, "_search", None)
    paths = make_rollouts(tmp_path, count=4, **SMALL)
    assert made_again == [0, 1, 2, 0, 2, 3], "the one that is there is not made again"
    assert [path.read_bytes() for path in paths] == contents[:4]
    assert make_rollouts(tmp_path, count=4, **SMALL) == paths
    assert len(made_again) == 6


def test_no_half_file_is_left(made, tmp_path, monkeypatch):
    def torn(file, arr, allow_pickle):
        file.write(b"half")
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", torn)
        with pytest.raises(OSError, match="No space"):
            make_rollouts(tmp_path, count=1, **SMALL)
    assert list(tmp_path.rglob("*.npy")) == []
    (path,) = make_rollouts(tmp_path, count=1, **SMALL)
    assert path.read_bytes() == made[1][0]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["episode_0000.npy", "policies.npz"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "^count: must be at least 1, not 0"),
        ({"seed": -1}, "^seed: must be at least 0, not -1"),
        ({"search_steps": 0}, "^search_steps"),
        ({"processes": 0}, "^processes"),
        ({"make": falling, "search_steps": 10}, "^seed: 0 finds no policy that keeps up for 131 steps"),
    ],
)
def test_impossible_settings(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make_rollouts(tmp_path / "new", **SMALL | settings)


def test_impossible_folders(made, tmp_path):
    folder, _ = made
    with pytest.raises(ValueError, match=r"^folder: .*\"seed\": 0, .* needed an empty one for .*\"seed\": 1"):
        make_rollouts(folder, count=2, seed=1, **SMALL)
    np.save(tmp_path / "published.npy", np.zeros((200, 3)))
    with pytest.raises(ValueError, match=r"^folder: .* holds \.npy files but no policies\.npz"):
        make_rollouts(tmp_path, count=1, **SMALL)
    with pytest.raises(ValueError, match=r"^folder: .*published\.npy"):
        make_rollouts(tmp_path / "published.npy", count=1, **SMALL)
    (tmp_path / "policies.npz").write_bytes(b"PK half")
    with pytest.raises(ValueError, match=r"policies\.npz: can not be read"):
        make_rollouts(tmp_path, count=1, **SMALL)


def test_the_command(made, tmp_path, monkeypatch, capsys):
    _, contents = made
    given = SMALL | {"shown": True}
    monkeypatch.setattr(rollouts, "make_rollouts", lambda folder, count, **_: make_rollouts(folder, count=count, **given))
    assert main([str(tmp_path), "--count", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"2 rollouts in {tmp_path}: ")
    assert "steps, median" in shown.out
    assert shown.err == "", "no bar where there is no terminal"
    assert [(tmp_path / f"episode_000{number}.npy").read_bytes() for number in (0, 1)] == contents[:2]
    assert main([str(tmp_path), "--count", "0"]) == 2
    assert "count: must be at least 1, not 0" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path), "--count", "many"])
    assert stopped.value.code == 2
    assert "argument --count" in capsys.readouterr().err


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert main([str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert "gymnasium, which is not installed: pip install 'longscan[mujoco]'" in error
    assert len(error.splitlines()) == 1
    gymnasium = ModuleType("gymnasium")
    gymnasium.error = SimpleNamespace(Error=LookupError)

    def refuse(name, **settings):
        raise LookupError("MuJoCo is not installed\nand more")

    gymnasium.make = refuse
    monkeypatch.setitem(sys.modules, "gymnasium", gymnasium)
    assert main([str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert "can not be made (MuJoCo is not installed): pip install 'longscan[mujoco]'" in error
    assert not (tmp_path / "new").exists()


def test_the_module_runs():
    ran = subprocess.run([sys.executable, "-m", rollouts.__name__, "--help"], capture_output=True, text=True, check=True)
    assert "FOLDER" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.skipif(WITHOUT_MUJOCO, reason="needs gymnasium and MuJoCo: pip install 'longscan[mujoco]'")
def test_the_real_walker():
    still = rollouts.Policy(np.zeros((6, 17)), np.zeros(6))
    walker = rollouts.walker_environment()
    first, again = (rollouts._episode(walker, still, 1.0, ("still", 0), LONGEST).states for _ in range(2))
    assert first.dtype == np.float64
    assert first.shape[1] == 17
    assert 5 < len(first) < SHORTEST, "random actions make it fall"
    assert np.array_equal(first, again)
    assert first[0, 0] == pytest.approx(1.25, abs=0.01), "its height in metres"
