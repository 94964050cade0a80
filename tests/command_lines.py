"""Command lines of tests: a short run whose options some tests replace, as an option must not be given twice."""

from collections.abc import Iterable

SYNONYMS = {"--steps": "--training.steps", "--task": "--task.name"}


def _name(word: str) -> str:
    option = word.partition("=")[0]
    return SYNONYMS.get(option, option)


def replace_options(argv: Iterable[str], *options: str) -> list[str]:
    """Return the arguments with further options, without those of the same names and their values."""
    given = {_name(word) for word in options if word.startswith("--")}
    kept, keeps = [], True
    for word in argv:
        if word.startswith("--"):
            keeps = _name(word) not in given
        if keeps:
            kept.append(word)
    return [*kept, *options]
