"""Losses and metrics of named fields: their requirements on other sections."""

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.config import build_config
from credit_jax.io.open_files import OpenFiles
from credit_jax.plan import plan_run
from credit_jax.plan.objective import read_latitude
from credit_jax.training.rollout import SUSPICION
from credit_jax.training.setup import prepare
from tests.data.world import GRID
from tests.reference.scalers import fit_scalers
from tests.support import assert_close
from tests.support.configs import plan_problems
from tests.training.conftest import tiny_model, world
from tests.training.tiny import tiny_config

__all__ = ["tiny_model", "world"]

pytestmark = pytest.mark.usefixtures("tiny_model")

PREDICTION = {"type": "reconstruct", "args": {"detach": False}}
TARGET = {
    "type": "reconstruct",
    "args": {"in_key": "y", "out_key": "y_target_processed"},
}
TWIN = {"per_step": {"prediction": PREDICTION, "target": TARGET}}
WEIGHED = ("prognostic/3d/U", "prognostic/3d/T", "prognostic/2d/SP", "diagnostic/2d/TP")
BASE = {"type": "base", "args": {"var_weighting": "none", "training_loss": "mse"}}


@pytest.fixture
def plan(world, tmp_path):
    """`plan(**changes)` of the small model on the small data set, or its problems."""

    def plan_it(domain=1, refused=False, **changes):
        parallelism = {"data": "none", "tensor": 1, "domain": domain}
        settings = {"trainer__parallelism": parallelism} | changes
        config = build_config(tiny_config(world, tmp_path, **settings))
        plan = plan_problems if refused else plan_run
        return plan(config, num_devices=domain)

    return plan_it


@pytest.mark.parametrize(
    ("blocks", "messages"),
    [
        ({}, ["y_processed, which no postblock", "y_target_processed, which no"]),
        (
            {"prediction": {"type": "reconstruct"}, "target": TARGET},
            ["set detach: false on the reconstruct block"],
        ),
        ({"prediction": PREDICTION}, ["key: y_target_processed to postblocks"]),
    ],
)
def test_base_needs_named_fields(blocks, messages, plan):
    found = plan(refused=True, loss=BASE, postblocks={"per_step": blocks})
    assert len(found) == len(messages), found
    for line, message in zip(found, messages, strict=True):
        assert line.startswith("loss.type: base"), line
        assert message in line, line


@pytest.mark.slow
def test_weights_of_normalized_fields_are_noted(plan, world):
    """Those of `type: base` are for physical units, which a postblock must make."""
    files = {"mean_path": f"{world}/mean.nc", "std_path": f"{world}/std.nc"}
    files["levels"] = [1, 3]
    energy = {"var_weighting": "manual", "training_loss": "mse"}
    loss = {"type": "base", "args": energy}
    undone = dict(TWIN["per_step"])
    for name, key in [("of it", "y_processed"), ("of y", "y_target_processed")]:
        undone[name] = {"type": "era5_normalizer", "args": {**files, "key": key}}
    blocks = {"TWIN": TWIN, "undone": {"per_step": undone}}
    for section, name, expected in [
        (loss, "TWIN", 1),
        (loss, "undone", 0),
        (BASE, "TWIN", 0),
    ]:
        planned = plan(loss=section, postblocks=blocks[name])
        notes = [x for x in planned.notes if x.startswith("loss.type: base scores nor")]
        assert len(notes) == expected, (section, name)


def test_a_missing_scaler_is_one_problem(plan, tmp_path):
    args = {"scaler_path": str(tmp_path / "scaler.json")}
    found = plan(refused=True, loss={"type": "base", "args": args}, postblocks=TWIN)
    assert found == (f"loss.args.scaler_path: {args['scaler_path']} does not exist",)
    found = plan(refused=True, loss={"type": "base", "args": {}}, postblocks=TWIN)
    assert len(found) == 1
    assert "needs loss.args.scaler_path" in found[0]


def latitude_files(folder):
    """Files of latitudes: those of the data in another order, and others."""
    rows = GRID["latitude"]
    files = {
        "reversed": rows[::-1],
        "colatitudes": 90 - rows,
        "radians": np.deg2rad(rows),
        "another range": 0.5 * rows,
    }
    for name, latitude in files.items():
        path = folder / f"{name}.nc"
        xr.Dataset(coords={"latitude": latitude}).to_netcdf(path, engine="h5netcdf")
    return files


def weighed(path):
    """The sections of a loss and metrics with the latitudes of a file."""
    rows = {"use_latitude_weights": True, "latitude_weights": str(path)}
    args = {"metrics": {"rmse": {}}, **rows}
    return {
        "loss": {"training_loss": "mse", **rows},
        "metrics": {"type": "combined", "args": args},
    }


@pytest.mark.slow
def test_weights_of_latitudes_are_those_of_the_data(plan, world, tmp_path):
    """Row by row: in another order they are put in order, others are refused."""
    others = latitude_files(tmp_path)
    expected = first_loss(plan(**weighed(world / "static.nc")))
    value, (_, scores) = first_loss(plan(**weighed(tmp_path / "reversed.nc")))
    assert value == expected[0]
    assert scores == expected[1][1]
    for name in [*others][1:]:
        found = plan(refused=True, **weighed(tmp_path / f"{name}.nc"))
        keys = ("loss.latitude_weights", "metrics.args.latitude_weights")
        assert len(found) == len(keys), found
        for key, line in zip(keys, found, strict=True):
            assert line.startswith(f"{key}: {tmp_path / name}.nc: "), line
            if name != "another range":  # no latitudes at all
                assert "; write " in line
                continue
            assert "6 latitudes run" in line
            assert "w_1999.nc" in line
            assert "75 to -75" in line


@pytest.mark.reference
def test_variables_without_a_variance_are_noted(plan, tmp_path):
    """The scalers of another data set weigh nothing, which no error would tell."""
    field = xr.Dataset({"Q": (("lat", "lon"), np.arange(4.0).reshape(2, 2))})
    fit_scalers(tmp_path, field, {"Q": "CESM/prognostic/2d/Q"})
    path = str(tmp_path / "scaler.json")
    args = {"scaler_path": path, "var_weighting": "inverse_variance"}
    found = plan(
        loss={"type": "base", "args": args},
        metrics={
            "type": "combined",
            "args": {"metrics": {"rmse": {}, "mae": {}}, **args},
        },
        postblocks=TWIN,
    )
    notes = [note for note in found.notes if "has no variance" in note]
    targets = ", ".join(f"ERA5/{key}" for key in WEIGHED)
    assert notes == [
        f"{section}.args.scaler_path: {path} has no variance of {targets}, weighed as "
        "if it were 1, as in CREDIT; it has: CESM/prognostic/2d/Q"
        for section in ("loss", "metrics")
    ]


def first_loss(plan):
    setup = prepare(plan, jax.devices()[: plan.num_devices])
    steps = setup.steps()
    state, batch = setup.fresh_state(), next(setup.train_loader.epoch(0))
    new, info = steps.train(state, steps.place_train([batch]))
    valid = next(setup.valid_loader.epoch(0))
    scores = steps.evaluate(new.params, new.model_state, steps.place_valid(valid))
    return np.asarray(info["loss"])[0], jax.device_get((new.params, scores))


@pytest.mark.slow
def test_base_trains_on_every_mesh(plan):
    """Its gradient reaches the model through the postblocks."""
    serial = plan(loss=BASE, postblocks=TWIN)
    value, (params, scores) = first_loss(serial)
    sharded = plan(4, loss=BASE, postblocks=TWIN)
    other, (other_params, other_scores) = first_loss(sharded)
    assert_close(other, value, 1e-6, "loss of single variables on 4 shards")
    for name, own in params.items():
        assert_close(other_params[name], own, 1e-5, name)
    assert set(scores) == {*serial.objective.evaluated, SUSPICION}
    for name, own in scores.items():
        assert_close(other_scores[name], own, 1e-5, name)


# The loss sections of CREDIT's gen2 examples, one of each kind.
SECTIONS = [
    {
        "training_loss": "mse",
        "use_power_loss": False,
        "use_spectral_loss": False,
        "spectral_lambda_reg": 0.1,
        "spectral_wavenum_init": 20,
        "latitude_weights": "fields.nc",
        "use_latitude_weights": True,
        "use_variable_weights": False,
    },
    {
        "training_loss": "KCRPS",
        "validation_loss": "mse",
        "use_power_loss": False,
        "use_spectral_loss": False,
        "use_latitude_weights": False,
        "latitude_weights": "fields.nc",
        "use_variable_weights": False,
    },
    {
        "type": "base",
        "args": {
            "training_loss": "mse",
            "base_loss_parameters": {},
            "var_weighting": "inverse_variance",
            "scaler_path": "scaler.json",
            "variable_weights": {},
            "normalize_weights": True,
            "include_computed_diagnostics": True,
            "use_latitude_weights": True,
            "latitude_weights": "fields.zarr",
        },
    },
]


def test_read_latitude(tmp_path):
    files = OpenFiles()
    path = tmp_path / "static.nc"
    xr.Dataset(coords={"latitude": [10.0, -10.0]}).to_netcdf(path)
    assert read_latitude(path, "loss.file", files).tolist() == [10.0, -10.0]
    xr.Dataset(coords={"y": [10.0]}).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"no one-dimensional `latitude`.*'y'"):
        read_latitude(tmp_path / "other.nc", "loss.file", files)
    (tmp_path / "text.nc").write_text("no data")
    with pytest.raises(ValueError, match=r"^loss\.file: .*text\.nc: cannot be opened"):
        read_latitude(tmp_path / "text.nc", "loss.file", files)
