"""A small atmosphere: fields, grid files, and blocks on them."""

from typing import Any

import numpy as np
import torch
import xarray as xr

from credit_torch_bridge.compare.jax_side import import_credit
from tests.support.gradients import draw

LEVELS, LON, BATCH = 6, 12, 2
A_HALF = np.array([0.0, 4000.0, 12000.0, 18000.0, 12000.0, 4000.0, 0.0])
B_HALF = np.array([0.0, 0.0, 0.02, 0.15, 0.5, 0.85, 1.0])
P_LEVEL = np.array([5e3, 2e4, 4e4, 6e4, 8e4, 1e5])

T, U, V, Q, Z = (f"S/prognostic/3d/{name}" for name in ("T", "U", "V", "Q", "Z"))
SP, T2M = "S/prognostic/2d/SP", "S/prognostic/2d/t2m"
RAIN, EVAP = "S/diagnostic/2d/rain", "S/diagnostic/2d/evap"
FLUXES = [f"S/diagnostic/2d/flux{i}" for i in range(8)]
PHIS, SOLIN = "S/static/2d/PHIS", "S/dynamic_forcing/2d/SOLIN"
STATE = (T, U, V, Q, SP)


def latitude(lat):
    """Returns latitudes with uneven spacing, degrees north."""
    even = np.linspace(84.0, -86.0, lat)
    return even + 0.5 * np.sin(np.arange(lat))


def longitude():
    """Returns longitudes, degrees east."""
    return np.arange(LON) * 360.0 / LON


def state(lat, seed, dtype: Any):
    """Returns {key: field (batch, level, 1, lat, lon)} of a time, in physical units."""

    def field(key, levels, mean, spread, number):
        shape = (BATCH, levels, 1, lat, LON)
        values = draw(shape, seed=100 * seed + number, dtype=np.float64)
        return {key: (mean + spread * values).astype(dtype)}

    profile = np.linspace(215.0, 285.0, LEVELS).reshape(1, -1, 1, 1, 1)
    moist = np.linspace(1e-3, 1e-2, LEVELS).reshape(1, -1, 1, 1, 1)
    heights = np.linspace(150000.0, 3000.0, LEVELS).reshape(1, -1, 1, 1, 1)
    fields = field(T, LEVELS, profile, 6.0, 0)
    fields |= field(U, LEVELS, 10.0, 8.0, 1) | field(V, LEVELS, 0.0, 5.0, 2)
    fields |= field(Q, LEVELS, moist, 0.2 * moist, 3)
    fields |= field(Z, LEVELS, heights, 300.0, 4)
    fields |= field(SP, 1, 95000.0, 4000.0, 5) | field(T2M, 1, 280.0, 15.0, 6)
    fields |= field(RAIN, 1, 3e-3, 4e-4, 7) | field(EVAP, 1, -2e-3, 3e-4, 8)
    for number, key in enumerate(FLUXES):
        scale = 200.0 if number < 2 else 200.0 * 3600
        fields |= field(key, 1, scale, 0.1 * scale, 9 + number)
    return fields


def ground(lat, dtype: Any = np.float64):
    """Returns surface geopotential (lat, lon), m^2 / s^2: sea, hills, a plateau."""
    values: Any = np.abs(draw((lat, LON), seed=77, dtype=np.float64)) * 15000
    values[: lat // 3] = 0.0
    return values.astype(dtype)


def tree(lat, dtype: Any = np.float32):
    """Returns a batch: output, state before the step, and raw static fields."""
    before, after = state(lat, 1, dtype), state(lat, 2, dtype)
    solar = np.abs(draw((BATCH, 1, 1, lat, LON), seed=5)).astype(dtype) * 340
    whole = np.broadcast_to(ground(lat, dtype), (BATCH, 1, 1, lat, LON)).copy()
    history = {
        key: np.concatenate([0.9 * before[key], before[key]], axis=2) for key in STATE
    }
    history[SOLIN] = np.concatenate([0.5 * solar, solar], axis=2)
    return {
        "y_processed": {"S": after},
        "x_physical": {"S": {key: x.astype(dtype) for key, x in history.items()}},
        "ic_raw": {"S": {PHIS: whole}},
    }


def write_files(folder, lat):
    """Writes the files of the grid; returns their paths."""
    lon2d, lat2d = np.meshgrid(longitude(), latitude(lat))
    grid = {
        "lon2d": (("y", "x"), lon2d),
        "lat2d": (("y", "x"), lat2d),
        "hyai": ("ilev", A_HALF),
        "hybi": ("ilev", B_HALF),
        "plev": ("plev", P_LEVEL),
        "PHIS": (("y", "x"), ground(lat)),
    }
    # Values at the interfaces, for trapezoidal sums: six of the seven.
    grid |= {"hya6": ("lev", A_HALF[1:]), "hyb6": ("lev", B_HALF[1:])}
    xr.Dataset(grid).to_netcdf(folder / "physics.nc")
    centers = {
        "a_model": ("lev", 0.5 * (A_HALF[1:] + A_HALF[:-1])),
        "b_model": ("lev", 0.5 * (B_HALF[1:] + B_HALF[:-1])),
    }
    other = {
        "vcoord": (("two", "jlev"), np.stack([A_HALF[::2] + 100.0, B_HALF[::2]])),
        "a_up": ("lev", 0.5 * (A_HALF[1:] + A_HALF[:-1])[::-1]),
        "b_up": ("lev", 0.5 * (B_HALF[1:] + B_HALF[:-1])[::-1]),
    }
    halves = {"a_half": ("ilev", A_HALF), "b_half": ("ilev", B_HALF)}
    coords = {"latitude": latitude(lat), "longitude": longitude()}
    xr.Dataset({**halves, **centers, **other}, coords=coords).to_netcdf(
        folder / "levels.nc"
    )
    return {"physics": str(folder / "physics.nc"), "levels": str(folder / "levels.nc")}


def blocks(paths):
    """Returns name -> (type, args) of every block, in several settings."""
    sigma = {
        "save_loc_physics": paths["physics"],
        "lon_lat_level_name": ["lon2d", "lat2d", "hyai", "hybi"],
        "grid_type": "sigma",
        "midpoint": True,
    }
    trapezoid = {
        **sigma,
        "lon_lat_level_name": ["lon2d", "lat2d", "hya6", "hyb6"],
        "midpoint": False,
    }
    mass = {"q_var": Q, "sp_var": SP}
    water = {**mass, "precip_var": RAIN, "evapor_var": EVAP, "lead_time_periods": 6}
    names = ("toa_up_solar_var", "toa_up_olr_var", "surf_down_solar_var")
    names += ("surf_up_solar_var", "surf_down_lw_var", "surf_up_lw_var")
    names += ("surf_sh_var", "surf_lh_var")
    energy = {
        **mass,
        "T_var": T,
        "U_var": U,
        "V_var": V,
        "surface_geopotential_name": ["PHIS"],
        "toa_down_solar_input_var": SOLIN,
        **dict(zip(names, FLUXES, strict=True)),
        "lead_time_periods": 6,
    }
    ground_vars = {
        "surface_pressure_var": SP,
        "surface_geopotential_var": PHIS,
    }
    wind = {"u_var": U, "v_var": V, "target_vars": [U, T], "mask_level": 4}
    wind |= {"target_levels": [1, 3, 4, 9], "speed_threshold": 22.0}
    wind |= {"dilation_zonal": 5, "dilation_meridional": 3, "falloff_sigma": 0.8}
    advection = {
        "tracer_vars": [Q, T],
        "u_var": U,
        "v_var": V,
        "surface_pressure_var": SP,
        "level_info_file": paths["levels"],
        "coslat_floor": 0.05,
    }
    interp = {
        "variables": [T, Q, "S/prognostic/3d/missing"],
        "surface_pressure_var": SP,
        "source_level_info_file": paths["levels"],
        "dest_level_info_file": paths["levels"],
        "dest_a_var": "vcoord",
        "dest_b_var": "vcoord",
    }
    up = {"source_a_var": "a_up", "source_b_var": "b_up"}
    return {
        "tracer": (
            "tracer_fixer",
            {"tracer_vars": [Q, U], "tracer_thres": [5e-4, -3.0]}
            | {"tracer_thres_max": [8e-3, 20.0]},
        ),
        "mass": ("global_mass_fixer", {**sigma, **mass}),
        "mass, trapezoidal": ("global_mass_fixer", {**trapezoid, **mass}),
        "water": ("global_water_fixer", {**sigma, **water}),
        "water, trapezoidal": ("global_water_fixer", {**trapezoid, **water}),
        "energy": ("global_energy_fixer", {**sigma, **energy}),
        "energy, trapezoidal": ("global_energy_fixer_updown", {**trapezoid, **energy}),
        "sea level": (
            "mslp_diagnostic",
            {**ground_vars, "temperature_var": T2M, "output_name": "S/d/2d/mslp"},
        ),
        "geopotential": (
            "geopotential_diagnostic",
            {**ground_vars, "temperature_var": T, "specific_humidity_var": Q}
            | {"level_info_file": paths["levels"], "output_name": "S/d/3d/phi"},
        ),
        "pressure levels": (
            "pressure_interp_diagnostic",
            {**ground_vars, "temperature_var": T, "geopotential_var": Z}
            | {"level_info_file": paths["levels"], "interp_variables": [U, Q]}
            | {"pressure_levels": [500.0, 850.0, 950.0, 1000.0, 10.0]},
        ),
        "hybrid levels": ("hybrid_level_interp", interp),
        "hybrid levels from below": (
            "hybrid_level_interp",
            {**interp, **up, "source_on_interfaces": False, "dest_levels": [1, 3]},
        ),
        "wind": ("wind_artifact_filter", wind),
        "wind, anisotropic": (
            "wind_artifact_filter",
            {**wind, "smooth_sigma_zonal": 1.3, "smooth_sigma_meridional": 0.6}
            | {"preserve_amplitude": True},
        ),
        "advection": ("semilagrangian_advection", advection),
        "advection from below": (
            "semilagrangian_advection",
            {**advection, "level_order": "surface_to_top", "omega_var": V}
            | {"n_iterations": 1, "tracer_vars": [Q]},
        ),
        **net_energy(paths),
    }


def net_energy(paths):
    """Returns name -> (type, arguments) of `global_energy_fixer_net`."""
    names = ("toa_net_solar_var", "toa_net_thermal_var", "surf_net_solar_var")
    names += ("surf_net_thermal_var", "surf_sh_var", "surf_lh_var")
    air = {"T_var": T, "q_var": Q, "U_var": U, "V_var": V, "lead_time_periods": 6}
    air |= {"surface_geopotential_name": "PHIS", "save_loc_physics": paths["physics"]}
    air |= dict(zip(names, FLUXES[2:], strict=True))
    levels = {
        "sigma": {"sp_var": SP, "midpoint": True},
        "sigma, trapezoidal": {"sp_var": SP, "midpoint": False},
        "pressure": {"grid_type": "pressure", "midpoint": False},
    }
    coordinates = (["hyai", "hybi"], ["hya6", "hyb6"], ["plev"])
    return {
        f"net energy, {name}": (
            "global_energy_fixer_net",
            {**air, **own, "lon_lat_level_name": ["lon2d", "lat2d", *coordinate]},
        )
        for (name, own), coordinate in zip(levels.items(), coordinates, strict=True)
    }


def credit_net_energy(args):
    """CREDIT 2026.2.0 has the formula in gen1's fixer, whose channels have no names."""
    fixer = import_credit("postblock.gen1").GlobalEnergyFixer
    keys = [args[f"{name}_var"] for name in ("T", "q", "U", "V")]
    air, channels, start = [*keys, SP, *FLUXES[2:]], {}, 0
    for key in air:
        count = LEVELS if "3d" in key else 1
        channels[key] = [*range(start, start + count)]
        start += count
    first = [channels[key][0] for key in FLUXES[2:]]
    conf = {
        "data": {key: args[key] for key in ("lead_time_periods", "save_loc_physics")},
        "global_mass_fixer": {
            "grid_type": args.get("grid_type", "sigma"),
            **{key: args[key] for key in ("lon_lat_level_name", "midpoint")},
        },
        "global_energy_fixer": {
            "simple_demo": False,
            "denorm": False,
            "surface_geopotential_name": [args["surface_geopotential_name"]],
            **{f"{n}_inds": channels[k] for n, k in zip("TqUV", keys, strict=True)},
            "TOA_rad_inds": first[:2],
            "surf_rad_inds": first[2:4],
            "surf_flux_inds": first[4:],
            "sp_inds": channels[SP][0],
        },
    }

    def block(batch):
        x, y = (batch[part]["S"] for part in ("x_physical", "y_processed"))
        known = torch.cat([x[key] for key in air if key in x], dim=1)
        given = {"x": known, "y_pred": torch.cat([y[key] for key in air], dim=1)}
        out = fixer(conf)(given)["y_pred"]
        return {"y_processed": {"S": {**y, T: out[:, channels[T]]}}}

    return block
