"""The command lets waiting threads of OpenMP sleep, before torch is imported, and leaves a choice of the user alone."""

import os
import subprocess
import sys

import pytest

from longscan._threads import VARIABLES

PROGRAM = """
import os, sys
from longscan.cli import main
before = "torch" in sys.modules
main(["--version"])
print(before, os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.parametrize(
    ("variables", "first", "expected"),
    [
        ({}, "", "False passive"),
        ({"OMP_WAIT_POLICY": "active"}, "", "False active"),
        ({"GOMP_SPINCOUNT": "100"}, "", "False None"),
        ({}, "import torch", "True None"),
    ],
)
def test_waiting_threads_sleep_unless_the_user_says_otherwise(variables: dict[str, str], first: str, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    done = subprocess.run([sys.executable, "-c", first + PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == expected
