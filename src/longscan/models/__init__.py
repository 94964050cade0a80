"""Models: an encoder, a stack of blocks written as a spec, pooling and a head."""

from longscan._specs import STANDARD_BLOCKS as STANDARD_BLOCKS
from longscan.models.base import PretrainedModel as PretrainedModel
from longscan.models.export import export_onnx as export_onnx
from longscan.models.forecaster import Forecaster as Forecaster
from longscan.models.generation import generate as generate
from longscan.models.generation import sample as sample
from longscan.models.generation import stream as stream
from longscan.models.interchange import from_transformers as from_transformers
from longscan.models.language_model import LanguageModel as LanguageModel
from longscan.models.morph import make_bidirectional as make_bidirectional
from longscan.models.morph import with_head as with_head
from longscan.models.objectives import TokenTargets as TokenTargets
from longscan.models.objectives import masked_tokens as masked_tokens
from longscan.models.objectives import next_tokens as next_tokens
from longscan.models.objectives import token_loss as token_loss
from longscan.models.roles import freeze as freeze
from longscan.models.roles import optimizer_groups as optimizer_groups
from longscan.models.roles import parameters_by_role as parameters_by_role
from longscan.models.sequence_model import ModelState as ModelState
from longscan.models.sequence_model import SequenceModel as SequenceModel
from longscan.models.siamese import SiameseModel as SiameseModel
from longscan.models.spec import find_block as find_block
from longscan.models.spec import format_spec as format_spec
from longscan.models.spec import parse_spec as parse_spec
from longscan.models.stacks import place_rotary as place_rotary
from longscan.models.stacks import replace_blocks as replace_blocks
