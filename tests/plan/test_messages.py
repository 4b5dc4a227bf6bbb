"""Problems and notes of plans: all of a stage in one report, each of them once."""

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.check import check_config
from credit_jax.config import ConfigError, build_config, load_config, parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.io.open_files import OpenFiles
from credit_jax.plan import plan_run
from credit_jax.plan.objective import read_latitude
from credit_jax.plan.run_record import RunRecord
from credit_jax.transforms import build_pipeline, notes_on_initial
from tests.data.world import GRID, raw_config, set_key
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.training.tiny import MODEL, TinyConfig, tiny_config

CASES = Cases("plan")
ERA5 = "data__source__ERA5"


def problems(plan, **changes):
    return plan.problems(**changes)


CASES.rows(
    problems,
    # The mesh and the section of the model, parameters, files, and how all fits.
    {
        "num_devices": 6,
        "trainer__parallelism": {"data": "fsdp2", "tensor": 4, "domain": 1},
        "model__hidden": 0.5,
    },
    {
        "num_devices": 4,
        "trainer__parallelism": {"data": "fsdp2", "tensor": 4, "domain": 1},
        "trainer__fsdp": {"keep_whole": ["dance/*"]},
        "model__hidden": 6,
    },
    {
        "loss__latitude_weights": "absent.nc",
        "preblocks__per_step__norm__args__std_path": "std.nc",
        f"{ERA5}__variables__static__path": "mask.nc",
    },
    {
        "model__surface_channels": 2,
        "loss__training_loss": "mze",
        "trainer__training_metric": "valid_crps",
    },
)


@CASES.case
def what_validation_shares_with_training(plan, world, tmp_path):
    source = tiny_config(world, tmp_path)["data"]["source"]
    source["ERA5"]["variables"]["static"]["path"] = "mask.nc"
    changes = {f"{own}__source": source for own in ("data", "validation_data")}
    return plan.problems(model__surface_channels=2, **changes)


def other_validation(plan, world, tmp_path, **options):
    source = tiny_config(world, tmp_path)["data"]["source"]["ERA5"]
    other = {"ERA5": {**source, "levels": [1.0]}}
    return plan.problems(validation_data__source=other, **options)


CASES.rows(other_validation, {}, {"with_data": False}, name="another level")


@CASES.case
def a_package_that_is_missing(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    return plan.problems(trainer__use_wandb=True)


@CASES.case
def a_huge_depth(plan):
    model = {**MODEL, "type": "wxformer", "channels": 2, "depth": 10**9}
    return plan.problems(with_data=False, model=model)


def process(plan, monkeypatch, **changes):
    """A process learns single steps by losses at points."""
    monkeypatch.setattr(TinyConfig, "process", SimpleNamespace(num_samples=20))
    return plan.problems(**changes) or [*plan(**changes).notes]


CASES.rows(
    process,
    {},
    {"data__forecast_len": 2, "loss__training_loss": "KCRPS"},
    {"trainer__ensemble_size": 2},
    {
        "loss__use_power_loss": True,
        "loss__spectral_lambda_reg": 0.1,
        "loss__spectral_wavenum_init": 1,
    },
    name="a process",
)


# Schedules that end before the run.
WARMUP = {"scheduler_type": "linear-warmup-cosine", "warmup_steps": 1}
COSINE = {"scheduler_type": "cosine-annealing", "T_max": 4}


def schedule(scheduler, epochs, plan, **changes):
    changes |= {"epochs": epochs, "batches_per_epoch": 3, "use_scheduler": True}
    changes |= {"scheduler": scheduler}
    found = plan(**{f"trainer__{key}": value for key, value in changes.items()})
    return [note for note in found.notes if "scheduler" in note]


CASES.rows(
    schedule,
    (WARMUP | {"total_steps": 13}, 5),
    (COSINE, 5),
    (COSINE, 4),
    ({"scheduler_type": "lambda"}, 70),
    ({"scheduler_type": "lambda"}, 50),
    {
        "scheduler": WARMUP,
        "epochs": 5,
        "curriculum": [
            {"until": "5 updates", "scheduler": WARMUP | {"total_steps": 4}},
            {"scheduler": WARMUP | {"total_steps": 10}},
        ],
    },
    name="schedule",
)


CURRICULUM = Path(__file__).parents[2] / "configs" / "wxformer_6h_curriculum.yaml"


def curriculum(*overrides):
    """The first has the lengths of CREDIT's two runs."""
    planned = plan_run(load_config(CURRICULUM, overrides), with_data=False)
    lengths = planned.stage_lengths
    return [*(f"{x.updates} updates in {x.epochs}" for x in lengths), *planned.notes]


STAGE = "trainer.curriculum.1.loss={training_loss: "
CASES.rows(
    curriculum,
    (),
    ("trainer.curriculum.0.until=2000", "trainer.epochs=3"),
    ("trainer.epochs=9",),
    (STAGE + "mea}",),
    (STAGE + "ring-crps}",),
    name="stages",
)


@CASES.case
@pytest.mark.slow
def a_stage_that_no_device_has_memory_for():
    large = ["trainer.curriculum.1.train_batch_size=64"]
    report = check_config(CURRICULUM, large, with_data=False, device="h100").document()
    first, second = report["curriculum"]
    assert first["bytes_a_device"] < 80e9 < second["bytes_a_device"]
    assert second["update_seconds_at_least"] > first["update_seconds_at_least"] > 0
    return json.dumps([report["problems"], first, second], indent=1)


# Records of runs.


NORM = "preblocks__per_step__norm"


@pytest.fixture
def raw(tmp_path):
    """A config with the files of its normalizer, and others beside them."""
    for name, value in (("mean", 1.0), ("std", 2.0), ("other", 3.0), ("copy", 2.0)):
        field = xr.Dataset({"T": ("level", np.full(4, value))})
        field.to_netcdf(tmp_path / f"{name}.nc")
    return raw_config(tmp_path)


def compared(changes, raw, **options):
    changed = copy.deepcopy(raw)
    for key, value in changes.items():
        if isinstance(value, str) and value.endswith(".nc"):
            value = str(Path(raw["save_loc"]).parent / value)
        set_key(changed, key, value)
    run, here = (RunRecord.of(build_config(each)) for each in (raw, changed))
    return [*replace(run, where="RUN/checkpoints/3").compare(here, **options)]


HARMLESS = {
    "trainer__train_batch_size": 2,
    "data__end_datetime": "2000-01-04",
    "model__attn_dropout": 0.1,
    "data__source__ERA5__variables__static__path": "elsewhere.nc",
}
for _changes in (
    {"data__timestep": "12h"},
    {"data__history_len": 2},
    {"model__dim": [8, 16, 32, 64]},
    {f"{NORM}__args__levels": [0, 1]},
    {f"{NORM}__args__std_path": "other.nc"},
    {f"{NORM}__args__std_path": "copy.nc"},
    {f"{NORM}__args__std_path": "nowhere.nc"},
    {"data__history_len": None, "data__timestep": "360min"},
    HARMLESS,
):
    for _options in ({}, {"forecasts": True}, {"begins": True}):
        CASES.rows(compared, {"changes": _changes} | _options, name="a record beside")


def test_blocks_are_compared_by_order_and_type(raw):
    changed = copy.deepcopy(raw)
    blocks = changed["preblocks"]["per_step"]
    norm = blocks.pop("norm")
    with pytest.raises(ConfigError, match=r"\('era5_normalizer, concat' there"):
        compared(changed, raw)
    changed["preblocks"]["per_step"] = {"renamed": norm, **blocks}
    # Forecasts undo what preblocks do, whether the config says so or not.
    undone = {"reconstruct": {"type": "reconstruct"}, "back": copy.deepcopy(norm)}
    changed["postblocks"] = {"per_step": undone}
    assert not compared(changed, raw)
    # The data of forecasts are those of `inference`.
    other = {"inference__data": {**raw["data"], "timestep": "12h"}}
    assert not compared(other, raw)
    with pytest.raises(ConfigError, match=r"inference\.data\.timestep \('6h' there"):
        compared(other, raw, forecasts=True)


# Losses and metrics of named fields.


PREDICTION = {"type": "reconstruct", "args": {"detach": False}}
TARGET = {
    "type": "reconstruct",
    "args": {"in_key": "y", "out_key": "y_target_processed"},
}
TWIN = {"per_step": {"prediction": PREDICTION, "target": TARGET}}
BASE = {"type": "base", "args": {"var_weighting": "none", "training_loss": "mse"}}


def blocks(plan, **blocks):
    return plan.problems(loss=BASE, postblocks={"per_step": blocks})


CASES.rows(
    blocks,
    {},
    {"prediction": {"type": "reconstruct"}, "target": TARGET},
    {"prediction": PREDICTION},
    name="blocks",
)


def scaler(plan, tmp_path, **args):
    args = {key: str(tmp_path / value) for key, value in args.items()}
    return plan.problems(loss={"type": "base", "args": args}, postblocks=TWIN)


CASES.rows(scaler, {"scaler_path": "scaler.json"}, {}, name="scaler")


# Files of latitudes: those of the data in another order, and others.
ROWS = GRID["latitude"]
FILES: dict[str, Any] = {
    "colatitudes": {"latitude": 90 - ROWS},
    "radians": {"latitude": np.deg2rad(ROWS)},
    "another range": {"latitude": 0.5 * ROWS},
    "two rows": {"latitude": [1.0, 2.0]},
    "y": {"y": [10.0]},
    "a text": None,
}


def write(coords: Any, path: Path) -> None:
    if coords is None:
        path.write_text("no data")
    else:
        xr.Dataset(coords=coords).to_netcdf(path, engine="h5netcdf")


def weighed(path):
    """The sections of a loss and metrics with the latitudes of a file."""
    rows = {"use_latitude_weights": True, "latitude_weights": str(path)}
    args = {"metrics": {"rmse": {}}, **rows}
    return {
        "loss": {"training_loss": "mse", **rows},
        "metrics": {"type": "combined", "args": args},
    }


def latitudes(name, plan, tmp_path):
    write(FILES[name], tmp_path / "rows.nc")
    return plan.problems(**weighed(tmp_path / "rows.nc"))


CASES.rows(latitudes, *FILES, name="latitudes")


def test_latitudes_that_are_read(tmp_path):
    write({"latitude": [10.0, -10.0]}, tmp_path / "rows.nc")
    found = read_latitude(tmp_path / "rows.nc", "loss.file", OpenFiles())
    assert found.tolist() == [10.0, -10.0]


@CASES.case
@pytest.mark.reference
def scalers_of_another_data_set(plan, tmp_path):
    """They weigh nothing, which no error would tell."""
    from tests.reference.scalers import fit_scalers

    field = xr.Dataset({"Q": (("lat", "lon"), np.arange(4.0).reshape(2, 2))})
    fit_scalers(tmp_path, field, {"Q": "CESM/prognostic/2d/Q"})
    args = {"scaler_path": str(tmp_path / "scaler.json")}
    args |= {"var_weighting": "inverse_variance"}
    metrics = {"metrics": {"rmse": {}, "mae": {}}, **args}
    found = plan(
        loss={"type": "base", "args": args},
        metrics={"type": "combined", "args": metrics},
        postblocks=TWIN,
    )
    return [note for note in found.notes if "has no variance" in note]


def normalized(weighting, undone, plan, world):
    """Weights of `type: base` are for physical units, which a postblock must make."""
    files = {"mean_path": f"{world}/mean.nc", "std_path": f"{world}/std.nc"}
    blocks = dict(TWIN["per_step"])
    for key in ("y_processed", "y_target_processed") if undone else ():
        args = {**files, "levels": [1, 3], "key": key}
        blocks[f"{key} undone"] = {"type": "era5_normalizer", "args": args}
    args = {"var_weighting": weighting, "training_loss": "mse"}
    loss = {"type": "base", "args": args}
    notes = plan(loss=loss, postblocks={"per_step": blocks}).notes
    return [note for note in notes if note.startswith("loss.type: base scores nor")]


CASES.rows(
    normalized, ("manual", False), ("manual", True), ("none", False), name="weights"
)


def without_units(after):
    """A log of the initial state alone, which nothing undoes, is noted."""
    args = {"variables": ["ERA5/prognostic/2d/SP"]}
    before = {"ic_only": {"log": {"type": "log_transform", "args": args}}}
    before |= {"per_step": {"concat": {"type": "concat"}}}
    after = {name: {"type": name} for name in after}
    if "exp_transform" in after:
        after["exp_transform"]["args"] = args
    pipeline = build_pipeline(
        parse(PreblocksConfig, before), parse(PostblocksConfig, {"per_step": after})
    )
    return [*notes_on_initial(pipeline)]


CASES.rows(
    without_units,
    (["reconstruct"],),
    (["reconstruct", "exp_transform"],),
    name="without units",
)
