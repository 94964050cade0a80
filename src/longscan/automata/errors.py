"""What can go wrong between a language and a model, each with the facts it is about as attributes."""

from typing import Any


class AutomataError(ValueError):
    """Base of the errors of this package."""


class RegexError(AutomataError):
    """A regular expression that cannot be read: `pattern`, and `position` counted from 1."""

    def __init__(self, pattern: str, position: int, problem: str) -> None:
        super().__init__(f"pattern: {pattern!r} {problem} at position {position}")
        self.pattern, self.position = pattern, position


class LimitExceeded(AutomataError):  # noqa: N818
    """A computation stopped at a limit, so nothing is known about what lies beyond: `what`, `limit`, `reached`."""

    def __init__(self, what: str, limit: int, reached: int) -> None:
        super().__init__(f"{what}: got at least {reached}, the limit is {limit}; not compiled, which does not mean impossible")
        self.what, self.limit, self.reached = what, limit, reached


class NonSolvableError(AutomataError):
    """The language needs a group that is not solvable: `report` is the analysis, `report.obstruction` the group."""

    def __init__(self, report: Any) -> None:
        limit = "diagonal models of fixed depth and finite precision track solvable groups only (arXiv:2603.01959)"
        super().__init__(f"dfa: {report.obstruction}; {limit}")
        self.report = report


class PrecisionError(AutomataError):
    """Correct answers were asked for beyond the certified length: `wanted`, `certified`."""

    def __init__(self, wanted: int, certified: int) -> None:
        super().__init__(f"length: got {wanted}, but correct answers are certified up to {certified}; phase='grid' has no limit")
        self.wanted, self.certified = wanted, certified
