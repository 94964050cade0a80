"""Tasks on languages, texts, images and series, with their losses, metrics and baselines; independent of any model."""

from longscan.tasks import dna as dna
from longscan.tasks import dynamics as dynamics
from longscan.tasks import events as events
from longscan.tasks import forecasting as forecasting
from longscan.tasks import formal as formal
from longscan.tasks import language as language
from longscan.tasks import lra as lra
from longscan.tasks import series as series
from longscan.tasks import timeseries as timeseries
from longscan.tasks.base import TASKS as TASKS
from longscan.tasks.base import Batch as Batch
from longscan.tasks.base import Task as Task
from longscan.tasks.base import check_request as check_request
from longscan.tasks.base import rows_of_step as rows_of_step
from longscan.tasks.classification import ClassificationTask as ClassificationTask
from longscan.tasks.regression import RegressionTask as RegressionTask
from longscan.tasks.timeseries import read_arff as read_arff
from longscan.tasks.timeseries import read_ts as read_ts
