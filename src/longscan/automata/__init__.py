"""Finite automata, and models made from them exactly: see docs/automata.md.

dfa = automata.from_regex("(ab)*")
compiled = automata.compile(dfa)
compiled.accepts(["abab", "aba"])
"""

from longscan.automata.analysis import Report as Report
from longscan.automata.analysis import analyse as analyse
from longscan.automata.compiler import Compiled as Compiled
from longscan.automata.compiler import Size as Size
from longscan.automata.compiler import compile_dfa as compile_dfa
from longscan.automata.compiler import load as load
from longscan.automata.compiler import size as size
from longscan.automata.dfa import DFA as DFA
from longscan.automata.errors import AutomataError as AutomataError
from longscan.automata.errors import LimitExceeded as LimitExceeded
from longscan.automata.errors import NonSolvableError as NonSolvableError
from longscan.automata.errors import PrecisionError as PrecisionError
from longscan.automata.errors import RegexError as RegexError
from longscan.automata.inspection import Certificate as Certificate
from longscan.automata.languages import NAMED as NAMED
from longscan.automata.languages import acting as acting
from longscan.automata.languages import cycle_navigation as cycle_navigation
from longscan.automata.languages import dyck as dyck
from longscan.automata.languages import mod as mod
from longscan.automata.languages import named as named
from longscan.automata.languages import word_problem as word_problem
from longscan.automata.regex import from_regex as from_regex

compile = compile_dfa  # noqa: A001
