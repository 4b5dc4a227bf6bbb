"""gen1's `post_conf` within models: against CREDIT, on every mesh, its section."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build, parse_model
from credit_jax.parallel.placement import place_batch
from credit_torch_bridge import convert_config
from tests.models.cases import BASE
from tests.models.parity import run_with_credits_weights
from tests.support import assert_close, make_mesh
from tests.support.credit_modules import credit_attribute

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


MODELS = ("crossformer", "wxformer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Any:
    path = tmp_path_factory.mktemp("gen1")
    write_files(path)
    return path


def converted(folder: Any, name: str, **keys: Any) -> dict[str, Any]:
    """Returns the `model:` section to which the bridge converts a gen1 config."""
    config = gen1_config(folder, {"type": name})
    return {**convert_config(config, to="jax")[0]["model"], **keys}


def parsed(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a gen1 config as CREDIT parses it."""
    parser = credit_attribute("parser", "credit_main_parser")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parser(
            copy.deepcopy(config),
            parse_training=False,
            parse_predict=False,
            print_summary=False,
        )


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("name", MODELS)
def test_equals_credit(credit: Any, folder: Any, name: str) -> None:
    """Tracer limits, mass, water and energy, at the end of the forward pass."""
    depth = {"depth": [0, 0, 0, 0]}
    theirs = parsed(gen1_config(folder, {"type": name, **depth}))["model"]
    case = credit.credit_case(theirs, seed=3)
    ours = converted(folder, name, **depth)
    y, _, by_input, gradients = run_with_credits_weights(ours, case)
    humidity = 5e-3 + 1e-3 * y[:, 6:8]
    limited = np.isclose(humidity, 4.8e-3, rtol=1e-6).mean()
    print(f"{limited:.0%} of humidity is at its limit")
    assert 0.2 < limited < 0.8
    assert humidity.min() > 4.8e-3 * (1 - 1e-6)
    assert_close(y, case.y, 1e-5, f"{name}: forward")
    assert_close(by_input["x"], case.x_gradient, 1e-4, f"{name}: gradient of the input")
    ours_by_name = {key: gradients[key] for key in case.gradients}
    both = (ours_by_name, case.gradients)
    flat = [np.concatenate([g[k].ravel() for k in case.gradients]) for g in both]
    assert_close(flat[0], flat[1], 1e-4, f"{name}: gradient of all parameters")


@cache
def on_mesh(folder: Any, degrees: tuple[int, int, int]) -> Any:
    """Returns prediction and gradients by input and weights, as whole arrays."""
    # Without spectral norm a fresh model's output is of the order of its input.
    section = converted(folder, "wxformer", depth=[0, 0, 0, 0])
    section["use_spectral_norm"] = False
    dp, tp, domain = degrees
    mesh = make_mesh(dp=dp, tp=tp, domain=domain)
    model = build_parallel_model(section, mesh)
    rows = model.model_def.image_height
    params, model_state = model.init(jax.random.key(0))
    shape = (2, model.model_def.input_channels, 1, rows, model.model_def.image_width)
    weight = np.random.default_rng(1).normal(size=(2, 17, 1, *shape[3:]))
    arrays = {"x": np.random.default_rng(0).normal(size=shape), "weight": weight}
    placed = place_batch({k: v.astype("f4") for k, v in arrays.items()}, mesh)
    real = jnp.arange(placed["x"].shape[3]) < rows

    def loss(params: Any, x: Any) -> Any:
        y = model.apply(params, model_state, {"x": x})
        return jnp.where(real[:, None], y * placed["weight"], 0).sum(), y

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, y), (by_param, by_input) = jax.device_get(step(params, placed["x"]))
    flat = np.concatenate([by_param[path].ravel() for path in sorted(by_param)])
    return y[..., :rows, :], by_input[..., :rows, :], np.linalg.norm(flat)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [(1, 1, 3), (2, 2, 2)])
def test_equals_one_device(folder: Any, degrees: tuple[int, int, int]) -> None:
    """30 rows, even on 2 and 3 shards; budgets are global."""
    ours, one = on_mesh(folder, degrees), on_mesh(folder, (1, 1, 1))
    what = "dp {} x tp {} x domain {}".format(*degrees)
    assert_close(ours[0], one[0], 1e-5, f"{what}: forward")
    assert_close(ours[1], one[1], 1e-4, f"{what}: gradient of the input")
    assert_close(ours[2], one[2], 1e-4, f"{what}: norm of the gradient of all weights")


def test_blocks_outside_of_the_model(folder: Any) -> None:
    """gen1's trainer applies them to equal fields in the same order."""
    config = gen1_config(folder, {"type": "wxformer"})
    for name in ("global_mass_fixer", "global_water_fixer", "global_energy_fixer"):
        config["model"]["post_conf"][name]["activate_outside_model"] = True
    outside = convert_config(config, to="jax")[0]["model"]
    assert outside == converted(folder, "wxformer")


def test_inactive_section_changes_nothing(folder: Any) -> None:
    section = converted(folder, "wxformer")
    section["gen1_post_conf"]["activate"] = False
    config = parse_model(section)
    assert config.files == {}
    assert hash(config) == hash(parse_model(section)), "equal configs, one program"


def test_post_conf_itself_is_a_warning() -> None:
    """CREDIT's gen2 training ignores it; the warning names its blocks."""
    conf = {"activate": True, "tracer_fixer": {"activate": True}}
    for name in MODELS:
        with pytest.warns(UserWarning, match=r"model.post_conf \(tracer_fixer: CREDIT"):
            config = parse_model({**BASE, "type": name, "post_conf": conf})
        assert not any(config.problems())


# Changes of the section, and the error.
WRONG = {
    "another number of channels": (
        {"diagnostic_variables": ["rain"]},
        r"its variables have 10 channels \(U 2 \+ .*, the model's output has 17",
    ),
    "no grid": ({"save_loc_physics": None}, "save_loc_physics: missing; the global"),
    "half a scaler": ({"std_path": None}, "both mean_path and std_path, or neither"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(folder: Any, name: str) -> None:
    change, message = WRONG[name]
    section = converted(folder, "wxformer")
    section["gen1_post_conf"]["data"] |= change
    with pytest.raises(ValueError, match=message):
        build(section)


def test_files_that_do_not_fit(folder: Any) -> None:
    section = converted(folder, "wxformer", image_height=32, padding_conf=None)
    with pytest.raises(ValueError, match=r"has a grid of 30 x 32.*model has 32 x 32"):
        parse_model(section).check_files()
    section["gen1_post_conf"]["data"]["variables"] = ["U", "V", "T", "Z"]
    with pytest.raises(ValueError, match="no variable Z; there are: "):
        parse_model(section).check_files()


@pytest.mark.slow
def test_coordinates_of_the_files(folder: Any) -> None:
    """Rows and columns of the grid file are those of the data, in their order."""
    conf = parse_model(converted(folder, "wxformer")).gen1_post_conf
    axes = replace(conf.fixers.grids[0].axes, levels=None, where="the data")
    conf.check_coordinates(axes)
    for name in ("latitude", "longitude"):
        turned = replace(axes, **{name: getattr(axes, name)[::-1]})
        with pytest.raises(
            ValueError, match=rf"save_loc_physics: .*its {name}s .* in an"
        ):
            conf.check_coordinates(turned)
    moved = replace(axes, latitude=tuple(x + 1 for x in axes.latitude))
    with pytest.raises(ValueError, match=r"save_loc_physics: .* not the same places"):
        conf.check_coordinates(moved)
