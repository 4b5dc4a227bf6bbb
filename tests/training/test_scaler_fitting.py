"""Variances of tendencies: fitted by `preprocess`, read by the loss, against numpy."""

import json

import numpy as np
import pytest
import xarray as xr

from credit_jax.config import ConfigError, build_config
from credit_jax.training.scaler_fitting import fit_scalers
from tests.data.world import EXACT
from tests.support import assert_close
from tests.support.configs import plan_problems
from tests.training.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("tiny_model")


@pytest.fixture
def config(world, tmp_path):
    """Returns a config whose loss has weights by tendency."""
    named = {"loss__tendency_weights": str(tmp_path / "tendencies.json")}
    few = {"trainer__batches_per_epoch": 0}
    return build_config(tiny_config(world, tmp_path / "run", **EXACT, **named, **few))


def test_fit_and_weights(config, world, tmp_path):
    """They are numpy's on the same files, and the weights of the loss."""
    missing = plan_problems(config)
    path = tmp_path / "tendencies.json"
    fits = "does not exist; `credit-jax preprocess` fits it"
    assert missing == (f"loss.tendency_weights: {path} {fits}",)
    assert fit_scalers(config) == [path]
    fitted = json.loads(path.read_text())
    files = [xr.open_dataset(world / f"w_{year}.nc") for year in (1999, 2000)]
    data = xr.concat(files, "time", data_vars="minimal")
    data = data.sel(time=slice("1999-12-28", "2000-01-05T00"), level=[1.0, 5.0])
    deviations = xr.open_dataset(world / "std.nc").isel(level=[0, 2])
    assert list(fitted) == [
        "ERA5/prognostic/3d/U",
        "ERA5/prognostic/3d/T",
        "ERA5/prognostic/2d/SP",
    ]
    for key, variances in fitted.items():
        name = key.rsplit("/", 1)[-1]
        deviation = deviations[name].values.reshape(-1, 1, 1)
        values = data[name].values.reshape(len(data.time), -1, 6, 10)
        change = np.diff(values.astype(np.float64), axis=0) / deviation
        expected = change.var(axis=(0, 2, 3))
        assert_close(variances, expected, 1e-5, f"variances of {key}")
    assert plan_problems(config) == ()
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_scalers(config)


@pytest.mark.slow(
    but=[
        "[1, 2]-is no file of tendencies that preprocess writes",
        "{}-has the variances of other variables",
    ]
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is no file of tendencies that preprocess writes"),
        ("{", "is no file of tendencies that preprocess writes"),
        ('{"ERA5/prognostic/3d/U": [1, 2, 3]}', "has the variances of other variables"),
        ('{"ERA5/prognostic/3d/V": [1, 2]}', "has the variances of other variables"),
        ('{"ERA5/prognostic/3d/U": [1, 0]}', "has the variances of other variables"),
        ("{}", "has the variances of other variables"),
    ],
)
def test_other_files(text, message, config, tmp_path):
    (tmp_path / "tendencies.json").write_text(text)
    (problem,) = plan_problems(config)
    assert problem.startswith("loss.tendency_weights: ")
    assert message in problem


def test_not_with_type_base(world, tmp_path):
    loss = {"type": "base", "tendency_weights": "t.json"}
    with pytest.raises(ConfigError, match="type: base scores physical units"):
        build_config(tiny_config(world, tmp_path / "run", loss=loss))
