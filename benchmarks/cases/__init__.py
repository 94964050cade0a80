"""The cases of all files in this folder. Add the CASES of a new file here."""

from cases import (
    accuracy,
    automata,
    blocks,
    classification,
    forecasts,
    hard_series,
    loaders,
    long_series,
    ops,
    regression,
    scaling,
    short_series,
    survival,
    systems,
    unequal_classes,
)

CASES = (
    *ops.CASES,
    *blocks.CASES,
    *accuracy.CASES,
    *scaling.CASES,
    *systems.CASES,
    *loaders.CASES,
    *automata.CASES,
    *survival.CASES,
    *forecasts.CASES,
    *classification.CASES,
    *long_series.CASES,
    *regression.CASES,
    *short_series.CASES,
    *hard_series.CASES,
    *unequal_classes.CASES,
)
