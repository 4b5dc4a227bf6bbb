"""Fixtures: a run of a small model."""

from tests.packages.conftest import compiled_once, run, tiny_model, world

__all__ = ["compiled_once", "run", "tiny_model", "world"]
