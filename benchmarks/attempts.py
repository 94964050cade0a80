"""Calls timed to their end on the device, and measurements that may fail without ending those that follow."""

import gc
from collections.abc import Callable
from functools import partial

import torch
from triton import TritonError

import gpu
from timing import once

LONG = 100.0  # ms beyond which one run is the time: `do_bench` would keep no more, and make seven others


def finished(call: Callable[[], object]) -> None:
    """A call, and the end of all that it started on the device."""
    call()
    if gpu.DEVICE.type == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of a call that has run before: the median of several runs, or one where it is long."""
    finished(lambda: None)
    single = once(partial(finished, call))
    return single if single > LONG else gpu.milliseconds(call)


def attempt(measure: Callable[[], gpu.Row]) -> gpu.Row:
    """What was measured, or the `reason` why it could not be; the memory that it took is free again."""
    found: gpu.Row
    try:
        found = measure()
    except torch.OutOfMemoryError:
        found = {"reason": "out of memory"}
    except (RuntimeError, TritonError) as error:
        found = {"reason": f"failed: {error}".splitlines()[0].partition(". ")[0][:100]}
    # Here and not above: an exception holds the tensors of the calls that it went through.
    gc.collect()
    if gpu.DEVICE.type == "cuda":
        torch.cuda.empty_cache()
    return found
