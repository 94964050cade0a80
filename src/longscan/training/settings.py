"""The settings of a run: frozen dataclasses of task, model, training and record, whose constructors check their values.

`Settings.as_dict` and `longscan.training.parsing` convert between `Settings` and the content of a recipe (YAML). Each field
declares its type, range and help. Every error is a `SettingError` of one line: setting, what it must be, value.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from math import cos, pi
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from longscan._errors import SettingError as SettingError
from longscan._errors import setting_error
from longscan._specs import SPEC_VERSION
from longscan._types import (
    Doc,
    Fraction,
    FractionBelowOne,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rule,
    Seed,
    SettingsGroup,
)
from longscan.report.published import published_ids
from longscan.tasks import Task
from longscan.tasks.base import Split

if TYPE_CHECKING:
    from longscan.models.roles import OptimizerOptions

ROLES = ("ssm", "selector", "dense", "norm", "embedding")
Role = Annotated[str, Rule(ROLES.__contains__, f"one of {', '.join(ROLES)}")]


def check_same_size(stored: bool, given: bool, folder: Path, kind: str) -> None:
    """Raise SettingError if a run or sweep (`kind`) of a recipe's quick size is resumed at its full size, or vice versa."""
    if stored != given:
        needed, size, got = ("left out", "full", "--quick") if given else ("given", "quick", "nothing")
        raise SettingError(f"`--quick` must be {needed}, as {folder} is a {kind} of its recipe's {size} size, got {got}")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(SettingsGroup):
    """The stack of blocks, by the names of `SequenceModel.from_spec`. The sizes of input and output come from the task."""

    path: ClassVar[str] = "model"

    spec: Annotated[
        Annotated[str, Rule(bool, "at least one block")] | list[dict[str, Any]],
        Doc(
            "the blocks by name, from the input to the output, such as `s4d*6` or `(mamba aussm)*2`; `mamba[s4d]` is the Mamba "
            "block around another layer (`longscan layers` lists the names). In words of m and a, m is mamba and a is aussm. Or "
            "a list of blocks, each with layer, block and options"
        ),
    ] = "ma"
    d_model: Annotated[PositiveInt, Doc("width of the residual stream")] = 64
    d_state: Annotated[PositiveInt, Doc("state size of the state space layers")] = 16
    encoder: Annotated[
        Literal["auto", "conv2d"],
        Doc(
            "map from the inputs to vectors of width d_model; auto is an embedding for tokens and a linear map for numbers; "
            "conv2d is two convolutions of the image of each step, for tasks with images"
        ),
    ] = "auto"
    pooling: Annotated[
        Literal["auto", "mean", "last", "none"],
        Doc("how the steps become one output; auto is none for a task with an answer at each step and mean otherwise"),
    ] = "auto"
    head: Annotated[Literal["linear", "affine", "mlp"], Doc("map from vectors of width d_model to the output")] = "linear"
    initial_state: Annotated[Literal["zero", "learned"], Doc("state that the layers start from")] = "zero"
    norm: Annotated[
        Literal["rms", "layer", "batch", "post"],
        Doc("of the residual branches: RMSNorm, LayerNorm or BatchNorm before each block, or LayerNorm after it"),
    ] = "rms"
    positions: Annotated[
        Literal["none", "sinusoidal", "learned", "blocks", "tied"],
        Doc(
            "absolute positions added to the features: sinusoids or a learned table at the first block, a learned table for each "
            "block (blocks), or one learned table for all (tied). Rotary positions are an option of blocks"
        ),
    ] = "none"
    padding: Annotated[
        Literal["masked", "read"],
        Doc(
            "steps after the end of a sequence: ignored, or read and pooled like others, as in codes that pass no lengths; then "
            "an output depends on the longest sequence of its batch. For tasks with one answer"
        ),
    ] = "masked"
    block_options: Annotated[
        dict[str, dict[str, Any]], Doc("options of a block by its name in the spec, for example {aussm: {recompute: true}}")
    ] = field(default_factory=dict)
    backend: Annotated[Literal["auto", "reference", "eager", "cpu", "triton"], Doc("implementation of the scans")] = "auto"


class LengthSettings(SettingsGroup):
    """Base of settings with a smaller and a larger length, whose names are `lengths`."""

    lengths: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        (small, low), (large, high) = ((name, getattr(self, name)) for name in self.lengths)
        if low > high:
            raise setting_error(f"{self.path}.{small}", low, f"at most {self.path}.{large} ({high})")


@dataclass(frozen=True, kw_only=True)
class CurriculumSettings(LengthSettings):
    """Training lengths that grow with success, for tasks with `Task.at_length`."""

    path: ClassVar[str] = "training.curriculum"
    lengths: ClassVar[tuple[str, str]] = ("start", "end")

    start: Annotated[NonNegativeInt, Doc("longest training length at first; 0 turns the curriculum off")] = 0
    end: Annotated[PositiveInt, Doc("longest training length at last")] = 40
    increment: Annotated[PositiveInt, Doc("added to the length each time")] = 2
    threshold: Annotated[Fraction, Doc("main metric of a training batch above which the length grows")] = 0.97
    every: Annotated[PositiveInt, Doc("steps between two training batches that are compared with the threshold")] = 100


@dataclass(frozen=True, kw_only=True)
class LateLengthSettings(LengthSettings):
    """Another range of training lengths for a share of the batches late in training, for tasks with `train_lengths`."""

    path: ClassVar[str] = "training.late_lengths"
    lengths: ClassVar[tuple[str, str]] = ("shortest", "longest")

    share: Annotated[Fraction, Doc("share of the batches from this range once training has come to it; 0 turns it off")] = 0.0
    start: Annotated[Fraction, Doc("fraction of the steps after which it begins")] = 0.5
    shortest: Annotated[PositiveInt, Doc("shortest length of these batches")] = 32
    longest: Annotated[PositiveInt, Doc("longest length of these batches")] = 40


@dataclass(frozen=True, kw_only=True)
class ParameterSettings(SettingsGroup):
    """Options of parameters of one name for the optimiser, in place of those that the layers declare."""

    path: ClassVar[str] = "training.parameters"

    lr_scale: Annotated[NonNegativeFloat | None, Doc("factor on the learning rate; None: as declared")] = None
    decay: Annotated[
        bool | None, Doc("whether weight_decay applies, also where decay_all or weight_decay_by_role differ; None: as declared")
    ] = None

    def given(self) -> "OptimizerOptions":
        """Return the options that are not None."""
        options: OptimizerOptions = {}
        if self.lr_scale is not None:
            options["lr_scale"] = self.lr_scale
        if self.decay is not None:
            options["decay"] = self.decay
        return options


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(SettingsGroup):
    """How a model is fitted, evaluated and stored."""

    path: ClassVar[str] = "training"

    steps: Annotated[PositiveInt, Doc("number of updates")] = 1000
    batch_size: Annotated[PositiveInt, Doc("examples in an update, over all processes together")] = 32
    batch_repeats: Annotated[
        PositiveInt,
        Doc(
            "number of consecutive updates on each training batch; 4 has the effect of the AUSSM repository, whose four loader "
            "processes all deliver every batch"
        ),
    ] = 1
    lr: Annotated[PositiveFloat, Doc("learning rate of AdamW after warm-up")] = 1e-3
    betas: Annotated[
        tuple[FractionBelowOne, FractionBelowOne], Doc("decay rates of AdamW's running means of the gradient and of its square")
    ] = (0.9, 0.999)
    weight_decay: Annotated[NonNegativeFloat, Doc("decoupled weight decay of the parameters that declare decay")] = 0.0
    decay_all: Annotated[
        bool, Doc("also decay parameters that are declared without decay (the AUSSM repository's training does)")
    ] = False
    weight_decay_by_role: Annotated[
        dict[Role, NonNegativeFloat],
        Doc(f"weight decay of all parameters of a role ({', '.join(ROLES)}), in place of weight_decay and decay_all"),
    ] = field(default_factory=dict)
    lr_scale: Annotated[
        dict[Role, NonNegativeFloat],
        Doc(f"factor on the learning rate by role ({', '.join(ROLES)}), in addition to the factor that a parameter declares"),
    ] = field(default_factory=dict)
    parameters: Annotated[
        dict[str, ParameterSettings],
        Doc(
            "lr_scale and decay of parameters by the last part of their name, in place of those that their layers declare, for "
            "example {A_log: {lr_scale: 0.1, decay: false}}"
        ),
    ] = field(default_factory=dict)
    schedule: Annotated[
        Literal["constant", "cosine", "restarts"],
        Doc("learning rate over the steps: constant, cosine down to lr_min, or cosine with warm restarts"),
    ] = "constant"
    warmup: Annotated[NonNegativeInt, Doc("steps of linear warm-up")] = 0
    hold: Annotated[NonNegativeInt, Doc("steps at lr after the warm-up, before the schedule begins")] = 0
    cooldown: Annotated[NonNegativeInt, Doc("last steps, over which the rate falls linearly to 0")] = 0
    lr_min: Annotated[NonNegativeFloat, Doc("lowest learning rate of cosine and restarts")] = 0.0
    lr_min_scaled: Annotated[
        bool,
        Doc(
            "whether the factor on the learning rate of a parameter also multiplies lr_min; false: lr_min is the lowest rate of "
            "all parameters, as in PyTorch's CosineAnnealingLR"
        ),
    ] = True
    restart_period: Annotated[PositiveInt, Doc("steps in the first period of restarts")] = 1000
    restart_factor: Annotated[PositiveInt, Doc("each period is this many times the one before")] = 2
    clip: Annotated[NonNegativeFloat, Doc("largest norm of the gradient; 0 does not clip")] = 1.0
    loss_reduction: Annotated[
        Literal["mean", "sum"], Doc("mean or sum of the loss over the batch's targets; the log always has the mean")
    ] = "mean"
    label_smoothing: Annotated[
        FractionBelowOne,
        Doc(
            "share of a target class that is spread over all classes in training, not in the log, so that the loss has its "
            "minimum at finite outputs; for tasks with classes"
        ),
    ] = 0.0
    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)
    late_lengths: LateLengthSettings = field(default_factory=LateLengthSettings)
    average: Annotated[Fraction, Doc("decay of the running average of the weights; 0 keeps no average, 1 is the plain mean")] = (
        0.0
    )
    average_start: Annotated[FractionBelowOne, Doc("fraction of the steps after which the average starts")] = 0.0
    select: Annotated[
        Literal["last", "best", "average"],
        Doc("weights that a run ends with and that are tested: last, best on validation, or average"),
    ] = "last"
    best_by: Annotated[
        Literal["metric", "loss"],
        Doc("what makes a validation the best one: the task's main metric, and the loss between equal metrics; or the loss"),
    ] = "metric"
    eval_every: Annotated[NonNegativeInt, Doc("steps between validations; 0 validates only at the end")] = 500
    eval_batches: Annotated[
        NonNegativeInt,
        Doc("validation batches, evenly spaced over the split; 0 is the whole split (an endless split needs a number)"),
    ] = 0
    test_batches: Annotated[NonNegativeInt, Doc("the same for the test split")] = 0
    patience: Annotated[NonNegativeInt, Doc("validations without improvement after which training stops; 0 never stops")] = 0
    solved_at: Annotated[
        NonNegativeFloat,
        Doc(
            "validation score from which the task counts as solved; solved_for such validations in a row, of the weights that "
            "`select` names, end the training; 0 never does. Where validation has the test's lengths and not the training's, as "
            "for the formal languages, this selects by them: report it with the score"
        ),
    ] = 0.0
    solved_for: Annotated[PositiveInt, Doc("see solved_at")] = 3
    checkpoint_every: Annotated[
        NonNegativeInt, Doc("steps between checkpoints, besides the one at each validation; 0 writes only those")
    ] = 0
    log_every: Annotated[PositiveInt, Doc("steps between two rows of the training log")] = 50
    start_from: Annotated[
        str | None,
        Doc(
            "folder whose weights the run starts from: of a run (its selected weights, or its last ones), of a checkpoint, or of "
            "a model that `save_pretrained` wrote. Encoder, blocks and norm must be those of `model`; a head of other sizes "
            "keeps its initial values, and one token more, the mask token of pretraining, is left out. Bidirectional blocks "
            "with variant own may also start from mamba or aussm blocks, each direction from the same weights, with a new norm "
            "and head (F1 of the thesis)"
        ),
    ] = None
    start_from_reverse: Annotated[
        str | None,
        Doc(
            "folder, as for start_from, of a model that was trained on reversed sequences: the convolutions and layers of its "
            "mamba or aussm blocks become the reverse directions, all other weights are those of start_from (F1R1 of the thesis)"
        ),
    ] = None
    seed: Annotated[Seed, Doc("of the weights, and of the data where data_seed is None")] = 0
    data_seed: Annotated[Seed | None, Doc("of the data, if it is to stay the same while seed varies")] = None
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], Doc("auto takes an accelerator where there is one")] = "auto"
    precision: Annotated[Literal["float32", "bfloat16"], Doc("bfloat16 runs the forward pass under autocast")] = "float32"
    threads: Annotated[  # far more than 1024 end the process without a message
        Annotated[int, Rule(range(1025).__contains__, "a whole number from 0 to 1024")],
        Doc("CPU threads; 0 keeps torch's own choice"),
    ] = 0
    prefetch: Annotated[NonNegativeInt, Doc("training batches that a thread makes in advance; does not change results")] = 2
    capture: Annotated[
        bool | None,
        Doc(
            "on a CUDA device, capture an update as a CUDA graph and replay it, which makes small models several times faster; "
            "batches of different lengths are padded to the longest so far. Other devices run the update as it is. None: with "
            "one process, until an update cannot be captured; not with several processes, where an exchange inside a graph "
            "cannot raise an error, nor with shard. false takes less memory, because the memory that a graph uses during an "
            "update stays reserved between updates. false is also needed for your own models and tasks whose Python code takes "
            "decisions in each update: a graph repeats the decisions of the update that was captured"
        ),
    ] = None
    shard: Annotated[
        bool,
        Doc(
            "split parameters, gradients and optimiser over the processes (FSDP2), instead of a whole model in each (DDP); for "
            "several processes, as torchrun and accelerate launch start them"
        ),
    ] = False
    context: Annotated[
        PositiveInt,
        Doc(
            "number of processes over which each sequence is split along its length, for sequences that are too long for one "
            "device; it must divide the number of all processes, and the groups of processes share the rows of a batch"
        ),
    ] = 1
    trackers: Annotated[
        list[str],
        Doc(
            "where the logs go besides metrics.jsonl and metrics.csv: names that accelerate knows (tensorboard, wandb, mlflow, "
            "...), or import paths of subclasses of its GeneralTracker (package.module.Class)"
        ),
    ] = field(default_factory=["tensorboard"].copy)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule != "constant" and self.lr_min > self.lr:
            raise setting_error("training.lr_min", self.lr_min, f"at most lr ({self.lr})")
        if self.warmup + self.hold + self.cooldown > self.steps:
            others = f"hold ({self.hold}) and cooldown ({self.cooldown})"
            raise setting_error("training.warmup", self.warmup, f"at most steps ({self.steps}) together with {others}")
        if self.select == "average" and not self.average:
            raise setting_error("training.select", self.select, "last or best, unless training.average is above 0")
        if self.start_from_reverse is not None and self.start_from is None:
            raise setting_error("training.start_from_reverse", self.start_from_reverse, "left out, unless start_from is given")
        if self.shard and self.capture:
            raise setting_error("training.capture", self.capture, "false with training.shard")
        for name in ("patience", "solved_at"):
            if getattr(self, name) and not self.eval_every:
                raise setting_error(f"training.{name}", getattr(self, name), "left out, unless eval_every is above 0")

    def max_batches(self, split: Split) -> int:
        """Return the number of batches in an evaluation on a split; 0 stands for all of them."""
        return self.test_batches if split == "test" else self.eval_batches

    def learning_rate(self, step: int, scale: float = 1.0) -> float:
        """Return the learning rate of step number `step`, 0 <= step < steps, of parameters with the factor `scale` on it.

        Warm-up is linear and reaches `lr` at step `warmup`; the schedule proper starts `hold` steps later. `restarts` is SGDR
        (Loshchilov and Hutter, equation 5) with periods restart_period * restart_factor^i; `cosine` is one such period up to the
        last step. The cooldown multiplies the last `cooldown` rates by a line that would reach 0 at step `steps`.
        """
        if step < self.warmup:
            return scale * self.lr * (step + 1) / (self.warmup + 1)
        since, period = step - self.warmup - self.hold, self.steps - self.warmup - self.hold
        rate = scale * self.lr
        if self.schedule != "constant" and since >= 0:
            if self.schedule == "restarts":
                period = self.restart_period
                while since >= period and self.restart_factor > 1:
                    since, period = since - period, period * self.restart_factor
                since %= period
            lowest = self.lr_min * (scale if self.lr_min_scaled else 1.0)
            rate = lowest + (rate - lowest) * (1 + cos(pi * since / period)) / 2
        return rate * min(1.0, (self.steps - step) / (self.cooldown + 1))


@dataclass(frozen=True, kw_only=True)
class AboutSettings(SettingsGroup):
    """Fields of a run's record other than its scores."""

    path: ClassVar[str] = "about"

    paper: Annotated[str | None, Doc("paper whose row the recipe follows, by its name in longscan/report/published.json")] = None
    model: Annotated[
        str | None,
        Doc("name of the model in tables; the spec where it is not given, or where a recipe's is changed"),
    ] = None
    published: Annotated[
        list[Annotated[str, Rule(lambda name: name in published_ids(), "the id of a row in longscan/report/published.json")]],
        Doc("ids of the published rows that the run is compared with; none of a recipe's if its spec or task is changed"),
    ] = field(default_factory=list)
    recipe: Annotated[str | None, Doc("file that the settings came from; the command line fills it in")] = None
    quick: Annotated[
        bool, Doc("the recipe's quick section was used, so that reports list such runs separately; --quick sets it")
    ] = False
    chosen_on: Annotated[
        Literal["validation", "test"] | None,
        Doc(
            "split whose scores selected this recipe among others of its task: validation, or test where test scores of others "
            "were known; tables show it. None: not known"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that determines a run's result: task, model and training, and the fields of its record."""

    task: Task
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    about: AboutSettings = field(default_factory=AboutSettings)

    def __post_init__(self) -> None:
        if self.training.label_smoothing and self.task.num_classes is None:
            raise setting_error(
                "training.label_smoothing", self.training.label_smoothing, f"0, as {self.task.name} has no classes"
            )
        curriculum, late = self.training.curriculum, self.training.late_lengths
        if curriculum.start:
            for setting in ("start", "end"):
                length = getattr(curriculum, setting)
                try:
                    self.task.at_length(length)
                except ValueError as error:
                    raise setting_error(
                        f"training.curriculum.{setting}", length, f"a length that the task can train at ({error})"
                    ) from None
        if late.share:
            if "train_lengths" not in {f.name for f in fields(self.task)}:
                raise setting_error(
                    "training.late_lengths.share", late.share, f"0, as task {self.task.name} has no train_lengths"
                )
            try:
                self.late_task()
            except ValueError as error:
                lengths = (late.shortest, late.longest)
                raise setting_error("training.late_lengths", lengths, f"lengths that the task can train at ({error})") from None

    def late_task(self) -> Task:
        """Return the task with the training lengths of `training.late_lengths`."""
        late = self.training.late_lengths
        changed: dict[str, Any] = {"train_lengths": (late.shortest, late.longest)}
        return replace(self.task, **changed)

    @property
    def data_seed(self) -> int:
        """The seed that `task.batch` gets."""
        training = self.training
        return training.seed if training.data_seed is None else training.data_seed

    def as_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, lists and numbers: the content of settings.yaml and of recipes."""
        training = asdict(self.training) | {"betas": list(self.training.betas)}
        return {
            "spec_version": SPEC_VERSION,
            "task": {"name": self.task.name, **asdict(self.task)},
            "model": asdict(self.model),
            "training": training,
            "about": asdict(self.about),
        }
