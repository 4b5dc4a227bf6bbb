"""The training jobs: CREDIT's YAML and the data that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from benchmarks.accuracy.case import DEPTH
from benchmarks.trajectory import atmosphere
from tests.reference.dataset import write_dataset
from tests.reference.scalers import SCALED, fit_scalers, scaler_blocks, write_scalers
from tests.reference.training import GEN2_CONFIG

MESHES = ("1", "dp2xtp2xdomain2")
NUM_EPOCHS, BATCHES_PER_EPOCH, VALID_BATCHES = 5, 10, 3
NUM_STEPS = NUM_EPOCHS * BATCHES_PER_EPOCH

_HELD_OUT = {"start_datetime": "2000-01-08", "end_datetime": "2000-01-13"}
_WARM_UP = {
    "scheduler_type": "linear-warmup-cosine",
    "warmup_steps": 10,
    "total_steps": 60,
    "min_lr": 1e-5,
}
_RESTARTS = {
    "scheduler_type": "cosine-annealing-restarts",
    "first_cycle_steps": 20,
    "cycle_mult": 1.5,
    "max_lr": 1e-3,
    "min_lr": 1e-5,
    "warmup_steps": 4,
    "gamma": 0.7,
}
_PLATEAU = {
    "scheduler_type": "plateau",
    "mode": "min",
    "factor": 0.3,
    "patience": 0,
    "threshold": 0.5,
}


@dataclass(frozen=True)
class Case:
    """A training job.

    Attributes:
        change: changes CREDIT's YAML, a mapping, in place.
        write: writes the data into a folder.
        validation: keys of `validation_data` that differ from `data`.
        spread: standard deviation of noise that is added to predictions.
        meshes: meshes to train on.
    """

    change: Callable[[dict[str, Any]], None]
    write: Callable[[Path], None] = write_dataset
    validation: Mapping[str, Any] = field(default_factory=lambda: _HELD_OUT)
    spread: float = 0.0
    meshes: tuple[str, ...] = MESHES


def base_config() -> dict[str, Any]:
    """CREDIT's YAML that all cases start from: one step, 5 epochs of 10 batches."""
    raw = yaml.safe_load(GEN2_CONFIG.read_text())
    raw["model"]["depth"] = [*DEPTH]
    raw["trainer"] |= {
        "batches_per_epoch": BATCHES_PER_EPOCH,
        "valid_batches_per_epoch": VALID_BATCHES,
        "epochs": NUM_EPOCHS,
        "num_epoch": NUM_EPOCHS,
        "use_ema": False,
        "scheduler": dict(_WARM_UP),
    }
    return raw


def write_case(case: Case, folder: Path) -> Path:
    """Writes the data and the YAML of a case; returns the path of the YAML."""
    case.write(folder)
    raw = base_config()
    case.change(raw)
    raw["validation_data"] = raw["data"] | case.validation
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def scheduled(scheduler: Mapping[str, Any]) -> Case:
    """A case that differs by its learning rate schedule."""
    return Case(lambda raw: raw["trainer"].update(scheduler=dict(scheduler)))


def forecast(forecast_len: int, backprop_on: list[int]) -> Case:
    """A case of several steps, in training and validation."""

    def change(raw: dict[str, Any]) -> None:
        raw["data"]["forecast_len"] = forecast_len
        raw["trainer"]["backprop_on_timestep"] = backprop_on
        _scale_with_bridgescaler(raw, SCALED.values())

    return Case(change, _write_scaled)


def _accumulation(raw: dict[str, Any]) -> None:
    raw["trainer"] |= {
        "grad_accum_every": 3,
        "grad_max_norm": 0.1,
        "use_ema": True,
        "ema_decay": 0.9,
        "weight_decay": 0.01,
    }


def _crps(raw: dict[str, Any]) -> None:
    """KCRPS with one sample per batch; with more, CREDIT's metrics fail."""
    raw["trainer"] |= {
        "ensemble_size": 2,
        "train_batch_size": 1,
        "valid_batch_size": 1,
    }
    raw["loss"] |= {"training_loss": "KCRPS", "validation_loss": "KCRPS"}


def _log_transforms_and_base(raw: dict[str, Any]) -> None:
    """Logarithms and roots before scalers; `base` with weights of variables."""
    _scale_with_bridgescaler(raw, SCALED.values())
    logs = {"variables": ["ERA5/diagnostic/2d/TP"], "eps": 1e-3}
    roots = {"variables": ["ERA5/prognostic/2d/SP"]}
    pre, post = raw["preblocks"]["per_step"], raw["postblocks"]["per_step"]
    post["reconstruct"]["args"]["detach"] = False
    raw["preblocks"]["per_step"] = {
        "log": {"type": "log_transform", "args": logs},
        "sqrt": {"type": "sqrt_transform", "args": roots},
        **pre,
    }
    undo = {
        "square": {"type": "square_transform", "args": roots},
        "exp": {"type": "exp_transform", "args": logs},
    }
    twin = {
        f"{name}_twin": {**block, "args": block["args"] | {"key": "y_target_processed"}}
        for name, block in undo.items()
    }
    raw["postblocks"]["per_step"] = {**post, **undo, **twin}
    raw["loss"] = {
        "type": "base",
        "args": {
            "training_loss": "mae",
            "validation_loss": "mse",
            "var_weighting": "inverse_variance",
            "scaler_path": "./scaler.json",
            "variable_weights": {"ERA5/prognostic/3d/T": 2.0},
            "use_latitude_weights": True,
            "latitude_weights": "./static.nc",
        },
    }


def _two_calendars(raw: dict[str, Any]) -> None:
    """A source without leap days, and a forcing of the standard calendar."""
    era5 = raw["data"]["source"]["ERA5"]
    variables = era5["variables"]
    for group in ("prognostic", "diagnostic"):
        variables[group]["path"] = "./noleap.nc"
    variables["dynamic_forcing"] = None
    path = "./ocean.nc"
    ocean = {
        "dataset_type": "local",
        "variables": {"dynamic_forcing": {"vars_2D": ["sst"], "path": path}},
    }
    period = {"start_datetime": "2000-02-22", "end_datetime": "2000-03-06"}
    raw["data"] |= period | {"source": {"ERA5": era5, "ocean": ocean}}


def _write_two_calendars(folder: Path) -> None:
    write_dataset(folder)
    with xr.open_dataset(folder / "d_2000.nc") as fields:
        fields = fields.load()
    calendar_times = xr.date_range(
        "2000-02-22",
        periods=fields.sizes["time"],
        freq="6h",
        calendar="noleap",
        use_cftime=True,
    )
    fields.assign_coords(time=calendar_times).to_netcdf(folder / "noleap.nc")
    times = xr.date_range("2000-02-20", "2000-03-31", freq="6h", use_cftime=False)
    rng = np.random.default_rng(7)
    shape = (len(times), fields.sizes["latitude"], fields.sizes["longitude"])
    sst = (("time", "latitude", "longitude"), rng.random(shape).astype(np.float32))
    grid = {name: fields[name] for name in ("latitude", "longitude")}
    ocean = xr.Dataset({"sst": sst}, coords={"time": times, **grid})
    ocean.to_netcdf(folder / "ocean.nc")


def _write_scaled(folder: Path) -> None:
    write_dataset(folder)
    write_scalers(folder)


def _write_logs_scaled(folder: Path) -> None:
    """Fits the scalers to their inputs: logarithms and roots."""
    write_dataset(folder)
    with xr.open_dataset(folder / "d_2000.nc") as fields:
        scaled = fields.assign(
            TP=np.log(fields["TP"] + 1e-3) - np.log(1e-3), SP=np.sqrt(fields["SP"])
        )
        fit_scalers(folder, scaled)


def _scale_with_bridgescaler(raw: dict[str, Any], keys: Iterable[str]) -> None:
    """Adds blocks that scale before each step, and unscale target and output after."""
    forth, back, twin = scaler_blocks(keys)
    raw["preblocks"] = {"per_step": {"scaler": forth, "concat": {"type": "concat"}}}
    raw["postblocks"]["per_step"] |= {"scaler": back, "scaler_twin": twin}


def _write_atmosphere(folder: Path) -> None:
    fields = atmosphere.write(folder)
    fit_scalers(folder, fields, atmosphere.SCALED)


def _conservation(raw: dict[str, Any]) -> None:
    atmosphere.configure(raw)
    _scale_with_bridgescaler(raw, atmosphere.SCALED.values())
    raw["postblocks"]["per_step"] |= atmosphere.fixers()


CASES: Mapping[str, Case] = {
    "two steps, gradients of both": forecast(2, [1, 2]),
    "two steps, gradient of the second": forecast(2, [2]),
    "three steps, mass, water and energy fixers": Case(
        _conservation, _write_atmosphere
    ),
    "BridgeScaler, log and sqrt, base loss": Case(
        _log_transforms_and_base, _write_logs_scaled
    ),
    "two sources, two calendars": Case(
        _two_calendars, _write_two_calendars, {"start_datetime": "2000-02-26"}
    ),
    # With a CRPS dp ranks train different members of the same samples, as in CREDIT; a
    # single process of CREDIT has no such batch.
    "KCRPS, two members of injected noise": Case(
        _crps, spread=0.1, meshes=("1", "tp2xdomain4")
    ),
    "accumulation, EMA, clipping, decay, warm-up": Case(_accumulation),
    "linear-warmup-cosine": scheduled(_WARM_UP),
    "cosine-annealing-restarts": scheduled(_RESTARTS),
    "cosine-annealing": scheduled({"scheduler_type": "cosine-annealing", "T_max": 4}),
    "lambda": scheduled({"scheduler_type": "lambda"}),
    "plateau": scheduled(_PLATEAU),
}
