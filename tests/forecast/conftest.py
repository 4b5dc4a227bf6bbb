"""Fixtures: a small data set and a run of a small model."""

import pytest

from tests.forecast.tiny_run import make_run
from tests.training.conftest import compiled_once, tiny_model, world

__all__ = ["compiled_once", "tiny_model", "world"]


@pytest.fixture
def config(world, tmp_path, tiny_model):
    """The YAML of a run with a checkpoint."""
    return make_run(world, tmp_path)
