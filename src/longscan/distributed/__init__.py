"""Context parallelism: sequences that are split along their length over the processes of a mesh."""

from longscan.distributed.collectives import Exchange as Exchange
from longscan.distributed.collectives import gather_steps as gather_steps
from longscan.distributed.collectives import record_exchanges as record_exchanges
from longscan.distributed.context import SequenceSplit as SequenceSplit
from longscan.distributed.context import context_parallel as context_parallel
from longscan.distributed.context import current_split as current_split
from longscan.distributed.context import shard_sequence as shard_sequence
from longscan.distributed.watch import watch_processes as watch_processes
