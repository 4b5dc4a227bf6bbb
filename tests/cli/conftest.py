"""Fixtures: a small data set, and a run of a small model."""

from tests.forecast.conftest import config, run, tiny_model
from tests.training.conftest import compiled_once, world

__all__ = ["compiled_once", "config", "run", "tiny_model", "world"]
