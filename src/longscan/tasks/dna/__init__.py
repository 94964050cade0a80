"""DNA: classify the species of a window, and predict the next base."""

from longscan.tasks.dna.tasks import DnaLanguage as DnaLanguage
from longscan.tasks.dna.tasks import Species as Species
