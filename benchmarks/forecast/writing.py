"""Files of a forecast, beside the same files of arrays in memory.

    python -m benchmarks.forecast.writing [--steps 40] [--grid 640 1280] [--out FOLDER]

A model of one layer on the variables of configs/wxformer_025deg.yaml. Three sides take
turns: the store of the forecasts writes fields that are in memory; the forecast is made
and its fields are taken from the devices, as for a store, and dropped; the forecast is
written. CREDIT has no part in it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from benchmarks.gpu.store import START, prepare
from benchmarks.report import Table, add_out_option, publish
from credit_jax.config import build_config
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.forecast import Forecaster
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.campaign import Campaign
from credit_jax.forecast.delivery import ForecastStore
from credit_jax.forecast.netcdf import NetcdfStore
from credit_jax.forecast.outputs import outputs_of
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.io.workers import Workers
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.forecast import plan_forecast

# Name -> format and encoding.
FORMATS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "NetCDF": ("netcdf", {}),
    "NetCDF, zlib": ("netcdf", {"zlib": True, "complevel": 1}),
    "Zarr": ("zarr", {"zlib": False}),
    "Zarr, zstd": ("zarr", {}),
}
MEMORY, ALONE, FORECAST = "arrays in memory", "forecast without files", "forecast"


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measures all formats, and writes the report; returns its path."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory(dir=options.data) as scratch:
        runs = {name: _runs(name, Path(scratch), options) for name in options.formats}
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = runs[options.formats[0]][FORECAST][0]["bytes"]
    return publish(
        "forecast_writing",
        [
            "# Writing forecasts",
            f"{_INTRO} The process had at most {peak / 1e9:.1f} GB at a time; the "
            f"files of the first format have {size * options.steps / 1e9:.1f} GB.",
            Table("Writing forecasts", _HEADER, [_row(*run) for run in runs.items()]),
        ],
        {"runs": runs, "memory": peak},
        config={k: getattr(options, k) for k in ("steps", "grid", "rounds", "writers")},
        folder=options.out,
    )


_INTRO = (
    "Milliseconds a step, of the processors (user and system) and of the clock, as "
    "medians of the rounds. `added`: the processor time of the forecast with files, "
    "without that of the same forecast without files, over that of the same store for "
    "arrays in memory. `wall`: the time of the forecast with files over the larger of "
    "the other two, which share the processors here."
)
_HEADER = ["store", "MB a step", "memory: processors", "clock", "no files: processors"]
_HEADER += ["clock", "forecast: processors", "clock", "added", "wall"]


class _Dropping(ForecastStore):
    """Takes the fields of each step from the devices, as stores do, and drops them."""


def _runs(
    name: str, scratch: Path, options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """The rounds of each side of a format."""
    form, encoding = FORMATS[name]
    campaign = _campaign(form, encoding, scratch, options)
    silent, store = replace(campaign, store=ForecastStore()), cast(Any, campaign.store)
    fields = _fields(silent)
    sides = {
        MEMORY: lambda out: _write(replace(campaign, **out), fields),
        ALONE: lambda out: replace(campaign, **out | {"store": _Dropping()}).run(),
        FORECAST: lambda out: replace(campaign, **out).run(),
    }
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, run in sides.items():
            folder = scratch / "out"
            out = {
                "archive": replace(campaign.archive, folder=folder),
                "store": replace(store, folder=folder),
            }
            wall, processors = time.perf_counter(), time.process_time()
            run(out)
            seconds = {
                "wall": (time.perf_counter() - wall) / options.steps,
                "processors": (time.process_time() - processors) / options.steps,
            }
            files = [path for path in folder.rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files)
            shutil.rmtree(folder)
            runs[side].append({**seconds, "bytes": size / options.steps})
            print(name, side, runs[side][-1], flush=True)
    return runs


def _campaign(
    form: str, encoding: Any, scratch: Path, options: argparse.Namespace
) -> Campaign:
    """The forecast of a format, from random weights; the first one writes the data."""
    raw = prepare(
        "025deg",
        scratch / "data",
        times=2,
        forced=options.steps + 2,
        grid=tuple(options.grid),
    )
    raw["postblocks"]["per_step"].pop("reconstruct_target", None)
    raw["inference"] = {
        "run_mode": "single",
        "single_forecast": {"start_datetime": START},
        "output": {"format": form, "encoding": encoding},
    }
    plan = plan_forecast(
        build_config(raw),
        ParallelismConfig.model_validate({"data": "none"}),
        num_devices=1,
        num_steps=options.steps,
    )
    model = plan.model.build(jax.devices()[:1], mp_policy=default_mp_policy("float32"))
    outputs = outputs_of(plan, model)
    weights = Forecaster(model, *jax.jit(model.init)(jax.random.key(0))).weights
    store: Any = (
        NetcdfStore(scratch, outputs, plan.schedule, plan.inference.output)
        if form == "netcdf"
        else ZarrStore(scratch, outputs, plan.schedule, config=plan.inference.output)
    )
    return Campaign(
        plan,
        ForecastStep(model, plan.rollout, outputs.selection),
        weights,
        outputs,
        store,
        Archive(scratch, plan.schedule, {}, {}, outputs.coordinates),
        plan.schedule.groups(1, (1, 1)),
        1,
        num_writers=options.writers,
    )


def _fields(campaign: Campaign) -> dict[str, np.ndarray]:
    """The fields after the first step, on the host; compiles it."""
    (task,) = campaign.archive.schedule.tasks
    stream = campaign.reader.stream([[task]], 2, campaign.step.model.mesh)
    state, constants = campaign.step.start(next(stream).arrays)
    _, fields = campaign.step(campaign.weights, state, constants, next(stream))
    return {key: np.array(x)[0, :, 0] for key, x in fields.items()}


def _write(campaign: Campaign, fields: dict[str, np.ndarray]) -> None:
    """Writes fields as those of each step, on the threads of a campaign."""
    schedule, store = campaign.archive.schedule, campaign.store
    count = campaign.num_writers
    files = Workers(count, 2 * count, "write")
    campaign.archive.create()
    store.create()
    writer = store.writer(schedule.tasks[0])
    for step in range(store.first_step, schedule.num_steps + 1):
        for job in writer.add(step, fields):
            files.submit(job)
    for job in writer.finish():
        files.submit(job)
    files.close()


def _row(name: str, runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    rounds = [*zip(*(runs[side] for side in (MEMORY, ALONE, FORECAST)), strict=True)]
    seconds = [
        f"{1e3 * np.median([run[kind] for run in runs[side]]):.0f}"
        for side in (MEMORY, ALONE, FORECAST)
        for kind in ("processors", "wall")
    ]
    added = [
        (both["processors"] - alone["processors"]) / memory["processors"]
        for memory, alone, both in rounds
    ]
    wall = [
        both["wall"] / max(memory["wall"], alone["wall"])
        for memory, alone, both in rounds
    ]
    size = runs[FORECAST][0]["bytes"]
    return [
        name,
        f"{size / 1e6:.0f}",
        *seconds,
        *(f"{np.median(x):.2f}" for x in (added, wall)),
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast.writing")
    add = parser.add_argument
    add("--formats", nargs="+", choices=FORMATS, default=[*FORMATS])
    add("--steps", type=int, default=40, help="of the forecast")
    add("--grid", nargs=2, type=int, default=[640, 1280], metavar=("ROWS", "COLUMNS"))
    add("--rounds", type=int, default=3, help="of all sides")
    add("--writers", type=int, default=max(1, min(4, (os.cpu_count() or 1) // 2)))
    add("--data", type=Path, help="folder of data and files, on a fast disk")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
