"""Temporal modes and calendars: samples equal those of CREDIT's MultiSourceDataset."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from tests.data.world import FLAT, GRID, NUM_LAT, NUM_LON, make_fields, save

pytestmark = pytest.mark.reference


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
    data = {
        "start_datetime": "2000-02-26",
        "end_datetime": "2000-03-03",
        "timestep": "6h",
        "history_len": history,
        "forecast_len": forecast,
        "source": {
            "main": {
                "dataset_type": "local",
                "level_coord": "level",
                "levels": [1.0, 4.6],
                "variables": {
                    "prognostic": {
                        "vars_3D": ["U"],
                        "vars_2D": ["SP"],
                        "path": f"{folder}/{main}.nc",
                    },
                    "dynamic_forcing": None,
                },
            }
        },
    }
    for name, own in sources.items():
        path = f"{folder}/{own.pop('file', name)}.nc"
        variables = {"dynamic_forcing": {"vars_2D": ["sst"], "path": path}}
        data["source"][name] = {
            "dataset_type": "local",
            "variables": variables,
            **own,
        }
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

CASES = {
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
@pytest.mark.parametrize("name", CASES)
def test_samples_are_credits(credit, folder, name):
    from tests.data.credit_samples import compare_samples

    path = folder / "standard_forcing.nc"
    if not path.exists():
        times = xr.date_range("2000-02-20", "2000-03-08", freq="6h", use_cftime=False)
        save(forcing(times, 4), path)
    ours, count = compare_samples(CASES[name](folder))
    print(f"{name}: {len(ours)} samples, {count} fields, bitwise")


def test_a_standard_source_under_a_noleap_clock_skips_the_leap_day(folder):
    """With history, too, for which CREDIT fails on a mixed range of dates."""
    from tests.data.credit_samples import our_dataset

    path = folder / "standard_forcing.nc"
    times = xr.date_range("2000-02-20", "2000-03-08", freq="6h", use_cftime=False)
    values = forcing(times, 4)
    save(values, path)
    data = section(folder, "noleap", history=2, daily={"file": "standard_forcing"})
    ours = our_dataset(data)
    index = int(np.flatnonzero(ours.starts == np.datetime64("2000-03-01T00", "ns"))[0])
    read = ours[index].input["daily"]["daily/dynamic_forcing/2d/sst"][0]
    expected = values["sst"].sel(time=["2000-02-28T18:00", "2000-03-01T00:00"]).values
    assert read.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"temporal_mode": "cyclic", "timestep": "24h"}, "2000-02-26"),
        ({**CYCLE, "date_ranges": None, "cycle_year": None}, None),
    ],
)
def test_cyclic_configs(folder, change, text):
    """A cyclic source without dates uses those of the data section."""
    from tests.data.credit_samples import our_dataset

    clock = our_dataset(section(folder, cycle=dict(change))).clocks["cycle"]
    assert clock.cycle_year == 2001
    if text:
        assert str(clock.starts[0])[:10] == text


def test_cycle_year_without_dates_of_its_own(folder):
    """It would take one time of the data section's dates for all, or none."""
    from tests.data.credit_samples import our_dataset

    own = {"temporal_mode": "cyclic", "timestep": "24h", "cycle_year": 2001}
    text = (
        r"from 2000-02-26 00:00:00 to 2000-03-0\d .* but cycle_year is 2001; give the "
        "source start_datetime and end_datetime of its own"
    )
    with pytest.raises(ValueError, match=text):
        our_dataset(section(folder, cycle=own))


def test_two_calendars_without_a_common_clock(folder):
    from tests.data.credit_samples import our_dataset

    data = section(folder, "noleap")
    data["source"]["other"] = section(folder, "julian")["source"]["main"]
    with pytest.raises(ValueError, match="the calendars julian, noleap"):
        our_dataset(data)
    data = {**section(folder, "noleap"), "calendar": "standard"}
    with pytest.raises(ValueError, match=r"source\.main: has the calendar noleap"):
        our_dataset(data)
