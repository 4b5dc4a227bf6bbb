"""CREDIT's own trainer on one process, or on several along its domain axis."""

from __future__ import annotations

import copy
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from tests.reference.dataset import write_dataset

_ROOT = Path(__file__).parents[1]
_TIME_LIMIT = 900  # seconds
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?(\w*(?:Error|Exception): .*)$", re.MULTILINE)


@dataclass(frozen=True)
class CreditRun:
    """What CREDIT did with a config.

    Attributes:
        x: (step, batch, channel, time, lat, lon) given to the model, before padding.
        y: (step, batch, channel, time, lat, lon) target.
        loss: (step,) mean over all rows.
        gradient_norm: (step,) before clipping.
        prediction: (batch, channel, lat, lon) of the first step, all rows.
        initial: state dict before the first step.
        weights: norm of all parameters before the first step.
    """

    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    gradient_norm: np.ndarray
    prediction: np.ndarray
    initial: dict[str, np.ndarray]
    weights: float


def write_data(folder: Path, num_rows: int) -> np.ndarray:
    """Writes the data set of the tests, on a grid of `num_rows` rows.

    Returns:
        (num_rows,) latitudes in degrees.
    """
    latitude = np.linspace(90, -90, num_rows)
    with tempfile.TemporaryDirectory() as scratch:
        write_dataset(Path(scratch))
        for path in Path(scratch).iterdir():
            with xr.open_dataset(path) as fields:
                if "latitude" in fields.dims:
                    rows = np.resize(np.arange(fields.sizes["latitude"]), num_rows)
                    fields = fields.isel(latitude=rows)
                    fields = fields.assign_coords(latitude=latitude)
                fields.to_netcdf(folder / path.name)
    return latitude


def credit_run(
    config: Mapping[str, Any], folder: Path, *, domain: int = 1
) -> CreditRun | str:
    """Trains with CREDIT on `domain` processes that share one sample's rows.

    Args:
        config: CREDIT's gen2 YAML as a mapping; paths in it start at `folder`.
        folder: with the data.
        domain: CREDIT's `parallelism.domain`, and the number of processes.

    Returns:
        The run, or CREDIT's error where it refuses this config.
    """
    raw = copy.deepcopy(dict(config))
    raw["save_loc"] = f"./credit{domain}"
    raw["trainer"]["parallelism"]["domain"] = domain
    out = folder / f"watched{domain}"
    out.mkdir()
    path = folder / f"credit{domain}.yml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    printed = _launch(path, out, folder, domain)
    if not all((out / f"rank{rank}.npz").exists() for rank in range(domain)):
        return _last_error(printed)
    return _read(out, domain)


def _launch(path: Path, out: Path, folder: Path, num: int) -> str:
    """Runs all processes; what they printed, rank after rank."""
    command = [sys.executable, "-m", "benchmarks.credit_process", str(path), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
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
    """Waits for all; when one fails its peers, which wait for it, are ended."""
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


def _read(out: Path, num: int) -> CreditRun:
    ranks = []
    for rank in range(num):
        with np.load(out / f"rank{rank}.npz") as arrays:
            ranks.append(dict(arrays))
    with np.load(out / "initial.npz") as arrays:
        initial = dict(arrays)
    first = ranks[0]
    return CreditRun(
        x=first["x"],
        y=first["y"],
        # Equal shards: the mean over processes is the mean over all rows.
        loss=np.mean([r["loss"] for r in ranks], axis=0),
        gradient_norm=first["gradient_norm"],
        prediction=np.concatenate([r["prediction"][0] for r in ranks], axis=-2),
        initial=initial,
        weights=float(first["weights"][0]),
    )
