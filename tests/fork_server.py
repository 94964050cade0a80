"""The fork server of the tests that start processes: it imports once what every process of training needs."""

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("longscan.training.trainer", "longscan.training.records", "longscan.training.sweep", "longscan.report.run"),
        *("torch._dynamo", "torch.distributed.fsdp", "torch.utils.tensorboard", "torchmetrics.classification", "pytest"),
    ]
)
