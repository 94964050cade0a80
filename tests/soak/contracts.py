"""Run the property tests of tests/contracts in random order, a few generated cases at a time."""

import os
import random
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES = 20  # cases of a property before the next one
_GENERATED = "generated cases"  # the key of their number in tests/conftest.py


class RepeatUntil:
    """A plugin of pytest that repeats the property tests, each time with a new seed, until the time is over."""

    def __init__(self, seed: int, until: float, write: Callable[..., None]) -> None:
        self.seed, self.until, self.write = seed, until, write
        self.failure: str | None = None

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        if find_spec("pytest_timeout") is None:  # the configuration of the project has this option
            parser.addini("timeout", "seconds of a test", default="300")

    def pytest_configure(self, config: pytest.Config) -> None:
        if find_spec("pytest_timeout") is None:
            config.addinivalue_line("markers", "timeout: seconds of a test")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if getattr(getattr(item, "obj", None), "is_hypothesis_test", False)]
        random.Random(self.seed).shuffle(items)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.items:
            raise RuntimeError("the contract suites could not be collected")
        from hypothesis import core  # imported here because pytest must rewrite its assertions first

        number = 0
        while time.monotonic() < self.until:
            item = session.items[number % len(session.items)]
            core.global_force_seed = self.seed * 1_000_000 + number
            item.user_properties.clear()
            self.failure = None
            self.write(begin=item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            count = sum(count for name, count in item.user_properties if name == _GENERATED)
            _, _, parameters = item.nodeid.partition("[")
            subject = parameters.rstrip("]").split("-")[0] or item.nodeid.rpartition("::")[2]
            failure = self.failure and f"{item.nodeid} (hypothesis seed {core.global_force_seed}): {self.failure}"
            self.write(subject=subject, cases=count, failure=failure)
            number += 1
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failure = str(report.longrepr)[-500:]


def run(seed: int, until: float, write: Callable[..., None], *select: str) -> None:
    os.environ.setdefault("LONGSCAN_EXAMPLES", str(CASES))
    suites = sorted(str(path) for path in (ROOT / "tests" / "contracts").glob("test_*.py"))
    argv = [*(select or suites), "-q", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    argv += ["-p", "no:xdist", "-p", "no:benchmark"]
    pytest.main(argv, plugins=[RepeatUntil(seed, until, write)])
