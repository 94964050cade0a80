"""Tasks on series in a user's own files: classes, numbers and forecasts."""

from longscan.tasks.series.base import SeriesFile as SeriesFile
from longscan.tasks.series.forecast import SeriesForecast as SeriesForecast
from longscan.tasks.series.labelled import SeriesClasses as SeriesClasses
from longscan.tasks.series.labelled import SeriesValues as SeriesValues
