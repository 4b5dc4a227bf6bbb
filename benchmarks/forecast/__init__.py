"""Compares forecasts with CREDIT's rollout, and measures their cost."""
