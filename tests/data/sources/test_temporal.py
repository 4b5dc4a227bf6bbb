"""Temporal modes, calendars and solar radiation: samples equal CREDIT's."""

import copy

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data import open_dataset
from credit_jax.data.sources.tisr import integrated_radiation, sun_at
from tests.data.world import (
    FLAT,
    GRID,
    NUM_LAT,
    NUM_LON,
    make_fields,
    parsed,
    raw_config,
    save,
)
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("temporal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files in several calendars and with several time steps."""
    folder = tmp_path_factory.mktemp("calendars")
    times = xr.date_range("2000-02-24", "2000-03-05", freq="6h", use_cftime=False)
    save(make_fields(times), folder / "standard.nc")
    for calendar in ("noleap", "all_leap", "julian"):
        own = xr.date_range(
            "2000-02-24", "2000-03-05", freq="6h", calendar=calendar, use_cftime=True
        )
        fields = make_fields(pd.date_range("2000-02-24", periods=len(own), freq="6h"))
        save(fields.assign_coords(time=own), folder / f"{calendar}.nc")
    daily = xr.date_range("2000-02-20", "2000-03-08", freq="1D", use_cftime=False)
    save(forcing(daily, 1), folder / "daily.nc")
    often = xr.date_range("2000-02-20", "2000-03-08", freq="6h", use_cftime=False)
    save(forcing(often, 4), folder / "standard_forcing.nc")
    year = xr.date_range("2001-01-01", "2001-12-31", freq="1D", use_cftime=False)
    save(forcing(year, 2), folder / "cycle.nc")
    year = xr.date_range(
        "1999-01-01", "1999-12-31", freq="1D", calendar="noleap", use_cftime=True
    )
    save(forcing(year, 3), folder / "cycle_noleap.nc")
    return folder


def forcing(times, seed):
    """Returns a data set of one variable at given times."""
    rng = np.random.default_rng(seed)
    values = rng.random((len(times), NUM_LAT, NUM_LON)).astype(np.float32)
    return xr.Dataset({"sst": (FLAT, values)}, coords={"time": times, **GRID})


def section(folder, main="standard", history=1, forecast=1, **sources):
    """Returns a data section of a main source and forcing sources."""
    fields = {"vars_3D": ["U"], "vars_2D": ["SP"], "path": f"{folder}/{main}.nc"}
    source = {"dataset_type": "local", "level_coord": "level", "levels": [1.0, 4.6]}
    source["variables"] = {"prognostic": fields, "dynamic_forcing": None}
    data = {
        "start_datetime": "2000-02-26",
        "end_datetime": "2000-03-03",
        "timestep": "6h",
        "history_len": history,
        "forecast_len": forecast,
        "source": {"main": source},
    }
    for name, own in sources.items():
        path = f"{folder}/{own.pop('file', name)}.nc"
        variables = {"dynamic_forcing": {"vars_2D": ["sst"], "path": path}}
        source = {"dataset_type": "local", "variables": variables, **own}
        data["source"][name] = source
    return data


PERSIST = {
    "temporal_mode": "persist",
    "timestep": "24h",
    "start_datetime": "2000-02-20",
    "end_datetime": "2000-03-08",
}
CYCLE = {
    "temporal_mode": "cyclic",
    "timestep": "24h",
    "start_datetime": "2001-01-01",
    "end_datetime": "2001-12-31",
}
NOLEAP_CYCLE = {
    **CYCLE,
    "file": "cycle_noleap",
    "start_datetime": "1999-01-01",
    "end_datetime": "1999-12-31",
}

SAMPLES = {
    "exact, coarser": lambda f: section(f, daily={"timestep": "24h"}),
    "persist": lambda f: section(f, daily=dict(PERSIST)),
    "persist, history": lambda f: section(f, history=3, daily=dict(PERSIST)),
    "persist, two steps": lambda f: section(f, forecast=2, daily=dict(PERSIST)),
    "cyclic, three steps": lambda f: section(f, forecast=3, cycle=dict(CYCLE)),
    "persist, shorter": lambda f: section(
        f, daily={**PERSIST, "end_datetime": "2000-03-01"}
    ),
    "persist of the main source": lambda f: persistent_main(f),
    "cyclic": lambda f: section(f, cycle=dict(CYCLE)),
    "cyclic, year given": lambda f: section(f, cycle={**CYCLE, "cycle_year": 2001}),
    "cyclic, history": lambda f: section(f, history=2, cycle=dict(CYCLE)),
    "cyclic, noleap": lambda f: section(f, cycle=dict(NOLEAP_CYCLE)),
    "cyclic, no dates": lambda f: in_ranges(section(f, cycle=without_dates(CYCLE))),
    "noleap": lambda f: section(f, "noleap"),
    "noleap, history": lambda f: section(f, "noleap", history=2),
    "noleap and standard": lambda f: section(
        f, "noleap", daily={"file": "standard_forcing"}
    ),
    "noleap and cyclic": lambda f: section(f, "noleap", cycle=dict(CYCLE)),
    "noleap and cyclic noleap": lambda f: section(
        f, "noleap", cycle=dict(NOLEAP_CYCLE)
    ),
    "all_leap": lambda f: section(f, "all_leap"),
    "julian": lambda f: section(f, "julian", history=2),
    "calendar said": lambda f: {**section(f, "noleap"), "calendar": "365_day"},
}


def persistent_main(folder):
    """Returns a section whose main source has 12-hourly fields on a 6-hour clock."""
    data = section(folder)
    main = {"temporal_mode": "persist", "timestep": "12h"}
    data["source"]["main"] |= main
    return data


def without_dates(source):
    keys = ("start_datetime", "end_datetime")
    return {k: v for k, v in source.items() if k not in keys}


def in_ranges(data):
    """Returns dates as two ranges."""
    data = without_dates(data)
    ranges = [["2000-02-25", "2000-02-27"], ["2000-02-29", "2000-03-02"]]
    return {**data, "date_ranges": ranges}


@pytest.mark.slow(but=["exact, coarser", "persist", "cyclic, history", "noleap"])
@pytest.mark.reference
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_credits(credit, folder, name):
    from tests.data.credit_batches import compare_samples

    compare_samples(SAMPLES[name](folder))


def opened(data):
    return open_dataset(parse(DataConfig, data))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_standard_source_under_a_noleap_clock_skips_the_leap_day(folder):
    """With history, too, for which CREDIT fails on a mixed range of dates."""
    forcing = {"file": "standard_forcing"}
    ours = opened(section(folder, "noleap", history=2, daily=forcing))
    index = int(np.flatnonzero(ours.starts == np.datetime64("2000-03-01T00", "ns"))[0])
    read = ours[index].input["daily"]["daily/dynamic_forcing/2d/sst"][0]
    with xr.open_dataset(folder / "standard_forcing.nc") as fields:
        expected = fields["sst"].sel(time=["2000-02-28T18:00", "2000-03-01T00:00"])
    assert read.tobytes() == expected.values.tobytes()


def test_cyclic_configs(folder):
    """A cyclic source without dates uses those of the data section."""
    cycle = {"temporal_mode": "cyclic", "timestep": "24h"}
    for change in (cycle, {**CYCLE, "date_ranges": None, "cycle_year": None}):
        clock = opened(section(folder, cycle=dict(change))).clocks["cycle"]
        assert clock.cycle_year == 2001
        if change is cycle:
            assert str(clock.starts[0])[:10] == "2000-02-26"


@CASES.case
def a_cycle_year_without_dates_of_its_own(folder):
    """It would take one time of the data section's dates for all, or none."""
    cycle = {"temporal_mode": "cyclic", "timestep": "24h", "cycle_year": 2001}
    return lambda: opened(section(folder, cycle=cycle))


@CASES.case
def two_calendars_without_a_common_clock(folder):
    data = section(folder, "noleap")
    data["source"]["other"] = section(folder, "julian")["source"]["main"]
    return lambda: opened(data)


# Solar radiation on the same grids.

# Tolerance of a float32 result, relative to the largest value at that time.
ROUNDING = 1e-5
SPEC = {"lat_spec": [75, -75, 6], "lon_spec": [0, 324, 10]}


def solar_config(world, **solar):
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
    points = {"XLAT": lat + lon / 50, "XLONG": lon - lat / 9}
    grid = xr.Dataset({name: (("y", "x"), own) for name, own in points.items()})
    grid.to_netcdf(tmp_path / "grid.nc")
    return tmp_path / "grid.nc"


@pytest.mark.slow(but=["spec"])
@pytest.mark.reference
@pytest.mark.parametrize("case", ["spec", "straight file", "curved file", "3 h"])
def test_radiation(credit, world, grid_file, case):
    from tests.data.credit_batches import compare_samples, credit_dataset

    solar = {
        "spec": SPEC,
        "straight file": {"latlon_grid_path": f"{world}/static.nc"},
        "curved file": {"latlon_grid_path": f"{grid_file}"},
        "3 h": {**SPEC, "timestep": "3h", "num_integration_steps": 2160},
    }[case]
    data = solar_config(world, **solar)["data"]
    theirs = credit_dataset(data)
    ours, _ = compare_samples(data, theirs, indices=range(4), exact=False)
    errors = []
    for index in range(0, len(ours), 5):
        key = "sun/dynamic_forcing/2d/tisr"
        value = ours[index].input["sun"][key]
        expected = theirs[(theirs.datetimes[index], 0)]["input"]["sun"][key].numpy()
        errors.append(np.abs(value - expected).max() / expected.max())
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
    assert error < bound


def test_equal_times_are_computed_once():
    sun = sun_at(np.datetime64("2021-06-01", "ns"), pd.Timedelta("6h"), 2160)
    assert sun.flux.size < 600
    assert np.isclose(sun.weight.sum(), 6 * 3600)


CASES.rows(
    lambda changes: parsed(solar_config("x", **copy.deepcopy(changes))),
    ({},),
    ({"lat_spec": [1, 2, 3]},),
    ({**SPEC, "latlon_grid_path": "x"},),
    ({**SPEC, "variables": {"static": {"vars_2D": ["tisr"]}}},),
    ({**SPEC, "variables": {"dynamic_forcing": {"vars_2D": ["tsi"]}}},),
    name="tisr",
)


@CASES.case
def radiation_of_years_without_a_table(world):
    source = open_dataset(parsed(solar_config(world, **SPEC)).data).sources["sun"]
    early = np.array(["1849-12-31T18"], "datetime64[ns]")
    return lambda: source.check("dynamic_forcing", early)
