"""Fixtures: a small data set, a run of a small model, and its forecast."""

import pytest

from tests.forecast.tiny_run import forecast, make_run
from tests.training.conftest import compiled_once, world

__all__ = ["compiled_once", "world"]


@pytest.fixture(scope="package", autouse=True)
def tiny_model():
    """Registers `model.type: tiny`."""
    from credit_jax.models import registry
    from tests.training.tiny import Tiny, TinyConfig

    entry = registry.ModelEntry(TinyConfig, Tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.MODELS, "tiny", entry)
        yield


@pytest.fixture(scope="package")
def run(world, tiny_model, tmp_path_factory):
    """The folder of a run: `model.yml`, and a checkpoint in `run`."""
    folder = tmp_path_factory.mktemp("made")
    make_run(world, folder)
    return folder


@pytest.fixture(scope="package")
def config(run):
    """The YAML of the run; tests must not change it."""
    return str(run / "model.yml")


@pytest.fixture(scope="package")
def whole(config, tmp_path_factory):
    """Its forecast of five start dates as a Zarr store; tests must not change it."""
    folder = tmp_path_factory.mktemp("whole")
    assert forecast(config, folder) == 0
    return folder
