"""Forecasts and their files beside CREDIT."""

from contextlib import chdir
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.forecast import main
from credit_jax.cli.score import main as score
from credit_jax.config import parse
from credit_jax.config.dates import duration
from credit_jax.config.inference import InferenceConfig, OutputConfig, read_attributes
from credit_jax.data.schedule import ForecastSchedule, Task, make_schedule
from credit_jax.evaluation.scores import read_scores
from credit_jax.extensions.packaging import command as package
from credit_jax.forecast.netcdf import NetcdfStore
from credit_jax.forecast.outputs import Outputs, choose_outputs
from credit_jax.transforms import Pipeline
from tests.forecast.credit_forecast import credit_rollout, raw_config, write_run
from tests.forecast.layouts import assert_same_layout
from tests.reference.dataset import NUM_LAT, NUM_LON
from tests.reference.scalers import write_scalers
from tests.support import assert_close
from tests.support.credit_modules import credit_attribute

BATCH = {
    "forecast_length": "18h",
    "first_init_date": "2000-01-02",
    "last_init_date": "2000-01-02T12",
    "init_interval": "12h",
}
OUTPUT = {
    "group_by": "day",
    "metadata": "era5.yaml",
    "encoding": {"dtype": "float32", "zlib": True, "complevel": 4},
}
FIELD = 1e-5  # tolerance of every field


@pytest.fixture(scope="module")
def run(credit, tmp_path_factory):
    """The folder of a run, with CREDIT's forecasts in `theirs`."""
    folder = tmp_path_factory.mktemp("forecast")
    raw = raw_config(
        run_mode="batch", save_forecast="./theirs", batch_forecast=BATCH, output=OUTPUT
    )
    credit_rollout(write_run(folder, raw))
    return folder


def forecast(folder: Path, *arguments: str) -> int:
    return main(["--config", str(folder / "case.yml"), "--cache", "none", *arguments])


def names(folder: Path) -> list[str]:
    found = folder.rglob("*.nc")
    return sorted(path.relative_to(folder).as_posix() for path in found)


@pytest.mark.slow(but=["data=none,tensor=2,domain=2"])
@pytest.mark.parametrize(
    "mesh",
    ["data=none", "data=none,domain=3", "data=none,tensor=2,domain=2"],
)
def test_forecasts_as_credit(run, monkeypatch, tmp_path, mesh):
    monkeypatch.chdir(run)
    assert forecast(run, "--out", str(tmp_path), "--parallelism", mesh) == 0
    assert names(tmp_path) == names(run / "theirs")
    for name in names(tmp_path):
        with (
            xr.open_dataset(tmp_path / name) as ours,
            xr.open_dataset(run / "theirs" / name) as theirs,
        ):
            assert_same_layout(ours, theirs)
            for variable in theirs.data_vars:
                for step, time in enumerate(theirs["time"].values):
                    assert_close(
                        ours[variable].values[step],
                        theirs[variable].values[step],
                        FIELD,
                        f"{mesh} {name} {variable} {str(time)[:13]}",
                    )


@pytest.mark.slow
def test_scores_of_credits_files(run, monkeypatch, tmp_path):
    """Files written by CREDIT get the same scores as our forecasts."""
    monkeypatch.chdir(run)
    options = ["--climatology", "none", "--truth", "case.yml"]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    online = ["--format", "none", "--out", str(ours), "--score", str(ours)]
    assert forecast(run, *online, *options) == 0
    given = ["--forecast", "theirs", "--out", str(theirs), "--cache", "none"]
    assert score([*given, *options]) == 0
    pair = [read_scores(own) for own in (ours, theirs)]
    assert pair[0].sizes == pair[1].sizes
    assert [*pair[0]["channel"].values] == [*pair[1]["channel"].values]
    found, expected = (own["rmse"].sel(system="forecast") for own in pair)
    for channel in expected["channel"].values:
        places = {"channel": channel, "region": "global"}
        assert_close(found.sel(places), expected.sel(places), FIELD, f"rmse {channel}")


T, U = "A/prognostic/3d/T", "A/prognostic/3d/U"
SP, TP = "A/prognostic/2d/SP", "A/diagnostic/2d/TP"
COUNTS = {T: 3, U: 3, SP: 1, TP: 1}
LEVELS = [10, 30, 137]
LATITUDE, LONGITUDE = np.linspace(80, -80, 5), np.arange(8) * 45.0
CURVED = np.linspace(30, 50, 40).reshape(5, 8), np.linspace(220, 290, 40).reshape(5, 8)
CASES = {
    "a file a step": {},
    "days": {"group_by": "D", "metadata": "era5.yaml"},
    "months": {"group_by": "monthly", "encoding": {"zlib": True, "complevel": 1}},
    "years": {"group_by": "1y"},
    "all": {"group_by": "FULL", "output_interval": "12h"},
    "levels": {"variables": [TP, {"name": T, "levels": [137, 10]}]},
    "levels of each variable": {
        "variables": [
            {"name": T, "levels": [137, 10]},
            {"name": U, "levels": [30]},
            TP,
        ],
        "metadata": "era5.yaml",
    },
    "curvilinear": {"group_by": "day", "metadata": "era5.yaml"},
    "encoding": {
        "metadata": "cam.yaml",
        "encoding": {
            "dtype": "float32",
            T: {"dtype": "float64", "zlib": True, "fletcher32": True},
            "SP": {"zlib": True, "shuffle": False},
        },
    },
}
NUM_STEPS = 8
KINDS = {1: "rectilinear", 2: "curvilinear"}


# CREDIT's writer fails for dates of cftime calendars.
BOTH = [
    (name, calendar)
    for name in CASES
    for calendar in ("standard", "noleap")
    if calendar == "standard" or CASES[name].get("group_by") not in ("D", "day")
]


@pytest.mark.slow(
    but=[
        "a file a step-standard",
        "a file a step-noleap",
        "days-standard",
        "levels-noleap",
        "curvilinear-standard",
    ]
)
@pytest.mark.parametrize(("name", "calendar"), BOTH)
def test_files_of_credit(credit, tmp_path, name, calendar):
    start = "1999-12-31T06" if calendar == "standard" else "2004-02-28T06"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    fields = [_fields(step) for step in range(1, NUM_STEPS + 1)]
    grid = CURVED if name == "curvilinear" else (LATITUDE, LONGITUDE)
    _write_theirs(theirs, CASES[name], start, calendar, fields, grid)
    _write_ours(ours, CASES[name], start, calendar, fields, grid)
    paths = sorted(path.relative_to(theirs) for path in theirs.rglob("*.nc"))
    assert paths == sorted(path.relative_to(ours) for path in ours.rglob("*.nc"))
    assert paths
    for path in paths:
        with xr.open_dataset(ours / path) as a, xr.open_dataset(theirs / path) as b:
            assert_same_layout(a, b)
            for variable in b.variables:
                assert a[variable].equals(b[variable]), variable


def test_chunks_of_a_yaml_list(tmp_path):
    """CREDIT's files are not there then: its writer logs the error and goes on."""
    output = {"group_by": "full", "encoding": {T: {"chunksizes": [1, 1, 5, 4]}}}
    fields = [_fields(step) for step in range(1, NUM_STEPS + 1)]
    grid = LATITUDE, LONGITUDE
    _write_ours(tmp_path, output, "2000-01-01", "standard", fields, grid)
    (path,) = tmp_path.rglob("*.nc")
    with xr.open_dataset(path) as found:
        assert found["T"].encoding["chunksizes"] == (1, 1, 5, 4)


def _fields(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        key: rng.normal(size=(count, 5, 8)).astype(np.float32)
        for key, count in COUNTS.items()
    }


def _write_theirs(folder, output, start, calendar, fields, grid) -> None:
    schema = credit_attribute("datasets.gen_2.grid_utils", "GridSchema")
    writer = credit_attribute("output_gen2", "ForecastWriter")(
        output_conf=output,
        conf={"data": {"source": {"A": {"levels": LEVELS}}}},
        n_steps=NUM_STEPS,
        grid_schema=schema(KINDS[grid[0].ndim], *grid),
        dataset=SimpleNamespace(calendar=calendar),
        verbose=False,
    )
    first = pd.Timestamp(start)
    if calendar != "standard":
        parts = (first.year, first.month, first.day, first.hour)
        first = cftime.datetime(*parts, calendar=calendar)
    for step, arrays in enumerate(fields, 1):
        tree = {"A": {key: x[None, :, None] for key, x in arrays.items()}}
        writer(tree, first, step, 6, str(folder), None)


def _write_ours(folder: Path, output, start, calendar, fields, grid) -> None:
    config = parse(OutputConfig, output)
    inference = InferenceConfig(output=config)
    schedule: ForecastSchedule = make_schedule(
        inference, duration("6h"), calendar, init_times=[start], num_steps=NUM_STEPS
    )
    variables = choose_outputs(config, COUNTS, {"A": LEVELS}, Pipeline(()))
    attributes = read_attributes(config.metadata)
    outputs = Outputs(variables, grid[0], grid[1], calendar, attributes)
    store = NetcdfStore(folder, outputs, schedule, config)
    writer = store.writer(Task(0, 0))
    for step in schedule.written:
        arrays = {
            key: fields[step - 1][key][slice(None) if levels is None else [*levels]]
            for key, levels in outputs.selection.items()
        }
        for job in writer.add(step, arrays):
            job()
    for job in writer.finish():
        job()


T_CREDIT_FIXERS, U_CREDIT_FIXERS = "ERA5/prognostic/3d/T", "ERA5/prognostic/3d/U"
SP_CREDIT_FIXERS, TP_CREDIT_FIXERS = "ERA5/prognostic/2d/SP", "ERA5/diagnostic/2d/TP"
LSM = "ERA5/static/2d/LSM"
Z = "ERA5/derived_diagnostic/3d/Z"
START = "2000-01-02"
STRONG = 284.0  # m/s: some of the wind of this world is stronger
GRID = {
    "save_loc_physics": "./grid.nc",
    "lon_lat_level_name": ["lon", "lat", "a_half", "b_half"],
    "grid_type": "sigma",
    "midpoint": True,
}
GROUND = {"surface_pressure_var": SP_CREDIT_FIXERS, "surface_geopotential_var": LSM}
FLUXES = (
    *("toa_up_solar_var", "toa_up_olr_var", "surf_down_solar_var"),
    *("surf_up_solar_var", "surf_down_lw_var", "surf_up_lw_var"),
    *("surf_sh_var", "surf_lh_var"),
)
BLOCKS = {
    # T stands for the zonal wind, in m/s; with it, air moves 100 km in six minutes.
    "advection": {
        "type": "semilagrangian_advection",
        "args": {
            "tracer_vars": [T_CREDIT_FIXERS],
            "u_var": T_CREDIT_FIXERS,
            "v_var": U_CREDIT_FIXERS,
            "coslat_floor": 0.05,
        }
        | {"surface_pressure_var": SP_CREDIT_FIXERS, "timestep_seconds": 360.0}
        | {"level_info_file": "./grid.nc", "grid_info_file": "./static.nc"},
    },
    "wind": {
        "type": "wind_artifact_filter",
        "args": {
            "u_var": T_CREDIT_FIXERS,
            "v_var": U_CREDIT_FIXERS,
            "target_vars": [T_CREDIT_FIXERS],
            "mask_level": 0,
        }
        | {"target_levels": [0, 1], "speed_threshold": STRONG, "dilation_zonal": 3}
        | {"dilation_meridional": 1},
    },
    "tracer": {
        "type": "tracer_fixer",
        "args": {
            "tracer_vars": [TP_CREDIT_FIXERS, U_CREDIT_FIXERS],
            "tracer_thres": [0.5, 0.0],
        },
    },
    "mass": {
        "type": "global_mass_fixer",
        "args": GRID | {"q_var": U_CREDIT_FIXERS, "sp_var": SP_CREDIT_FIXERS},
    },
    "energy": {
        "type": "global_energy_fixer",
        "args": GRID
        | dict.fromkeys(FLUXES, TP_CREDIT_FIXERS)
        | {
            "T_var": T_CREDIT_FIXERS,
            "q_var": U_CREDIT_FIXERS,
            "U_var": T_CREDIT_FIXERS,
            "V_var": U_CREDIT_FIXERS,
            "sp_var": SP_CREDIT_FIXERS,
        }
        | {
            "surface_geopotential_name": ["PHIS"],
            "toa_down_solar_input_var": "ERA5/dynamic_forcing/2d/tsi",
            "lead_time_periods": 6,
        },
    },
    "geopotential": {
        "type": "geopotential_diagnostic",
        "args": GROUND
        | {
            "output_name": Z,
            "temperature_var": T_CREDIT_FIXERS,
            "specific_humidity_var": U_CREDIT_FIXERS,
        }
        | {"level_info_file": "./grid.nc"},
    },
    "pressure": {
        "type": "pressure_interp_diagnostic",
        "args": GROUND
        | {"pressure_levels": [400.0, 900.0], "interp_variables": [U_CREDIT_FIXERS]}
        | {"temperature_var": T_CREDIT_FIXERS, "geopotential_var": Z}
        | {"level_info_file": "./grid.nc"},
    },
    "sea level": {
        "type": "mslp_diagnostic",
        "args": GROUND
        | {
            "output_name": "ERA5/derived_diagnostic/2d/MSL",
            "temperature_var": TP_CREDIT_FIXERS,
        },
    },
    # One field is both rain and evaporation, and gets one factor.
    "water": {
        "type": "global_water_fixer",
        "args": GRID
        | {
            "q_var": U_CREDIT_FIXERS,
            "sp_var": SP_CREDIT_FIXERS,
            "precip_var": TP_CREDIT_FIXERS,
            "evapor_var": TP_CREDIT_FIXERS,
        }
        | {"lead_time_periods": 6},
    },
}


def write_grid(folder):
    """Writes the file of the fixers: grid, coefficients of two layers, orography."""
    lon, lat = np.meshgrid(
        np.arange(NUM_LON) * 360 / NUM_LON, np.linspace(90, -90, NUM_LAT)
    )
    a, b = np.array([1000.0, 15000.0, 0.0]), np.array([0.0, 0.4, 1.0])
    hills = 2000.0 * np.cos(np.deg2rad(lat)) ** 2
    fields = {
        "lon": (("y", "x"), lon),
        "lat": (("y", "x"), lat),
        "PHIS": (("y", "x"), hills),
        "a_half": ("half", a),
        "b_half": ("half", b),
        "a_model": ("level", (a[1:] + a[:-1]) / 2),
        "b_model": ("level", (b[1:] + b[:-1]) / 2),
    }
    xr.Dataset(fields).to_netcdf(folder / "grid.nc")


def make_humid(folder):
    """Gives U the range of a specific humidity, in the data and the scalers."""
    path = folder / "d_2000.nc"
    with xr.open_dataset(path) as found:
        fields = found.load()
    fields["U"] = (5e-3 + 2e-4 * fields["U"]).astype(np.float32)
    fields.to_netcdf(path)
    write_scalers(folder)


@pytest.fixture(scope="module")
def run_of_credit_fixers(credit, tmp_path_factory):
    """The folder of a run, with CREDIT's forecast in `theirs`."""
    folder = tmp_path_factory.mktemp("fixers")
    batch = {
        "forecast_length": "18h",
        "first_init_date": START,
        "last_init_date": START,
        "init_interval": "12h",
    }
    raw = raw_config(
        run_mode="batch",
        save_forecast="./theirs",
        batch_forecast=batch,
        output={"group_by": "full"},
    )
    raw["inference"]["postblocks"]["per_step"] |= BLOCKS
    config = write_run(folder, raw)
    make_humid(folder)
    write_grid(folder)
    credit_rollout(config)
    return folder


@pytest.fixture(scope="module")
def forecast_of_credit_fixers(run_of_credit_fixers, tmp_path_factory):
    """Returns a function of a mesh: the folder and the name of the forecast there."""

    @cache
    def made(mesh):
        folder = tmp_path_factory.mktemp("ours")
        options = ["--config", "case.yml", "--cache", "none", "--parallelism", mesh]
        with chdir(run_of_credit_fixers):
            assert main([*options, "--out", str(folder)]) == 0
        (name,) = (path.relative_to(folder) for path in folder.rglob("*.nc"))
        return folder, name

    return made


def on_levels_of_credit(ours, theirs):
    """Labels fields on pressure levels with the levels of the model.

    CREDIT does where both are as many.
    """
    assert [*ours["pressure"].values] == [400.0, 900.0]
    fields = {}
    for name, field in ours.data_vars.items():
        fields[name] = field.variable.copy()
        fields[name].dims = theirs[name].dims
    coords = ours.drop_dims("pressure").coords
    return xr.Dataset(fields, coords, ours.attrs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    ["data=none", "data=none,domain=3", "data=none,tensor=2,domain=2"],
)
def test_fixers_and_diagnostics_as_credit(
    run_of_credit_fixers, forecast_of_credit_fixers, mesh
):
    folder, name = forecast_of_credit_fixers(mesh)
    with (
        xr.open_dataset(folder / name) as ours,
        xr.open_dataset(run_of_credit_fixers / "theirs" / name) as theirs,
    ):
        ours = on_levels_of_credit(ours, theirs)
        assert_same_layout(ours, theirs)
        made = {"T", "U", "SP", "TP", "Z", "MSL", "U_PRES"}
        assert made <= set(theirs.data_vars)
        assert (theirs["T"].isel({theirs["T"].dims[1]: 0}) > STRONG).any(), "filtered"
        rain = theirs["TP"].values
        for step in rain:
            # Values that the tracer fixer limits to 0.5 are all scaled by the water
            # factor.
            values, counts = np.unique(step, return_counts=True)
            assert counts.max() > 100
            assert values[counts.argmax()] != 0.5
        for variable in theirs.data_vars:
            for step in range(3):
                assert_close(
                    ours[variable].values[step],
                    theirs[variable].values[step],
                    FIELD,
                    f"{mesh} {variable} step {step + 1}",
                )


@pytest.mark.slow
def test_a_package_of_it_forecasts_the_same(
    run_of_credit_fixers, forecast_of_credit_fixers, monkeypatch, tmp_path
):
    """The package has the fixers, scalers and static fields of the run, bit for bit."""
    folder, name = forecast_of_credit_fixers("data=none")
    monkeypatch.chdir(run_of_credit_fixers)
    made = ["--config", "case.yml", "--checkpoint", "run", "--out"]
    assert package.main([*made, str(tmp_path / "package")]) == 0
    path = {"path": f"{run_of_credit_fixers}/d_%Y.nc"}
    variables = {"prognostic": path, "dynamic_forcing": path}
    data = {"source": {"ERA5": {"variables": variables}}}
    (tmp_path / "data.yml").write_text(yaml.safe_dump(data))
    monkeypatch.chdir(tmp_path)
    given = ["--package", "package", "--data", "data.yml", "--init-time", START]
    assert main([*given, "--steps", "3", "--cache", "none", "--out", "out"]) == 0
    (theirs,) = (tmp_path / "out").rglob("*.nc")
    with xr.open_dataset(folder / name) as one, xr.open_dataset(theirs) as other:
        xr.testing.assert_identical(one.load(), other.load())
