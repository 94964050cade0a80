"""The sections of a run's report about its answers: the classes of a classification, and examples from examples.json."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from longscan.report import figures, page

OPACITY = "the opacity is the square root of the share of the example's largest value."
RELEVANCE = (
    "The strip under an example, and the colour of a token, show what the answer depends on: the gradient of its score times the "
    f"input, or times the token's embedding. Blue supports the answer, orange speaks against it; {OPACITY}"
)
RELEVANCE_OF_NUMBERS = (
    "The map of an example shows what the model's number at the last step depends on: the gradient of this number times each "
    f"input. Blue raises the number, orange lowers it; {OPACITY}"
)
RELEVANCE_OF_CORRECTIONS = (
    "The forecast is that of a ridge regression plus a correction by the network. The map of an example shows what the "
    "correction at the last step depends on: its gradient times each input. The channel ahead is 1 at the steps of the forecast; "
    "the level of a channel is its last known value, and at the steps of the forecast that of the regression. Blue raises the "
    f"correction, orange lowers it; {OPACITY}"
)
NO_CORRECTIONS = (
    "The forecast is that of the ridge regression: no update of the network lowered the validation loss, so that the weights "
    "before the first update were kept, which add nothing to it."
)


def class_section(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the classes and the confusion matrix of a classification; nothing without a confusion matrix."""
    matrix = result.get("confusion")
    if not matrix:
        return
    yield page.heading(2, "Classes")
    classes = [str(name) for name in result.get("classes") or range(len(matrix))]
    header = ("class", "precision", "recall", "F1", "support")
    cells = [(name, *map(_share, numbers), f"{support:,}") for name, numbers, support in class_scores(matrix, classes)]
    table = page.table(header, cells, ("", *[page.NUMBER] * 4))
    caption = "Number of test examples; the colour is their share of the true class."
    drawing = page.figure(figures.confusion(matrix, classes), caption)
    note = page.paragraph(
        "Precision: share of the answers with this class that are right. Recall: share of the examples of this class that are "
        "found. F1: harmonic mean of the two. Support: test examples of this class.",
        "caption",
    )
    yield page.group("columns", [page.group("", [table, note]), drawing])


def class_scores(
    matrix: Sequence[Sequence[float]], classes: Sequence[str]
) -> list[tuple[str, tuple[float | None, float | None, float | None], int]]:
    """Return (class, (precision, recall, F1), support) for each row of a confusion matrix, and their means over the classes.

    A score is None where nothing was predicted or nothing is to be found. The means are over the scores that are known.
    """
    counts = np.asarray(matrix, float)
    right, predicted, support = counts.diagonal(), counts.sum(0), counts.sum(1)
    rows = []
    for i, name in enumerate(classes):
        precision = right[i] / predicted[i] if predicted[i] else None
        recall = right[i] / support[i] if support[i] else None
        f1 = 2 * right[i] / (predicted[i] + support[i]) if predicted[i] + support[i] else None
        rows.append((name, (precision, recall, f1), int(support[i])))
    means = [[score for _, scores, _ in rows if (score := scores[j]) is not None] for j in range(3)]
    precision, recall, f1 = (sum(known) / len(known) if known else None for known in means)
    return [*rows, ("mean of the classes", (precision, recall, f1), int(support.sum()))]


def example_section(content: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the section of the examples: wrong and right answers, or forecasts over the truth; nothing without examples.

    content: that of the run's examples.json, see `longscan.training.examples.find_examples`; None if the file does not exist.
    """
    if not content or not content["examples"]:
        return
    # In folders of earlier versions the key of this number is looked_at.
    examined = content["n_examined"] if "n_examined" in content else content["looked_at"]
    examples, number = content["examples"], f"{examined:,} test examples"
    if content["kind"] == "values":
        yield page.heading(2, "Answers over the truth")
        coverage = content.get("coverage")
        band = "" if coverage is None else (
            f" The band holds 80 % of the validation errors at the same step; of the test values {coverage:.0%} lie in it."
        )  # fmt: skip
        dates = " The headings name the first step of each forecast." if any("name" in example for example in examples) else ""
        yield page.paragraph(f"The examples with the smallest, the median and the largest error of {number}.{dates}{band}")
        for example in examples:
            yield from _forecast(example, "correction" if content.get("has_corrections") else "answer")
    else:
        wrong = content["wrong"]
        yield page.heading(2, "Wrong and right answers" if wrong else "Right answers")
        words = f"{wrong:,} of {number} have a wrong answer" if wrong else f"None of {number} has a wrong answer"
        has_letters = any("tokens" in one and "answers" in one for one in examples)
        below = " The model's answer stands below its token." if has_letters else ""
        right = "the least certain right ones"
        order = f"The most certain wrong answers come first, then {right}" if wrong else f"{right.capitalize()} come first"
        scale = (
            " The values of a channel are in standard deviations of the training series." if content.get("standardised") else ""
        )
        yield page.paragraph(f"{words}. {order}.{below}{scale}")
        yield page.group("columns", (page.group("", _answer(example)) for example in examples))
    if content.get("has_corrections") is False:
        yield page.paragraph(NO_CORRECTIONS)
    elif any("relevance" in example for example in examples):
        numbers = RELEVANCE_OF_CORRECTIONS if content.get("has_corrections") else RELEVANCE_OF_NUMBERS
        yield page.paragraph(numbers if content["kind"] == "values" else RELEVANCE, "caption")


def _answer(example: Mapping[str, Any]) -> Iterator[str]:
    """Yield the heading and the figures of one example of a classification."""
    if "answers" in example:
        wrong, scored = example["wrong"], example["scored"]
        if scored == 1:
            (_, true, given, share), *_ = example["answers"]
            yield page.heading(3, f"Wrong: {given} ({share:.0%}), true: {true}" if wrong else f"Right: {given} ({share:.0%})")
            yield from _input(example)
            return
        yield page.heading(3, f"{wrong} of {scored} answers wrong" if wrong else f"All {scored} answers right")
        yield from _input(example)
        return
    given = f"{example['predicted']} ({example['probability']:.0%})"
    if example["true"] == example["predicted"]:
        yield page.heading(3, f"Right: {given}{_name(example)}")
    else:
        yield page.heading(3, f"Wrong: {given}, true: {example['true']} ({example['probability_of_true']:.0%}){_name(example)}")
    yield from _input(example)


def _name(example: Mapping[str, Any]) -> str:
    """Return the end of a heading with the name of an example; nothing for data without names and folders of earlier versions."""
    return f" · {example['name']}" if "name" in example else ""


def _input(example: Mapping[str, Any]) -> Iterator[str]:
    """Yield the series or the tokens of an example and what its answer depends on."""
    if "series" in example:
        shown, count = example["series"], example["channels"]
        caption = f"{len(shown)} of {count} channels, those with most effect." if len(shown) < count else ""
        lines = [(line["times"], line["values"]) for line in shown]
        names = [_channel(line["name"]) for line in shown]
        yield page.figure(figures.series_lines(lines, names, example["time"]), caption)
    elif "tokens" in example:
        yield page.letters(_letters(example))
        length = example["length"]
        if len(example["tokens"]) < length:
            first = example.get("first", 0)
            shown_steps = f"Tokens {first + 1:,} to {first + len(example['tokens']):,} of {length:,}."
            yield page.paragraph(shown_steps, "caption")
    elif example.get("text"):
        yield page.code(example["text"])
    if "answers" in example and "tokens" not in example:
        rows = [(f"{step:,}", true, given, f"{share:.0%}") for step, true, given, share in example["answers"][:12]]
        yield page.table(("step", "true", "model", "probability"), rows)
    relevance, is_whole = example.get("relevance"), len(example.get("tokens", ())) == example["length"]
    if relevance and not is_whole:  # the tokens of a whole text are coloured
        names = [_channel(name) for name in relevance["names"]]
        yield page.figure(figures.relevance_map(relevance["values"], relevance["times"], names, example["time"]))


def _channel(name: str) -> str:
    """Return the name of a channel, "channel 3" for one that is only a number."""
    return f"channel {name}" if name.isdigit() else name


def _letters(example: Mapping[str, Any]) -> list[tuple[str, str, str, float, str]]:
    """Return (token, answer below it, class, relevance from -1 to 1, text for the mouse) for each token that is shown."""
    strength = example.get("token_relevance") or [0.0] * len(example["tokens"])
    largest = max(map(abs, strength), default=0.0) or 1.0
    first = example.get("first", 0)
    answers = {step: (true, given, share) for step, true, given, share in example.get("answers", ())}
    letters = []
    for i, token in enumerate(example["tokens"]):
        true, given, share = answers.get(first + i, ("", "", 0.0))
        kind = "" if not given else "right" if true == given else "wrong"
        hint = f"true {true}, model {given} ({share:.0%})" if given else ""
        letters.append((token, given, kind, round(strength[i] / largest, 3), hint))
    return letters


def _forecast(example: Mapping[str, Any], output: str) -> Iterator[str]:
    """Yield the heading and the figures of one example whose answers are numbers.

    output: the word for the model's number, "answer" or "correction".
    """
    yield page.heading(3, f"The {example['error']} error{_name(example)}")
    drawings = []
    for variable in example["variables"]:
        band = variable.get("interval")
        known, truth, answer = ((variable[part]["times"], variable[part]["values"]) for part in ("known", "truth", "answer"))
        interval = None if band is None else (band["times"], band["low"], band["high"])
        chart = figures.forecast(known, truth, answer, interval, variable["name"].replace("_", " "))
        drawings.append(page.figure(chart))
    relevance = example.get("relevance")
    if relevance:
        names = [_channel(name) for name in relevance["names"]]
        chart = figures.relevance_map(relevance["values"], relevance["times"], names, "step of the input")
        drawings.append(page.figure(chart, f"What the last {output} depends on."))
    yield page.group("columns", drawings)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
