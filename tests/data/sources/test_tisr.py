"""Solar radiation equals CREDIT's on the same grids."""

import copy

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.data.sources.tisr import integrated_radiation, sun_at
from tests.data.world import GRID, parsed, raw_config

# Tolerance of a float32 result, relative to the largest value at that time.
ROUNDING = 1e-5
SPEC = {"lat_spec": [75, -75, 6], "lon_spec": [0, 324, 10]}


def section(world, **solar):
    raw = raw_config(world)
    raw["data"]["source"]["sun"] = {
        "dataset_type": "tisr",
        "variables": {"dynamic_forcing": {"vars_2D": ["tisr"]}, "prognostic": None},
        "num_integration_steps": 360,
        **solar,
    }
    return raw


@pytest.fixture
def grid_file(tmp_path):
    """Writes a curvilinear grid, whose rows are not circles of latitude."""
    lat, lon = np.meshgrid(GRID["latitude"], GRID["longitude"], indexing="ij")
    dims = ("y", "x")
    xr.Dataset(
        {"XLAT": (dims, lat + lon / 50), "XLONG": (dims, lon - lat / 9)}
    ).to_netcdf(tmp_path / "grid.nc")
    return tmp_path / "grid.nc"


@pytest.mark.slow(but=["spec"])
@pytest.mark.reference
@pytest.mark.parametrize("case", ["spec", "straight file", "curved file", "3 h"])
def test_samples(credit, world, grid_file, case):
    from tests.data.credit_samples import compare_samples, credit_dataset

    solar = {
        "spec": SPEC,
        "straight file": {"latlon_grid_path": f"{world}/static.nc"},
        "curved file": {"latlon_grid_path": f"{grid_file}"},
        "3 h": {**SPEC, "timestep": "3h", "num_integration_steps": 2160},
    }[case]
    data = section(world, **solar)["data"]
    theirs = credit_dataset(data)
    ours, _ = compare_samples(data, theirs, indices=range(4), exact=False)
    errors = []
    for index in range(0, len(ours), 5):
        key = "sun/dynamic_forcing/2d/tisr"
        value = ours[index].input["sun"][key]
        expected = theirs[(theirs.datetimes[index], 0)]["input"]["sun"][key].numpy()
        errors.append(np.abs(value - expected).max() / expected.max())
    print(f"{case}: {max(errors):.1e} of the largest value")
    assert max(errors) < ROUNDING


@pytest.mark.reference
@pytest.mark.parametrize(
    ("time", "bound"),
    [
        ("1979-06-21T12", ROUNDING),
        # Farther from 2000, the order in which six terms are added changes the last bit
        # of the sun's longitude, a change of up to 1e-4 radians.
        ("1850-01-03T06", 2e-5),
        ("2261-12-31T18", 9e-5),
    ],
)
@pytest.mark.parametrize("hours", [1, 24])
def test_any_time(credit, time, bound, hours):
    import torch
    from credit.datasets.gen_2.tisr import _cmip6_tsi_data, _compute_tisr

    lat, lon = np.meshgrid(
        np.linspace(90, -90, 19, dtype=np.float32),
        np.linspace(0, 350, 36, dtype=np.float32),
        indexing="ij",
    )
    period = pd.Timedelta(hours=hours)
    expected = _compute_tisr(
        pd.Timestamp(time),
        period,
        360,
        torch.tensor(lat)[None],
        torch.tensor(lon)[None],
        *_cmip6_tsi_data(),
    ).numpy()
    actual = integrated_radiation(np.datetime64(time, "ns"), period, 360, lat, lon)
    error = np.abs(actual - expected).max() / expected.max()
    print(f"{time}, {hours} h: {error:.1e}")
    assert error < bound


def test_equal_times_are_computed_once():
    sun = sun_at(np.datetime64("2021-06-01", "ns"), pd.Timedelta("6h"), 2160)
    assert sun.flux.size < 600
    assert np.isclose(sun.weight.sum(), 6 * 3600)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "needs one grid: latlon_grid_path, or both"),
        ({"lat_spec": [1, 2, 3]}, "needs one grid"),
        ({**SPEC, "latlon_grid_path": "x"}, "needs one grid"),
        ({**SPEC, "variables": {"static": {"vars_2D": ["tisr"]}}}, "one variable"),
        ({**SPEC, "variables": {"dynamic_forcing": {"vars_2D": ["tsi"]}}}, "one var"),
    ],
)
def test_configs(world, change, text):
    with pytest.raises(ValueError, match=text):
        parsed(section(world, **copy.deepcopy(change)))


def test_years_without_a_table(world):
    from credit_jax.data import open_dataset

    raw = section(world, **SPEC)
    source = open_dataset(parsed(raw).data).sources["sun"]
    early = np.array(["1849-12-31T18"], "datetime64[ns]")
    with pytest.raises(ValueError, match=r"source\.sun: .* 1850 to 2299, not for 1849"):
        source.check("dynamic_forcing", early)
