"""The errors of this package; each has the values that it reports as attributes."""

from typing import Any

from longscan._errors import quote


class AutomataError(ValueError):
    """The base class of the errors of this package."""


class RegexError(AutomataError):
    """An invalid regular expression; attributes: `pattern`, and `position`, counted from 1."""

    def __init__(self, pattern: str, position: int, problem: str) -> None:
        super().__init__(f"`pattern` must be a regular expression, got {quote(pattern)}, which {problem} at position {position}")
        self.pattern, self.position = pattern, position


class LimitExceeded(AutomataError):  # noqa: N818
    """A computation that stopped at a limit without a result; attributes: `what`, `limit`, `reached`."""

    def __init__(self, what: str, limit: int, reached: int) -> None:
        super().__init__(
            f"at most {limit} {what} are allowed, got at least {reached}; beyond this limit nothing is known about the automaton"
        )
        self.what, self.limit, self.reached = what, limit, reached


class NonSolvableError(AutomataError):
    """A language that needs a non-solvable group; attributes: `report`, whose `obstruction` describes the group."""

    def __init__(self, report: Any) -> None:
        limit = "diagonal models of fixed depth and finite precision track solvable groups only (arXiv:2603.01959)"
        super().__init__(f"`dfa` must need solvable groups only, but {report.obstruction}; {limit}")
        self.report = report


class PrecisionError(AutomataError):
    """A required length beyond the certified one; attributes: `required`, `certified`."""

    def __init__(self, required: int, certified: int) -> None:
        super().__init__(
            f"`length` must be at most {certified}, up to which answers are certified, got {required}; phase='grid' has no limit"
        )
        self.required, self.certified = required, certified
