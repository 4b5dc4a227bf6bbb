"""Tropical cyclones: planted vortices, their tracks, and errors beside best tracks."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.console import main
from credit_jax.extensions.cyclones.tracks import distance, find_centers, join_centers
from credit_jax.forecast.archive import RECORD

LATITUDE, LONGITUDE = np.linspace(90, -90, 181), np.arange(0, 360.0)
HOURS = np.arange(6, 54, 6.0)
START = pd.Timestamp("2018-09-01")


def away(latitude, longitude, axes=(LATITUDE, LONGITUDE)):
    return distance(axes[0][:, None], axes[1], latitude, longitude)


def vortex(latitude, longitude, depth=2500.0, axes=(LATITUDE, LONGITUDE)):
    """Pressure, thickness from 500 to 300 hPa, and speed of a cyclone."""
    r = away(latitude, longitude, axes)
    core = np.exp(-((r / 2) ** 2))
    return -depth * core, 60 * core, 30 * np.exp(-(((r - 1) / 2) ** 2))


def background(axes=(LATITUDE, LONGITUDE)):
    """A zonal mean with a wave of 6 hPa."""
    latitude, longitude = np.deg2rad(axes[0])[:, None], np.deg2rad(axes[1])
    pressure = 101300 + 600 * np.cos(latitude) * np.cos(3 * longitude)
    return pressure, np.full(pressure.shape, 3600.0), np.full(pressure.shape, 5.0)


def test_planted_vortices_are_at_their_grid_points():
    """100 of any depth from 6 hPa, in all tropics, across Greenwich, too."""
    rng = np.random.default_rng(0)
    for axes in ((LATITUDE, LONGITUDE), (LATITUDE[::-1], LONGITUDE - 180)):
        for _ in range(10):
            planted = np.empty((0, 2))
            while len(planted) < 5:
                point = rng.uniform(-35, 35), rng.uniform(0, 360)
                if (distance(*planted.T, *point) > 25).all():
                    planted = np.append(planted, [point], axis=0)
            planted[0, 1] = rng.uniform(-0.5, 0.5)
            fields = background(axes)
            for point in planted:
                one = vortex(*point, rng.uniform(600, 6000), axes)
                fields = [a + b for a, b in zip(fields, one, strict=True)]
            pressure, thickness, speed = fields
            centers = find_centers(pressure, *axes, thickness=thickness, speed=speed)
            assert len(centers) == 5
            nearest = distance(
                *centers[["latitude", "longitude"]].to_numpy().T[:, None],
                *planted.T[..., None],
            )
            # Half the diagonal of a cell, and what the wave moves shallow ones.
            assert nearest.min(axis=1).max() <= np.sqrt(0.5) + 0.25
            assert {*nearest.argmin(axis=1)} == {*range(5)}


OTHERS = {
    "shallow": (vortex(15, 100, depth=150), True),
    "cold core": (
        [a * b for a, b in zip(vortex(15, 100), (1, -1, 1), strict=True)],
        True,
    ),
    "poleward": (vortex(60, 100), True),
    "open to the west": (
        (
            -2500 * np.exp(-((away(15, 100)[:, :] / 2) ** 2)) * 0
            - 30
            * np.clip(8 - np.abs(LATITUDE[:, None] - 15), 0, None)
            * np.ones_like(LONGITUDE),
            *vortex(15, 100)[1:],
        ),
        True,
    ),
    "a cyclone": (vortex(15, 100), False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_lows_are_no_cyclones(name):
    change, is_other = OTHERS[name]
    pressure, thickness, speed = map(np.add, background(), change)
    centers = find_centers(
        pressure, LATITUDE, LONGITUDE, thickness=thickness, speed=speed
    )
    assert centers.empty == is_other


def test_centers_are_joined():
    """Two that pass each other, a gap of 12 h, one of 12 h alone, one that is calm."""
    centers = []
    for hour in HOURS:
        rows = [(10, 100 + hour / 6, 980, 30), (20, 108 - hour / 6, 985, 30)]
        rows = rows[1:] if hour in (18, 24) else rows
        rows += [(-10, 50, 990, 20)] if hour > 40 else []
        rows += [(-20, 200, 1005, 5)]
        columns = ["latitude", "longitude", "pressure", "wind"]
        centers.append(pd.DataFrame(rows, columns=columns, dtype=float))
    tracks = join_centers(centers, HOURS)
    sizes = tracks.groupby("track").agg({"latitude": ["min", "max", "size"]})
    assert sizes.to_numpy().tolist() == [[10, 10, 6], [20, 20, 8]]
    nothing = [table.iloc[:0] for table in centers]
    assert join_centers(nothing, HOURS).empty
    assert len(join_centers(centers[:1], HOURS[:1])) == 2


def truth_point(hours):
    return 12 + hours / 24, 355 + hours / 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store of two members, and best tracks as IBTrACS has them and in a plain table.

    The forecast is a degree too far south and 5 hPa too deep; the second member has no
    cyclone, and one elsewhere.
    """
    folder = tmp_path_factory.mktemp("cyclones")
    values = np.empty((4, 2, len(HOURS), 181, 360), np.float32)
    for k, hours in enumerate(HOURS):
        latitude, longitude = truth_point(hours)
        for member, point in enumerate([(latitude - 1, longitude), (-20, 200)]):
            fields = map(np.add, background(), vortex(*np.floor(point)))
            pressure, thickness, speed = fields
            values[:, member, k] = pressure, thickness, speed, 0 * speed
    dims = ("time", "number", "prediction_timedelta", "latitude", "longitude")
    levels = ("level", [300.0, 500.0], {"units": "hPa"})
    height = np.stack([values[1] * 9.80665, np.zeros_like(values[1])], axis=2)[None]
    store = xr.Dataset(
        {
            "msl": (dims, values[None, 0] / 100, {"units": "hPa"}),
            "u10": (dims, values[None, 2], {"units": "m/s"}),
            "v10": (dims, values[None, 3], {"units": "m/s"}),
            "Z": ((*dims[:3], "level", *dims[3:]), height, {"units": "m2 s-2"}),
        },
        {
            "time": [START],
            "number": [0, 1],
            "prediction_timedelta": pd.to_timedelta(HOURS, unit="h"),
            "level": levels,
            "latitude": LATITUDE,
            "longitude": LONGITUDE,
        },
    )
    store.to_zarr(folder / "f.zarr", consolidated=False)
    store.drop_vars("msl").to_zarr(folder / "none.zarr", consolidated=False)
    store.isel(latitude=slice(None, None, 4)).to_zarr(
        folder / "coarse.zarr", consolidated=False
    )
    (folder / "some").mkdir()
    (folder / "some/forecast.zarr").symlink_to(folder / "f.zarr")
    identity = {"start dates": [str(START)], "members": 2}
    record = {"identity": identity, "provenance": {}}
    (folder / "some" / RECORD).write_text(json.dumps(record))
    rows = ["SID,NAME,ISO_TIME,LAT,LON,WMO_WIND,WMO_PRES,TRACK_TYPE,USA_WIND,USA_PRES"]
    rows += [" , , ,degrees_north,degrees_east,kts,mb, ,kts,mb"]
    for hours in np.arange(0, 60, 3.0):
        latitude, longitude = np.floor(truth_point(hours))
        time = START + pd.Timedelta(hours=hours)
        pressure = f"{pressure_at(hours) + 5:.3f}"
        rows += [
            f"A,HELENE,{time},{latitude},{longitude - 360},50, ,main, ,{pressure}",
            f"B,NONAME,{time},{latitude},{longitude - 330},20,1005,main,20,1005",
            f"C,ISAAC,{time},-30,100,60,{pressure},main,60,{pressure}",
            f"A,HELENE,{time},{latitude + 5},0,99,900,spur,99,900",
        ]
    (folder / "ibtracs.csv").write_text("\n".join(rows))
    return folder


def pressure_at(hours):
    """Of the forecast's cyclone, in hPa."""
    latitude, longitude = np.floor(np.subtract(truth_point(hours), (1, 0)))
    pressure = background()[0] + vortex(latitude, longitude)[0]
    return pressure.min() / 100


def run(folder, forecast="f.zarr", **options):
    arguments = ["cyclones", "--forecast", str(folder / forecast)]
    options = {"truth": folder / "ibtracs.csv", "out": folder / "out"} | options
    for name, value in options.items():
        arguments += [f"--{name}", str(value)]
    return main(arguments)


def test_errors_beside_best_tracks(folder, tmp_path, capsys):
    assert run(folder, out=tmp_path / "out") == OK
    assert "2 tracks in 2 forecasts" in capsys.readouterr().out
    tracks = pd.read_csv(tmp_path / "out" / "tracks.csv")
    assert tracks.groupby("member").size().tolist() == [len(HOURS)] * 2
    assert tracks["storm"].fillna("").unique().tolist() == ["A", ""]
    errors = pd.read_csv(tmp_path / "out" / "errors.csv")
    assert errors["lead_hours"].tolist() == HOURS.tolist()
    for name, value in (("observed", 4), ("found", 1), ("false", 1)):
        assert (errors[name] == value).all()
    np.testing.assert_allclose(
        errors["position_error"], 6371 * np.deg2rad(1), rtol=1e-5
    )
    np.testing.assert_allclose(errors["pressure_bias"], -5, atol=0.01)
    np.testing.assert_allclose(errors["pressure_error"], 5, atol=0.01)
    wind = vortex(0, 0)[2].max() + 5 - 50 * 1852 / 3600
    np.testing.assert_allclose(errors["wind_bias"], wind, rtol=1e-4)
    plain = tracks.rename(columns={"storm": "of", "track": "storm"})
    plain[plain["member"] == 0].to_csv(tmp_path / "plain.csv")
    out = tmp_path / "again"
    assert run(folder, truth=tmp_path / "plain.csv", out=out) == OK
    again = pd.read_csv(out / "errors.csv")
    assert (again["position_error"] == 0).all()
    assert (again["found"] == 1).all()


WRONG = {
    "no sea level pressure": ({"forecast": "none.zarr"}, "has no sea level pressure"),
    "coarse": (
        {"forecast": "coarse.zarr"},
        "grid spacing of 4 degrees, expected at most",
    ),
    "not finished": (
        {"forecast": "some/forecast.zarr"},
        "2 of 2 forecasts in FOLDER/some/forecast.zarr are not finished",
    ),
    "columns": ({"truth": "storm,time\na,b\n"}, "has no latitude, longitude; expected"),
    "weak": (
        {"truth": "storm,time,latitude,longitude,wind\na,2018-09-01,9,9,5\n"},
        "no storm with times, positions and winds of 17 m/s",
    ),
    "another year": (
        {"truth": "storm,time,latitude,longitude\na,2008-09-01,9,9\n"},
        "no storm has a time of",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_said_of_wrong_files(name, folder, tmp_path, capsys):
    options, text = WRONG[name]
    if "truth" in options:
        (tmp_path / "truth.csv").write_text(options["truth"])
        options = {"truth": tmp_path / "truth.csv"}
    assert run(folder, out=tmp_path / "out", **options) == USER_ERROR
    assert text.replace("FOLDER", str(folder)) in " ".join(
        capsys.readouterr().err.split()
    )
