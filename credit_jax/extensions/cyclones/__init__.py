"""Tropical cyclones of forecasts, beside best tracks."""
