"""Classification of time series: readers of their files, the protocols of splitting and scaling, the task."""

from longscan.tasks.timeseries.files import Recordings as Recordings
from longscan.tasks.timeseries.files import read_arff as read_arff
from longscan.tasks.timeseries.files import read_recordings as read_recordings
from longscan.tasks.timeseries.files import read_ts as read_ts
from longscan.tasks.timeseries.uea import Uea as Uea
