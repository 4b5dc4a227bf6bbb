"""`model.post_conf`: the fixers on channels against CREDIT's, and on meshes."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.models.common.post_conf import ChannelUnits, Gen1PostConf
from tests.physics import world
from tests.support import assert_close, make_mesh
from tests.support.credit_modules import credit_attribute
from tests.support.gradients import cotangent
from tests.support.whole_fields import field_context, field_spec, run_on_mesh

LAT = 13
DEEP, SURFACE = ["T", "U", "V", "Q"], ["SP"]
DIAGNOSTIC = ["rain", "evap", *(f"flux{i}" for i in range(8)), "last"]
VARIABLES = [name for name in DEEP for _ in range(world.LEVELS)] + SURFACE + DIAGNOSTIC
BLOCKS = ("global_mass_fixer", "global_water_fixer", "global_energy_fixer")
STATE = ("air_temperature_name", "u_wind_name", "v_wind_name")
UP_DOWN = ("TOA_down_solar", "TOA_up_solar", "TOA_up_OLR", "surf_down_solar")
UP_DOWN += ("surf_up_solar", "surf_down_LW", "surf_up_LW", "surf_SH", "surf_LH")
# Case -> changed settings: levels, units and the kind of energy fixer.
CASES = {
    "hybrid, midpoint": {"grid_type": "sigma", "midpoint": True},
    "hybrid, trapezoidal, normalized": {"grid_type": "sigma", "denorm": True},
    "pressure, trapezoidal": {"grid_type": "pressure"},
    "up and down, normalized": {"grid_type": "sigma", "midpoint": True, "denorm": True},
}


def raw_conf(case):
    """Returns `post_conf` as in the YAML."""
    own = {"activate": True, "midpoint": False, "denorm": False} | CASES[case]
    names = ["hyai", "hybi"] if own["midpoint"] else ["hya6", "hyb6"]
    names = ["plev"] if own["grid_type"] == "pressure" else names
    own |= {"lon_lat_level_name": ["lon2d", "lat2d", *names]}
    own |= {"surface_pressure_name": ["SP"], "specific_total_water_name": ["Q"]}
    air: dict[str, Any] = dict(zip(STATE, (["T"], ["U"], ["V"]), strict=True))
    air["surface_geopotential_name"] = ["PHIS"]
    net = {
        "TOA_net_radiation_flux_name": ["flux0", "flux1"],
        "surface_net_radiation_flux_name": ["flux2", "flux3"],
        "surface_energy_flux_name": ["flux4", "flux5"],
    }
    up_down = {f"{name}_name": [f"flux{i % 8}"] for i, name in enumerate(UP_DOWN)}
    kind = "global_energy_fixer" + ("_updown" if case.startswith("up") else "")
    energy = up_down if case.startswith("up") else net
    tracer = {"activate": True, "tracer_name": ["Q", "rain"], "denorm": own["denorm"]}
    return {
        "activate": True,
        "tracer_fixer": tracer
        | {"tracer_thres": [5e-4, 2.5e-3], "tracer_thres_max": [8e-3, 3.2e-3]},
        "global_mass_fixer": {**own, "fix_level_num": 4},
        "global_water_fixer": own
        | {"precipitation_name": ["rain"], "evaporation_name": ["evap"]},
        kind: {**own, **air, **energy},
    }


def statistics():
    """Returns mean and std of every channel."""
    rough = {"T": (260, 20), "U": (0, 10), "V": (0, 10), "Q": (5e-3, 3e-3)}
    rough |= {"SP": (9.5e4, 4e3), "rain": (3e-3, 1e-3), "evap": (-2e-3, 1e-3)}
    rough |= {name: (0.0, 1e6) for name in DIAGNOSTIC if name.startswith("flux")}
    return {name: rough.get(name, (0.5, 2.0)) for name in DEEP + SURFACE + DIAGNOSTIC}


def channel_units():
    pairs = [statistics()[name] for name in VARIABLES]
    return ChannelUnits(*np.asarray(pairs, np.float32).astype(np.float64).T)


def arrays(case, dtype: Any = np.float32):
    """Returns an input of two times and an output."""

    def stacked(fields):
        parts = [fields[key] for key in (world.T, world.U, world.V, world.Q)]
        parts += [fields[key] for key in (world.SP, world.RAIN, world.EVAP)]
        parts += [fields[key] * (3600 if "x0" in key else 1) for key in world.FLUXES]
        last = fields[world.T2M]
        return np.concatenate([*parts, last], axis=1, dtype=np.float64)

    x, y = (stacked(world.state(LAT, seed, np.float64)) for seed in (1, 2))
    if CASES[case].get("denorm"):
        units = channel_units()
        x, y = (units.normalized(z, slice(None)) for z in (x, y))
    x = np.concatenate([0.9 * x, x], axis=2)
    return x.astype(dtype), y.astype(dtype)


def build(case, folder, **changes):
    """Binds the fixers to the channels of VARIABLES."""
    raw, physics = raw_conf(case), world.write_files(folder, LAT)["physics"]
    for key, value in changes.items():
        raw["global_water_fixer"][key] = value
    data = {"variables": DEEP, "surface_variables": SURFACE, "levels": world.LEVELS}
    data |= {"diagnostic_variables": DIAGNOSTIC, "save_loc_physics": physics}
    conf = parse(Gen1PostConf, raw | {"data": data | {"lead_time_periods": 6}})
    return conf.bind(channel_units())


def value_and_gradient(fixers, x, y, mesh=None):
    context = field_context(LAT, mesh)

    def run(x, y, weight):
        out, pullback = jax.vjp(lambda y: fixers(x, y, context), y)
        real = context.reducer.rows.real_rows().reshape(1, 1, 1, -1, 1)
        return out, pullback(jnp.where(real, weight, 0))[0]

    given = (x, y, cotangent(y.shape, y.dtype))
    if mesh is None:
        found = jax.jit(run)(*map(jnp.asarray, given))
    else:
        found = run_on_mesh(run, mesh, *given, out_specs=field_spec(mesh))
    return [np.asarray(z)[..., :LAT, :] for z in found]


def with_channels(raw, folder):
    """Adds what CREDIT's parser adds: channels of names, and the data section."""
    conf: dict[str, Any] = {name: {"activate": False} for name in (*BLOCKS, "skebs")}
    conf |= {name: dict(own) for name, own in raw.items() if name != "activate"}
    channels = lambda names: [i for i, v in enumerate(VARIABLES) if v in names]  # noqa: E731
    tracer = conf["tracer_fixer"]
    picked = channels(tracer["tracer_name"])
    for key in ("tracer_thres", "tracer_thres_max"):
        limits = dict(zip(tracer["tracer_name"], tracer[key], strict=True))
        tracer[key] = [limits[VARIABLES[i]] for i in picked]
    tracer["tracer_inds"] = picked
    short = {"specific_total_water_name": "q_inds", "air_temperature_name": "T_inds"}
    short |= {"u_wind_name": "U_inds", "v_wind_name": "V_inds"}
    short |= {"TOA_net_radiation_flux_name": "TOA_rad_inds"}
    short |= {"surface_net_radiation_flux_name": "surf_rad_inds"}
    short |= {"surface_energy_flux_name": "surf_flux_inds"}
    one = {"surface_pressure_name": "sp_inds", "precipitation_name": "precip_ind"}
    one |= {"evaporation_name": "evapor_ind"}
    one |= {f"{name}_name": f"{name}_ind" for name in UP_DOWN}
    for name, own in conf.items():
        if name.startswith("global") and own["activate"]:
            own |= {"activate_outside_model": False, "simple_demo": False}
            own |= {short[k]: channels(v) for k, v in own.items() if k in short}
            own |= {one[k]: channels(v)[0] for k, v in own.items() if k in one}
    for position in (0, 1):
        values = {
            name: ("level", np.full(world.LEVELS, pair[position], np.float32))
            if name in DEEP
            else ((), np.float32(pair[position]))
            for name, pair in statistics().items()
        }
        xr.Dataset(values).to_netcdf(folder / f"statistics{position}.nc")
    conf["data"] = {
        "save_loc_physics": str(folder / "physics.nc"),
        "lead_time_periods": 6,
        "scaler_type": "std_new",
        "mean_path": str(folder / "statistics0.nc"),
        "std_path": str(folder / "statistics1.nc"),
        "all_varnames": DEEP + SURFACE + DIAGNOSTIC,
        "levels": world.LEVELS,
        "variables": DEEP,
        "surface_variables": SURFACE,
        "diagnostic_variables": DIAGNOSTIC,
        "static_first": True,
    }
    return conf


@pytest.mark.slow(but=["hybrid, midpoint", "pressure, trapezoidal"])
@pytest.mark.reference
@pytest.mark.parametrize("case", CASES)
def test_as_credit(credit, case, tmp_path):
    import torch

    credit_block = credit_attribute("postblock.gen1", "PostBlock")
    fixers = build(case, tmp_path)
    # In float32 CREDIT's 1 - (1 - q) ratio on pressure levels has four digits, and its
    # difference of global sums of water six: some cases are in double precision.
    dtype = np.float64 if "trapezoidal" in case else np.float32
    x, y = arrays(case, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        block = credit_block(with_channels(raw_conf(case), tmp_path))
    leaf = torch.from_numpy(y.copy()).requires_grad_()
    num_state = len(DEEP) * world.LEVELS + 1
    given = {"x": torch.from_numpy(x[:, :num_state].copy()), "y_pred": leaf * 1}
    out = block(given)
    (out * torch.from_numpy(cotangent(y.shape, dtype))).sum().backward()
    with jax.enable_x64(dtype == np.float64):
        ours, gradient = value_and_gradient(fixers, x, y)
    values = ours, out.detach().numpy()
    if CASES[case].get("denorm"):
        # For each fixer CREDIT denormalizes and normalizes all channels, which adds
        # rounding errors.
        values = [channel_units().physical(z, slice(None)) for z in values]
    compare(*values, 1e-6, f"{case}: values")
    assert leaf.grad is not None
    compare(gradient, leaf.grad.numpy(), 3e-5, f"{case}: gradient")


def compare(ours, theirs, tolerance, what):
    """Compares each variable separately, as their units differ."""
    for name in DEEP + SURFACE + DIAGNOSTIC:
        place = [i for i, own in enumerate(VARIABLES) if own == name]
        assert_close(ours[:, place], theirs[:, place], tolerance, f"{what} of {name}")


@pytest.mark.slow(but=["pressure, trapezoidal"])
@pytest.mark.parametrize(
    "case", ["hybrid, trapezoidal, normalized", "pressure, trapezoidal"]
)
def test_same_on_shards(case, tmp_path):
    fixers = build(case, tmp_path)
    with jax.enable_x64(True):
        x, y = arrays(case, np.float64)
        serial = value_and_gradient(fixers, x, y)
        sharded = value_and_gradient(fixers, x, y, make_mesh(domain=4))
    for what, a, b in zip(("values", "gradient"), sharded, serial, strict=True):
        assert a.dtype == np.float64
        compare(a, b, 1e-12, f"{case} on 4 shards: {what}")
