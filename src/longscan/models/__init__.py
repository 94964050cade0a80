"""Models: an encoder, a stack of blocks written as a spec, pooling and a head."""

from longscan.models.language_model import LanguageModel as LanguageModel
from longscan.models.sequence_model import ModelState as ModelState
from longscan.models.sequence_model import SequenceModel as SequenceModel
from longscan.models.spec import LETTERS as LETTERS
from longscan.models.spec import expand_spec as expand_spec
from longscan.models.spec import parse_spec as parse_spec
from longscan.models.spec import shorthand as shorthand
