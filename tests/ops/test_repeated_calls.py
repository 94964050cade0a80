"""Recorded and repeated calls of functions that launch kernels: stand-ins, and with LONGSCAN_DEVICE=cuda those of the ops."""

import ctypes
import os
import threading
from collections.abc import Callable
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from longscan.ops import OPS, _gpu, _repeated_calls
from longscan.ops._plain_calls import PlainCall
from longscan.ops._repeated_calls import RecordedCall, RepeatedFunction, record_launch
from op_examples import example, floats, run_with_gradients

Function = Callable[..., tuple[Tensor, ...]]


class Copy:
    """A kernel that copies `count` numbers of float32 from one tensor, or from its address, to another."""

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, source: Any, target: Any, count: int) -> None:
        self.launches += 1
        target.view(-1)[:count].copy_(source.view(-1)[:count])

    def launch(self, source: Tensor, target: Tensor, count: int) -> None:
        """Launch the kernel as `_gpu.launch` does."""
        with _repeated_calls.interpreting():
            self(source, target, count)
        record_launch(self, [source, target], (count,))


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch) -> Copy:
    """The kernel, which is launched as in Triton's interpreter."""
    monkeypatch.setattr(_gpu, "INTERPRETED", True)
    return Copy()


def counted(function: Function) -> tuple[Function, list[int]]:
    """Return the function with repeated calls, and a list that has an item for each time that it runs."""
    runs: list[int] = []

    def run(*args: Any) -> tuple[Tensor, ...]:
        runs.append(1)
        return function(*args)

    return RepeatedFunction(run), runs


def test_third_call_repeats_the_launches_on_its_own_tensors(copy: Copy) -> None:
    def twice(x: Tensor, absent: Tensor | None, scale: bool) -> tuple[Tensor, ...]:
        between, y = x.new_empty(2, x.shape[0]), torch.empty_like(x)
        copy.launch(x, between[1], len(x))
        copy.launch(between[1], y, len(x))
        return y, x.new_empty(0)

    call, runs = counted(twice)
    for i in range(5):
        x = torch.full((6,), float(i))
        y, empty = call(x, None, True)
        assert torch.equal(y, x)
        assert y.data_ptr() != x.data_ptr()
        assert empty.shape == (0,)
    assert len(runs) == 2
    assert copy.launches == 10


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(7), None, True),
        (torch.zeros(6, dtype=torch.int32), None, True),
        (torch.zeros(7)[1:], None, True),  # not a multiple of 16 bytes
        (torch.zeros(6), torch.zeros(6), True),
        (torch.zeros(6), None, False),
    ],
)
def test_other_arguments_are_another_call(other: tuple[Any, ...], copy: Copy) -> None:
    def function(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
        y = torch.empty_like(x)
        copy.launch(x, y, 1)
        return (y,)

    call, runs = counted(function)
    for _ in range(3):
        call(torch.zeros(6), None, True)
    assert len(runs) == 2
    call(*other)
    assert len(runs) == 3
    _repeated_calls.clear_recorded_calls()
    call(torch.zeros(6), None, True)
    assert len(runs) == 4


def test_buffers_that_no_two_launches_need_share_memory(copy: Copy) -> None:
    """A chain of four buffers, of which each launch needs two: the first and the third may be the same memory."""

    def chain(x: Tensor) -> tuple[Tensor, ...]:
        buffers, y = [x.new_empty(2, len(x)) for _ in range(4)], torch.empty_like(x)
        steps = [x, *[buffer[1] for buffer in buffers], y]
        for source, target in pairwise(steps):
            copy.launch(source, target, len(x))
        copy.launch(buffers[0][1], y, 1)  # needs the first one for longer
        return (y,)

    call, runs = counted(chain)
    for i in range(4):
        x = torch.arange(300.0) + i
        assert torch.equal(call(x)[0], x)
    assert len(runs) == 2
    (recorded,) = [x for x in call._calls.values() if isinstance(x, RecordedCall)]
    assert recorded.workspace == 3 * 5 * 512, "three buffers of 2,400 bytes"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_packed_buffers_overlap_only_in_memory_or_in_time(buffers: list[tuple[int, int, int]]) -> None:
    given_buffers = {
        _repeated_calls._Buffer(i, size): (size, min(launches), max(launches)) for i, (size, *launches) in enumerate(buffers)
    }
    offsets, total = _repeated_calls._pack(given_buffers)
    assert offsets.keys() == given_buffers.keys()
    for one, other in combinations(given_buffers, 2):
        (_, first, last), (_, other_first, other_last) = given_buffers[one], given_buffers[other]
        in_time = first <= other_last and other_first <= last
        in_memory = offsets[one] < offsets[other] + other.size and offsets[other] < offsets[one] + one.size
        assert not (in_time and in_memory and one.size and other.size)
    assert all(offset + buffer.size <= total for buffer, offset in offsets.items())


def test_one_tensor_as_two_inputs_is_told_apart(copy: Copy) -> None:
    def second(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        out = torch.empty_like(x)
        copy.launch(y, out, len(x))
        return (out,)

    call, runs = counted(second)
    for _ in range(2):
        x = torch.ones(4)
        call(x, x)
    assert torch.equal(call(torch.ones(4), torch.full((4,), 2.0))[0], torch.full((4,), 2.0))
    assert len(runs) == 2


def test_views_of_one_tensor_as_two_inputs_are_not_repeated(copy: Copy) -> None:
    """A view that the function takes may then lie in either of them."""

    def second(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        out = torch.empty_like(x)
        copy.launch(y[2:], out, len(x) - 2)
        return (out,)

    call, runs = counted(second)
    for _ in range(4):
        x = torch.ones(4)
        call(x, x)
    assert len(runs) == 4


def test_zeros_are_filled_again(copy: Copy) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        zeros, y, z = torch.zeros_like(x), torch.empty_like(x), x.new_zeros(3)
        copy.launch(x, zeros, 1)
        copy.launch(zeros, y, len(x))
        copy.launch(x, z, 1)
        return y, z

    call, runs = counted(function)
    for i in range(1, 5):
        y, z = call(torch.full((5,), float(i)))
        assert y.tolist() == [i, 0, 0, 0, 0]
        assert z.tolist() == [i, 0, 0]
    assert len(runs) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, _: (x * 2,),
        lambda x, _: (x,),
        lambda _, y: (y[1:],),
        lambda _, y: (y, y.view(2, 2)),
        lambda _, y: (y.view(2, 2).mT,),
    ],
)
def test_other_results_than_new_tensors_are_not_repeated(function: Any, copy: Copy) -> None:
    def launching(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.empty_like(x)
        copy.launch(x, y, len(x))
        return tuple(function(x, y))

    call, runs = counted(launching)
    for i in range(4):
        x = torch.arange(4.0) + i
        for found, expected in zip(call(x), function(x, x), strict=True):
            assert torch.equal(found, expected)
    assert len(runs) == 4


def test_call_without_launches_is_not_repeated() -> None:
    call, runs = counted(lambda x: (torch.zeros_like(x),))
    for _ in range(4):
        call(torch.ones(2))
    assert len(runs) == 4


def test_inputs_are_made_contiguous(copy: Copy) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        x = x.contiguous()
        y = torch.empty_like(x)
        copy.launch(x, y, x.numel())
        return (y,)

    call, runs = counted(function)
    for i in range(4):
        x = torch.full((1,), float(i)).expand(3, 2)
        assert torch.equal(call(x)[0], x)
    assert len(runs) == 2


def test_number_of_calls_is_bounded(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.empty_like(x)
        copy.launch(x, y, len(x))
        return (y,)

    monkeypatch.setattr(_repeated_calls, "MOST_CALLS", 2)
    call, runs = counted(function)
    for size in (1, 2, 3):
        call(torch.zeros(size))
    assert [len(calls) for calls in _repeated_calls._functions if calls] == [2]
    for _ in range(3):
        call(torch.zeros(3))
    assert len(runs) == 4


def test_more_calls_in_turn_than_are_remembered_are_repeated_in_part(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the oldest call were forgotten for each new one, none would be repeated."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.empty_like(x)
        copy.launch(x, y, len(x))
        return (y,)

    monkeypatch.setattr(_repeated_calls, "MOST_CALLS", 20)
    call, runs = counted(function)
    for _ in range(20):
        for size in range(1, 26):
            x = torch.full((size,), float(size))
            assert torch.equal(call(x)[0], x)
    assert len(runs) < 20 * 25 * 0.7


def test_call_that_could_not_be_repeated_is_recorded_later(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of one tensor as two inputs hinder it once; later calls on other tensors are repeated."""

    def second(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        out = torch.empty_like(x)
        copy.launch(y[2:], out, len(x) - 2)
        return (out,)

    monkeypatch.setattr(_repeated_calls, "RETRY_AFTER", 3)
    call, runs = counted(second)
    for _ in range(2):
        x = torch.ones(4)
        call(x, x)
    for _ in range(10):
        call(torch.ones(4), torch.ones(4))
    assert len(runs) == 2 + 3 + 1


def test_error_of_a_recorded_call_ends_the_recording(copy: Copy) -> None:
    fails = SimpleNamespace(now=False)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        if fails.now:
            raise RuntimeError("no memory")
        y = torch.empty_like(x)
        copy.launch(x, y, len(x))
        return (y,)

    call, runs = counted(function)
    call(torch.ones(2))
    fails.now = True
    with pytest.raises(RuntimeError, match="no memory"):
        call(torch.ones(2))
    assert _repeated_calls._active.recorder is None
    fails.now = False
    for _ in range(3):
        assert torch.equal(call(torch.ones(2))[0], torch.ones(2))
    assert len(runs) == 3


def test_repeated_calls_pass_addresses_and_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses are those of inputs, of parts of the workspace and of results, as on a GPU."""
    streams = []

    def copy_memory(source: int, target: int, count: int, *, stream: str) -> None:
        streams.append(stream)
        ctypes.memmove(target, source, 4 * count)

    def launch(source: Tensor, target: Tensor) -> None:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), 4 * source.numel())
        record_launch(copy_memory, [source, target], (source.numel(),))

    def function(x: Tensor) -> tuple[Tensor, ...]:
        between, y = x.new_empty(3, 4), x.new_empty(4)
        launch(x[4:], between[2])
        launch(between[2], y)
        return (y,)

    monkeypatch.setattr(_gpu, "INTERPRETED", False)
    monkeypatch.setattr(_gpu, "current_stream", lambda like: f"the stream of {like.device}")
    call, runs = counted(function)
    for i in range(4):
        x = torch.arange(8.0) + 10 * i
        assert torch.equal(call(x)[0], x[4:])
    assert len(runs) == 2
    assert streams == ["the stream of cpu"] * 4


@pytest.mark.parametrize("place", ["recording", "repeating"])
def test_call_whose_buffers_do_not_fit_together_is_not_repeated(place: str, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        if place == "recording" and _repeated_calls._active.recorder is not None:
            raise torch.OutOfMemoryError
        y = torch.empty_like(x)
        copy.launch(x, y, x.numel())
        return (y,)

    def repeat(*_: Any) -> tuple[Tensor, ...]:
        raise torch.OutOfMemoryError

    if place == "repeating":
        monkeypatch.setattr(RecordedCall, "repeat", repeat)
    call, runs = counted(function)
    for i in range(4):
        x = torch.full((3,), float(i))
        assert torch.equal(call(x)[0], x)
    assert len(runs) == (5 if place == "recording" else 4)


@pytest.fixture
def plain_call(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> tuple[PlainCall, list[int]]:
    """A plain call y = x, whose gradient is x but for its last number, that of dy, and a list with an item for each backward."""
    runs: list[int] = []

    def forward(x: Tensor, keep: bool) -> tuple[Tensor, ...]:
        results = [torch.empty_like(x) for _ in range(3 if keep else 2)]
        for y in results:
            copy.launch(x, y, x.numel())
        return tuple(results)

    def backward(grad_y: Tensor | None, grad_final: Tensor | None, x: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        runs.append(1)
        given = x if grad_y is None else grad_y.contiguous()
        dx = torch.empty_like(x)
        copy.launch(given, dx, x.numel())
        copy.launch(kept, dx, x.numel() - 1)  # the last number is that of dy
        return (dx,)

    monkeypatch.setattr("longscan.ops._plain_calls.resolve", lambda *_: "triton")
    return PlainCall("copy", ("triton",), 1, forward, backward, lambda x: (x, x)), runs


def test_backward_of_a_repeated_forward_is_repeated(plain_call: tuple[PlainCall, list[int]], copy: Copy) -> None:
    call, runs = plain_call
    for i in range(8):
        x = torch.full((3,), float(i), requires_grad=True)
        y, _ = call(x)
        expanded = i % 2 == 0  # gradients that are not contiguous are copied
        dy = torch.full((1,), 10.0 + i).expand(3) if expanded else torch.full((3,), 10.0 + i)
        (dx,) = torch.autograd.grad(y, x, dy)
        assert dx.tolist() == [i, i, 10 + i]
    assert len(runs) == 2, "a copy is aligned like a tensor"
    (recorded,) = [x for x in call._forward._calls.values() if isinstance(x, RecordedCall)]
    assert len(recorded.following) == 1


def test_saved_tensors_that_were_replaced_are_used(plain_call: tuple[PlainCall, list[int]]) -> None:
    """Hooks of saved tensors may return others, at other addresses and of other strides."""
    call, _ = plain_call
    for i in range(8):
        x = torch.full((3,), float(i), requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x[:, None].expand(3, 2)[:, 0]):
            y, _ = call(x)
        assert torch.autograd.grad(y, x, torch.ones(3))[0].tolist() == [2 * i, 2 * i, 1]
        y, _ = call(x)
        assert torch.autograd.grad(y, x, torch.ones(3))[0].tolist() == [i, i, 1]


def test_backward_whose_buffers_do_not_fit_runs_otherwise(
    plain_call: tuple[PlainCall, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, runs = plain_call

    def gradient(value: float) -> list[float]:
        x = torch.full((3,), float(value), requires_grad=True)
        return list(torch.autograd.grad(call(x)[0], x, torch.ones(3))[0].tolist())

    for i in range(5):
        assert gradient(i) == [i, i, 1]
    assert len(runs) == 2
    repeat = RecordedCall.repeat

    def fail(self: RecordedCall, inputs: Any, addresses: Any) -> tuple[Tensor, ...]:
        if len(self.results) == 1:  # of the backward pass
            raise torch.OutOfMemoryError
        return repeat(self, inputs, addresses)

    monkeypatch.setattr(RecordedCall, "repeat", fail)
    assert gradient(7) == [7, 7, 1]
    assert len(runs) == 3


@pytest.fixture
def gpu() -> torch.device:
    """The GPU on which kernels run."""
    device = torch.device(os.environ.get("LONGSCAN_DEVICE", "cpu"))
    if device.type != "cuda":
        pytest.skip("needs a GPU that LONGSCAN_DEVICE names")
    return device


def call_with_gradients(op: str, inputs: dict[str, Any]) -> list[Tensor]:
    """Return the results and gradients of an op with its Triton kernels."""
    return run_with_gradients(lambda given: OPS[op].function(**given, backend="triton"), inputs)


def examples_on(device: torch.device, op: str, number: int) -> list[dict[str, Any]]:
    """Return arguments of calls of the same shapes with other numbers in each."""
    inputs = example(op, torch.float32, length=300, batch=2)
    inputs = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()}
    return [inputs | {name: x * (1 - i / 16) for name, x in floats(inputs).items()} for i in range(number)]


@pytest.mark.parametrize("op", ["linear_scan", "selective_scan", "ssd_scan", "unitary_scan"])
def test_threads_repeat_calls_at_the_same_time(op: str, gpu: torch.device) -> None:
    """Each of two threads, on a side stream, gets what the call returns alone, from its first call on."""
    examples = examples_on(gpu, op, 6)
    expected = [call_with_gradients(op, inputs) for inputs in examples]
    _repeated_calls.clear_recorded_calls()  # so that both threads record
    torch.cuda.synchronize()
    wrong: list[str] = []
    start = threading.Barrier(2)

    def run(thread: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(gpu)):
            start.wait()
            for i in range(60):
                number = (i + 3 * thread) % len(examples)
                found = call_with_gradients(op, examples[number])
                if not all(map(torch.equal, found, expected[number])):
                    wrong.append(f"call {i} of thread {thread}")

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("op", ["linear_scan", "selective_scan", "ssd_scan", "unitary_scan"])
def test_repeated_call_runs_on_the_stream_of_its_caller(op: str, gpu: torch.device) -> None:
    """It reads what is written earlier on a side stream, while the default stream still waits."""
    (inputs,) = examples_on(gpu, op, 1)
    expected = call_with_gradients(op, inputs)
    for _ in range(3):
        call_with_gradients(op, inputs)
    late = {name: torch.zeros_like(x) for name, x in floats(inputs).items()}
    side = torch.cuda.Stream(gpu)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # cycles, about 30 ms: a launch on the default stream would read zeros
        for name, x in late.items():
            x.copy_(inputs[name])
        found = call_with_gradients(op, inputs | late)
    side.synchronize()
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)
