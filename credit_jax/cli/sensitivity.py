"""What a forecast depends on: `python -m credit_jax.sensitivity --config F --of ...`.

Writes the gradient of a number of a forecast by its initial state, and a map of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.adjoint.forecast_map import map_of_reader
from credit_jax.adjoint.sensitivity import Sensitivity, sensitivity
from credit_jax.adjoint.target import parse_target
from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.forecast.model import config_of, package_of, planned, weights_of
from credit_jax.cli.forecast.options import add_model_options
from credit_jax.cli.options import (
    add_mesh_options,
    add_process_options,
    add_verify_option,
    join_processes,
)
from credit_jax.config.inference import OutputConfig
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.data.schedule import Task
from credit_jax.forecast import Forecaster
from credit_jax.forecast.member_noise import member_noise
from credit_jax.forecast.outputs import outputs_of
from credit_jax.io.atomic import new_file
from credit_jax.io.netcdf import write_netcdf
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.training.run_weights import RunWeights
from credit_jax.visualization.canvas import SUFFIXES, check_suffix, save_figure
from credit_jax.visualization.labels import field_text
from credit_jax.visualization.maps import Map, MapFigure, MapGrid, error_colors_of

HELP = "Compute the gradient of a number of a forecast by its initial state."
EXAMPLE = (
    "--config RUN/model.yml --init-time 2001-06-01 --lead 3d "
    "--of 'mean T500 in 45..60N 10W..20E' --out gradient.nc"
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.sensitivity")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `sensitivity`."""
    add_model_options(parser)
    add = parser.add_argument
    add("--init-time", required=True, metavar="DATE", help="start date of the forecast")
    add("--lead", required=True, metavar="DURATION", help="length of it: 3d, 36h")
    add(
        "--of",
        required=True,
        metavar="TARGET",
        help="the number: 'mean CHANNEL [in REGION]', weighted by area, such as "
        "'mean T500 in 45..60N 10W..20E' or 'mean SP in europe'",
    )
    add("--out", required=True, metavar="FILE", help="the gradient: NetCDF, .nc")
    add("--map", metavar="FILE", help="a map of one level of it: .png, .svg or .pdf")
    add_mesh_options(parser)
    add_verify_option(parser)
    add("--cache", metavar="DIR", help=CACHE_HELP)
    add_process_options(parser)


def run(args: argparse.Namespace) -> int:
    """Computes and writes the gradient.

    Raises:
        ValueError, OSError: the target, the model or its data are invalid.
    """
    target = parse_target(args.of)
    out = Path(args.out)
    check_suffix(out, (".nc",))
    if args.map is not None:
        check_suffix(Path(args.map), SUFFIXES)
    compile_sooner()
    package = package_of(args)
    config = config_of(args, package)
    use_cache(args.cache)
    join_processes(args)
    devices = forward_devices(parse_parallelism(args.parallelism), args.devices)
    checkpoint = package or weights_of(args, config)
    every = {"output": OutputConfig(), "members": 1}
    dates = argparse.Namespace(
        **{**vars(args), "init_time": [args.init_time], "steps": None}, length=args.lead
    )
    plan, model = planned(dates, config, checkpoint, devices, every)
    if isinstance(checkpoint, RunWeights):
        checkpoint = replace(checkpoint, channels=plan.schema.names)
    outputs = outputs_of(plan, model)
    variable = target.place(outputs)[2]
    target.weights(outputs)
    # Data-parallel devices compute the same forecast.
    tasks = [Task(0, 0)] * model.axes.num_data
    noise = member_noise(config.seed, plan.schedule, model)
    start = plan.schedule.starts[0]
    forecast = map_of_reader(
        model,
        Forecaster(model, *checkpoint.restore(model)).weights,
        plan.reader,
        [start] * len(tasks),
        tasks,
        None if noise is None else noise.of(tasks),
        plan.schedule.num_steps,
    )
    frames = range(1 - model.model_def.frames, 1)
    times = [plan.reader.data.time(start, frame) for frame in frames]
    result = sensitivity(forecast, target, outputs, times)
    if jax.process_index() == 0:
        with new_file(out) as path:
            write_netcdf(result.gradient, path, {})
        print_line(f"{target.text}, {args.lead} after {start}: {result.value:.6g}")
        print_line(f"written: {out}")
        if args.map is not None:
            save_figure(map_of(result, variable, args.lead), args.map)
            print_line(f"written: {args.map}")
    return OK


def map_of(result: Sensitivity, variable: str, lead: str) -> Any:
    """A map of the gradient by one variable, at the level where it is largest.

    Args:
        result: the gradient.
        variable: name of the variable; of others than prognostic ones there is no
            gradient, and the first one is shown.
        lead: lead time, for the title.
    """
    gradient = result.gradient
    name = variable if variable in gradient else str(next(iter(gradient.data_vars)))
    newest, level = gradient[name].isel(time=-1), None
    deep = [dim for dim in newest.dims if dim in gradient.coords][:-2]
    if deep:
        sizes = np.square(newest.values).sum(axis=(-2, -1))
        newest = newest.isel({deep[0]: int(sizes.argmax())})
        level = float(newest[deep[0]])
    grid = MapGrid(gradient["latitude"].values, gradient["longitude"].values)
    where = field_text(name, level)
    title = f"Gradient of {result.target.text}, {lead} later, by {where}"
    panel = Map("", newest.values, error_colors_of([newest.values]))
    units = str(gradient[name].attrs.get("units", ""))
    return MapFigure([panel], grid, title=title, units=units).figure


if __name__ == "__main__":
    sys.exit(main())
