"""Scores of forecasts against observations of stations."""
