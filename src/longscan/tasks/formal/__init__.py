"""Formal languages by family: regular, counting, rewriting (the answer is a word) and context-free."""

from longscan.tasks.formal.base import FormalTask as FormalTask
from longscan.tasks.formal.context_free import ModularArithmeticBrackets as ModularArithmeticBrackets
from longscan.tasks.formal.context_free import SolveEquation as SolveEquation
from longscan.tasks.formal.counting import Majority as Majority
from longscan.tasks.formal.counting import MajorityCount as MajorityCount
from longscan.tasks.formal.regular import CycleNavigation as CycleNavigation
from longscan.tasks.formal.regular import ModularArithmetic as ModularArithmetic
from longscan.tasks.formal.regular import Parity as Parity
from longscan.tasks.formal.rewriting import BucketSort as BucketSort
from longscan.tasks.formal.rewriting import Repetition as Repetition
from longscan.tasks.formal.rewriting import Set as Set
