"""Fixtures: a package of a run of a small model, made once, and copies."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import OK
from credit_jax.extensions.packaging import command as package
from credit_jax.forecast.labeled import open_forecaster
from tests.forecast.tiny_run import make_run
from tests.training.conftest import compiled_once, world
from tests.training.tiny import Tiny, TinyConfig

__all__ = ["compiled_once", "world"]

# The data section for forecasts from the package.
DATA = {
    "source": {
        "ERA5": {
            "variables": {
                "prognostic": {"path": "w_%Y.nc"},
                "dynamic_forcing": {"path": "w_%Y.nc"},
            }
        }
    }
}


@pytest.fixture(scope="package", autouse=True)
def tiny_model():
    """Registers `model.type: tiny`."""
    from credit_jax.models import registry

    patch = pytest.MonkeyPatch()
    patch.setitem(registry.MODELS, "tiny", registry.ModelEntry(TinyConfig, Tiny))
    yield
    patch.undo()


@pytest.fixture(scope="package")
def run(world, tmp_path_factory, tiny_model):
    """The YAML of a run, whose checkpoints are in the sibling folder `run`."""
    return Path(make_run(world, tmp_path_factory.mktemp("trained") / "tiny"))


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """The folder of the run, with its config; tests may change it."""
    out = tmp_path_factory.mktemp("opened") / "run"
    shutil.copytree(run.parent / "run", out)
    shutil.copyfile(run, out / "model.yml")
    return out


@pytest.fixture(scope="module")
def forecaster(folder):
    """The run, opened."""
    return open_forecaster(folder)


@pytest.fixture(scope="module")
def initial(world):
    """The state of 2000-01-01, as it is in the file."""
    with xr.open_dataset(world / "w_2000.nc") as fields:
        return fields.sel(time=[np.datetime64("2000-01-01", "ns")]).load()


@pytest.fixture(scope="package")
def made(run, tmp_path_factory):
    """A package of the run; tests must not change it."""
    out = tmp_path_factory.mktemp("packages") / "tiny"
    scores = out.with_name("given.csv")
    head = "metric,system,channel,variable,level,level_units,units,region,lead_hours,"
    scores.write_text(
        f"{head}value\nrmse,forecast,T500,T,500.0,hPa,K,global,6.0,1.25\n"
    )
    options = ["--config", str(run), "--checkpoint", str(run.parent / "run")]
    options += ["--scores", str(scores), "--license", "CC-BY-4.0"]
    assert package.main([*options, "--out", str(out)]) == OK
    return out


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the package that tests may change."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture(scope="package")
def data(world, tmp_path_factory):
    """The YAML of the user's data."""
    path = tmp_path_factory.mktemp("user") / "data.yml"
    text = yaml.safe_dump(DATA).replace("w_%Y", f"{world}/w_%Y")
    path.write_text(text)
    return path
