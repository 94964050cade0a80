"""Formal languages by family.

Regular, counting, rewriting (the answer is a word) and context-free ones in suites; the rest of the Chomsky hierarchy suite; word
problems of groups; counters and nesting; recall (copying, induction heads, associative recall).
"""

from longscan.tasks.formal.base import FormalTask as FormalTask
from longscan.tasks.formal.base import WordTask as WordTask
from longscan.tasks.formal.chomsky import chomsky_suite as chomsky_suite
from longscan.tasks.formal.context_free import ModularArithmeticBrackets as ModularArithmeticBrackets
from longscan.tasks.formal.context_free import SolveEquation as SolveEquation
from longscan.tasks.formal.counting import Majority as Majority
from longscan.tasks.formal.counting import MajorityCount as MajorityCount
from longscan.tasks.formal.groups import GroupWord as GroupWord
from longscan.tasks.formal.nesting import BoundedDyck as BoundedDyck
from longscan.tasks.formal.nesting import Counters as Counters
from longscan.tasks.formal.recall import InductionHeads as InductionHeads
from longscan.tasks.formal.recall import MultiQueryRecall as MultiQueryRecall
from longscan.tasks.formal.recall import SelectiveCopying as SelectiveCopying
from longscan.tasks.formal.regular import CycleNavigation as CycleNavigation
from longscan.tasks.formal.regular import ModularArithmetic as ModularArithmetic
from longscan.tasks.formal.regular import Parity as Parity
from longscan.tasks.formal.rewriting import BucketSort as BucketSort
from longscan.tasks.formal.rewriting import Repetition as Repetition
from longscan.tasks.formal.rewriting import Set as Set
