"""Configuration of all tests: memory filled with NaN, fixed seeds, one thread, and counts of generated cases."""

import gc
import logging
import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from fork_server import ForkedPython
from interpreter import speed_up_interpreter

_GENERATED = "generated cases"


def _is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _is_xdist_controller(config: pytest.Config) -> bool:
    """Return whether this process starts the workers that run the tests, for which it needs neither torch nor hypothesis."""
    return not _is_xdist_worker(config) and bool(config.getoption("numprocesses", None))


def _capture_logs_of_the_root_logger() -> None:
    """Let pytest capture the records that reach the root logger, as pytest 8 does, and attach its handlers to no other logger.

    pytest 9 attaches two handlers to each logger that does not propagate its records, for every phase of a test. Packages around
    PyTorch have fifty of these loggers, which took two thirds of the time of a short test. A test of their records has to attach
    `caplog.handler` to them.
    """
    from _pytest.logging import catching_logs

    def enter(self: Any) -> logging.Handler:
        root = logging.getLogger()
        if self.level is not None:
            self.handler.setLevel(self.level)
            self.orig_level = root.level
            root.setLevel(min(root.level, self.level))
        root.addHandler(self.handler)
        self.attached_loggers.append(root)  # from which pytest removes the handler
        return self.handler

    if hasattr(catching_logs, "attached_loggers"):
        catching_logs.__enter__ = enter  # type: ignore[method-assign]


def _measure_no_guards() -> None:
    """Let PyTorch's compiler not measure, for its log, how long the guards of a graph take.

    It first empties the caches of the processor, which takes 30 milliseconds for each graph.
    """
    from torch._dynamo import guards

    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0


def pytest_configure(config: pytest.Config) -> None:
    """Fill torch.empty with NaN, so that a result that was never written cannot pass, and use one thread per process.

    Processes that tests start use one thread, too: workers of pytest-xdist occupy the other cores. Inductor compiles in the
    process that calls it, because its pool of processes takes seconds to start. Generated data and arrays made from data files
    are cached in a temporary folder that all workers share. The folder of data in the environment is ignored. Chunks are small,
    so that small calls have several.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if not _is_xdist_worker(config):
        os.environ["LONGSCAN_CACHE"] = tempfile.mkdtemp(prefix="longscan-tests-")
    root = os.environ.pop("LONGSCAN_DATA", None)
    if root is not None:  # the tests that read real files use this variable
        os.environ.setdefault("LONGSCAN_TEST_DATA", root)
    if _is_xdist_controller(config):
        return
    _capture_logs_of_the_root_logger()
    import torch
    from hypothesis import HealthCheck, settings

    from longscan.ops import chunks

    settings.register_profile(
        "longscan",
        max_examples=int(os.environ.get("LONGSCAN_EXAMPLES", "10")),
        deadline=None,  # a shared machine is slow at times
        derandomize="LONGSCAN_NEW_CASES" not in os.environ,  # `make soak` draws other cases each time, from a seed that it names
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.differing_executors],
    )
    settings.load_profile("longscan")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_num_threads(1)
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():  # `manual_seed` keeps a seed and a formatted stack for each, for a third of a short test
            device.manual_seed_all = lambda seed: None  # noqa: ARG005
    _measure_no_guards()
    chunks.CHUNK_ELEMENTS = 2**12
    if os.environ.get("TRITON_INTERPRET") == "1":
        speed_up_interpreter()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the temporary folder, and make all objects collectable: compiled modules report the others as leaks."""
    if not _is_xdist_worker(config):
        shutil.rmtree(os.environ["LONGSCAN_CACHE"], ignore_errors=True)
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Collect tests without garbage collection, which would visit all imported and collected objects again and again.

    It takes a third of a second each time, so that these objects are exempt from it afterwards, too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000)  # instead of 700: most new objects are graphs of PyTorch's compiler, which are not garbage soon
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Exempt what the tests of a file leave behind, such as compiled graphs, from the garbage collections of later files.

    These took a sixth of the time: PyTorch's compiler has millions of objects.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture
def forked_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the processes of `run_jobs` by the fork server: a new process imports for seconds what training needs."""
    from longscan.training import processes

    names = {name: getattr(subprocess, name) for name in ("PIPE", "STDOUT", "TimeoutExpired")}
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=ForkedPython, **names))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend the time limit of property tests with the number of generated cases."""
    from hypothesis import settings

    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            limit = item.config.getini("timeout")
            item.add_marker(pytest.mark.timeout(float(limit) * max(1, settings().max_examples / 25)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Count the generated cases that a property test runs to their end."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is None:
        return (yield)
    inner, count = handle.inner_test, 0

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        result = inner(*args, **kwargs)
        count += 1
        return result

    handle.inner_test = counting
    try:
        return (yield)
    finally:
        handle.inner_test = inner
        item.user_properties.append((_GENERATED, count))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the number of generated cases for each property, and for each op, layer, block or task of a contract."""
    counts: dict[str, list[int]] = defaultdict(list)
    subjects: dict[str, list[int]] = defaultdict(list)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, count in getattr(report, "user_properties", []):
                if name == _GENERATED and report.when == "call":
                    function, _, parameters = report.nodeid.partition("[")
                    counts[function].append(count)
                    if parameters and function.startswith("tests/contracts/"):
                        subjects[parameters.rstrip("]").split("-")[0]].append(count)
    for title, found in (("property", counts), ("subject of a contract", subjects)):
        if found:
            terminalreporter.section(f"generated cases per {title}")
        for name, each in sorted(found.items()):
            sets = f" ({len(each)} parameter sets, {min(each)} to {max(each)} each)" if len(each) > 1 else ""
            terminalreporter.line(f"{sum(each):8d}  {name}{sets}")
