"""Forecasts of tables of measurements: WTH, weather, ETT and a user's own."""

from longscan.tasks.forecasting.task import Forecast as Forecast
