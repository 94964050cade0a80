"""Finite automata and their compilation to models with exact weights: see docs/automata.md.

dfa = automata.from_regex("(ab)*")
compiled = automata.compile(dfa)
compiled.accepts(["abab", "aba"])
"""

from longscan.automata.analysis import Report as Report
from longscan.automata.analysis import analyse as analyse
from longscan.automata.compiler import CompiledAutomaton as CompiledAutomaton
from longscan.automata.compiler import ModelSize as ModelSize
from longscan.automata.compiler import compile_dfa as compile_dfa
from longscan.automata.compiler import load as load
from longscan.automata.compiler import model_size as model_size
from longscan.automata.dfa import DFA as DFA
from longscan.automata.errors import AutomataError as AutomataError
from longscan.automata.errors import LimitExceeded as LimitExceeded
from longscan.automata.errors import NonSolvableError as NonSolvableError
from longscan.automata.errors import PrecisionError as PrecisionError
from longscan.automata.errors import RegexError as RegexError
from longscan.automata.inspection import Certificate as Certificate
from longscan.automata.languages import NAMED as NAMED
from longscan.automata.languages import cycle_navigation as cycle_navigation
from longscan.automata.languages import dyck as dyck
from longscan.automata.languages import from_maps as from_maps
from longscan.automata.languages import mod as mod
from longscan.automata.languages import named as named
from longscan.automata.languages import word_problem as word_problem
from longscan.automata.regex import from_regex as from_regex

compile = compile_dfa  # noqa: A001
