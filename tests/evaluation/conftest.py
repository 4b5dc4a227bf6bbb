"""Fixtures: a run of the small model on the small data set of the training tests."""

import jax
import pytest

from credit_jax.config import build_config
from credit_jax.plan import plan_run
from credit_jax.training.setup import prepare
from tests.training.conftest import compiled_once as compiled_once
from tests.training.conftest import tiny_model as tiny_model
from tests.training.conftest import world as world
from tests.training.tiny import tiny_config


@pytest.fixture
def setup(world, tmp_path):
    """A prepared run."""
    config = build_config(tiny_config(world, tmp_path))
    return prepare(plan_run(config), jax.devices()[:1])
