"""Blocks in the training step get their inputs on every mesh."""

import chex
import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.config import build_config
from credit_jax.plan import plan_run
from credit_jax.training.rehearsal import rehearse
from credit_jax.training.setup import prepare
from tests.data.world import GRID
from tests.support import assert_close, assert_trees_close
from tests.training.tiny import tiny_config

T, SP, LSM = "ERA5/prognostic/3d/T", "ERA5/prognostic/2d/SP", "ERA5/static/2d/LSM"


@pytest.fixture
def chain(world, tmp_path, toys):
    """Returns postblocks: physical units, a mass fixer, sea level pressure as SP."""
    lon, lat = np.meshgrid(GRID["longitude"], GRID["latitude"])
    levels = {"a": ("i", np.zeros(3)), "b": ("i", np.array([0.0, 0.4, 1.0]))}
    grid = {"lon": (("y", "x"), lon), "lat": (("y", "x"), lat), **levels}
    xr.Dataset(grid).to_netcdf(tmp_path / "grid.nc")
    files = {}
    for name, humidity in (("mean", 0.01), ("std", 0.001)):
        # As T stands for humidity: of a few percent, as dry air is 1 - q of the mass.
        statistics = xr.load_dataset(f"{world}/{name}.nc")
        statistics["T"] = 0 * statistics["T"] + humidity
        statistics.to_netcdf(tmp_path / f"{name}.nc")
        files[f"{name}_path"] = str(tmp_path / f"{name}.nc")
    return {
        "reconstruct": {"type": "reconstruct", "args": {"detach": False}},
        "denormalize": {"type": "denormalize", "args": files | {"levels": [1, 3]}},
        "mass": {
            "type": "global_mass_fixer",
            "args": {
                "q_var": T,
                "sp_var": SP,
                "save_loc_physics": str(tmp_path / "grid.nc"),
                "lon_lat_level_name": ["lon", "lat", "a", "b"],
                "midpoint": True,
            },
        },
        "sea_level": {
            "type": "mslp_diagnostic",
            "args": {
                "output_name": SP,
                "surface_pressure_var": SP,
                "temperature_var": "ERA5/diagnostic/2d/TP",
                "surface_geopotential_var": LSM,
            },
        },
        "flatten": {"type": "flatten_to_tensor"},
    }


def first_update(world, folder, domain, blocks, **changes):
    """Returns loss and new parameters of one training step."""
    config = tiny_config(
        world,
        folder,
        postblocks={"per_step": blocks},
        trainer__parallelism={"data": "none", "tensor": 1, "domain": domain},
        **changes,
    )
    plan = plan_run(build_config(config), num_devices=domain)
    setup = prepare(plan, jax.devices()[:domain])
    steps = setup.steps()
    batch = steps.place_train([next(setup.train_loader.epoch(0))])
    state, info = steps.train(setup.fresh_state(), batch)
    return np.asarray(info["loss"]), jax.tree.map(np.asarray, state.params)


@pytest.mark.usefixtures("tiny_model")
def test_the_step_gets_the_fields_that_are_read(world, tmp_path, chain):
    config = tiny_config(world, tmp_path, postblocks={"per_step": chain})
    setup = prepare(plan_run(build_config(config)), jax.devices()[:1])
    batch = next(setup.train_loader.epoch(0)).arrays
    assert {k: set(v) for k, v in batch["x_physical"].items()} == {"ERA5": {T, SP}}


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize("num_steps", [1, 2])
def test_fixers_and_diagnostics_in_the_step(world, tmp_path, chain, num_steps):
    steps = {"data__forecast_len": num_steps}
    serial = first_update(world, tmp_path, 1, chain, **steps)
    sharded = first_update(world, tmp_path, 4, chain, **steps)
    assert_close(sharded[0], serial[0], 1e-6, "loss on 4 shards")
    assert_trees_close(sharded[1], serial[1], 1e-5, "parameters after a step")
    if num_steps == 1:  # named fields change no number
        plain = first_update(world, tmp_path, 1, {})
        named = {"reconstruct": {"type": "reconstruct"}}
        named = first_update(world, tmp_path, 1, named)
        chex.assert_trees_all_equal(named, plain)
    for name in ("mass", "sea_level"):
        less = {key: block for key, block in chain.items() if key != name}
        other, _ = first_update(world, tmp_path, 1, less, **steps)
        assert abs(other / serial[0] - 1) > 1e-7, f"{name} changes nothing"


@pytest.mark.usefixtures("tiny_model")
def test_levels_that_do_not_fit_are_found_before_training(world, tmp_path, chain):
    """`check` traces the steps; only there a block meets its fields."""
    del chain["sea_level"]
    config = build_config(tiny_config(world, tmp_path, postblocks={"per_step": chain}))
    assert rehearse(plan_run(config)) == []
    path, five = tmp_path / "grid.nc", ("i", np.linspace(0.0, 1.0, 5))
    grid = xr.load_dataset(path).drop_dims("i").assign({"a": five, "b": five})
    grid.to_netcdf(path)
    expected = (
        f"postblocks.per_step.mass: {path}: a, b: 5 values, which with midpoint: true "
        "are for fields of 4 levels; a field has 2"
    )
    assert rehearse(plan_run(config)) == [expected]
