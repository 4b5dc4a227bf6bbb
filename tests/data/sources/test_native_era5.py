"""ERA5 as IFS has it: coefficients and reduced Gaussian points of made stores."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.config import ConfigError, parse
from credit_jax.config.data import DataConfig
from credit_jax.data import open_dataset
from credit_jax.data.dataset import collate
from credit_jax.transforms import Phase
from tests.support import assert_close
from tests.transforms.cases import CONCAT, preblocks

TRUNCATION, RADIUS, OMEGA = 21, 6371229.0, 2e-5
TIMES = xr.date_range("2020-01-01", periods=5, freq="6h", use_cftime=False)
LEVELS = [1, 2, 3]
COUNTS = np.concatenate([np.arange(20, 84, 4), np.arange(80, 16, -4)])
RINGS = np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(32)[0]))[::-1]
LATITUDE = np.repeat(RINGS, COUNTS)
LONGITUDE = np.concatenate([np.arange(n) * 360 / n for n in COUNTS])
PLACE = {"latitude": ("values", LATITUDE), "longitude": ("values", LONGITUDE)}
WIND = "model-level-wind.zarr-v2"
KEY = "ERA5/prognostic"


def made(by_degree, count):
    """Coefficients of order 0 at all times, times the number of the level."""
    values = np.zeros((len(TIMES), count, (TRUNCATION + 1) * (TRUNCATION + 2)))
    for degree, value in by_degree.items():
        values[..., 2 * degree] = value
    return values.astype(np.float32) * np.arange(1, count + 1)[:, None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("co")
    deep, flat = ("time", "hybrid", "values"), ("time", "values")
    points = np.arange(len(TIMES))[:, None] + np.sin(np.deg2rad(LATITUDE))
    humidity = np.stack([points - 1.5, points, points], 1) * 1e-6
    stores = {
        WIND: {
            "t": (deep, made({0: 280.0, 1: 10.0}, 3)),
            "vo": (deep, made({1: 2 * OMEGA / np.sqrt(3)}, 3)),
            "d": (deep, made({}, 3)),
        },
        "model-level-moisture.zarr-v2": {"q": (deep, humidity.astype(np.float32))},
        "single-level-reanalysis.zarr-v2": {
            "t2m": (flat, points.astype(np.float32)),
            "z": (flat, points.astype(np.float32)),
        },
        "single-level-surface.zarr-v2": {"lnsp": (flat, made({0: 11.5}, 1)[:, 0])},
    }
    for name, variables in stores.items():
        coords = {"time": TIMES, "hybrid": np.array(LEVELS, float)}
        coords |= PLACE if "q" in variables or "t2m" in variables else {}
        xr.Dataset(variables, coords).to_zarr(root / name, zarr_format=2)
    return root


def data(folder, **changes):
    source = {
        "dataset_type": "arco_era5_co",
        "levels": [1, 3],
        "store": str(folder),
        "variables": {
            "prognostic": {
                "vars_3D": [
                    "temperature",
                    "u_component_of_wind",
                    "v_component_of_wind",
                    "q",
                ],
                "vars_2D": ["log_surface_pressure", "t2m"],
            },
            "static": {"vars_2D": ["geopotential_at_surface"]},
        },
        **changes,
    }
    return {
        "start_datetime": "2020-01-01",
        "end_datetime": "2020-01-02",
        "timestep": "6h",
        "history_len": 1,
        "forecast_len": 1,
        "source": {"ERA5": source},
    }


def test_a_sample_as_fields(folder):
    dataset = open_dataset(parse(DataConfig, data(folder)), shared_grid=False)
    assert dataset.check(shared_grid=False) == []
    sample = dataset[1]
    shapes = {k.split("/")[-1]: x.shape for k, x in sample.input["ERA5"].items()}
    coefficients, points = (TRUNCATION + 1) * (TRUNCATION + 2), LATITUDE.size
    assert shapes == {
        "temperature": (2, 1, coefficients),
        "vorticity": (2, 1, coefficients),
        "divergence": (2, 1, coefficients),
        "specific_humidity": (2, 1, points),
        "log_surface_pressure": (1, 1, coefficients),
        "2m_temperature": (1, 1, points),
        "geopotential_at_surface": (1, 1, points),
    }
    logs = {"variables": [f"{KEY}/3d/specific_humidity"]}
    rules = [{"search": 0.0, "op": "<", "fill": 0.0}]
    pipeline = preblocks(
        spectral={
            "type": "spectral_to_grid",
            "args": {
                "truncation": TRUNCATION,
                "grid_file": str(folder / "model-level-moisture.zarr-v2"),
                "scalar_vars": {
                    f"{KEY}/3d/temperature": f"{KEY}/3d/temperature",
                    f"{KEY}/2d/log_surface_pressure": f"{KEY}/2d/surface_pressure",
                },
                "exp_vars": [f"{KEY}/2d/surface_pressure"],
                "vector_vars": [
                    {
                        "vorticity": f"{KEY}/3d/vorticity",
                        "divergence": f"{KEY}/3d/divergence",
                        "u": f"{KEY}/3d/u_component_of_wind",
                        "v": f"{KEY}/3d/v_component_of_wind",
                    }
                ],
            },
        },
        clamp={"type": "fill_values", "args": {"rules": rules, **logs}},
        logs={"type": "log_transform", "args": logs},
        concat=CONCAT,
    )
    schema = dataset.schema.as_read()
    pipeline = pipeline.at(schema, dataset.coordinates().grid)
    x = pipeline.run(Phase.BEFORE_STEP, collate([sample]))["x"]
    groups = pipeline.schema_after(schema)["input"]
    names = [group.variable for group in groups for _ in range(group.n_levels)]
    sine, cosine = np.sin(np.deg2rad(LATITUDE)), np.cos(np.deg2rad(LATITUDE))
    temperature = 280 + 10 * np.sqrt(3) * sine
    wind = OMEGA * RADIUS * cosine
    humidity = np.log(np.maximum([sine - 0.5, sine + 1], 0) * 1e-6 + 1e-8)
    expected = {
        "temperature": [temperature, 3 * temperature],
        "u_component_of_wind": [wind, 3 * wind],
        "v_component_of_wind": [0 * wind, 0 * wind],
        "specific_humidity": humidity - np.log(1e-8),
        "surface_pressure": [np.full(points, np.exp(11.5))],
        "2m_temperature": [1 + sine],
        "geopotential_at_surface": [1 + sine],
    }
    assert [*dict.fromkeys(names)] == [*expected]
    assert x.shape == (1, len(names), 1, points)
    for name, field in expected.items():
        rows = [i for i, other in enumerate(names) if other == name]
        assert_close(x[0, rows, 0], np.array(field), 1e-5, name)


ERRORS = {
    "one wind": (
        {"variables": {"prognostic": {"vars_3D": ["u_component_of_wind"]}}},
        "v_component_of_wind is missing; both winds",
    ),
    "unknown": (
        {"variables": {"prognostic": {"vars_2D": ["precipitation"]}}},
        "vars_2D: variable 'precipitation' is not available; there are: temperature",
    ),
    "pressure levels": ({"level_coord": "level"}, "must be 'hybrid', got 'level'"),
    "levels": ({"levels": [1, 9]}, r"no level near \[9\.0\]"),
    "dims": (
        {"variables": {"prognostic": {"vars_2D": ["temperature"]}}},
        r"has dims \(time, hybrid, values\), expected \(time, ",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(folder, name):
    changes, text = ERRORS[name]
    with pytest.raises((ConfigError, ValueError), match=text):
        open_dataset(parse(DataConfig, data(folder, **changes)), shared_grid=False)
