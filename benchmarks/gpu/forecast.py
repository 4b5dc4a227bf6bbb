"""A forecast of 40 steps with its files, and CREDIT's beside it.

Same initial weights, data and files, one for each step; float32. The commands are those
of users: `credit-jax forecast`, and CREDIT's `rollout_gen2`.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from benchmarks.gpu import records
from benchmarks.gpu.records import Results, Setting
from benchmarks.gpu.store import START, prepare, write_config
from benchmarks.report import Table
from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.models.conversion import to_state_dict
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.ops.compensated import relative_error

TITLE = "A forecast with files"
OURS, CREDIT, BOTH = "credit_jax", "CREDIT", "distance"
_ROOT = Path(__file__).parents[2]
_STEPS, _REHEARSED, _HOURS = 40, 2, 6
_ROLLOUT = (
    "import sys; from credit_torch_bridge.compare.jax_side import import_credit; "
    "import_credit('applications.rollout_gen2').main()"
)
_PRINTED = re.compile(r"devices idle (?P<idle>[\d.]+) % of the (?P<total>[\d.]+) s")


def items(setting: Setting) -> list[str]:
    """Both sides, then how far apart their forecasts are."""
    del setting
    return [OURS, CREDIT, BOTH]


def environment(item: str) -> dict[str, str]:
    """Variables of the process, which leaves the device to the command that it runs."""
    del item
    return {"JAX_PLATFORMS": "cpu"}


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns seconds of the command and of a step, or distances of the two."""
    folder = setting.scratch / "forecast"
    steps = _REHEARSED if setting.rehearse else _STEPS
    if item == BOTH:
        return _distances(folder, setting)
    config = prepare("1deg", folder, times=2, forced=steps + 2, tiny=setting.rehearse)
    path = _case(config, folder / item, item, steps)
    out = path.parent / "forecasts"
    shutil.rmtree(out, ignore_errors=True)
    if item == CREDIT:
        arguments = ["-c", _ROLLOUT, "-c", str(path), "--procs", "4"]
        return _command(arguments, path, out)
    arguments = ["-m", "credit_jax.forecast", "--config", str(path)]
    arguments += ["--out", str(out), "--cache", str(setting.scratch / "forecast-cache")]
    first = _command(arguments, path, out)
    if setting.rehearse:
        return first
    save(first)
    # Again, with the programs of the first.
    shutil.rmtree(out)
    return _command(arguments, path, out) | {"first": first["command"]}


def _case(config: Mapping[str, Any], folder: Path, item: str, steps: int) -> Path:
    """Writes the YAML and the checkpoint of a side; returns the YAML."""
    case = copy.deepcopy(dict(config)) | {"save_loc": str(folder / "run")}
    case["trainer"]["amp"] = False
    case["trainer"].pop("fsdp2_mp_policy", None)
    case["postblocks"]["per_step"].pop("reconstruct_target", None)
    case["inference"] = {
        "mode": "none",
        "run_mode": "single",
        "save_forecast": str(folder / "forecasts"),
        "single_forecast": {
            "start_datetime": START,
            "forecast_length": f"{_HOURS * steps}h",
        },
    }
    run = folder / "run"
    run.mkdir(parents=True, exist_ok=True)
    weights = _initial_weights(case["model"])
    if item == CREDIT:
        import torch

        state = to_state_dict(*weights)
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        torch.save({"model_state_dict": tensors}, run / "checkpoint.pt")
    elif not (run / "checkpoints").exists():
        _, params, model_state = weights
        store = CheckpointStore(run)
        tree = {"weights": {"params": params, **model_state}}
        store.save(1, tree, Progress(epoch=0))
        store.close()
    return write_config(case, folder / "case.yml")


def _initial_weights(config: Mapping[str, Any]) -> tuple[ModelDef, Any, Any]:
    """The model, and weights whose forecasts stay finite for many steps.

    Those of `draws` do not: their vectors of spectral norm belong to other weights.
    """
    model_def, key = build(config), jax.random.key(0)
    params = jax.jit(model_def.init)(key)
    model_state = jax.jit(model_def.init_model_state)(key, params)
    host = jax.tree.map(np.array, (params, model_state))
    return model_def, *host


def _command(arguments: Sequence[str], config: Path, out: Path) -> dict[str, Any]:
    """Runs a forecast; returns its seconds, those of a step, and of its files."""
    environment = {**os.environ, "PYTHONPATH": _path()}
    environment.pop("JAX_PLATFORMS", None)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=config.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    print(done.stdout, flush=True)
    if done.returncode:
        raise RuntimeError(f"the forecast failed:\n{done.stdout[-3000:]}")
    files = _files(out)
    times = sorted(path.stat().st_mtime for path in files)
    printed = _PRINTED.search(done.stdout)
    return {
        "command": seconds,
        "step": (times[-1] - times[0]) / (len(times) - 1),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "idle": float(printed["idle"]) if printed else None,
    }


def _path() -> str:
    """PYTHONPATH of a command that runs in another folder."""
    return os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])


def _files(out: Path) -> list[Path]:
    files = sorted(out.rglob("*.nc"))
    if len(files) < 2:
        raise RuntimeError(f"there are {len(files)} files below {out}, one a step")
    return files


def _distances(folder: Path, setting: Setting) -> dict[str, Any]:
    """Relative distances of the two forecasts at their first and last step."""
    for item in (OURS, CREDIT):
        record = records.read(setting.out, "forecast", item) or {}
        if record.get("status") != records.DONE:
            raise RuntimeError(f"there is no forecast of {item} to compare")
    ours, theirs = (_files(folder / item / "forecasts") for item in (OURS, CREDIT))
    distances = {"files": len(ours)}
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} files of ours, {len(theirs)} of CREDIT")
    for name, index in (("first step", 0), ("last step", -1)):
        distances[name] = _distance(ours[index], theirs[index])
    return distances


def _distance(ours: Path, theirs: Path) -> float:
    """The largest relative distance of a variable."""
    with xr.open_dataset(ours) as a, xr.open_dataset(theirs) as b:
        names = [name for name in b.data_vars if b[name].ndim >= 2]
        if not names:
            raise RuntimeError(f"{theirs} has no fields")
        return max(
            relative_error(*(np.squeeze(x[name].to_numpy()) for x in (a, b)))
            for name in names
        )


def tables(results: Results) -> Sequence[str | Table]:
    """One row a side."""
    rows = [
        [
            item,
            f"{result['command']:.1f}",
            f"{result['first']:.1f}" if "first" in result else "",
            f"{1e3 * result['step']:.0f}",
            f"{result['files']}",
            f"{result['bytes'] / 1e6:.0f}",
            f"{result['idle']:.0f} %" if result.get("idle") is not None else "",
        ]
        for item, result in results.items()
        if "command" in result
    ]
    header = ["", "command, s", "first time, s", "between two files, ms", "files"]
    header += ["MB", "device idle"]
    sections: list[str | Table] = [Table("Forecasts", header, rows)]
    both = results.get(BOTH, {})
    if "last step" in both:
        sections.append(
            f"The first step of the two is {both['first step']:.1e} apart, the last "
            f"{both['last step']:.1e}: the variable that is furthest away."
        )
    return sections


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    if "last step" in result:
        return f"{result['first step']:.1e} apart, at last {result['last step']:.1e}"
    return f"{result['command']:.1f} s, {1e3 * result['step']:.0f} ms between two files"
