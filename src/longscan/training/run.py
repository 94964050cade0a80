"""The folder of a run: its settings, model, description and result, scores on any split, predictions.

settings.yaml, metrics.jsonl, metrics.csv, tensorboard/, checkpoints/{last,best,average}/, result.json, angles.json,
baselines.json, examples.json, inspection/, report.html.
"""

import json
import logging
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

import longscan
from longscan._errors import SettingError, one_line, setting_error, with_options
from longscan._files import checked_path, try_writing
from longscan._specs import SPEC_VERSION, format_names, upgrade_record
from longscan._torch_defaults import torch_defaults
from longscan.blocks import BidirectionalBlock
from longscan.models import LanguageModel, SequenceModel, SiameseModel, make_bidirectional
from longscan.models.saving import CONFIG, WEIGHTS, read_model
from longscan.models.spec import block_label, parse_spec
from longscan.ops.dispatch import NATIVE
from longscan.tasks import Batch
from longscan.tasks.base import Split, Task
from longscan.tasks.series import SeriesFile
from longscan.training.checkpoint import find_checkpoint, read_checkpoint, read_tensors, split_like
from longscan.training.evaluate import MIN_ERRORS, Scores, error_quantiles, evaluate, predict
from longscan.training.parsing import load_settings, with_section
from longscan.training.settings import ModelSettings, Settings

SETTINGS = "settings.yaml"
STREAM_BATCHES = 100  # number of batches of an endless split that are evaluated, if the settings give none
log = logging.getLogger("longscan")
_FILES = (
    *(SETTINGS, "metrics.jsonl", "metrics.csv", "result.json", "angles.json"),
    *("baselines.json", "examples.json", "report.html"),
)
_FOLDERS = ("tensorboard", "inspection", "checkpoints")
# The only values that these settings can have in a model for pairs of sequences
_PAIR_SETTINGS = {"head": "mlp", "initial_state": "zero", "positions": "none"}


TrainedModel = SequenceModel | SiameseModel


def build_model(settings: Settings) -> TrainedModel:
    """Return the model that the settings describe, with the sizes of their task. Raises SettingError for invalid values."""
    task, model = settings.task, settings.model
    pooling = ("none" if task.per_step else "mean") if model.pooling == "auto" else model.pooling
    if (pooling == "none") != task.per_step:
        needed = (
            "none, as the task wants an answer at every step" if task.per_step else "mean or last, as the task wants one answer"
        )
        raise setting_error("model.pooling", pooling, needed)
    if model.encoder == "conv2d" and task.image_shape is None:
        raise setting_error("model.encoder", model.encoder, f"auto, as the inputs of {task.name} are no images")
    if task.is_pair:
        for setting, needed in _PAIR_SETTINGS.items():
            if (value := getattr(model, setting)) != needed:
                raise setting_error(f"model.{setting}", value, f"{needed} for the pairs of sequences of task {task.name}")
    kind: type[TrainedModel] = SiameseModel if task.is_pair else SequenceModel
    only_one_sequence = {
        "image_shape": task.image_shape if model.encoder == "conv2d" else None,
        "head": model.head,
        "initial_state": model.initial_state,
        "positions": model.positions,
        "max_length": None if model.positions in ("none", "sinusoidal") else task.length,
    }
    try:
        built = kind.from_spec(
            model.spec,
            d_model=model.d_model,
            d_output=task.d_output,
            vocab_size=task.vocab_size,
            d_input=task.d_input,
            d_state=model.d_state,
            pooling=pooling,
            norm=model.norm,
            padding=model.padding,
            block_options=model.block_options,
            backend=model.backend,
            **({} if task.is_pair else only_one_sequence),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise SettingError(with_section("model", error, ModelSettings)) from error
    if task.needs_causal and isinstance(built, SequenceModel) and not built.causal:
        raise setting_error("model.spec", model.spec, f"causal blocks, as later inputs of {task.name} contain the targets")
    if task.starts_at_zero:
        last = [part for part in built.head.modules() if isinstance(part, nn.Linear)][-1:]
        for parameter in (parameter for part in last for parameter in part.parameters()):
            nn.init.zeros_(parameter)
    return built


def first_model(settings: Settings) -> TrainedModel:
    """Return the model that a run starts with: new, or with the weights of `training.start_from`, if set."""
    model, training = build_model(settings), settings.training
    if training.start_from is not None:
        _start_from(model, training.start_from, training.start_from_reverse)
    return model


def _start_from(model: TrainedModel, source: str, reverse: str | None) -> None:
    """Copy the weights of a run or of a saved model into a new one; those of the head only if its sizes are the same.

    From a language model its stack is copied. If the saved encoder has one token more, the mask token, that token is left out.
    Bidirectional blocks may start from causal ones, see `_bidirectional_weights`.

    Args:
        model: the new model.
        source: the setting `training.start_from`.
        reverse: the setting `training.start_from_reverse`.

    Raises SettingError if the weights do not fit this model.
    """
    folder = _start_folder("start_from", source)
    own, stack = model.state_dict(), "backbone." if isinstance(model, SiameseModel) else ""
    if isinstance(model, SequenceModel) and _needs_conversion(model, folder):
        tensors = _bidirectional_weights(model, source, reverse)
    elif reverse is not None:
        needed = "left out, unless bidirectional blocks start from causal ones"
        raise setting_error("training.start_from_reverse", reverse, needed)
    else:
        tensors = read_tensors(folder / WEIGHTS)
    if tensors.keys() != own.keys():
        tensors = {f"{stack}{name.removeprefix('backbone.')}": tensor for name, tensor in tensors.items()}
    if isinstance(model, SequenceModel) and model.vocab_size is not None and "encoder.weight" in tensors:
        encoder = tensors["encoder.weight"]
        tensors["encoder.weight"] = encoder[:-1] if len(encoder) == model.vocab_size + 1 else encoder
    new_shapes, saved_shapes = ({name: list(tensor.shape) for name, tensor in of.items()} for of in (own, tensors))
    different = {name for name in new_shapes.keys() | saved_shapes.keys() if new_shapes.get(name) != saved_shapes.get(name)}
    head = ("head.", f"{stack}head.")
    heads = {name for name in different if name.startswith(head)}
    if different > heads:
        first = min(different - heads)
        saved, new = (shapes.get(first, "absent") for shapes in (saved_shapes, new_shapes))
        needed = f"weights for the encoder, blocks and norm of this model ({first} is {saved} there and {new} here)"
        raise setting_error("training.start_from", source, needed)
    model.load_state_dict({name: value if heads and name.startswith(head) else tensors[name] for name, value in own.items()})


def _start_folder(setting: str, source: str) -> Path:
    """Return the folder with the weights of a run, a checkpoint or a saved model, whose path is `source`.

    setting: name of the setting in the section `training`, for errors. Raises SettingError if there are no weights.
    """
    try:
        folder = Run(source).checkpoint("selected") if is_run_folder(Path(source)) else Path(source)
        read_tensors(folder / WEIGHTS)
    except SettingError as error:
        raise setting_error(f"training.{setting}", source, f"a folder of a run or a saved model ({error})") from None
    return folder


def _needs_conversion(model: SequenceModel, folder: Path) -> bool:
    """Return whether `model` has bidirectional blocks and the saved one in `folder` has none, so that weights are converted."""
    if not any(entry["block"] == "bidirectional" for entry in model.entries) or not (folder / CONFIG).is_file():
        return False
    return all(entry["block"] != "bidirectional" for entry in read_model(folder)[0]["blocks"])


def _bidirectional_weights(model: SequenceModel, source: str, reverse: str | None) -> dict[str, Tensor]:
    """Return weights for a bidirectional model, by name, which `make_bidirectional` computes from those of causal models.

    The last norm and the head keep the weights of `model`. source, reverse: as in `_start_from`.
    """
    variants = {block.block.variant for block in model.stack if isinstance(block.block, BidirectionalBlock)}
    if variants != {"own"}:
        needed = "options with variant own for bidirectional blocks, which start from causal ones"
        raise setting_error("model.block_options", ", ".join(sorted(variants)), needed)
    causal = []
    for setting, path in (("start_from", source), ("start_from_reverse", reverse or source)):
        folder = _start_folder(setting, path)
        kind = LanguageModel if "tied" in read_model(folder)[0] else SequenceModel
        try:
            causal.append(kind.from_pretrained(folder, backend="auto"))
        except ValueError as error:
            raise setting_error(f"training.{setting}", path, f"the folder of a model of tokens or series ({error})") from None
    try:
        converted = make_bidirectional(*causal).state_dict()
    except ValueError as error:
        setting, path = ("start_from", source) if reverse is None else ("start_from_reverse", reverse)
        needed = f"a causal model that can become bidirectional ({error})"
        raise setting_error(f"training.{setting}", path, needed) from None
    new = ("norm.", "head.")
    own = {name: value for name, value in model.state_dict().items() if name.startswith(new)}
    return {name: value for name, value in converted.items() if not name.startswith(new)} | own


class Run:
    """The folder of a run, finished or not. Raises SettingError if `folder` is not that of a run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = checked_path("folder", folder)
        if not is_run_folder(self.folder):
            fault = f"{folder} is not the directory of a run: it has no {SETTINGS}, which `longscan train` writes"
            raise SettingError(fault + describe_runs(self.folder))

    @cached_property
    def settings(self) -> Settings:
        """The settings that the run was started with."""
        return load_settings(self.folder / SETTINGS)

    @property
    def result(self) -> dict[str, Any] | None:
        """The content of result.json; None while the run is not over."""
        path = self.folder / "result.json"
        if not path.exists():
            return None
        try:
            result = upgrade_record(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise SettingError(f"{path} is damaged ({error})") from None
        return result

    def steps_made(self) -> int:
        """Return the number of steps up to the result, or up to the last checkpoint if the run has no result."""
        result, last = self.result, find_checkpoint(self.folder / "checkpoints" / "last")
        if result is not None:
            return int(result["steps"])
        return 0 if last is None else int(read_checkpoint(last)["step"])

    def checkpoint(self, which: str) -> Path:
        """Return the folder of the checkpoint "last", "best", "average" or "selected".

        "selected" is the one that the run ended with, or "last" if the run has not ended.
        """
        if which == "selected":
            which = (self.result or {}).get("selected") or "last"
        folder = find_checkpoint(self.folder / "checkpoints" / which)
        if folder is None:
            present = [name for name in ("last", "best", "average") if find_checkpoint(self.folder / "checkpoints" / name)]
            others = f"; it has selected, {', '.join(present)}" if present else " yet"
            raise SettingError(f"{self.folder} has no checkpoint {which!r}{others}")
        return folder

    @torch_defaults()
    def model(self, which: str = "selected") -> TrainedModel:
        """Return the model of a checkpoint, on the CPU, in evaluation mode.

        The state of torch's random generators is not changed. If the backend of the settings cannot run this model on the CPU,
        it is replaced by `auto`, with a warning. There is a warning, too, if the last checkpoint is read as "selected", because
        the run has not ended.
        """
        folder = self.checkpoint(which)
        state = read_checkpoint(folder)
        if which == "selected" and self.result is None:
            steps = self.settings.training.steps
            made = f"{state['step']:,} of {steps:,} updates"
            log.warning(f"{self.folder}: the run has not ended; the weights are those after {made}")
        # New weights on "meta" draw no numbers from torch's random generator, which is that of the whole program.
        with torch.device("meta"):
            model = self._new_model()
        model.to_empty(device="cpu")
        load_weights(model, folder)
        return model.eval()

    def _new_model(self) -> TrainedModel:
        """Return a new model of the settings on the default device, with the backend `auto` if theirs cannot run on the CPU."""
        settings, backend = self.settings, self.settings.model.backend
        try:
            if backend == "triton":
                raise setting_error("model.backend", backend, "auto, or a backend for the CPU, where models of runs are read")
            return build_model(settings)
        except SettingError as error:
            if backend not in NATIVE:
                raise
            automatic = build_model(replace(settings, model=replace(settings.model, backend="auto")))
            log.warning(f"{self.folder}: its model runs on the backend 'auto', not {backend!r} ({error})")
            return automatic

    @torch_defaults()
    def evaluate(self, split: Split = "test", which: str = "selected") -> Scores:
        """Return loss and metrics of a checkpoint on a split, on the CPU, over as many batches as training used."""
        settings = self.settings
        training = settings.training
        if split not in settings.task.splits:
            raise setting_error("split", split, f"one of {', '.join(settings.task.splits)}")
        limit = training.max_batches(split) or (0 if settings.task.size(split) is not None else STREAM_BATCHES)
        return evaluate(
            self.model(which), settings.task, split, batch_size=training.batch_size, seed=settings.data_seed, max_batches=limit
        )

    @torch_defaults()
    @torch.no_grad()
    def predict(
        self,
        path: str | Path,
        which: str = "selected",
        missing: str | None = None,
        *,
        every_window: bool = False,
        quantiles: Sequence[float] = (),
    ) -> list[dict[str, str | float]]:
        """Return the model's answers for the examples in a user's file, a row for each, as `Task.decode` names them.

        missing: how missing values are treated, "refuse" or "fill", for tasks with a setting of this name; None: as in training.
        every_window: forecast each window of the file, not only the steps after its end, for the task series_forecast.
        quantiles: levels of quantiles of forecasts, which become columns such as price_q0.1. A quantile is the forecast plus the
            quantile of the errors on the validation windows at the same step.
        """
        checked_path("path", path)
        settings = self.settings
        task = settings.task if missing is None else _with_missing(settings.task, missing)
        if every_window:
            if not hasattr(task, "predicted"):
                raise setting_error("--every-window", True, f"left out, as task {task.name} has no setting predicted")
            task = replace(task, predicted="windows")  # type: ignore[call-arg]
        try:
            examples = task.read_inputs(path)
        except (ValueError, OSError) as error:
            raise SettingError(with_options(one_line(error), ("missing",))) from error
        model = self.model(which)
        errors = self._error_quantiles(model, task, examples, quantiles) if quantiles else None
        rows: list[dict[str, str | float]] = []
        for first in range(0, len(examples.inputs), settings.training.batch_size):
            batch = examples.rows(first, settings.training.batch_size)
            with torch.no_grad():
                output = predict(model, batch)
            found = task.decode(output, batch)
            if errors is not None:
                found = _with_quantiles(found, task, output, batch, errors, quantiles)
            for row in found:
                rows.append(row | {"example": first + int(row["example"])} if "example" in row else row)
        return task.add_times(rows, path)

    def _error_quantiles(self, model: TrainedModel, task: Task, examples: Batch, levels: Sequence[float]) -> Tensor:
        """Return the quantiles (Q, S, C) of the errors on the validation windows at the S steps of the forecasts of examples."""
        shown = ",".join(f"{level:g}" for level in levels)
        if task.plot_kind != "forecast":
            raise setting_error("--quantiles", shown, f"left out, as the answers of task {task.name} are not forecasts")
        if not all(0 < level < 1 for level in levels) or len(set(levels)) < len(levels):
            raise setting_error("--quantiles", shown, "different numbers above 0 and below 1")
        size = self.settings.training.batch_size
        batches = [task.batch("valid", step, size) for step in range(task.num_batches("valid", size) or 0)]
        steps = None if examples.loss_mask is None else examples.loss_mask[0]
        errors = error_quantiles(model, batches, levels, size, steps)
        if errors is None:
            needed = f"fewer than {MIN_ERRORS} validation windows have targets at a step of the forecast"
            raise setting_error("--quantiles", shown, f"left out, as {needed}")
        return errors


def _with_quantiles(
    rows: list[dict[str, str | float]], task: Task, output: Tensor, batch: Batch, errors: Tensor, levels: Sequence[float]
) -> list[dict[str, str | float]]:
    """Return the rows of forecasts (`Task.decode`) with a column for each variable and level, such as price_q0.1."""
    assert batch.loss_mask is not None, "called for forecasts, which have a mask of the steps ahead"
    for level, error in zip(levels, errors, strict=True):
        shifted = output.clone()
        shifted[:, batch.loss_mask[0]] += error.float()
        for row, quantile in zip(rows, task.decode(shifted, batch), strict=True):
            row |= {f"{name}_q{level:g}": value for name, value in quantile.items() if name not in ("example", "step")}
    return rows


def _with_missing(task: Task, missing: str) -> Task:
    """Return the task with another treatment of missing values. Raises SettingError if the task or its model has only one."""
    trained = getattr(task, "missing", None)
    if trained is None:
        raise setting_error("--missing", missing, f"left out, as task {task.name} has no setting missing")
    if missing != trained and (missing == "mask" or trained == "mask"):
        raise setting_error("--missing", missing, f"{trained}, as in training, as missing='mask' adds channels to the model")
    try:
        return replace(task, missing=missing)  # type: ignore[call-arg]
    except ValueError as error:
        raise SettingError(one_line(error).replace("`missing`", "`--missing`", 1)) from None


def load_weights(model: TrainedModel, folder: Path) -> None:
    """Copy the weights of a checkpoint into a model, split or not. Raises SettingError if they are those of another model."""
    tensors, own = read_tensors(folder / "model.safetensors"), model.state_dict()
    try:
        model.load_state_dict({name: split_like(value, own.get(name, value)) for name, value in tensors.items()})
    except RuntimeError as error:
        raise SettingError(f"{folder / 'model.safetensors'}: does not fit the model of {SETTINGS} ({one_line(error)})") from None


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return os.path.exists(folder / SETTINGS)  # unlike Path.exists, False for a folder that cannot be read


def describe_runs(folder: Path) -> str:
    """Return the end of an error about a folder that is not that of a run: where runs are in it; "" if none are seen."""
    if os.path.isfile(folder / "sweep.yaml"):  # unlike Path.is_file, False for a name that is too long
        return "; it is the folder of a sweep, whose runs are in its folders trials and seeds"
    try:
        runs = sorted(one for one in folder.iterdir() if is_run_folder(one))
    except OSError:  # no folder, or one that cannot be read
        return ""
    return f"; it contains the runs {', '.join(map(str, runs[:3]))}{', ...' if len(runs) > 3 else ''}" if runs else ""


def check_out(folder: Path, option: str = "--out") -> None:
    """Raise SettingError, which names the option, if a folder cannot be created or written into."""
    if os.path.isfile(folder):
        raise SettingError(f"`{option}` must be a directory, got the file {folder}")
    try:
        try_writing(folder)
    except OSError as error:
        needed = f"a directory that can be written, got {folder} ({error.strerror or error})"
        raise SettingError(f"`{option}` must be {needed}") from None


def clear_run(folder: Path) -> None:
    """Remove the files that a run has written into its folder, the settings last, and nothing else."""
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in reversed(_FILES):
        (folder / name).unlink(missing_ok=True)


def describe_run(settings: Settings, model: nn.Module, device: torch.device, command: str) -> dict[str, Any]:
    """Return the part of result.json that is known before training. A spec given as a list is written without its options."""
    task, spec = settings.task, settings.model.spec
    return {
        "task": task_title(settings),
        "suite": getattr(task, "suite", None) or getattr(task, "protocol", None),
        "spec": spec if isinstance(spec, str) else format_names([block_label(entry) for entry in parse_spec(spec)]),
        "spec_version": SPEC_VERSION,
        "seed": settings.training.seed,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "device": device_name(device),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": {
            "longscan": longscan.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "command": command,
        "classes": None if task.classes is None else list(task.classes),
    }


def task_title(settings: Settings) -> str:
    """Return the task's name, with that of the data set for a task that reads several, or of the file for a user's own series."""
    task = settings.task
    dataset = Path(task.path or "").name if isinstance(task, SeriesFile) else getattr(task, "dataset", None)
    return f"{settings.task.name}/{dataset}" if dataset else settings.task.name


def device_name(device: torch.device) -> str:
    """Return the name of a device: the model of a GPU, or the processor and the number of threads of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = (line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name"))
        name = next(models, name)
    return f"cpu, {name}, {torch.get_num_threads()} threads"


def commit() -> str:
    """Return the commit of the checkout that this package runs from, marked if files have changed since, or "unknown".

    The environment variable LONGSCAN_COMMIT gives the commit for files that were copied without their history. If the package is
    installed inside another project's checkout, git does not track its files, and the result is "unknown".
    Raises SettingError if LONGSCAN_COMMIT is not a hash.
    """
    if given := os.environ.get("LONGSCAN_COMMIT"):
        if not re.fullmatch(r"[0-9a-f]{7,40}(\+changes)?", given):
            raise SettingError(f"`LONGSCAN_COMMIT` must be 7 to 40 hexadecimal digits, got {given!r}")
        return given
    printed = []
    for words in (
        ["ls-files", "--error-unmatch", "__init__.py"],
        ["rev-parse", "--short=12", "HEAD"],
        ["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results"],
    ):
        command = ["git", "-C", str(Path(longscan.__file__).parent), *words]
        try:
            printed.append(subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip())
        except (OSError, subprocess.SubprocessError):
            return "unknown"
    return printed[1] + ("+changes" if printed[2] else "")
