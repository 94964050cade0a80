"""New rollouts of a simulated walker for the task `walker`: `python -m longscan.tasks.dynamics.rollouts FOLDER`.

Random actions make a walker fall within some twenty steps, so a policy is searched first. It is linear and knows the state alone,
and is improved by augmented random search (Mania, Guy and Recht, 2018, algorithm 2, version V2-t) with noise on its actions. The
rollouts come from several stages of that search, with noise of a strength drawn for each, so that they differ; the published
ones (Lechner and Hasani, 2020) have some actions at random, too, but are of other policies.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Protocol, SupportsFloat

import numpy as np

from longscan._errors import SettingError
from longscan._files import try_writing
from longscan.tasks._random import Draws

SHORTEST, LONGEST = 131, 1000  # steps of a rollout, as in the published ones
POLICIES = "policies.npz"

_DIRECTIONS, _KEPT = 8, 4  # of the search: directions tried at each update, and the best of them, which are followed
_RATE, _SPREAD, _HORIZON = 0.06, 0.1, 500  # step size, deviation of the directions, steps of an episode
_NOISE = 0.1  # deviation of the search's noise on actions, in halves of an action's range; rollouts have up to twice as much
_STAGES = (0.4, 0.6, 0.8, 1.0)  # shares of the search after which a policy is kept
_ATTEMPTS = 200  # at one rollout, before the policies count as useless

_Map = Callable[..., Iterator[Any]]  # called as `map` is


class Environment(Protocol):
    """What is used of a gymnasium environment with bounded continuous actions (A,) and states (C,)."""

    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """The first state (C,) and more."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """The next state (C,), the reward, whether it fell, whether its time is over, and more."""


class Policy(NamedTuple):
    """Action = weights @ state + offsets, in halves of the actions' range. weights: (A, C); offsets: (A,)."""

    weights: np.ndarray
    offsets: np.ndarray


class _Episode(NamedTuple):
    """states: (steps, C) float64, the first one included and the last one, at which it ended, left out."""

    states: np.ndarray
    reward: float


def walker_environment() -> Environment:
    """Gymnasium's Walker2d-v5, whose reward counts speed threefold: standing still pays less than a fall at the end of a walk.

    ImportError saying what to install where gymnasium or MuJoCo is missing.
    """
    advice = "pip install 'longscan[mujoco]'"
    try:
        gymnasium = import_module("gymnasium")
    except ModuleNotFoundError as error:
        raise ImportError(f"rollouts need the package {error.name}, which is not installed: {advice}", name=error.name) from error
    try:
        return gymnasium.make("Walker2d-v5", forward_reward_weight=3.0, disable_env_checker=True)
    except (ImportError, gymnasium.error.Error) as error:
        line = str(error).splitlines()[0]
        raise ImportError(f"rollouts need gymnasium's Walker2d-v5, which can not be made ({line}): {advice}") from error


def make_rollouts(
    folder: str | Path,
    *,
    count: int = 400,
    seed: int = 0,
    search_steps: int = 200_000,
    processes: int = 2,
    make: Callable[[], Environment] = walker_environment,
    shown: bool = False,
) -> list[Path]:
    """Fill a folder with rollouts, the files episode_0000.npy and so on, and return their paths.

    Each holds float64 states of shape (steps, C), with 131 to 1000 steps; Walker2d's C = 17 are 8 positions (metres, radians) and
    9 speeds (metres or radians per second), 0.008 s apart. Shorter episodes are thrown away. A rollout depends on the seed, its
    number, `search_steps` and the versions of the simulator alone. Files that are there stay; each is written under another name
    and moved into place, so that a killed run goes on when called again. The policies are kept beside them, in policies.npz.

    count: rollouts that the folder shall hold. search_steps: steps of simulation that the search takes, but for its last update;
    the default takes one to two minutes on two cores. processes: 2 or more are spawned, so that a script needs its guard
    `if __name__ == "__main__"`. make: makes the environment; a function of a module where there are several processes.
    shown: draw progress on stderr.

    Raises SettingError, a ValueError, for a setting out of range, a folder that can not be written or holds other rollouts, and
    where no policy keeps up for 131 steps; ImportError where gymnasium or MuJoCo is missing.
    """
    for name, value in (("count", count), ("search_steps", search_steps), ("processes", processes)):
        if value < 1:
            raise SettingError(f"{name}: must be at least 1, not {value}")
    if seed < 0:
        raise SettingError(f"seed: must be at least 0, not {seed}")
    folder = Path(folder)
    settings = json.dumps({"seed": seed, "search_steps": search_steps})
    policies = _kept(folder, settings)
    paths = [folder / f"episode_{number:04d}.npy" for number in range(count)]
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    if policies is not None and not missing:
        return paths
    _environment(make)  # what is not installed shows before anything is written
    _writable(folder)
    with _workers(processes) as every, _Progress(shown) as progress:
        if policies is None:
            policies = _search(every, make, seed, search_steps, progress)
            weights, offsets = (np.stack(parts) for parts in zip(*policies, strict=True))
            _write(folder / POLICIES, partial(np.savez, made_with=np.array(settings), weights=weights, offsets=offsets))
        progress.start("rollouts", count, count - len(missing))
        for number, states in zip(missing, every(partial(_rollout, make, policies, seed), missing), strict=True):
            _write(paths[number], partial(np.save, arr=states, allow_pickle=False))
            progress.advance(1)
    return paths


def _kept(folder: Path, settings: str) -> list[Policy] | None:
    """The policies of a folder, None for one that holds no rollouts yet; SettingError where other settings made them."""
    path = folder / POLICIES
    if not path.exists():
        if any(folder.glob("*.npy")):
            raise SettingError(f"folder: {folder} holds .npy files but no {POLICIES}; needed a folder for new rollouts alone")
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            made_with, weights, offsets = str(file["made_with"]), file["weights"], file["offsets"]
    except Exception as error:  # a damaged archive fails in many ways
        raise SettingError(
            f"{path}: can not be read ({type(error).__name__}); needed the file as it was, or another folder"
        ) from error
    if made_with != settings:
        raise SettingError(f"folder: {folder} holds rollouts made with {made_with}, needed an empty one for {settings}")
    return [Policy(*parts) for parts in zip(weights, offsets, strict=True)]


def _writable(folder: Path) -> None:
    try:
        try_writing(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"folder: {folder} can not be made or written: {error.strerror}") from None


def _write(path: Path, write: Callable[[Any], Any]) -> None:
    """A binary file, written under a temporary name and moved into place."""
    temporary = path.with_name(path.name + ".writing")
    with temporary.open("wb") as file:
        write(file)
    temporary.replace(path)


def _search(every: _Map, make: Callable[[], Environment], seed: int, steps: int, progress: "_Progress") -> list[Policy]:
    """Policies of several stages of an augmented random search."""
    progress.start("search", steps)
    environment = _environment(make)
    actions, channels = environment.action_space.shape[0], environment.observation_space.shape[0]
    weights = np.zeros((actions, channels))
    seen, total, squares = 1, np.zeros(channels), np.ones(channels)
    history: list[tuple[int, Policy]] = []
    while not history or history[-1][0] < steps:
        mean = total / seen
        scale = np.sqrt(np.maximum(squares / seen - mean**2, 1e-4))
        directions = Draws(("directions", seed), len(history)).normal((_DIRECTIONS, actions, channels))
        tried = np.stack([weights + _SPREAD * directions, weights - _SPREAD * directions], 1).reshape(-1, actions, channels)
        keys = [("search", seed, len(history), number) for number in range(len(tried))]
        episodes = list(every(partial(_try, make), [_policy(matrix, mean, scale) for matrix in tried], keys))
        rewards = np.array([episode.reward for episode in episodes]).reshape(_DIRECTIONS, 2)
        best = np.argsort(-rewards.max(1), kind="stable")[:_KEPT]
        slope = np.tensordot(rewards[best, 0] - rewards[best, 1], directions[best], 1)
        weights = weights + _RATE / (_KEPT * rewards[best].std() + 1e-9) * slope
        for states, _ in episodes:
            seen, total, squares = seen + len(states), total + states.sum(0), squares + (states**2).sum(0)
        history.append((seen - 1, _policy(weights, mean, scale)))
        progress.advance(sum(len(episode.states) for episode in episodes))
    return [next(policy for done, policy in history if done >= share * steps) for share in _STAGES]


def _policy(weights: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> Policy:
    """The policy that sees states less their mean, over their scale."""
    return Policy(weights / scale, -(weights / scale) @ mean)


def _try(make: Callable[[], Environment], policy: Policy, key: tuple[object, ...]) -> _Episode:
    return _episode(_environment(make), policy, _NOISE, key, _HORIZON)


def _rollout(make: Callable[[], Environment], policies: Sequence[Policy], seed: int, number: int) -> np.ndarray:
    """(steps, C), the first attempt that is long enough."""
    for attempt in range(_ATTEMPTS):
        key = ("rollout", seed, number, attempt)
        draws = Draws(key, 0)
        policy, noise = policies[int(draws.integers(0, len(policies), 1)[0])], 2 * _NOISE * float(draws.uniform(1)[0])
        states = _episode(_environment(make), policy, noise, key, LONGEST).states
        if len(states) >= SHORTEST:
            return states
    raise SettingError(f"seed: {seed} finds no policy that keeps up for {SHORTEST} steps; needed another, or more search_steps")


def _episode(environment: Environment, policy: Policy, noise: float, key: tuple[object, ...], steps: int) -> _Episode:
    """One episode of at most so many steps; its noise and its start depend on the key."""
    low, high = environment.action_space.low, environment.action_space.high
    disturbed = noise * Draws(key, 1).normal((steps, len(low)))
    state, _ = environment.reset(seed=int(Draws(key, 2).integers(0, 2**31, 1)[0]))
    states, reward = [], 0.0
    for change in disturbed:
        states.append(np.array(state, np.float64))
        action = np.clip(policy.weights @ state + policy.offsets + change, -1, 1)
        state, gain, fell, late, _ = environment.step(low + (action + 1) / 2 * (high - low))
        reward += float(gain)
        if fell or late:
            break
    return _Episode(np.stack(states), reward)


@cache
def _environment(make: Callable[[], Environment]) -> Environment:
    """One for each process."""
    return make()


@contextmanager
def _workers(processes: int) -> Iterator[_Map]:
    """`map`, over several processes where there are several."""
    if processes == 1:
        yield map
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _start_worker)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, and end when it ends, however that happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


class _Progress:
    """A bar on stderr for each part of the work; nothing where it is not shown or stderr is no terminal."""

    def __init__(self, shown: bool) -> None:
        if shown:
            from rich.console import Console
            from rich.progress import Progress

            console = Console(stderr=True)
            self._bars = Progress(console=console, disable=not console.is_terminal)
        self._shown = shown

    def __enter__(self) -> "_Progress":
        if self._shown:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._bars.stop()

    def start(self, name: str, total: int, done: int = 0) -> None:
        """A new part of so many units, some of them done."""
        if self._shown:
            self._part = self._bars.add_task(name, total=total, completed=done)

    def advance(self, units: int) -> None:
        """More units of the part are done."""
        if self._shown:
            self._bars.advance(self._part, units)


def main(words: Sequence[str] | None = None) -> int:
    """Make the rollouts that the words ask for (the process's own where None) and return the exit code, 2 for unusable words."""
    parser = argparse.ArgumentParser("python -m longscan.tasks.dynamics.rollouts", description="Makes rollouts of Walker2d-v5.")
    parser.add_argument("folder", metavar="FOLDER", help="where they go; what is there already is kept")
    parser.add_argument("--count", type=int, default=400, help="rollouts that the folder shall hold (400)")
    parser.add_argument("--seed", type=int, default=0, help="of the search and of the rollouts (0)")
    parser.add_argument("--processes", type=int, default=2, help="that simulate side by side (2)")
    parsed = parser.parse_args(words)
    try:
        paths = make_rollouts(parsed.folder, count=parsed.count, seed=parsed.seed, processes=parsed.processes, shown=True)
    except (SettingError, ImportError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"{parser.prog}: stopped; the same command goes on from the files that are there\n")
        return 130
    lengths = [len(np.load(path, mmap_mode="r", allow_pickle=False)) for path in paths]
    steps = f"{min(lengths)} to {max(lengths)} steps, median {np.median(lengths):.0f}"
    sys.stdout.write(f"{len(paths)} rollouts in {parsed.folder}: {steps}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
