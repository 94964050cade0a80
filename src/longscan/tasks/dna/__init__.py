"""DNA: which species a stretch comes from, and the next base."""

from longscan.tasks.dna.tasks import DnaLanguage as DnaLanguage
from longscan.tasks.dna.tasks import Species as Species
