"""GEFS on the cubed sphere: fields equal CREDIT's, from files of its downloader."""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.config import ConfigError, parse
from credit_jax.config.data import DataConfig
from credit_jax.data import open_dataset
from tests.data.sources.server import same_samples, served

TIMES = pd.date_range("2024-01-01", "2024-01-01T12", freq="6h")
DATES = {
    "start_datetime": "2024-01-01",
    "end_datetime": "2024-01-01T12",
    "timestep": "6h",
    "history_len": 1,
    "forecast_len": 1,
}
N, LEVELS = 3, 4


def write_tile(folder, number, seed):
    """Writes both files of a tile."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    place = {
        "geolat": (("lat", "lon"), draw(N, N)),
        "geolon": (("lat", "lon"), draw(N, N)),
    }
    atmosphere = {
        "ps": (("lat", "lon"), draw(N, N)),
        "t": (("lev", "lat", "lon"), draw(LEVELS, N, N)),
        "zh": (("levp", "lat", "lon"), draw(LEVELS + 1, N, N)),
        "u_s": (("lev", "latp", "lon"), draw(LEVELS, N + 1, N)),
        "v_w": (("lev", "lat", "lonp"), draw(LEVELS, N, N + 1)),
    }
    surface = {
        name: (("Time", "yaxis_1", "xaxis_1"), draw(1, N, N))
        for name in ("t2m", "slmsk")
    }
    xr.Dataset(atmosphere | place).to_netcdf(folder / f"gfs_data.tile{number}.nc")
    xr.Dataset(surface).to_netcdf(folder / f"sfc_data.tile{number}.nc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two members at four times."""
    folder = tmp_path_factory.mktemp("gefs")
    seed = 0
    for time in TIMES:
        for member in ("c00", "p01"):
            place = folder / f"gefs.{time:%Y%m%d}/{time:%H}/atmos/init/{member}"
            place.mkdir(parents=True)
            coordinates = np.arange(2.0 * (LEVELS + 1)).reshape(2, -1)
            control = xr.Dataset({"vcoord": (("nvcoord", "levsp"), coordinates)})
            control.to_netcdf(place / "gfs_ctrl.nc")
            for tile in range(1, 7):
                write_tile(place, tile, seed := seed + 1)
    return folder


def section(folder, **keys):
    source = {
        "dataset_type": "gefs",
        "mode": "local",
        "base_path": f"{folder}",
        "variables": {
            "prognostic": {
                "vars_3D": ["t", "zh", "u_a", "v_a"],
                "vars_2D": ["ps", "t2m"],
            },
            "static": {"vars_2D": ["slmsk"]},
        },
    }
    return {**DATES, "source": {"G": {**source, **keys}}}


def opened(data):
    return open_dataset(parse(DataConfig, data))


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize(
    ("history", "keys"), [(1, {}), (2, {"members": ["p01"], "levels": [4, 1]})]
)
def test_samples(credit, folder, history, keys):
    data = {**section(folder, **keys), "history_len": history}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from credit.datasets.gen_2.gefs import GEFSDataset

        theirs = GEFSDataset(copy.deepcopy(data), return_target=True)
    ours = opened(data)
    assert ours.sources["G"].num_levels == (2 if "levels" in keys else LEVELS)
    count = 0
    for index, start in enumerate(ours.starts):
        expected = theirs[(pd.Timestamp(start), 0)]
        for part in ("input", "target"):
            for key, field in expected[part].items():
                own = getattr(ours[index], part)["G"][key]
                assert own.shape == field.shape[1:], key
                assert own.tobytes() == field[0].numpy().tobytes(), key
                count += 1
    print(f"gefs: {len(ours)} samples, {count} fields, bitwise")
    assert count >= 12


@pytest.mark.slow
def test_the_bucket(folder):
    with served(folder) as (address, sent):
        data = section(folder, mode="remote", store=address)
        same_samples(opened(section(folder)), opened(data))
        assert sum(sent) > 0


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"members": ["c00", "p01"]}, r"members: must name one member"),
        ({"members": []}, r"must name one member"),
        ({"members": ["c01"]}, r"must name one member"),
        ({"base_path": None}, "base_path: missing"),
        ({"base_path": "/nowhere"}, r"no file '/nowhere/gefs\.20240101/00/"),
        ({"levels": [0, 5]}, r"got \[0\.0, 5\.0\] .* expected positions from 1 to 4"),
        (
            {"variables": {"prognostic": {"vars_2D": ["x"]}}},
            "variable 'x' is not available; there are: t2m",
        ),
    ],
)
def test_errors(folder, keys, text):
    with pytest.raises((ValueError, FileNotFoundError, ConfigError), match=text):
        opened(section(folder, **keys))


def test_a_missing_tile(folder):
    dataset = opened(section(folder, members=["p01"]))
    path = next(folder.glob("*/12/*/*/p01/sfc_data.tile3.nc"))
    aside = path.rename(path.with_suffix(".aside"))
    try:
        with pytest.raises(ValueError, match=r"2024-01-01T12:00: no file .*tile3\.nc"):
            dataset.sources["G"].check("prognostic", TIMES.to_numpy())
        with pytest.raises(ValueError, match=r"no file .*sfc_data\.tile3\.nc"):
            dataset[1]
    finally:
        aside.rename(path)
