"""The fork server of the tests that start processes, which imports once what every process of training needs; signals to runs."""

import multiprocessing
import os
import threading

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("longscan.training.trainer", "longscan.training.records", "longscan.training.sweep", "longscan.report.run"),
        *("torch._dynamo", "torch.distributed.fsdp", "torch.utils.tensorboard", "torchmetrics.classification", "pytest"),
    ]
)


def act_at_step(step: int, signal_number: int | None = None) -> None:
    """Make the run of this process wait for ever once it has logged a step, or send itself a signal there.

    A run that waits cannot end before the parent kills it, however late the parent gets to it on a busy machine.
    """
    from longscan.training.logs import RunLog

    on_log, acted = RunLog.on_log, threading.Event()

    def on_log_and_act(self, engine, row):
        on_log(self, engine, row)
        if row.get("step", 0) >= step and not acted.is_set():
            acted.set()
            if signal_number is None:
                threading.Event().wait()
            else:
                os.kill(os.getpid(), signal_number)

    RunLog.on_log = on_log_and_act
