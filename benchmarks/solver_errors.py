"""Measure the errors of the published solver in the targets of FitzHugh-Nagumo: about the exact map from one step to the next.

    python benchmarks/solver_errors.py

The exact step starts from the solver's voltage and recovery, and has 40 steps of the classical Runge-Kutta method.
"""

import argparse

import numpy as np
from scipy.integrate import solve_ivp

from longscan.tasks._random import CounterRNG
from longscan.tasks.dynamics.fitzhugh_nagumo import derivatives

POINTS, END_TIME, SUBSTEPS, BLOCK = 1001, 400.0, 40, 128


def solver_errors(size: int) -> np.ndarray:
    """Return the errors of the voltages of the first test series, (size, 1000)."""
    times = np.linspace(0, END_TIME, POINTS)
    starts = 2 * CounterRNG(("fitzhugh_nagumo", "test"), 0).uniform(size) - 1
    states = np.stack(
        [solve_ivp(lambda _, state: derivatives(state), (0, END_TIME), [start, 0.0], t_eval=times).y for start in starts], axis=1
    )  # (2, size, POINTS)
    state, step = states[:, :, :-1], END_TIME / (POINTS - 1) / SUBSTEPS
    for _ in range(SUBSTEPS):
        first = derivatives(state)
        second = derivatives(state + step / 2 * first)
        third = derivatives(state + step / 2 * second)
        state = state + step / 6 * (first + 2 * second + 2 * third + derivatives(state + step * third))
    return states[0, :, 1:] - state[0]


def main() -> None:
    """Print the root mean square over all series, and over each block of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="number of series")
    errors = solver_errors(parser.parse_args().size)
    blocks = [errors[first : first + BLOCK] for first in range(0, len(errors), BLOCK)]
    print(f"root mean square {np.sqrt((errors**2).mean()):.4g}")
    print("blocks of", BLOCK, *(f"{np.sqrt((block**2).mean()):.4g}" for block in blocks))


if __name__ == "__main__":
    main()
