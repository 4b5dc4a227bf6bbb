"""Forecasts beside CREDIT's rollout, and what they cost."""
