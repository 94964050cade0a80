"""The settings of torch that hold for a whole program, such as the default dtype, and their values in estimators and runs.

A program sets them for its own models. The results of estimators, and of the models of runs, do not depend on them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Give torch its own defaults for the length of a `with` block or of a function that is decorated with it.

    New tensors are float32 on the CPU, gradients can be computed, and there is no autocast and no inference mode.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        dtype = torch.get_default_dtype()
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        yield
