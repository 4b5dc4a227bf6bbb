"""A gen1 config with every block of `post_conf`, and the files that its blocks read."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tests.models.cases import BASE

LEVELS = BASE["levels"]
DEEP, SURFACE = ("U", "V", "T", "Q"), ("SP",)
DIAGNOSTIC = ("rain", "evap", "top", "olr", "sun", "longwave", "sensible", "latent")
MAGNITUDES = {"T": (260.0, 10.0), "Q": (5e-3, 1e-3), "SP": (9.5e4, 2e3)}
MAGNITUDES |= {"rain": (3e-3, 3e-4), "evap": (-2e-3, 3e-4)}
UP_DOWN = ("TOA_down_solar", "TOA_up_solar", "TOA_up_OLR", "surf_down_solar")
UP_DOWN += ("surf_up_solar", "surf_down_LW", "surf_up_LW", "surf_SH", "surf_LH")
UP_DOWN = tuple(f"{name}_name" for name in UP_DOWN)


def write_files(folder: Path) -> None:
    """Writes the grid, its hybrid levels, and mean and std of every variable."""
    lat, lon = BASE["image_height"], BASE["image_width"]
    lon2d, lat2d = np.meshgrid(
        np.arange(lon) * 360.0 / lon, 87.0 - np.arange(lat) * 174.0 / (lat - 1)
    )
    ground = 2000 * np.abs(np.random.default_rng(7).normal(size=lat2d.shape))
    halves = {"hyai": [0.0, 2e4, 0.0], "hybi": [0.0, 0.1, 1.0]}
    fields: dict[str, Any] = {"lon2d": lon2d, "lat2d": lat2d, "PHIS": ground}
    variables: dict[str, Any] = {k: (("y", "x"), v) for k, v in fields.items()}
    variables |= {k: ("ilev", np.asarray(v)) for k, v in halves.items()}
    xr.Dataset(variables).to_netcdf(folder / "physics.nc")
    for index, name in enumerate(("mean", "std")):
        values: dict[str, Any] = {}
        for key in (*DEEP, *SURFACE, *DIAGNOSTIC, "tsi"):
            default = (0.0, 10.0) if key in DEEP else (0.0, 1e6)
            value = MAGNITUDES.get(key, default)[index]
            values[key] = ("level", np.full(LEVELS, value)) if key in DEEP else value
        xr.Dataset(values).to_netcdf(folder / f"{name}.nc")


def gen1_config(folder: Path, model: dict[str, Any]) -> dict[str, Any]:
    """The YAML of generation 1.

    Args:
        folder: the folder given to `write_files`.
        model: keys of the `model` section to replace.
    """
    grid = {
        "activate": True,
        "activate_outside_model": False,
        "grid_type": "sigma",
        "midpoint": True,
        "denorm": True,
        "simple_demo": False,
        "lon_lat_level_name": ["lon2d", "lat2d", "hyai", "hybi"],
        "surface_pressure_name": ["SP"],
        "specific_total_water_name": ["Q"],
    }
    air = {
        "air_temperature_name": ["T"],
        "u_wind_name": ["U"],
        "v_wind_name": ["V"],
        "surface_geopotential_name": ["PHIS"],
    }
    energy = {
        "TOA_net_radiation_flux_name": ["top", "olr"],
        "surface_net_radiation_flux_name": ["sun", "longwave"],
        "surface_energy_flux_name": ["sensible", "latent"],
    }
    post_conf = {
        "activate": True,
        "requires_scaling": False,
        "skebs": {"activate": False},
        "tracer_fixer": {
            "activate": True,
            "tracer_name": ["Q", "rain"],
            "tracer_thres": [4.8e-3, 0.0],
        },
        "global_mass_fixer": {**grid, "fix_level_num": 1},
        "global_water_fixer": {
            **grid,
            "precipitation_name": ["rain"],
            "evaporation_name": ["evap"],
        },
        "global_energy_fixer": {**grid, **air, **energy},
        "global_energy_fixer_updown": {
            **grid,
            **air,
            **{key: ["sun"] for key in UP_DOWN},
            "activate_outside_model": True,
        },
    }
    files = str(folder / "fields_????.nc")
    names = {
        "": DEEP,
        "surface_": SURFACE,
        "diagnostic_": DIAGNOSTIC,
        "dynamic_forcing_": ("tsi",),
        "forcing_": (),
        "static_": ("mask",),
    }
    data: dict[str, Any] = {f"{k}variables": [*v] for k, v in names.items()}
    data |= {
        f"save_loc{'_' + k[:-1] if k else ''}": files for k, v in names.items() if v
    }
    data |= {
        "save_loc_physics": str(folder / "physics.nc"),
        "mean_path": str(folder / "mean.nc"),
        "std_path": str(folder / "std.nc"),
        "scaler_type": "std_new",
        "train_years": [2000, 2001],
        "valid_years": [2000, 2001],
        "history_len": 1,
        "valid_history_len": 1,
        "forecast_len": 0,
        "valid_forecast_len": 0,
        "lead_time_periods": 6,
        "levels": LEVELS,
        "static_first": True,
    }
    section = BASE | {
        "channels": len(DEEP),
        "surface_channels": len(SURFACE),
        "output_only_channels": len(DIAGNOSTIC),
        "post_conf": post_conf,
    }
    trainer = {
        "type": "era5-gen1",
        "mode": "none",
        "load_weights": False,
        "learning_rate": 1e-3,
        "train_batch_size": 1,
        "valid_batch_size": 1,
        "batches_per_epoch": 2,
        "valid_batches_per_epoch": 1,
        "epochs": 1,
        "start_epoch": 0,
        "use_scheduler": False,
    }
    loss = {"training_loss": "mse", "use_latitude_weights": False}
    loss |= {"use_variable_weights": False, "latitude_weights": None}
    return copy.deepcopy(
        {
            "save_loc": str(folder),
            "seed": 1,
            "data": data,
            "model": section | model,
            "loss": loss,
            "trainer": trainer,
        }
    )
