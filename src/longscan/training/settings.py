"""What a run is made of: task, model and training settings, as frozen dataclasses that check their own values.

A `Settings` object and a recipe (YAML) are two spellings of one thing: `Settings.as_dict` and `longscan.training.parsing` go from
one to the other. Every refusal is a `SettingError` whose message is one line: the setting, what came, what was needed.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from longscan._errors import SettingError as SettingError
from longscan._specs import SPEC_VERSION
from longscan.report.published import published_ids
from longscan.tasks import Task
from longscan.tasks.base import Split


def refuse(setting: str, got: object, needed: str) -> SettingError:
    """The one form of a refusal: `training.lr: got -1, needed a number above 0`."""
    return SettingError(f"{setting}: got {quote(got)}, needed {needed}")


def quote(value: object) -> str:
    """The repr of a value, with "..." for what follows its first hundred characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def same_size(started: bool, given: bool, folder: Path, kind: str) -> None:
    """SettingError where a run or sweep (`kind`) was started at a recipe's quick size and given its full one, or vice versa."""
    if started != given:
        got, held = ("--quick", "full") if given else ("no --quick", "quick")
        held = f"{folder} holds a {held} {kind} of its recipe"
        raise SettingError(f"--resume: got {got}, needed settings of the same size, as {held}")


def _check(prefix: str, settings: object, rules: dict[str, tuple[Callable[[Any], bool], str]]) -> None:
    """Hold each named field of `settings` against its rule (a predicate and what it asks for in words)."""
    for name, (holds, needed) in rules.items():
        value = getattr(settings, name)
        if not holds(value):
            raise refuse(f"{prefix}.{name}", value, needed)


def _choice(*options: str) -> tuple[Callable[[Any], bool], str]:
    return options.__contains__, "one of " + ", ".join(options)


def _real(holds: Callable[[float], bool], needed: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: _is_finite(value) and holds(value), needed


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


_POSITIVE = _real(lambda value: value > 0, "a number above 0")
_NOT_NEGATIVE = _real(lambda value: value >= 0, "a number of at least 0")
_FRACTION = _real(lambda value: 0 <= value <= 1, "a number from 0 to 1")
_COUNT = _real(lambda value: value >= 1, "a whole number of at least 1")
_COUNT_OR_OFF = _real(lambda value: value >= 0, "a whole number of at least 0")
_SEED = _real(lambda value: 0 <= value < 2**63, "a whole number from 0 to below 2^63")
_THREADS = _real(lambda value: 0 <= value <= 1024, "a whole number from 0 to 1024")  # far more end the process without a word


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The stack of blocks; `SequenceModel.from_spec` reads the same names, input and output sizes come from the task.

    Attributes:
        spec: the blocks by name, from the input to the output, such as `s4d*6` or `(mamba aussm)*2`; `mamba[s4d]` is the Mamba
            block around another layer (`longscan layers` lists the names). In words of m and a, m is mamba and a is aussm.
        d_model: width of the residual stream.
        d_state: state size of the state space layers.
        pooling: how the steps become one output; auto is `none` for a task with an answer per step and `mean` otherwise.
        head: the map from the last width to the output.
        initial_state: whether the layers start from zero or from a learned state.
        norm: of the residual branches: RMSNorm, LayerNorm or BatchNorm before each block, or LayerNorm after it.
        block_options: options of a block by its name in the spec, for example `{aussm: {recompute: true}}`.
        backend: which implementation of the scans to run.
    """

    spec: str = "ma"
    d_model: int = 64
    d_state: int = 16
    pooling: Literal["auto", "mean", "last", "none"] = "auto"
    head: Literal["linear", "affine", "mlp"] = "linear"
    initial_state: Literal["zero", "learned"] = "zero"
    norm: Literal["rms", "layer", "batch", "post"] = "rms"
    block_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    backend: Literal["auto", "reference", "eager", "cpu", "triton"] = "auto"

    def __post_init__(self) -> None:
        _check(
            "model",
            self,
            {
                "spec": (bool, "at least one block"),
                "d_model": _COUNT,
                "d_state": _COUNT,
                "pooling": _choice("auto", "mean", "last", "none"),
                "head": _choice("linear", "affine", "mlp"),
                "initial_state": _choice("zero", "learned"),
                "norm": _choice("rms", "layer", "batch", "post"),
                "backend": _choice("auto", "reference", "eager", "cpu", "triton"),
            },
        )


@dataclass(frozen=True, kw_only=True)
class CurriculumSettings:
    """Training lengths that grow with success, for tasks with `Task.at_length`.

    Attributes:
        start: longest training length at first; 0 turns the curriculum off.
        end: longest training length at last.
        increment: what is added to it each time.
        threshold: a training batch with a main metric above this earns the increment.
        every: steps between two looks at the training batch.
    """

    start: int = 0
    end: int = 40
    increment: int = 2
    threshold: float = 0.97
    every: int = 100

    def __post_init__(self) -> None:
        rules = {"start": _COUNT_OR_OFF, "end": _COUNT, "increment": _COUNT, "threshold": _FRACTION, "every": _COUNT}
        _check("training.curriculum", self, rules)
        if self.start > self.end:
            raise refuse("training.curriculum.start", self.start, f"at most training.curriculum.end ({self.end})")


@dataclass(frozen=True, kw_only=True)
class LateLengthSettings:
    """Another range of training lengths for a share of the batches late in training, for tasks with `train_lengths`.

    Attributes:
        share: share of the batches that are drawn from this range once it is open; 0 turns it off.
        start: fraction of the steps after which it opens.
        shortest: shortest length of these batches.
        longest: longest length of these batches.
    """

    share: float = 0.0
    start: float = 0.5
    shortest: int = 32
    longest: int = 40

    def __post_init__(self) -> None:
        rules = {"share": _FRACTION, "start": _FRACTION, "shortest": _COUNT, "longest": _COUNT}
        _check("training.late_lengths", self, rules)
        if self.shortest > self.longest:
            raise refuse(
                "training.late_lengths.shortest", self.shortest, f"at most training.late_lengths.longest ({self.longest})"
            )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How the model is fitted and when it is looked at.

    Attributes:
        steps: number of updates.
        batch_size: examples in an update, over all processes together.
        lr: learning rate of AdamW after warm-up.
        betas: AdamW's two decay rates.
        weight_decay: decoupled weight decay of the parameters that declare decay.
        decay_all: also decay parameters that ask for none (the AUSSM repository's training does).
        lr_scale: factor on the learning rate by role (ssm, selector, dense, norm, embedding), on top of a parameter's own.
        schedule: learning rate over the steps: constant, cosine down to lr_min, or cosine with warm restarts.
        warmup: steps of linear warm-up.
        hold: steps at lr after the warm-up, before the schedule begins.
        cooldown: last steps over which the rate falls linearly to 0.
        lr_min: the floor of cosine and restarts.
        restart_period: steps in the first period of restarts.
        restart_factor: each period is this many times the one before.
        clip: largest norm of the gradient; 0 leaves it alone.
        loss_reduction: mean or sum of the loss over the batch's targets (what is logged is always the mean).
        label_smoothing: share of a target class that is spread over all classes in training (not in what is logged), so that the
            loss has its least value at finite answers; for tasks with classes.
        curriculum: growing training lengths.
        late_lengths: another range of lengths late in training.
        average: decay of the running average of the weights; 0 keeps none, 1 is the plain mean.
        average_start: fraction of the steps after which the average starts.
        select: the weights that a run ends with and that are tested: last, best on validation, or average.
        eval_every: steps between validations; 0 validates at the end alone.
        eval_batches: validation batches; 0 is the whole split (an endless split needs a number).
        test_batches: the same for the test split.
        patience: validations without improvement after which training stops; 0 never stops.
        solved_at: validation score from which the task counts as solved; solved_for such validations of the weights that `select`
            names, one after the other, end the training, whatever is left of the steps. 0 never does. Where validation has the
            test's lengths and not the training's, as for the formal languages, this chooses by them: say so beside the score.
        solved_for: see solved_at.
        checkpoint_every: steps between checkpoints, beside the one at each validation; 0 writes those alone.
        log_every: steps between two rows of the training log.
        start_from: folder whose weights the run starts from: of a run (those it ended with, or its last ones), of a checkpoint,
            or of a model that `save_pretrained` wrote. Encoder, blocks and norm must be those of `model`; a head of other sizes
            starts as drawn.
        seed: of the weights, and of the data unless data_seed says otherwise.
        data_seed: of the data, if it is to stay the same while seed varies.
        device: auto takes an accelerator where there is one.
        precision: bfloat16 runs the forward pass under autocast.
        threads: CPU threads; 0 leaves torch's own choice.
        prefetch: training batches made ahead by a thread; no number changes the result.
        capture: on a CUDA device, record an update as a CUDA graph and replay it, which makes small models several times faster;
            for batches of few shapes, all of whose steps are scored. Other devices run the update as it is.
        trackers: where the logs go beside metrics.jsonl and metrics.csv: names that accelerate knows (tensorboard, wandb, mlflow,
            ...), or import paths of subclasses of its GeneralTracker ("package.module.Class").
    """

    steps: int = 1000
    batch_size: int = 32
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    decay_all: bool = False
    lr_scale: dict[str, float] = field(default_factory=dict)
    schedule: Literal["constant", "cosine", "restarts"] = "constant"
    warmup: int = 0
    hold: int = 0
    cooldown: int = 0
    lr_min: float = 0.0
    restart_period: int = 1000
    restart_factor: int = 2
    clip: float = 1.0
    loss_reduction: Literal["mean", "sum"] = "mean"
    label_smoothing: float = 0.0
    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)
    late_lengths: LateLengthSettings = field(default_factory=LateLengthSettings)
    average: float = 0.0
    average_start: float = 0.0
    select: Literal["last", "best", "average"] = "last"
    eval_every: int = 500
    eval_batches: int = 0
    test_batches: int = 0
    patience: int = 0
    solved_at: float = 0.0
    solved_for: int = 3
    checkpoint_every: int = 0
    log_every: int = 50
    start_from: str | None = None
    seed: int = 0
    data_seed: int | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    threads: int = 0
    prefetch: int = 2
    capture: bool = False
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])

    def __post_init__(self) -> None:
        _check(
            "training",
            self,
            {
                "steps": _COUNT,
                "batch_size": _COUNT,
                "lr": _POSITIVE,
                "betas": (
                    lambda betas: len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
                    "two numbers from 0 to below 1",
                ),
                "weight_decay": _NOT_NEGATIVE,
                "lr_scale": (
                    lambda scales: set(scales) <= set(ROLES) and all(isfinite(s) and s >= 0 for s in scales.values()),
                    f"numbers of at least 0 for roles among {', '.join(ROLES)}",
                ),
                "schedule": _choice("constant", "cosine", "restarts"),
                "warmup": _COUNT_OR_OFF,
                "hold": _COUNT_OR_OFF,
                "cooldown": _COUNT_OR_OFF,
                "lr_min": _NOT_NEGATIVE,
                "restart_period": _COUNT,
                "restart_factor": _COUNT,
                "clip": _NOT_NEGATIVE,
                "loss_reduction": _choice("mean", "sum"),
                "label_smoothing": _real(lambda value: 0 <= value < 1, "a number from 0 to below 1"),
                "average": _FRACTION,
                "average_start": _real(lambda value: 0 <= value < 1, "a number from 0 to below 1"),
                "select": _choice("last", "best", "average"),
                "eval_every": _COUNT_OR_OFF,
                "eval_batches": _COUNT_OR_OFF,
                "test_batches": _COUNT_OR_OFF,
                "patience": _COUNT_OR_OFF,
                "solved_at": _NOT_NEGATIVE,
                "solved_for": _COUNT,
                "checkpoint_every": _COUNT_OR_OFF,
                "log_every": _COUNT,
                "seed": _SEED,
                "data_seed": (lambda seed: seed is None or _SEED[0](seed), _SEED[1]),
                "device": _choice("auto", "cpu", "cuda", "mps"),
                "precision": _choice("float32", "bfloat16"),
                "threads": _THREADS,
                "prefetch": _COUNT_OR_OFF,
            },
        )
        if self.schedule != "constant" and self.lr_min > self.lr:
            raise refuse("training.lr_min", self.lr_min, f"at most lr ({self.lr})")
        if self.warmup + self.hold + self.cooldown > self.steps:
            others = f"hold ({self.hold}) and cooldown ({self.cooldown})"
            raise refuse("training.warmup", self.warmup, f"warmup, {others} together within steps ({self.steps})")
        if self.select == "average" and not self.average:
            raise refuse("training.select", self.select, "training.average above 0, or select last or best")
        for name in ("patience", "solved_at"):
            if getattr(self, name) and not self.eval_every:
                raise refuse(f"training.{name}", getattr(self, name), "eval_every above 0")

    def max_batches(self, split: Split) -> int:
        """Batches in an evaluation on a split; 0 stands for all of them."""
        return self.test_batches if split == "test" else self.eval_batches


ROLES = ("ssm", "selector", "dense", "norm", "embedding")


@dataclass(frozen=True, kw_only=True)
class AboutSettings:
    """What a record of the run says beside its figures.

    Attributes:
        paper: the paper whose row the recipe follows, as longscan/report/published.json calls it.
        model: the name of the model in tables; the spec where it is not given.
        published: ids of the published rows that the run is to be set beside.
        recipe: where the settings came from; the command line fills it in.
        quick: whether the recipe's quick section was taken, so that reports keep such runs apart; `--quick` sets it.
        chosen_on: the split whose scores decided for this recipe against others of its task: validation, or test where test
            scores of others had been seen; tables say so. None: not known.
    """

    paper: str | None = None
    model: str | None = None
    published: list[str] = field(default_factory=list)
    recipe: str | None = None
    quick: bool = False
    chosen_on: Literal["validation", "test"] | None = None

    def __post_init__(self) -> None:
        if self.chosen_on not in ("validation", "test", None):
            raise refuse("about.chosen_on", self.chosen_on, "validation, test or nothing")
        for identity in self.published:
            if identity not in published_ids():
                near = get_close_matches(identity, published_ids(), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise refuse("about.published", identity, f"ids of rows in longscan/report/published.json{hint}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that decides a run's result.

    Attributes:
        task: what to learn.
        model: the stack of blocks.
        training: how it is fitted.
        about: what the record says beside the figures.
    """

    task: Task
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    about: AboutSettings = field(default_factory=AboutSettings)

    def __post_init__(self) -> None:
        if self.training.label_smoothing and self.task.num_classes is None:
            raise refuse("training.label_smoothing", self.training.label_smoothing, f"0, as {self.task.name} has no classes")
        curriculum, late = self.training.curriculum, self.training.late_lengths
        if curriculum.start:
            for setting in ("start", "end"):
                length = getattr(curriculum, setting)
                try:
                    self.task.at_length(length)
                except ValueError as error:
                    raise refuse(
                        f"training.curriculum.{setting}", length, f"a length that the task can train at ({error})"
                    ) from None
        if late.share:
            if "train_lengths" not in {f.name for f in fields(self.task)}:
                raise refuse("training.late_lengths.share", late.share, f"0, as task {self.task.name} has no train_lengths")
            try:
                self.late_task()
            except ValueError as error:
                lengths = (late.shortest, late.longest)
                raise refuse("training.late_lengths", lengths, f"lengths that the task can train at ({error})") from None

    def late_task(self) -> Task:
        """The task with the training lengths of `training.late_lengths`."""
        late = self.training.late_lengths
        changed: dict[str, Any] = {"train_lengths": (late.shortest, late.longest)}
        return replace(self.task, **changed)

    @property
    def data_seed(self) -> int:
        """The seed that `task.batch` gets."""
        training = self.training
        return training.seed if training.data_seed is None else training.data_seed

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers: what settings.yaml and recipes hold."""
        training = asdict(self.training)
        training["betas"] = list(self.training.betas)
        return {
            "spec_version": SPEC_VERSION,
            "task": {"name": self.task.name, **asdict(self.task)},
            "model": asdict(self.model),
            "training": training,
            "about": asdict(self.about),
        }
