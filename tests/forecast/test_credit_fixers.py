"""Forecasts with every physical block against CREDIT's own rollout."""

from contextlib import chdir
from functools import cache

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.cli.forecast import main
from credit_jax.extensions.packaging import command as package
from tests.forecast.credit_forecast import credit_rollout, raw_config, write_run
from tests.forecast.layouts import assert_same_layout
from tests.reference.dataset import NUM_LAT, NUM_LON
from tests.reference.scalers import write_scalers
from tests.support import assert_close

T, U = "ERA5/prognostic/3d/T", "ERA5/prognostic/3d/U"
SP, TP = "ERA5/prognostic/2d/SP", "ERA5/diagnostic/2d/TP"
LSM = "ERA5/static/2d/LSM"
Z = "ERA5/derived_diagnostic/3d/Z"
START = "2000-01-02"
STRONG = 284.0  # m/s: some of the wind of this world is stronger
FIELD = 1e-5  # of every field, after every one of three steps
GRID = {
    "save_loc_physics": "./grid.nc",
    "lon_lat_level_name": ["lon", "lat", "a_half", "b_half"],
    "grid_type": "sigma",
    "midpoint": True,
}
GROUND = {"surface_pressure_var": SP, "surface_geopotential_var": LSM}
FLUXES = (
    *("toa_up_solar_var", "toa_up_olr_var", "surf_down_solar_var"),
    *("surf_up_solar_var", "surf_down_lw_var", "surf_up_lw_var"),
    *("surf_sh_var", "surf_lh_var"),
)
BLOCKS = {
    # T stands for the zonal wind, in m/s; with it, air moves 100 km in six minutes.
    "advection": {
        "type": "semilagrangian_advection",
        "args": {"tracer_vars": [T], "u_var": T, "v_var": U, "coslat_floor": 0.05}
        | {"surface_pressure_var": SP, "timestep_seconds": 360.0}
        | {"level_info_file": "./grid.nc", "grid_info_file": "./static.nc"},
    },
    "wind": {
        "type": "wind_artifact_filter",
        "args": {"u_var": T, "v_var": U, "target_vars": [T], "mask_level": 0}
        | {"target_levels": [0, 1], "speed_threshold": STRONG, "dilation_zonal": 3}
        | {"dilation_meridional": 1},
    },
    "tracer": {
        "type": "tracer_fixer",
        "args": {"tracer_vars": [TP, U], "tracer_thres": [0.5, 0.0]},
    },
    "mass": {"type": "global_mass_fixer", "args": GRID | {"q_var": U, "sp_var": SP}},
    "energy": {
        "type": "global_energy_fixer",
        "args": GRID
        | dict.fromkeys(FLUXES, TP)
        | {"T_var": T, "q_var": U, "U_var": T, "V_var": U, "sp_var": SP}
        | {
            "surface_geopotential_name": ["PHIS"],
            "toa_down_solar_input_var": "ERA5/dynamic_forcing/2d/tsi",
            "lead_time_periods": 6,
        },
    },
    "geopotential": {
        "type": "geopotential_diagnostic",
        "args": GROUND
        | {"output_name": Z, "temperature_var": T, "specific_humidity_var": U}
        | {"level_info_file": "./grid.nc"},
    },
    "pressure": {
        "type": "pressure_interp_diagnostic",
        "args": GROUND
        | {"pressure_levels": [400.0, 900.0], "interp_variables": [U]}
        | {"temperature_var": T, "geopotential_var": Z}
        | {"level_info_file": "./grid.nc"},
    },
    "sea level": {
        "type": "mslp_diagnostic",
        "args": GROUND
        | {"output_name": "ERA5/derived_diagnostic/2d/MSL", "temperature_var": TP},
    },
    # One field is both rain and evaporation, and gets one factor.
    "water": {
        "type": "global_water_fixer",
        "args": GRID
        | {"q_var": U, "sp_var": SP, "precip_var": TP, "evapor_var": TP}
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
def run(credit, tmp_path_factory):
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
def forecast(run, tmp_path_factory):
    """Returns a function of a mesh: the folder and the name of the forecast there."""

    @cache
    def made(mesh):
        folder = tmp_path_factory.mktemp("ours")
        options = ["--config", "case.yml", "--cache", "none", "--parallelism", mesh]
        with chdir(run):
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
def test_fixers_and_diagnostics_as_credit(run, forecast, mesh):
    folder, name = forecast(mesh)
    with (
        xr.open_dataset(folder / name) as ours,
        xr.open_dataset(run / "theirs" / name) as theirs,
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
def test_a_package_of_it_forecasts_the_same(run, forecast, monkeypatch, tmp_path):
    """The package has the fixers, scalers and static fields of the run, bit for bit."""
    folder, name = forecast("data=none")
    monkeypatch.chdir(run)
    made = ["--config", "case.yml", "--checkpoint", "run", "--out"]
    assert package.main([*made, str(tmp_path / "package")]) == 0
    path = {"path": f"{run}/d_%Y.nc"}
    variables = {"prognostic": path, "dynamic_forcing": path}
    data = {"source": {"ERA5": {"variables": variables}}}
    (tmp_path / "data.yml").write_text(yaml.safe_dump(data))
    monkeypatch.chdir(tmp_path)
    given = ["--package", "package", "--data", "data.yml", "--init-time", START]
    assert main([*given, "--steps", "3", "--cache", "none", "--out", "out"]) == 0
    (theirs,) = (tmp_path / "out").rglob("*.nc")
    with xr.open_dataset(folder / name) as one, xr.open_dataset(theirs) as other:
        xr.testing.assert_identical(one.load(), other.load())
