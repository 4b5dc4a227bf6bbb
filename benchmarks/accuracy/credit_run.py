"""Runs CREDIT's trainer on one process, or on several with its domain axis or FSDP2."""

from __future__ import annotations

import copy
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from tests.reference.dataset import NUM_LON, write_dataset

_ROOT = Path(__file__).parents[2]
_TIME_LIMIT = 900  # seconds
# Fraction of a field's variance in waves; the rest is the original noise.
_WAVE = 0.9
_WAVENUMBERS = (1, 2, 3)
# Radians of longitude per time step.
_SPEED = 0.2
_WAVY = ("T", "U", "SP")
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?(\w*(?:Error|Exception): .*)$", re.MULTILINE)


@dataclass(frozen=True)
class CreditRun:
    """The record of a training run of CREDIT.

    Attributes:
        x: (step, batch, channel, time, lat, lon) given to the model, before padding.
        y: (step, batch, channel, time, lat, lon) target.
        loss: (step,) mean over all rows.
        gradient_norm: (step,) before clipping.
        prediction: (batch, channel, lat, lon) of the first step, all rows.
        gradients: gradients of the first step by parameter, before clipping, in
            CREDIT's order; its domain axis changes the names of some parameters.
        rollout: (step, batch, prognostic, lat, lon) of the first batch; empty without.
        initial: state dict before the first step.
        final: state dict after the last step.
        weights: norm of all parameters before the first step.
        further: inputs of the model besides x by name, (step, batch, ...) each.
    """

    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    gradient_norm: np.ndarray
    prediction: np.ndarray
    gradients: dict[str, np.ndarray]
    rollout: np.ndarray
    initial: dict[str, np.ndarray]
    final: dict[str, np.ndarray]
    weights: float
    further: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class CreditWay:
    """The settings of a run of CREDIT.

    Attributes:
        domain: CREDIT's `parallelism.domain`: processes that share a sample's rows.
        data: processes that share a batch and split the parameters (fsdp2).
        threads: threads of torch in each process.
        bfloat16: whether forward and loss run under torch.autocast on the CPU.
    """

    domain: int = 1
    data: int = 1
    threads: int = 1
    bfloat16: bool = False

    @property
    def num_processes(self) -> int:
        return self.domain * self.data

    @property
    def label(self) -> str:
        """A name for files, different for all settings."""
        dtype = "-bfloat16" if self.bfloat16 else ""
        return f"data{self.data}-domain{self.domain}-threads{self.threads}{dtype}"


def write_data(
    folder: Path, num_rows: int, *, num_columns: int = NUM_LON, waves: bool = False
) -> np.ndarray:
    """Writes the data set of the tests, on another grid.

    Args:
        folder: folder of the data set.
        num_rows, num_columns: number of rows and columns of the grid.
        waves: replace most of the noise by traveling waves, which can be learned.

    Returns:
        (num_rows,) latitudes in degrees.
    """
    latitude = np.linspace(90, -90, num_rows)
    longitude = np.arange(num_columns) * 360 / num_columns
    with tempfile.TemporaryDirectory() as scratch:
        write_dataset(Path(scratch))
        for path in Path(scratch).iterdir():
            with xr.open_dataset(path) as fields:
                if "latitude" in fields.dims:
                    rows = np.resize(np.arange(fields.sizes["latitude"]), num_rows)
                    columns = np.resize(
                        np.arange(fields.sizes["longitude"]), num_columns
                    )
                    fields = fields.isel(latitude=rows, longitude=columns)
                    fields = fields.assign_coords(
                        latitude=latitude, longitude=longitude
                    )
                if waves and "time" in fields.dims:
                    fields = add_waves(fields)
                fields.to_netcdf(folder / path.name)
    return latitude


def add_waves(fields: xr.Dataset) -> xr.Dataset:
    """Makes prognostic variables travel east, with unchanged mean and deviation.

    Each level of a variable is a sum of waves `cos(k (lon - speed t) + phase)` with an
    envelope over latitude, and a tenth of its variance is the original noise.

    Args:
        fields: fields with T, U (time, level, latitude, longitude) and SP (time,
            latitude, longitude).
    """
    rng = np.random.default_rng(1)
    changed = {}
    for name in _WAVY:
        field = fields[name]
        mean, spread = float(field.mean()), float(field.std())
        noise = (field.values - mean) * np.sqrt(1 - _WAVE)
        wave = spread * np.sqrt(_WAVE) * _waves(field.shape, rng)
        changed[name] = (field.dims, (mean + noise + wave).astype(np.float32))
    return fields.assign(changed)


def _waves(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """(time, ..., lat, lon) of mean 0 and variance 1."""
    num_times, *middle, num_lat, num_lon = shape
    time = np.arange(num_times).reshape(-1, *[1] * (len(middle) + 2))
    lat = np.linspace(-np.pi / 2, np.pi / 2, num_lat)[:, None]
    lon = np.arange(num_lon) * 2 * np.pi / num_lon
    total = np.zeros(shape)
    for k in _WAVENUMBERS:
        phase = rng.uniform(0, 2 * np.pi, (*middle, 1, 1))
        total += np.cos(k * (lon - _SPEED * time) + phase) * np.cos(k * lat + phase)
    return (total - total.mean()) / total.std()


def credit_run(
    config: Mapping[str, Any],
    folder: Path,
    way: CreditWay | None = None,
    *,
    rollout: int = 0,
    rollout_from: Path | None = None,
) -> CreditRun | str:
    """Trains with CREDIT.

    Args:
        config: CREDIT's gen2 YAML as a mapping; paths in it start at `folder`.
        folder: folder with the data; `watched` names the folder of the records.
        way: processes, threads and dtype; by default one process and thread, float32.
        rollout: steps of a rollout after training.
        rollout_from: state dict to roll out from; None for the end of the training.

    Returns:
        The run, or CREDIT's error if it refuses the config.
    """
    way = way or CreditWay()
    raw = copy.deepcopy(dict(config))
    raw["save_loc"] = f"./{way.label}"
    trainer = raw["trainer"]
    trainer["parallelism"] |= {"domain": way.domain}
    if way.data > 1:
        trainer["parallelism"] |= {"data": "fsdp2"}
        # CREDIT counts the samples of each process.
        trainer["train_batch_size"] //= way.data
    out = watched(folder, way)
    out.mkdir()
    path = folder / f"{way.label}.yml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    options = ["--threads", str(way.threads), "--rollout", str(rollout)]
    options += ["--bfloat16"] if way.bfloat16 else []
    options += ["--rollout-from", str(rollout_from)] if rollout_from else []
    printed = _launch([str(path), str(out), *options], out, folder, way)
    if not all((out / f"rank{rank}.npz").exists() for rank in range(way.num_processes)):
        return _last_error(printed)
    return _read(out, way)


def watched(folder: Path, way: CreditWay) -> Path:
    """Folder of the records of a run; final.npz is its last state dict."""
    return folder / f"watched-{way.label}"


def _launch(arguments: list[str], out: Path, folder: Path, way: CreditWay) -> str:
    """Runs all processes; returns their output, rank by rank."""
    num = way.num_processes
    command = [sys.executable, "-m", "benchmarks.accuracy.credit_process", *arguments]
    threads = str(way.threads)
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": threads}
    # Waiting threads do not spin, because the cores are shared.
    environment |= {"OMP_WAIT_POLICY": "passive"}
    if num > 1:
        environment |= {"WORLD_SIZE": str(num), "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": str(_free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    logs = [out / f"rank{rank}.log" for rank in range(num)]
    processes = []
    for rank, log in enumerate(logs):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if num > 1 else {}
        with log.open("w") as stream:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment | ranks,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
    _wait(processes)
    return "\n".join(log.read_text() for log in logs)


def _wait(processes: list[subprocess.Popen]) -> None:
    """Waits for all processes; ends the others if one fails."""
    try:
        for process in processes:
            if process.wait(_TIME_LIMIT) != 0:
                break
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _last_error(printed: str) -> str:
    errors = _ERROR.findall(printed)
    if not errors:
        raise RuntimeError(f"CREDIT ended without an error:\n{printed[-3000:]}")
    return errors[0]


def _read(out: Path, way: CreditWay) -> CreditRun:
    ranks = [_arrays(out / f"rank{rank}.npz") for rank in range(way.num_processes)]
    # Ranks along the data axis have different samples, those along the domain axis
    # different rows; their rollouts were gathered.
    groups = [ranks[i : i + way.domain] for i in range(0, len(ranks), way.domain)]
    firsts = [group[0] for group in groups]
    rows = [
        np.concatenate([r["prediction"][0] for r in group], axis=-2) for group in groups
    ]
    return CreditRun(
        x=np.concatenate([r["x"] for r in firsts], axis=1),
        y=np.concatenate([r["y"] for r in firsts], axis=1),
        # Equal shards: the mean over processes is the mean over all rows.
        loss=np.mean([r["loss"] for r in ranks], axis=0),
        gradient_norm=ranks[0]["gradient_norm"],
        prediction=np.concatenate(rows),
        gradients=_arrays(out / "gradients.npz"),
        rollout=_rollout(firsts),
        initial=_arrays(out / "initial.npz"),
        final=_arrays(out / "final.npz"),
        weights=float(ranks[0]["weights"][0]),
    )


def _rollout(ranks: list[dict[str, np.ndarray]]) -> np.ndarray:
    if "rollout" not in ranks[0]:
        return np.zeros(0)
    return np.concatenate([r["rollout"] for r in ranks], axis=1)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)
