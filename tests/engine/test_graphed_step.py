"""Capture and replay of steps, with substitutes for the streams and graphs of CUDA."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from longscan.engine import GraphedStep
from longscan.engine.graphed_step import TIMED_EVERY


class Pair(NamedTuple):
    inputs: Tensor
    mask: Tensor | None = None


class Event:
    """An event on a device whose clock shows the number of calls of `record` so far, in seconds.

    Attributes:
        n_records: number of calls of `record` of all events.
        streams: the streams of these calls.
    """

    n_records, streams = 0, list[Any]()

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        Event.n_records += 1
        Event.streams.append(stream)
        self.time = Event.n_records

    def elapsed_time(self, end: "Event") -> float:
        return 1000.0 * (end.time - self.time)

    def synchronize(self) -> None:
        assert self.time


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the streams and graphs of CUDA; return the list of calls of the step, captures and replays."""
    recorded: list[Any] = []

    stream = SimpleNamespace(wait_stream=lambda _: None)

    @contextmanager
    def graph(graph: Any, pool: Any, stream: Any, capture_error_mode: str) -> Any:
        assert stream is side_stream
        graph.pool = lambda: "pool" if pool is None else pool
        recorded.append(f"capture, {capture_error_mode}, {pool}")
        yield

    side_stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: side_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream if device.type == "cpu" else f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: recorded.append("replay")))
    return recorded


def test_fourth_batch_of_a_shape_is_captured_and_later_ones_are_replayed(events: list[Any]) -> None:
    batches: list[Pair] = []

    def step(batch: Pair) -> Tensor:
        events.append("step")
        batches.append(batch)
        return batch.inputs * 2

    graphed = GraphedStep(step, torch.device("cpu"))
    outputs = [graphed(Pair(torch.full((2,), float(number)))) for number in range(6)]
    assert events == ["step"] * 3 + ["capture, thread_local, None", "step", "replay", "replay", "replay"]
    assert [output.tolist() for output in outputs[:3]] == [[0, 0], [2, 2], [4, 4]]
    assert outputs[4] is outputs[5]
    assert batches[3].inputs.tolist() == [5, 5], "the static batch has the values of the last one"
    graphed(Pair(torch.zeros(2), torch.ones(2)))
    assert events[-1] == "step", "another shape is not captured yet"


def test_at_most_four_shapes_are_captured(events: list[Any]) -> None:
    graphed = GraphedStep(lambda batch: batch.inputs, torch.device("cpu"))
    for length in range(1, 6):
        for _ in range(5):
            graphed(Pair(torch.zeros(length)))
    captures = [event for event in events if event.startswith("capture")]
    assert captures == ["capture, thread_local, None"] + ["capture, thread_local, pool"] * 3, "all graphs share their memory"
    assert events.count("replay") == 8


@pytest.mark.parametrize("setting", ["deterministic", "precision"])
def test_a_graph_is_not_replayed_after_a_change_of_the_kernels(events: list[Any], setting: str) -> None:
    """A graph has the kernels that torch chose at the capture."""
    graphed = GraphedStep(lambda batch: batch.inputs, torch.device("cpu"))
    for _ in range(5):
        graphed(Pair(torch.zeros(2)))
    assert events.count("replay") == 2
    deterministic, precision = torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.fp32_precision
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if setting == "deterministic":
            torch.use_deterministic_algorithms(not deterministic)
        else:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        graphed(Pair(torch.zeros(2)))
        assert events.count("replay") == 2
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warns_only)
        torch.backends.cuda.matmul.fp32_precision = precision
    graphed(Pair(torch.zeros(2)))
    assert events.count("replay") == 3, "the first graph is kept"


def test_some_replays_are_timed_on_the_device(events: list[Any]) -> None:
    graphed = GraphedStep(lambda batch: batch.inputs, torch.device("cpu"))
    before = Event.n_records
    for _ in range(3):
        graphed(Pair(torch.zeros(2)))
    assert graphed.seconds_per_replay() is None
    for _ in range(TIMED_EVERY + 1):
        graphed(Pair(torch.zeros(2)))
    assert events.count("replay") == TIMED_EVERY + 1
    assert Event.n_records == before + 4, "the first replay and the last one, each between two events"
    assert graphed.seconds_per_replay() == 1.0


def test_replays_are_timed_on_the_device_of_the_step(events: list[Any]) -> None:
    graphed = GraphedStep(lambda batch: batch.inputs, torch.device("cuda:1"))
    graphed._replay_timed(SimpleNamespace(replay=lambda: None))
    assert Event.streams[-2:] == ["stream of cuda:1"] * 2
