"""Long Range Arena (Tay et al., 2021): ListOps, text, retrieval, images, Pathfinder."""

from longscan.tasks.lra.image import LraImage as LraImage
from longscan.tasks.lra.listops import ListOps as ListOps
from longscan.tasks.lra.pathfinder import Pathfinder as Pathfinder
from longscan.tasks.lra.retrieval import LraRetrieval as LraRetrieval
from longscan.tasks.lra.text import LraText as LraText
