"""Scores at stations: beside xarray and pandas, files of archives, bad input."""

import tomllib
from collections import Counter
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.score import main
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.evaluation.regions import REGIONS
from credit_jax.evaluation.scores import read_scores
from credit_jax.extensions.assimilation import read_observations
from credit_jax.extensions.stations.layouts import observations_of
from credit_jax.extensions.stations.score import score_stations
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.code_blocks import code_blocks

HOUR = np.timedelta64(1, "h")
ROOT = Path(__file__).parents[3]
CASES = Cases("stations")
PAGE = ROOT / "docs/stations.md"
STARTS = pd.date_range("2001-12-30", periods=6, freq="12h")
GLOBE = np.linspace(85, -85, 18), np.arange(0, 360, 20.0)
BAND = np.linspace(-40, 40, 9)
# Latitudes and longitudes of forecasts, members, a range of longitudes of stations.
GRIDS = {
    "globe": (*GLOBE, 1, (-180, 180)),
    "south to north, ensemble": (GLOBE[0][::-1], GLOBE[1] - 180, 4, (0, 360)),
    "across the date line": (BAND, np.arange(150, 215, 5.0), 1, (150, 210)),
    "across Greenwich": (BAND[::-1], np.arange(-30, 35, 5.0), 2, (-30, 30)),
}


@pytest.fixture(autouse=True)
def entry_points(monkeypatch):
    """Those of pyproject.toml, also where the checkout was installed earlier."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def extensions(kind):
        group = f"credit_jax.extension.{kind}"
        points = project["entry-points"][group].items()
        return {name: EntryPoint(name, value, group) for name, value in points}

    monkeypatch.setattr("credit_jax.cli.score.extensions", extensions)


def make_forecast(latitude, longitude, num_members, seed=0):
    """A store of forecasts to 18 hours of t2m and of T on two levels."""
    coords = {
        "time": STARTS,
        "number": np.arange(num_members),
        "prediction_timedelta": (6 * np.arange(1, 4) * HOUR).astype("timedelta64[ns]"),
        "level": ("level", [500.0, 850.0], {"units": "hPa"}),
        "latitude": latitude,
        "longitude": longitude,
    }
    shape = 6, num_members, 3, 2, len(latitude), len(longitude)
    values = np.random.default_rng(seed).normal(280, 5, shape).astype(np.float32)
    dims = tuple(coords)
    flat = tuple(dim for dim in dims if dim != "level")
    fields = {
        "T": (dims, values, {"units": "K"}),
        "t2m": (flat, values[..., 0, :, :] + 10, {"units": "K"}),
    }
    return xr.Dataset(fields, coords)


def make_observations(south, north, west, east, count=400):
    """Observations of 20 stations of two networks, in degC, at any minute."""
    rng = np.random.default_rng(1)
    stations = pd.DataFrame(
        {
            "station": [f"s{k:02d}" for k in range(20)],
            "network": ["A", "B"] * 10,
            "latitude": rng.uniform(south, north, 20),
            "longitude": rng.uniform(west, east, 20),
            "elevation": rng.uniform(0, 2000, 20),
        }
    )
    table = stations.iloc[rng.integers(0, 20, count)].reset_index(drop=True)
    minutes = rng.integers(6 * 60, (60 + 18) * 60, count)
    table["time"] = STARTS[0] + pd.to_timedelta(minutes, unit="min")
    table["variable"] = np.where(rng.random(count) < 0.5, "t2m", "T")
    table["level"] = np.where(
        table["variable"] == "T", rng.uniform(510, 840, count), np.nan
    )
    table["value"] = rng.normal(10, 5, count)
    return table.assign(units="degC")


def scored(folder, forecast, table, **options):
    folder.mkdir(exist_ok=True)
    forecast.to_zarr(folder / "f.zarr", consolidated=False)
    table.to_parquet(folder / "stations.parquet")
    options = {"regions": REGIONS, **options}
    files = open_forecasts(str(folder / "f.zarr"))
    return score_stations([str(folder / "stations.parquet")], files, **options)


def expected(forecast, table):
    """All pairs, by xarray's interpolation of fields that are repeated to the east."""
    repeated = xr.concat(
        [
            forecast.assign_coords(longitude=forecast["longitude"] + 360 * k)
            for k in (-1, 0, 1)
        ],
        "longitude",
    ).astype(float)
    pairs = []
    for start in STARTS:
        leads = (table["time"] - start) / pd.Timedelta("1h")
        part = table[(leads >= 6) & (leads <= 18)].copy()
        part["hours"] = leads[part.index]
        points = {
            "prediction_timedelta": part["hours"] * 3.6e12,
            "latitude": part["latitude"],
            "longitude": part["longitude"],
        }
        fields = repeated.sel(time=start).assign_coords(
            prediction_timedelta=forecast["prediction_timedelta"].astype(float)
        )
        points = {k: ("obs", x) for k, x in points.items()}
        levels = ("obs", part["level"].fillna(500))
        flat = fields["t2m"].interp(points).transpose("number", "obs")
        deep = fields["T"].interp(points | {"level": levels})
        is_flat = part["variable"].to_numpy() == "t2m"
        values = np.where(is_flat, flat, deep.transpose("number", "obs"))
        part["errors"] = [*(values - part["value"].to_numpy() - 273.15).T]
        part["lead"] = np.floor((part["hours"] + 3) / 6) * 6
        near = np.where(part["level"] < 675, "T500", "T850")
        part["channel"] = np.where(is_flat, "t2m", near)
        pairs.append(part)
    return pd.concat(pairs, ignore_index=True)


def numbers(pairs):
    """The scores of some pairs, by definition."""
    errors = np.stack(pairs["errors"])
    mean = errors.mean(1)
    count = errors.shape[1]
    crps = np.abs(errors).mean(1)
    if count > 1:
        differences = np.abs(errors[:, :, None] - errors[:, None]).sum((1, 2))
        crps = crps - differences / (2 * count * (count - 1))
    return {
        "rmse": np.sqrt((mean**2).mean()),
        "bias": mean.mean(),
        "mae": np.abs(mean).mean(),
        "crps": crps.mean(),
        "count": len(pairs),
    }


@pytest.mark.parametrize("name", GRIDS)
def test_scores_are_those_of_xarray_and_numpy(name, tmp_path):
    latitude, longitude, members, (west, east) = GRIDS[name]
    forecast = make_forecast(latitude, longitude, members)
    table = make_observations(latitude.min(), latitude.max(), west, east)
    result = scored(tmp_path, forecast, table)
    pairs = expected(forecast, table)
    total = result.sums[0]
    for sums in result.sums[1:]:
        total = total.merge(sums)
    scores = result.dims.scores(total).sel(system="forecast")
    assert [*scores["channel"].values] == ["T500", "T850", "t2m"]
    points = (pairs[k].to_numpy() for k in ("latitude", "longitude"))
    north, east = points
    groups = {r.name: r.mask(north, east) for r in REGIONS}
    groups |= {f"network {k}": pairs["network"] == k for k in "AB"}
    assert [*groups] == [*scores["region"].values]
    checked = 0
    for group, mask in groups.items():
        for (channel, hours), part in pairs[mask].groupby(["channel", "lead"]):
            place = {"channel": channel, "region": group}
            place["prediction_timedelta"] = int(hours) * HOUR
            for metric, value in numbers(part).items():
                if metric in scores:
                    one = float(scores[metric].sel(place))
                    assert one == pytest.approx(value, rel=1e-6, abs=1e-4), metric
                    checked += 1
    assert checked > 100
    assert scores["count"].sel(region="global").sum() == len(pairs)
    result.write(tmp_path)
    written = pd.read_csv(tmp_path / "stations.csv")
    for (station, channel, hours), part in pairs.groupby(
        ["station", "channel", "lead"]
    ):
        (row,) = written[
            (written["station"] == station)
            & (written["channel"] == channel)
            & (written["lead_hours"] == hours)
        ].to_dict("records")
        for metric, value in numbers(part).items():
            if metric in row:
                assert row[metric] == pytest.approx(value, rel=1e-5, abs=1e-4), metric
    assert written["count"].sum() == len(pairs)


BAD = {
    "longitude": {"longitude": 30.0},
    "latitude": {"latitude": 60.0},
    "time": {"time": pd.Timestamp("2010-01-01")},
    "variable": {"variable": "d2m"},
    "level": {"variable": "T", "level": 100.0},
    "value": {"value": np.nan},
    "units": {"units": "hPa"},
}


def observed(name, is_everywhere, tmp_path):
    """The notes on observations of which one is bad, or all."""
    latitude, longitude, *_ = GRIDS["across the date line"]
    table = make_observations(-40, 40, 150, 210)
    for key, value in BAD[name].items():
        table.loc[slice(None) if is_everywhere else 7, key] = value
    table["value"] += np.arange(len(table))  # no duplicates
    return [*scored(tmp_path, make_forecast(latitude, longitude, 1), table).notes]


CASES.rows(observed, *((name, every) for name in BAD for every in (False, True)))


@CASES.case
def forecasts_without_values_and_gaps_between_forecasts(tmp_path):
    """Two of six forecasts, which lack t2m in the last lead time."""
    forecast = make_forecast(*GRIDS["globe"][:3]).isel(time=[0, 5])
    forecast["t2m"][:, :, 2] = np.nan
    table = make_observations(-85, 85, -180, 180)
    hours = (table["time"] - STARTS[0]) / pd.Timedelta("1h")
    inside = [(hours >= 60 * k + 6) & (hours <= 60 * k + 18) for k in (0, 1)]
    late = [(hours > 60 * k + 12) & (hours <= 60 * k + 18) for k in (0, 1)]
    gap = (~(inside[0] | inside[1])).sum()
    count = ((late[0] | late[1]) & (table["variable"] == "t2m")).sum()
    notes = scored(tmp_path, forecast, table).notes
    assert any(f"{gap} of 400 are between" in note for note in notes)
    assert any(f"{count} pairs lack a value" in note for note in notes)
    return [*notes]


@CASES.case
def a_variable_that_forecasts_lack(tmp_path):
    forecast = make_forecast(*GRIDS["globe"][:3])
    table = make_observations(-85, 85, -180, 180)
    scored(tmp_path, forecast, table, variables=["d2m"])


@CASES.case
def a_curvilinear_grid(tmp_path):
    forecast = make_forecast(*GRIDS["globe"][:3])
    forecast = forecast.rename(latitude="y", longitude="x").drop_vars(["y", "x"])
    points = np.meshgrid(*GLOBE, indexing="ij")
    rows, columns = ((("y", "x"), own) for own in points)
    forecast = forecast.assign_coords(latitude=rows, longitude=columns)
    scored(tmp_path, forecast, make_observations(-80, 80, 0, 360))


@CASES.case
def heights_in_kelvin(tmp_path):
    write_surface(tmp_path / "z.nc", "K")
    table = make_observations(-85, 85, 0, 340)
    path, forecast = str(tmp_path / "z.nc"), make_forecast(*GRIDS["globe"][:3])
    scored(tmp_path, forecast, table, height=path)


def write_surface(path, units):
    """Geopotential with another order of rows."""
    surface = xr.DataArray(
        np.random.default_rng(2).uniform(0, 3000, (18, 18)),
        {"latitude": GLOBE[0][::-1], "longitude": GLOBE[1]},
        ("latitude", "longitude"),
        attrs={"units": units},
    )
    surface.to_dataset(name="z").to_netcdf(path)
    return surface


def test_temperatures_are_brought_to_the_elevation_of_stations(tmp_path):
    """The surface has another order of rows; T on levels stays."""
    forecast = make_forecast(*GRIDS["globe"][:3])
    surface = write_surface(tmp_path / "z.nc", "m2 s-2")
    table = make_observations(-85, 85, 0, 340)
    table.loc[(table["variable"] == "t2m").idxmax(), "elevation"] = np.nan
    plain = scored(tmp_path, forecast, table)
    path = str(tmp_path / "z.nc")
    result = scored(tmp_path / "b", forecast, table, height=path)
    assert any("6.5 K/km" in note for note in result.notes)
    assert "t2m" in result.attributes["height_correction"]
    pairs = expected(forecast, table)
    points = {k: ("obs", pairs[k]) for k in ("latitude", "longitude")}
    model = surface.interp(points).values / 9.80665
    higher = pairs["elevation"] - model
    change = np.where(pairs["variable"] == "t2m", -6.5e-3 * higher, 0)
    pairs["errors"] = [e + d for e, d in zip(pairs["errors"], change, strict=True)]
    kept = pairs[np.isfinite(change)]
    assert len(kept) < len(pairs)
    at = result.dims.channels.index(plain.dims.channels[-1])
    for k, lead in enumerate((6, 12, 18)):
        part = kept[(kept["lead"] == lead) & (kept["channel"] == "t2m")]
        total = sum(s.arrays["forecast/plain"][k, at, 0] for s in result.sums)
        count = sum(s.arrays["forecast/count"][k, at, 0] for s in result.sums)
        assert count == len(part)
        assert total / count == pytest.approx(numbers(part)["bias"], abs=1e-3)


# As NCEI writes it, of 2020 and of 2025 (most columns left out).
PSV = """\
Station_ID|Station_name|Year|Month|Day|Hour|Minute|Latitude|Longitude|Elevation|\
temperature|temperature_Measurement_Code|temperature_Quality_Code|\
temperature_Report_Type|station_level_pressure|station_level_pressure_Quality_Code|\
wind_direction|wind_direction_Quality_Code|wind_speed|wind_speed_Quality_Code|remarks
FJM00091680|NADI, "INTL"|2001|12|30|06|00|-17.7553|177.4436|18.0|27.0||1|FM-15|||90|1|\
10.0|1|MET10112/30/01
FJM00091680|NADI, "INTL"|2001|12|30|07|00|-17.7553|177.4436|18.0|99.0||7|FM-15|||||0.0||
FJM00091680|NADI, "INTL"|2001|12|30|08|00|-17.7553|177.4436|18.0|-9999||1|FM-15|\
1010.5|1|180|1|5.0|5|
"""
LATER = """\
STATION|Station_name|DATE|LATITUDE|LONGITUDE|ELEVATION|temperature|\
temperature_Quality_Code
FJM00091680|NADI|2001-12-30T06:00:00|-17.7553|177.4436|18.0|27.0|
FJM00091680|NADI|2001-12-30T07:00:00|-17.7553|177.4436|18.0|27.5|D
"""


NNJA = {
    "OBS_TIMESTAMP": pd.to_datetime(["2001-12-30T06:00Z"]),
    "LAT": [-17.76],
    "LON": [177.44],
    "SELV": [18.0],
    "RPID": ["FJM00091680"],
    "TMPSQ1.TMDB": [300.15],
    "PRSSQ1.PRES": [np.nan],
    "WNDSQ1.WDIR": [270.0],
    "WNDSQ1.WSPD": [2.0],
}


def rows_of(content, variables, tmp_path):
    """What is read of a file of an archive, and what failed a check there."""
    path = tmp_path / ("a.psv" if isinstance(content, str) else "a.parquet")
    if isinstance(content, str):
        path.write_text(content)
    else:
        pd.DataFrame(content).to_parquet(path)
    failed = Counter()
    layout = partial(observations_of, variables=variables, failed=failed)
    table = read_observations([str(path)], "--truth", layout)
    columns = ["station", "time", "variable", "value", "units"]
    rows = [
        f"{station} {str(time)[11:16]} {name}: {round(value, 9) + 0.0:g} {units}"
        for station, time, name, value, units in table[columns].to_numpy()
    ]
    return [*sorted(rows), f"failed: {dict(failed)}"]


FIELDS = ("t2m", "SP", "u10", "v10")
# An east wind blows to the west; a calm has no direction.
CASES.call("GHCN hourly", partial(rows_of, PSV, FIELDS))
CASES.call("GHCN hourly, later", partial(rows_of, LATER, ("VAR_2T",)))
CASES.call("NNJA", partial(rows_of, NNJA, FIELDS))


def test_the_command_makes_tables_and_a_page(tmp_path, capsys):
    """A folder of files, and differences to another forecast."""
    for name, seed in (("a", 0), ("b", 5)):
        forecast = make_forecast(*GRIDS["globe"][:3], seed=seed)
        forecast.to_zarr(tmp_path / f"{name}.zarr", consolidated=False)
    folder = tmp_path / "obs"
    folder.mkdir()
    table = make_observations(-85, 85, -180, 180)
    table.iloc[:200].to_csv(folder / "a.csv", index=False)
    table.iloc[200:].to_parquet(folder / "b.parquet")
    fixed = ["--forecast", str(tmp_path / "a.zarr"), "--cache", "none"]
    fixed += ["--truth", str(folder), "--out", str(tmp_path / "out")]
    assert main([*fixed, "--against", str(tmp_path / "b.zarr")]) == OK
    shown = capsys.readouterr().out
    assert "with 95 % intervals" in shown
    page = (tmp_path / "out" / "scores.html").read_text()
    assert page.count("data:image/png") == 3
    assert "RMSE difference" in page
    assert "network A" in page
    scores = read_scores(tmp_path / "out")
    ends = []
    for seed in (0, 5):
        pairs = expected(make_forecast(*GRIDS["globe"][:3], seed=seed), table)
        part = pairs[(pairs["channel"] == "t2m") & (pairs["lead"] == 12)]
        ends.append(numbers(part)["rmse"])
    place = {"system": "forecast", "channel": "t2m", "region": "global"}
    place["prediction_timedelta"] = 12 * HOUR
    difference = float(scores["rmse_difference"].sel(place))
    assert difference == pytest.approx(ends[0] - ends[1], abs=1e-4)
    assert float(scores["rmse_interval"].sel(place)) > 0
    assert main([*fixed, "--shard", "1/2"]) == USER_ERROR
    assert "--shard belongs to one forecast" in capsys.readouterr().err
    assert main(fixed) == USER_ERROR  # scores beside another forecast are there
    assert "holds other scores (against" in capsys.readouterr().err


def test_the_example_of_the_page(tmp_path, monkeypatch):
    """Its observations are those of a truth, here of a forecast without errors."""
    (block,) = code_blocks(PAGE.read_text(), "python")
    starts = pd.date_range("2001-05-31", periods=8, freq="6h")
    rng = np.random.default_rng(0)
    truth = xr.Dataset(
        {"SP": (("time", "latitude", "longitude"), rng.normal(1e5, 1e3, (8, 18, 18)))},
        {"time": starts, "latitude": GLOBE[0], "longitude": GLOBE[1]},
    )
    monkeypatch.chdir(tmp_path)
    truth.to_zarr("demo_data/T21/demo_2001.zarr", zarr_format=2, consolidated=True)
    steps = truth.isel(time=slice(1, None)).rename(time="prediction_timedelta")
    leads = (starts[1:] - starts[0]).to_numpy()
    steps = steps.assign_coords(prediction_timedelta=leads)
    steps["SP"].attrs["units"] = "Pa"
    steps.expand_dims(time=starts[:1]).to_zarr("forecasts", consolidated=False)
    exec(block, {})
    arguments = "--forecast forecasts --truth stations.csv --out report --cache none"
    assert main(arguments.split()) == OK
    scores = read_scores("report").sel(region="global", system="forecast")
    assert scores["count"].sum() == 60 * 4
    assert float(np.sqrt((scores["rmse"] ** 2).mean())) == pytest.approx(100, rel=0.15)
