"""Reproduction of the papers' tables: the rows and their recipes, runs in parallel with a time limit, and the comparison.

`rows` reads the protocols of the papers, `verdicts` compares scores with a published figure, `runs` trains, `archive` packs a
folder of runs for another machine, and `page` writes the tables. The command is `longscan reproduce`.
"""

from longscan.reproduce.rows import PublishedRow as PublishedRow
from longscan.reproduce.rows import find_rows as find_rows
from longscan.reproduce.rows import read_rows as read_rows
from longscan.reproduce.verdicts import verdict as verdict

__all__ = ["PublishedRow", "find_rows", "read_rows", "verdict"]
