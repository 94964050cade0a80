"""`train`: opens the run's directory, takes the device, and has a `Trainer` bring the run to its end."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

import longscan.report
from longscan.training.checkpoint import find_checkpoint, read_checkpoint
from longscan.training.run import Run, check_out, clear_run, holds_run
from longscan.training.settings import SettingError, Settings, TrainingSettings, refuse, same_size
from longscan.training.trainer import Trainer

MAY_CHANGE = ("steps", "checkpoint_every", "device", "threads", "prefetch", "capture")


def train(
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    command: str | None = None,
    test: bool = True,
) -> Run:
    """Train, test and report; the run's directory is `out`.

    Args:
        settings: all that decides the result.
        out: directory of the run, made if need be.
        resume: go on from the last checkpoint in `out`, or from the start where a kill came before the first. Settings must be
            those of the run, but for steps (no fewer than made), checkpoint_every, device, threads, prefetch and capture. A run
            that is over is left as it is.
        overwrite: remove the run that `out` holds.
        progress: show a progress bar (in a terminal) or a line for each validation on stderr.
        command: what result.json gives as the command; the process's own words where None.
        test: score the test split at the end. A search goes without, and result.json then holds the validation scores alone.

    Returns the run, whose `result["status"]` is "finished", or "failed" where the loss left the finite numbers. Raises
    SettingError for settings that can not be met, KeyboardInterrupt after a checkpoint where the process was asked to stop
    (SIGINT, SIGTERM).
    """
    folder, source = Path(out), settings.training.start_from
    if overwrite and source is not None and Path(source).resolve().is_relative_to(folder.resolve()):
        raise refuse("training.start_from", source, "a folder that stays, not the run that is overwritten")
    _check_folder(folder, settings, resume=resume, overwrite=overwrite)
    if resume and _is_over(folder, settings):
        longscan.report.run_report(folder)
        return Run(folder)
    threads = torch.get_num_threads()
    if settings.training.threads:
        torch.set_num_threads(settings.training.threads)
    try:
        with _accelerator(settings.training) as accelerator:
            words = command or shlex.join(sys.argv)
            trainer = Trainer(settings, folder, accelerator, words, resume=resume, progress=progress, test=test)
            if overwrite and not resume:  # only now that nothing is left to be refused
                if accelerator.is_main_process and holds_run(folder):
                    clear_run(folder)
                accelerator.wait_for_everyone()
            trainer.run()
    finally:
        torch.set_num_threads(threads)
    return Run(folder)


def _check_folder(folder: Path, settings: Settings, *, resume: bool, overwrite: bool) -> None:
    """SettingError where the directory can not be written, holds a run that is not to go, or one of other settings."""
    check_out(folder)
    if resume:
        started = Run(folder).settings
        _same_settings(started.as_dict(), settings.as_dict(), folder)
        made = _steps_made(folder)
        if settings.training.steps < made:
            needed = f"at least {made}, which the run in {folder} has made"
            raise SettingError(f"training.steps: got {settings.training.steps} with --resume, needed {needed}")
    elif holds_run(folder) and not overwrite:
        raise SettingError(f"--out: {folder} holds a run already, needed another directory, --resume or --overwrite")


def _same_settings(started: dict[str, Any], given: dict[str, Any], folder: Path) -> None:
    same_size(started["about"]["quick"], given["about"]["quick"], folder, "run")
    for section in ("task", "model", "training"):
        for name, value in started[section].items():
            free = section == "training" and name in MAY_CHANGE
            if not free and given[section].get(name) != value:
                raise SettingError(
                    f"{section}.{name}: got {given[section].get(name)!r} with --resume, needed {value!r} as in {folder}"
                )


def _steps_made(folder: Path) -> int:
    """The updates up to a run's result, else up to its last checkpoint."""
    result, last = Run(folder).result, find_checkpoint(folder / "checkpoints" / "last")
    if result is not None:
        return int(result["steps"])
    return 0 if last is None else int(read_checkpoint(last)["step"])


def _is_over(folder: Path, settings: Settings) -> bool:
    result = Run(folder).result
    if result is None:
        return False
    return result["status"] == "failed" or result["stopped_early"] or result["steps"] >= settings.training.steps


@contextmanager
def _accelerator(training: TrainingSettings) -> Iterator[Accelerator]:
    """accelerate's view of device, precision and processes; its global state goes with the `with` block in a single process."""
    if training.device == "cuda" and not torch.cuda.is_available():
        raise refuse("training.device", "cuda", "cpu or auto, as torch finds no CUDA device here")
    if training.device == "mps" and not torch.backends.mps.is_available():
        raise refuse("training.device", "mps", "cpu or auto, as torch finds no Apple GPU here")
    accelerator = Accelerator(
        cpu=training.device == "cpu",
        mixed_precision="bf16" if training.precision == "bfloat16" else "no",
        step_scheduler_with_optimizer=False,
    )
    # Accelerate's own sharding comes after the optimiser is built, on parameters that the optimiser then does not have.
    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        needed = "none of it, as training holds whole models (`longscan.training.shard_model` splits one for a loop of your own)"
        raise SettingError(f"accelerate: got {accelerator.distributed_type.value}, needed {needed}")
    try:
        yield accelerator
    finally:
        if accelerator.num_processes == 1:
            AcceleratorState._reset_state()
            PartialState._reset_state()
