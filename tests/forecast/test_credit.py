"""Forecasts and their files beside CREDIT."""

import re
from contextlib import chdir
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.forecast import main
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
from tests.forecast.test_messages import score
from tests.reference.dataset import NUM_LAT, NUM_LON
from tests.reference.scalers import write_scalers
from tests.support import assert_close
from tests.support.credit_modules import credit_attribute
from tests.training.tiny import write_yaml

FIELD = 1e-5  # tolerance of every field
STRONG = 284.0  # m/s: some of the wind of this world is stronger
START = "2000-01-02"
# T stands for the zonal wind, in m/s, with which air moves 100 km in six minutes, U for
# humidity. In the water budget one field is rain and evaporation, and gets one factor.
BLOCKS = """
advection:
  type: semilagrangian_advection
  args: {tracer_vars: [P3/T], u_var: P3/T, v_var: P3/U, surface_pressure_var: P2/SP,
    coslat_floor: 0.05, timestep_seconds: 360.0, level_info_file: ./grid.nc,
    grid_info_file: ./static.nc}
wind:
  type: wind_artifact_filter
  args: {u_var: P3/T, v_var: P3/U, target_vars: [P3/T], mask_level: 0,
    target_levels: [0, 1], speed_threshold: 284.0, dilation_zonal: 3,
    dilation_meridional: 1}
tracer:
  type: tracer_fixer
  args: {tracer_vars: [D2/TP, P3/U], tracer_thres: [0.5, 0.0]}
mass:
  type: global_mass_fixer
  args: &grid {q_var: P3/U, sp_var: P2/SP, save_loc_physics: ./grid.nc,
    lon_lat_level_name: [lon, lat, a_half, b_half], grid_type: sigma, midpoint: true}
energy:
  type: global_energy_fixer
  args: {<<: *grid, T_var: P3/T, U_var: P3/T, V_var: P3/U,
    toa_up_solar_var: D2/TP, toa_up_olr_var: D2/TP, surf_down_solar_var: D2/TP,
    surf_up_solar_var: D2/TP, surf_down_lw_var: D2/TP, surf_up_lw_var: D2/TP,
    surf_sh_var: D2/TP, surf_lh_var: D2/TP, surface_geopotential_name: [PHIS],
    toa_down_solar_input_var: ERA5/dynamic_forcing/2d/tsi, lead_time_periods: 6}
geopotential:
  type: geopotential_diagnostic
  args: {output_name: N3/Z, temperature_var: P3/T, specific_humidity_var: P3/U,
    surface_pressure_var: P2/SP, surface_geopotential_var: S2/LSM,
    level_info_file: ./grid.nc}
pressure:
  type: pressure_interp_diagnostic
  args: {pressure_levels: [400.0, 900.0], interp_variables: [P3/U],
    temperature_var: P3/T, geopotential_var: N3/Z, surface_pressure_var: P2/SP,
    surface_geopotential_var: S2/LSM, level_info_file: ./grid.nc}
sea level:
  type: mslp_diagnostic
  args: {output_name: N2/MSL, temperature_var: D2/TP, surface_pressure_var: P2/SP,
    surface_geopotential_var: S2/LSM}
water:
  type: global_water_fixer
  args: {<<: *grid, precip_var: D2/TP, evapor_var: D2/TP, lead_time_periods: 6}
"""
KINDS = {"P": "prognostic", "D": "diagnostic", "S": "static", "N": "derived_diagnostic"}


def blocks() -> dict[str, Any]:
    """The blocks with the keys that `P3/T` and others stand for."""
    written = r"\b([PDSN])([23])/"
    text = re.sub(written, lambda m: f"ERA5/{KINDS[m[1]]}/{m[2]}d/", BLOCKS)
    return yaml.safe_load(text)


def write_grid(folder: Path) -> None:
    """Writes the file of the fixers: grid, coefficients of two layers, orography."""
    lon, lat = np.meshgrid(
        np.arange(NUM_LON) * 360 / NUM_LON, np.linspace(90, -90, NUM_LAT)
    )
    a, b = np.array([1000.0, 15000.0, 0.0]), np.array([0.0, 0.4, 1.0])
    hills = 2000.0 * np.cos(np.deg2rad(lat)) ** 2
    fields: Any = {"lon": (("y", "x"), lon), "lat": (("y", "x"), lat)}
    fields["PHIS"] = ("y", "x"), hills
    for name, x in (("a", a), ("b", b)):
        fields[f"{name}_half"] = ("half", x)
        fields[f"{name}_model"] = ("level", (x[1:] + x[:-1]) / 2)
    xr.Dataset(fields).to_netcdf(folder / "grid.nc")


def make_humid(folder: Path) -> None:
    """Gives U the range of a specific humidity, in the data and the scalers."""
    path = folder / "d_2000.nc"
    with xr.open_dataset(path) as found:
        fields = found.load()
    fields["U"] = (5e-3 + 2e-4 * fields["U"]).astype(np.float32)
    fields.to_netcdf(path)
    write_scalers(folder)


@pytest.fixture(scope="module")
def forecasts(credit, tmp_path_factory):
    """`forecasts(kind, mesh)`: folders of a run with CREDIT's forecasts in `theirs`,
    and of ours.

    Of two start dates in files a day, or of one with fixers and diagnostics.
    """

    @cache
    def run(kind):
        folder = tmp_path_factory.mktemp(kind)
        batch = {"forecast_length": "18h", "first_init_date": START}
        last = f"{START}T12" if kind == "plain" else START
        batch |= {"last_init_date": last, "init_interval": "12h"}
        encoding = {"dtype": "float32", "zlib": True, "complevel": 4}
        output = {"group_by": "day", "metadata": "era5.yaml", "encoding": encoding}
        raw = raw_config(
            run_mode="batch",
            save_forecast="./theirs",
            batch_forecast=batch,
            output=output if kind == "plain" else {"group_by": "full"},
        )
        if kind == "fixers":
            raw["inference"]["postblocks"]["per_step"] |= blocks()
        config = write_run(folder, raw)
        if kind == "fixers":
            make_humid(folder)
            write_grid(folder)
        credit_rollout(config)
        return folder

    @cache
    def made(kind, mesh):
        folder = tmp_path_factory.mktemp("ours")
        assert forecast(run(kind), "--out", str(folder), "--parallelism", mesh) == 0
        return run(kind), folder

    return made


def forecast(folder: Path, *arguments: str) -> int:
    with chdir(folder):
        return main(["--config", "case.yml", "--cache", "none", *arguments])


def names(folder: Path) -> list[str]:
    found = folder.rglob("*.nc")
    return sorted(path.relative_to(folder).as_posix() for path in found)


def on_levels_of_credit(ours: xr.Dataset, theirs: xr.Dataset) -> xr.Dataset:
    """Labels fields on pressure levels with the levels of the model.

    CREDIT does where both are as many.
    """
    assert [*ours["pressure"].values] == [400.0, 900.0]
    fields = {name: field.variable.copy() for name, field in ours.data_vars.items()}
    for name, field in fields.items():
        field.dims = theirs[name].dims
    return xr.Dataset(fields, ours.drop_dims("pressure").coords, ours.attrs)


def assert_fixed(theirs: xr.Dataset) -> None:
    """Asserts that fixers and diagnostics did something."""
    assert {"T", "U", "SP", "TP", "Z", "MSL", "U_PRES"} <= set(theirs.data_vars)
    assert (theirs["T"].isel({theirs["T"].dims[1]: 0}) > STRONG).any(), "filtered"
    for step in theirs["TP"].values:
        # Values that the tracer fixer limits to 0.5 are all scaled by the water factor.
        values, counts = np.unique(step, return_counts=True)
        assert counts.max() > 100
        assert values[counts.argmax()] != 0.5


@pytest.mark.slow(but=["data=none,tensor=2,domain=2-plain"])
@pytest.mark.parametrize("kind", ["plain", "fixers"])
@pytest.mark.parametrize(
    "mesh", ["data=none", "data=none,domain=3", "data=none,tensor=2,domain=2"]
)
def test_forecasts_as_credit(forecasts, kind, mesh):
    run, folder = forecasts(kind, mesh)
    assert names(folder) == names(run / "theirs") != []
    for name in names(folder):
        with (
            xr.open_dataset(folder / name) as ours,
            xr.open_dataset(run / "theirs" / name) as theirs,
        ):
            if kind == "fixers":
                ours = on_levels_of_credit(ours, theirs)
                assert_fixed(theirs)
            assert_same_layout(ours, theirs)
            for variable in theirs.data_vars:
                for step, time in enumerate(theirs["time"].values):
                    assert_close(
                        ours[variable].values[step],
                        theirs[variable].values[step],
                        FIELD,
                        f"{kind} {mesh} {name} {variable} {str(time)[:13]}",
                    )


@pytest.mark.slow
def test_a_package_of_it_forecasts_the_same(forecasts, tmp_path):
    """The package has the fixers, scalers and static fields of the run, bit for bit."""
    run, folder = forecasts("fixers", "data=none")
    options = ["--config", "case.yml", "--checkpoint", "run", "--out"]
    with chdir(run):
        assert package.main([*options, str(tmp_path / "package")]) == 0
    path = {"path": f"{run}/d_%Y.nc"}
    variables = {"prognostic": path, "dynamic_forcing": path}
    data = write_yaml(
        tmp_path / "data.yml", {"source": {"ERA5": {"variables": variables}}}
    )
    options = ["--package", str(tmp_path / "package"), "--data", data]
    options += ["--init-time", START, "--steps", "3", "--cache", "none"]
    assert main([*options, "--out", str(tmp_path / "out")]) == 0
    (name,) = names(folder)
    with (
        xr.open_dataset(folder / name) as one,
        xr.open_dataset(tmp_path / "out" / name) as other,
    ):
        xr.testing.assert_identical(one.load(), other.load())


@pytest.mark.slow
def test_scores_of_credits_files(forecasts, tmp_path, capsys):
    """Files written by CREDIT get the same scores as our forecasts."""
    run, _ = forecasts("plain", "data=none,tensor=2,domain=2")
    options = ["--climatology", "none", "--truth", "case.yml"]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    online = ["--format", "none", "--out", str(ours), "--score", str(ours)]
    assert forecast(run, *online, *options) == 0
    assert "inference.mode" in capsys.readouterr().out
    with chdir(run):
        assert score("theirs", theirs, *options) == 0
    assert "inference.mode" not in "".join(capsys.readouterr()), "it was noted before"
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
    kind = "curvilinear" if grid[0].ndim == 2 else "rectilinear"
    schema = credit_attribute("datasets.gen_2.grid_utils", "GridSchema")
    writer = credit_attribute("output_gen2", "ForecastWriter")(
        output_conf=output,
        conf={"data": {"source": {"A": {"levels": LEVELS}}}},
        n_steps=NUM_STEPS,
        grid_schema=schema(kind, *grid),
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
