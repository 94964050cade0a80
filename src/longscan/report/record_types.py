"""The fields of every kind of record under results/, and of sweep.json.

Times are in seconds where a name ends in `seconds` and in milliseconds where it ends in `_ms`; memory is in MiB (2**20 bytes)
where a name ends in `_mib`. Scores are raw unless a name says `scaled`: these have uniform guessing at 0 and perfection at 1.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from longscan._errors import FieldError
from longscan._types import Fraction, NonEmptyStr, NonNegativeFloat, NonNegativeInt, Number, PositiveFloat, PositiveInt, Rule
from longscan.report.parsing import MISSING, Missing, RecordType

Date = Annotated[str, Rule(re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}").match, "a date that begins like 2026-11-21")]
PublishedId = Annotated[str, Rule(re.compile("r[0-9]+").fullmatch, "an id of a row of published.json, such as r036")]
ShareByLength = dict[str, Fraction]
Scores = Annotated[list[float], Rule(bool, "a list of at least one number")]  # a number for each seed


@dataclass(frozen=True, kw_only=True)
class Provenance(RecordType):
    """The origin of a row under results/.

    Attributes:
        commit: of the repository, followed by "+changes" where files had changed since.
        date: ISO 8601, at least the day.
        device: model of the GPU or CPU.
        command: the command line that made the record.
    """

    commit: NonEmptyStr
    date: Date
    device: NonEmptyStr
    command: NonEmptyStr


@dataclass(frozen=True, kw_only=True)
class CorrectedValues(RecordType):
    """Fields of a run that were computed again, by the names and units that they have in `RunRecord`; one at least."""

    unknown_fields: ClassVar[bool] = False

    scaled: float | Missing | None = MISSING
    constant: float | Missing = MISSING
    constant_scaled: float | Missing = MISSING
    baselines: dict[str, float] | Missing = MISSING

    def field_errors(self) -> Iterator[FieldError]:
        """Yield an error if no value is corrected."""
        if all(value is MISSING for value in vars(self).values()):
            yield FieldError("", "no field", "a mapping with at least one of " + ", ".join(vars(self)))


@dataclass(frozen=True, kw_only=True)
class Correction(RecordType):
    """Values computed again after a run. Tables show them in place of the recorded ones, which stay in their own fields."""

    unknown_fields: ClassVar[bool] = False

    values: CorrectedValues
    reason: NonEmptyStr
    command: NonEmptyStr
    commit: NonEmptyStr
    date: Date


@dataclass(frozen=True, kw_only=True)
class RunRecord(Provenance):
    """A row of results/runs/*.jsonl: one run.

    Attributes:
        paper: key of the paper in published.json; None where no paper has this task.
        suite: suite of a formal language or protocol of a data set, such as clean or aussm; None for other tasks.
        spec: the spec of the blocks, as in the settings; in the letters of version 1 if `spec_version` is missing.
        value: raw test score; None only if the run failed.
        scaled: test score with uniform guessing at 0 and perfection at 1.
        constant: raw test score of the best constant predictor, chosen on the test split itself.
        constant_scaled: the same, scaled.
        baselines: further reference scores, raw, by name.
        published: ids of the rows of published.json that this run reproduces.
        steps: number of updates of the weights.
        seconds: time of the training.
        params: number of parameters.
        recipe: path of the recipe in the repository.
        status: "finished" if the run has a test score, also after fewer updates than its protocol; "failed" if it has none.
        quick: whether the run used the recipe's section `quick`; tables do not mix such runs with those of full size.
        chosen_on: the split whose scores decided between recipes of this task. "test": test scores of other recipes had been seen
            when this one was made. None or missing: not known.
        replaced: why another recipe replaced this one; missing if none did.
        note: what a reader of the tables must know besides the figures, with its source.
        corrected: values computed again after the run.
        stacked: number of seeds that trained together in one process, whose time `seconds` is; missing for a separate run.
        replayed_updates_per_second: the rate at which the device replays the captured updates, which no loader and no host
            holds back; missing without `training.capture`.
        validation_curve: the main metric on validation by the number of updates; in records of `longscan reproduce`.
    """

    paper: str | None
    task: NonEmptyStr
    suite: str | None
    model: NonEmptyStr
    spec: str | None
    spec_version: Literal[1, 2] | Missing = MISSING
    seed: int
    metric: NonEmptyStr
    value: float | None
    scaled: float | Missing | None = MISSING
    constant: float | None
    constant_scaled: float | Missing | None = MISSING
    baselines: dict[str, float]
    published: PublishedId | list[PublishedId] | None
    steps: NonNegativeInt | None
    seconds: NonNegativeFloat | None
    params: NonNegativeInt | None
    recipe: str | None
    quick: bool | Missing = MISSING
    status: Literal["finished", "failed"]
    chosen_on: Literal["validation", "test"] | Missing | None = MISSING
    replaced: NonEmptyStr | Missing = MISSING
    note: NonEmptyStr | Missing = MISSING
    corrected: Correction | Missing = MISSING
    stacked: PositiveInt | Missing = MISSING
    replayed_updates_per_second: PositiveFloat | Missing = MISSING
    validation_curve: dict[str, float] | Missing = MISSING

    def field_errors(self) -> Iterator[FieldError]:
        """Yield an error for a finished run without a score."""
        if self.status == "finished" and self.value is None:
            yield FieldError("value", "None", "a finite number, as the run is finished")


@dataclass(frozen=True, kw_only=True)
class BenchRecord(Provenance):
    """A row of results/bench/*.jsonl: one measurement.

    Attributes:
        backend: backend of longscan; None for another implementation.
        peer: name of another implementation; None for longscan.
        variant: how the measured call differs from the default call of longscan.
        shape: sizes of the inputs by the names of their axes.
        forward_ms, forward_backward_ms: time of one call, in milliseconds.
        peak_mib: peak of the memory in use, in MiB.
        error_vs_float64: largest error relative to the same op in float64.
        extra_mib: peak memory beyond inputs, outputs and their gradients, in MiB.
        extra_share: extra_mib divided by the size of inputs, outputs and their gradients.
        runs: number of repeats, or the time of each.
        parameters: number of parameters of the whole model.
        inference_peak_mib: peak memory of inference, in MiB, in rows whose peak_mib is that of a training step.
        reason: why there are no times.
        kernels: names of the fused attention kernels that ran.
        figure: the figure of which the row is a point; such rows are in no table.
        check: what error_vs_float64 measures in a row without times; such rows are in no table.
        torch, triton: versions.
    """

    op: NonEmptyStr
    backend: str | None
    peer: str | None
    variant: NonEmptyStr | Missing = MISSING
    shape: Annotated[dict[str, NonNegativeInt], Rule(bool, "a mapping of at least one name to a whole number of at least 0")]
    dtype: NonEmptyStr
    forward_ms: NonNegativeFloat | None
    forward_backward_ms: NonNegativeFloat | None
    peak_mib: float | None
    error_vs_float64: NonNegativeFloat | None
    extra_mib: float | Missing = MISSING
    extra_share: float | Missing = MISSING
    runs: PositiveInt | Annotated[list[Any], Rule(bool, "a list that is not empty")]
    parameters: PositiveInt | Missing = MISSING
    inference_peak_mib: float | Missing | None = MISSING
    reason: NonEmptyStr | Missing = MISSING
    kernels: list[str] | Missing = MISSING
    figure: str | Missing = MISSING
    check: str | Missing = MISSING
    torch: NonEmptyStr
    triton: str | None


@dataclass(frozen=True, kw_only=True)
class ForecastRecord(Provenance):
    """A row of results/forecasts/*.jsonl: a model fitted to the first part of a set, and its errors in the last part.

    Attributes:
        set: name of the file.
        channels: the channel that the model has seen and forecast, or "all".
        horizon: steps of a forecast.
        window: number of steps that the model reads; None if it reads none.
        mse, mae: errors of the scaled channels, over all steps of the forecasts at `origins` evenly spaced steps; None for a
            model that is too slow for all of them.
        mse_few, mae_few: the same at `origins_few` steps.
        fit_seconds, predict_seconds: time of the fit, with the choice of settings, and of one forecast; AutoETS makes its
            forecasts for all horizons in the row of the shortest.
        threads: number of threads of torch.
        note: what the model has chosen.
        chosen_on: "test": errors of another default in the last parts had been seen when this default was chosen. Missing: not.
        replaced: why another default replaced this one; missing if none did. Such rows are in no table.
    """

    set: NonEmptyStr
    channels: NonEmptyStr
    horizon: PositiveInt
    model: NonEmptyStr
    seed: NonNegativeInt
    window: PositiveInt | None
    mse: NonNegativeFloat | None
    mae: NonNegativeFloat | None
    mse_few: NonNegativeFloat
    mae_few: NonNegativeFloat
    origins: PositiveInt
    origins_few: PositiveInt
    fit_seconds: NonNegativeFloat
    predict_seconds: NonNegativeFloat
    threads: PositiveInt
    note: NonEmptyStr | Missing = MISSING
    chosen_on: Literal["test"] | Missing = MISSING
    replaced: NonEmptyStr | Missing = MISSING
    torch: NonEmptyStr


@dataclass(frozen=True, kw_only=True)
class ShortSeriesRecord(Provenance):
    """A row of results/short_series/*.jsonl: a model fitted to each series of a group, and its errors in their last parts.

    The series of hard_series.jsonl have some hundred steps.

    Attributes:
        set: name of the group.
        model: name of the model.
        series: number of series.
        ratios: mean absolute error in each series, in units of the smaller one of the last value and the seasonal naive forecast.
        ratio: their geometric mean.
        largest: the largest of them.
        above_1_2: how many of them are above 1.2.
        seconds: time of all fits and forecasts.
        threads: number of threads of torch.
    """

    set: NonEmptyStr
    model: NonEmptyStr
    series: PositiveInt
    ratios: list[NonNegativeFloat]
    ratio: NonNegativeFloat
    largest: NonNegativeFloat
    above_1_2: NonNegativeInt
    seconds: NonNegativeFloat
    threads: PositiveInt
    torch: NonEmptyStr


@dataclass(frozen=True, kw_only=True)
class ClassificationRecord(Provenance):
    """A row of results/classification/*.jsonl: a method fitted to the training part of a set, and its score on the test part.

    Attributes:
        set: name of the data set.
        method: name of the method, with default settings.
        accuracy: share of right labels of the `n_test` test series.
        n_train, n_test: numbers of series of both parts.
        fit_seconds, predict_seconds: time of the fit, and of the predictions for all test series.
        threads: number of threads of torch.
        longest: steps of the longest series, of benchmarks of long series.
        peak_mib: largest memory of the process beyond that before the fit, of the same.
        balanced_accuracy: mean over the classes of their shares of right labels, of benchmarks of unequal classes.
        smallest_class, largest_class: numbers of series of these classes in the training part, of the same.
        aeon: version of the package, for its methods.
    """

    set: NonEmptyStr
    method: NonEmptyStr
    seed: NonNegativeInt
    accuracy: Fraction
    n_train: PositiveInt
    n_test: PositiveInt
    fit_seconds: NonNegativeFloat
    predict_seconds: NonNegativeFloat
    threads: PositiveInt
    longest: PositiveInt | Missing = MISSING
    peak_mib: NonNegativeFloat | Missing = MISSING
    balanced_accuracy: Fraction | Missing = MISSING
    smallest_class: PositiveInt | Missing = MISSING
    largest_class: PositiveInt | Missing = MISSING
    aeon: NonEmptyStr | Missing = MISSING
    torch: NonEmptyStr


@dataclass(frozen=True, kw_only=True)
class RegressionRecord(Provenance):
    """A row of results/regression/*.jsonl: a method fitted to the training part of a set, and its error on the test part.

    Attributes:
        set: name of the data set.
        method: name of the method, with default settings.
        rmse: root mean square error of the `n_test` test series, in the unit of the targets.
        n_train, n_test: numbers of series of both parts.
        fit_seconds, predict_seconds: time of the fit, and of the predictions for all test series.
        threads: number of threads of torch.
        aeon: version of the package, for its methods.
    """

    set: NonEmptyStr
    method: NonEmptyStr
    seed: NonNegativeInt
    rmse: NonNegativeFloat
    n_train: PositiveInt
    n_test: PositiveInt
    fit_seconds: NonNegativeFloat
    predict_seconds: NonNegativeFloat
    threads: PositiveInt
    aeon: NonEmptyStr | Missing = MISSING
    torch: NonEmptyStr


@dataclass(frozen=True, kw_only=True)
class AutomataRecord(Provenance):
    """A row of results/automata/*.jsonl. `KINDS` lists the fields that each kind of row needs, in this order:

    a compiled language whose states were compared with the automaton; a language that cannot be compiled; a random automaton;
    tables of compiled programs with random changes; compiled weights with random changes; a learned model, or the compiled
    model that it is compared with; a model of any layers, learned on words that a checksum fixes.

    Attributes:
        amount: size of the change of the weights.
        states: number of states of the automaton, or the share of right states by length of the word.
        certified_length: length up to which the weights are certified.
        answers, constant: share of right answers, and that of the best constant answer, by length.
        words: (number, length) of the words.
        prefixes, wrong: number of prefixes read, and of those whose state is wrong.
        counters, flip_flops: the sizes of the counters and of the flip-flops of the compiled model.
        compile_ms, weights_ms: times in milliseconds.
        derived_length: number of abelian factors of the derived series of the group; None if the group is not solvable.
        elements: order of the group.
        layers: number of AUSSM blocks.
        tried, change_the_language, harmless: number of changed tables, of those that change the language, and of the others.
        caught, missed: number of changes of the language that the check of the program found, and did not find.
        harmless_but_refused: number of harmless changes that the check rejected.
        exact: share of words without a wrong state, by length.
        rate: highest learning rate.
        start: state before the first letter; zero if it is missing.
        smoothing: share of a label that is spread over all answers in training.
        average: decay of the average of the weights that was tested; 0: the weights themselves.
        solved_at: first step at which a training batch was answered; None: never.
        train_length: letters of a training word.
        checksum: SHA-256 of the test words and their answers.
    """

    unknown_fields: ClassVar[bool] = False
    KINDS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("case", "backend", "dtype", "words", "prefixes", "wrong", "seconds"),
        ("case", "refused"),
        ("seed", "letters", "minimal", "solvable", "outcome", "right"),
        ("tried", "change_the_language", "caught", "missed", "harmless", "harmless_but_refused"),
        ("case", "phase", "change", "amount", "seed"),
        ("case", "change", "seed", "derived_length", "elements", "layers", "blocks", "words", "states", "exact"),
        ("case", "seed", "elements", "blocks", "steps", "train_length", "parameters", "checksum", "words", "states", "exact"),
    )

    case: NonEmptyStr | Missing = MISSING
    backend: NonEmptyStr | Missing = MISSING
    dtype: NonEmptyStr | Missing = MISSING
    phase: NonEmptyStr | Missing = MISSING
    change: NonEmptyStr | Missing = MISSING
    amount: NonNegativeFloat | Missing = MISSING
    seed: NonNegativeInt | Missing = MISSING
    states: NonNegativeInt | ShareByLength | Missing = MISSING
    certified_length: NonNegativeInt | NonEmptyStr | Missing = MISSING
    answers: ShareByLength | Missing = MISSING
    constant: ShareByLength | Missing = MISSING
    words: list[tuple[NonNegativeInt, NonNegativeInt]] | Missing = MISSING
    prefixes: NonNegativeInt | Missing = MISSING
    wrong: NonNegativeInt | Missing = MISSING
    seconds: NonNegativeFloat | Missing = MISSING
    tried: NonNegativeInt | Missing = MISSING
    change_the_language: NonNegativeInt | Missing = field(default=MISSING, metadata={"name": "change the language"})
    caught: NonNegativeInt | Missing = MISSING
    missed: NonNegativeInt | Missing = MISSING
    harmless: NonNegativeInt | Missing = MISSING
    harmless_but_refused: NonNegativeInt | Missing = field(default=MISSING, metadata={"name": "harmless but refused"})
    monoid: NonNegativeInt | Missing = MISSING
    counters: list[NonNegativeInt] | Missing = MISSING
    flip_flops: list[NonNegativeInt] | Missing = MISSING
    blocks: str | Missing = MISSING
    d_model: NonNegativeInt | Missing = MISSING
    parameters: NonNegativeInt | Missing = MISSING
    compile_ms: NonNegativeFloat | Missing = MISSING
    weights_ms: NonNegativeFloat | Missing = MISSING
    certificate: NonEmptyStr | Missing = MISSING
    refused: NonEmptyStr | Missing = MISSING
    letters: NonNegativeInt | Missing = MISSING
    minimal: NonNegativeInt | Missing = MISSING
    solvable: bool | Missing = MISSING
    outcome: NonEmptyStr | Missing = MISSING
    certified: bool | Missing = MISSING
    right: bool | Missing = MISSING
    what: NonEmptyStr | Missing = MISSING
    derived_length: PositiveInt | Missing | None = MISSING
    elements: PositiveInt | Missing = MISSING
    layers: NonNegativeInt | Missing = MISSING
    exact: ShareByLength | Missing = MISSING
    steps: NonNegativeInt | Missing = MISSING
    d_state: PositiveInt | Missing = MISSING
    batch: PositiveInt | Missing = MISSING
    rate: PositiveFloat | Missing = MISSING
    start: Literal["zero", "learned"] | Missing = MISSING
    smoothing: NonNegativeFloat | Missing = MISSING
    average: NonNegativeFloat | Missing = MISSING
    solved_at: PositiveInt | Missing | None = MISSING
    train_length: PositiveInt | Missing = MISSING
    checksum: NonEmptyStr | Missing = MISSING
    torch: NonEmptyStr

    def field_errors(self) -> Iterator[FieldError]:
        """Yield an error for a row that does not have all fields of one of the kinds."""
        given = {name for name, value in vars(self).items() if value is not MISSING}
        if not any(given.issuperset(kind) for kind in self.KINDS):
            needed = "; or ".join(", ".join(kind).replace("_", " ") for kind in self.KINDS)
            yield FieldError("", ", ".join(sorted(given)), f"a row with all fields of one kind: {needed}")


@dataclass(frozen=True, kw_only=True)
class SeedsRow(RecordType):
    """Scores of several seeds trained together after a number of steps, one number for each seed.

    Attributes:
        train: accuracy on the last batch.
        loss: on the last batch.
        last: scaled validation score of the weights as they are.
        average: scaled validation score of their running average; missing if there is none.
        seconds: time since the training began.
    """

    step: PositiveInt
    train: Scores
    loss: Annotated[list[Number], Rule(bool, "a list of at least one number")]
    last: Scores
    average: Scores | Missing = MISSING
    seconds: NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class SelectedWeights(RecordType):
    """Each seed's selected weights.

    Attributes:
        rule: the setting `training.select`.
        step: the step that each seed's weights are of.
        valid, test: their scaled scores; test is None until the training is over.
    """

    rule: Literal["best", "average", "last"]
    step: list[NonNegativeInt]
    valid: list[float | None]
    test: list[float] | None


@dataclass(frozen=True, kw_only=True)
class SettingsSections(RecordType):
    """The settings of a run, by section."""

    task: dict[str, Any]
    model: dict[str, Any]
    training: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SeedsRecord(Provenance):
    """A file of results/seeds, table1 or protocol: seeds of one recipe trained together, with their scores during training.

    Attributes:
        spec: the spec of the blocks, as in the settings; in the letters of version 1 if `spec_version` is missing.
        constant_scaled, constant_scaled_test: scaled score of the best constant predictor, on validation and on test.
        success: scaled score from which a seed counts as having found the solution.
        selected: each seed's selected weights.
        solved: number of validations at training.solved_at in a row, at most solved_for, one for each seed.
        steps: number of updates of the weights.
        seconds: time of the training.
        longest: longest word of each seed's curriculum at the end.
        averaged: number of updates in the average of the weights.
    """

    task: NonEmptyStr
    suite: str | None
    spec: NonEmptyStr
    spec_version: Literal[1, 2] | Missing = MISSING
    seeds: Annotated[list[int], Rule(bool, "a list of at least one whole number")]
    constant_scaled: float
    constant_scaled_test: float | Missing = MISSING
    success: float
    rows: Annotated[list[SeedsRow], Rule(bool, "a list of at least one mapping")]
    selected: SelectedWeights | Missing = MISSING
    solved: list[Any] | Missing = MISSING
    settings: SettingsSections
    steps: PositiveInt
    seconds: NonNegativeFloat
    longest: list[Any] | Missing = MISSING
    averaged: NonNegativeInt | Missing = MISSING
    torch: NonEmptyStr


@dataclass(frozen=True, kw_only=True)
class SweepRun(RecordType):
    """One run of a trial or of a test seed; folder: its directory, relative to the sweep's."""

    seed: Any
    folder: str
    score: Any
    constant: Any
    failure: Any
    steps: Any
    seconds: Any
    params: Any


@dataclass(frozen=True, kw_only=True)
class SweepRow(RecordType):
    """The fields that a trial and a test seed share.

    Attributes:
        score: validation score of a trial, test score of a seed.
        constant: score of the best constant predictor on the same split.
        seconds: time of the runs together.
    """

    status: Literal["waiting", "running", "finished", "failed"]
    score: float | None
    constant: float | None
    failure: str | None
    seconds: NonNegativeFloat
    runs: list[SweepRun]

    def field_errors(self) -> Iterator[FieldError]:
        """Yield an error for a finished trial or seed without a score."""
        if self.status == "finished" and self.score is None:
            yield FieldError("score", "None", "a finite number, as it is finished")


@dataclass(frozen=True, kw_only=True)
class SweepTrial(SweepRow):
    """A trial of a sweep, by its place, with the values that it gave to the settings of the space."""

    trial: NonNegativeInt
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SweepSeed(SweepRow):
    """A test seed of the best setting."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class SweepTest(RecordType):
    """Test scores of the best setting over the seeds that have one.

    Attributes:
        half_width: half the width of the 95 % interval of the mean; None for one seed.
        scaled: the mean with uniform guessing at 0 and perfection at 1.
        constant: raw score of the best constant predictor.
        count, failed: number of seeds with a score, and of failed ones.
    """

    mean: float
    half_width: float | None
    scaled: float
    constant: float
    count: PositiveInt
    failed: NonNegativeInt


@dataclass(frozen=True, kw_only=True)
class SweepRecord(RecordType):
    """sweep.json: the results of a sweep, finished or not.

    Attributes:
        name: the sweep's name in its storage.
        space: setting -> values or range, as the sweep file spells them.
        search_seeds: seeds of every trial.
        best: the trial with the best validation score.
        quick: made at the recipe's quick size.
    """

    name: NonEmptyStr
    task: NonEmptyStr
    metric: NonEmptyStr
    higher_is_better: bool
    status: Literal["finished", "unfinished"]
    sampler: Literal["grid", "random", "tpe"]
    space: dict[str, Any]
    search_seeds: list[int]
    trials: list[SweepTrial]
    best: dict[str, Any] | None
    seeds: list[SweepSeed]
    test: SweepTest | None
    recipe: str | None
    quick: bool | Missing = MISSING
    commit: NonEmptyStr
    date: Date
    command: str
