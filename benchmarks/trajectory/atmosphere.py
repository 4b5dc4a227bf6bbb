"""A small atmosphere on hybrid levels, and the blocks that conserve its budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tests.reference.dataset import NUM_LAT, NUM_LON, TIMES

LEVELS = [1.0, 2.0, 3.0]
_A_HALF = np.array([0.0, 12000.0, 10000.0, 0.0])
_B_HALF = np.array([0.0, 0.1, 0.6, 1.0])
# Name -> (mean, standard deviation) of every variable with time.
_DEEP = {
    "T": ((220.0, 255.0, 285.0), 8.0),
    "U": ((15.0, 10.0, 3.0), 6.0),
    "V": ((0.0, 0.0, 0.0), 4.0),
    "Q": ((1e-4, 2e-3, 9e-3), 3e-5),
}
_FLUXES = [f"flux{i}" for i in range(8)]
# Seconds of a flux: those at the top of the atmosphere are in W/m2, the others are
# summed over a time step, in J/m2.
_SECONDS = [1, 1, *[21600] * 6]
_SURFACE = {
    "SP": (96000.0, 1500.0),
    "rain": (3e-3, 4e-4),
    "evap": (-3e-3, 4e-4),
    **{f: (200.0 * s, 30.0 * s) for f, s in zip(_FLUXES, _SECONDS, strict=True)},
}
_DIAGNOSTIC = ["rain", "evap", *_FLUXES]
_KEYS = {name: f"ERA5/prognostic/3d/{name}" for name in _DEEP}
_KEYS |= {"SP": "ERA5/prognostic/2d/SP"}
_KEYS |= {name: f"ERA5/diagnostic/2d/{name}" for name in _DIAGNOSTIC}
_SOLAR, _GROUND = "ERA5/dynamic_forcing/2d/SOLIN", "PHIS"

# Variable -> key.
SCALED = _KEYS | {"SOLIN": _SOLAR, _GROUND: f"ERA5/static/2d/{_GROUND}"}


def write(folder: Path) -> xr.Dataset:
    """Writes fields, orography and the fixers' grid; returns the fields to scale."""
    rng = np.random.default_rng(3)
    grid = {
        "latitude": np.linspace(90, -90, NUM_LAT),
        "longitude": np.arange(NUM_LON) * 360 / NUM_LON,
    }
    flat = ("time", "latitude", "longitude")
    shape = (len(TIMES), NUM_LAT, NUM_LON)
    variables: dict[str, Any] = {}
    for name, (mean, spread) in _DEEP.items():
        noise = rng.normal(0, spread, (len(TIMES), len(LEVELS), NUM_LAT, NUM_LON))
        values = np.reshape(mean, (1, -1, 1, 1)) + noise
        values = np.maximum(values, 1e-6) if name == "Q" else values
        variables[name] = (("time", "level", *flat[1:]), values.astype(np.float32))
    for name, (mean, spread) in _SURFACE.items():
        variables[name] = (flat, rng.normal(mean, spread, shape).astype(np.float32))
    variables["SOLIN"] = (flat, (340 * rng.random(shape)).astype(np.float32))
    coords = {"time": TIMES, "level": LEVELS, **grid}
    fields = xr.Dataset(variables, coords=coords)
    fields.to_netcdf(folder / "d_2000.nc")
    hills = _write_ground(folder, grid, rng)
    return fields.isel(time=slice(0, 8)).assign({_GROUND: (flat[1:], hills)})


def _write_ground(
    folder: Path, grid: dict[str, Any], rng: np.random.Generator
) -> np.ndarray:
    hills = np.maximum(rng.normal(0, 8000, (NUM_LAT, NUM_LON)), 0).astype(np.float32)
    over = ("latitude", "longitude")
    ground = xr.Dataset({_GROUND: (over, hills), "LSM": (over, hills > 0)}, coords=grid)
    ground.astype(np.float32).to_netcdf(folder / "static.nc")
    lon, lat = np.meshgrid(grid["longitude"], grid["latitude"])
    xr.Dataset(
        {
            "lon2d": (over, lon),
            "lat2d": (over, lat),
            "hyai": ("ilev", _A_HALF),
            "hybi": ("ilev", _B_HALF),
            _GROUND: (over, hills),
        }
    ).to_netcdf(folder / "physics.nc")
    return hills


def configure(raw: dict[str, Any]) -> None:
    """Sets the data and model sections, for forecasts of three steps."""
    path = "./d_%Y.nc"
    raw["data"]["source"]["ERA5"] |= {
        "levels": LEVELS,
        "variables": {
            "prognostic": {"vars_3D": list(_DEEP), "vars_2D": ["SP"], "path": path},
            "dynamic_forcing": {"vars_2D": ["SOLIN"], "path": path},
            "static": {"vars_2D": [_GROUND], "path": "./static.nc"},
            "diagnostic": {"vars_2D": _DIAGNOSTIC, "path": path},
        },
    }
    raw["data"] |= {"forecast_len": 3}
    raw["model"] |= {
        "levels": len(LEVELS),
        "channels": len(_DEEP),
        "surface_channels": 1,
        "input_only_channels": 2,
        "output_only_channels": len(_DIAGNOSTIC),
    }


def fixers() -> dict[str, Any]:
    """Postblocks that close the budgets of dry mass, water and energy."""
    grid = {
        "save_loc_physics": "./physics.nc",
        "lon_lat_level_name": ["lon2d", "lat2d", "hyai", "hybi"],
        "grid_type": "sigma",
        "midpoint": True,
    }
    mass = {"q_var": _KEYS["Q"], "sp_var": _KEYS["SP"]}
    water = {"precip_var": _KEYS["rain"], "evapor_var": _KEYS["evap"]}
    names = ("toa_up_solar_var", "toa_up_olr_var", "surf_down_solar_var")
    names += ("surf_up_solar_var", "surf_down_lw_var", "surf_up_lw_var")
    names += ("surf_sh_var", "surf_lh_var")
    energy = {
        "T_var": _KEYS["T"],
        "U_var": _KEYS["U"],
        "V_var": _KEYS["V"],
        "surface_geopotential_name": [_GROUND],
        "toa_down_solar_input_var": _SOLAR,
        **{key: _KEYS[flux] for key, flux in zip(names, _FLUXES, strict=True)},
    }
    lead = {"lead_time_periods": 6}
    return {
        "mass": {"type": "global_mass_fixer", "args": grid | mass},
        "water": {"type": "global_water_fixer", "args": grid | mass | water | lead},
        "energy": {"type": "global_energy_fixer", "args": grid | mass | energy | lead},
    }
