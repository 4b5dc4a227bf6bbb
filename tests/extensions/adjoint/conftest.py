"""Fixtures: a run of a small model."""

from tests.packages.conftest import (
    compiled_once,
    folder,
    forecaster,
    initial,
    run,
    tiny_model,
    world,
)

__all__ = [
    "compiled_once",
    "folder",
    "forecaster",
    "initial",
    "run",
    "tiny_model",
    "world",
]
