"""What to learn: formal languages and time series, with their losses, metrics and baselines; knows no model."""

from longscan.tasks import formal as formal
from longscan.tasks.base import TASKS as TASKS
from longscan.tasks.base import Batch as Batch
from longscan.tasks.base import Task as Task
