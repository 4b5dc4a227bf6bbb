"""What a forecast depends on: `python -m credit_jax.sensitivity --config F --of ...`.

Writes the gradient of a number of a forecast by its initial state, and a map of it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.adjoint import area_weights, singular_vectors
from credit_jax.adjoint.growth import dataset_of, energy_factors
from credit_jax.adjoint.maps import State, map_of_plan
from credit_jax.adjoint.sensitivity import Sensitivity, sensitivity
from credit_jax.adjoint.target import parse_target
from credit_jax.cli.commands import (
    DIVERGED,
    OK,
    CommandError,
    print_line,
    run_module,
)
from credit_jax.cli.forecast.model import config_of, package_of, planned_forecasts
from credit_jax.cli.forecast.options import add_model_options
from credit_jax.cli.options import (
    add_mesh_options,
    add_process_options,
    add_verify_option,
    join_processes,
)
from credit_jax.config import not_available
from credit_jax.config.inference import OutputConfig
from credit_jax.data.schedule import steps_of
from credit_jax.forecast import Forecaster
from credit_jax.forecast.outputs import Outputs
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.io.netcdf import write_netcdf
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.transforms.base import variable_of
from credit_jax.visualization.canvas import SUFFIXES, check_suffix, save_figure
from credit_jax.visualization.labels import field_text
from credit_jax.visualization.maps import Map, MapFigure, MapGrid, error_colors_of

HELP = (
    "Compute the gradient of a number of a forecast by its initial state, or the "
    "perturbations that grow most."
)
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
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--of",
        metavar="TARGET",
        help="the number: 'mean CHANNEL [in REGION]', weighted by area, such as "
        "'mean T500 in 45..60N 10W..20E' or 'mean SP in europe'",
    )
    what.add_argument(
        "--singular-vectors",
        type=int,
        metavar="N",
        help="instead: the N perturbations of the state that grow most",
    )
    add(
        "--norm",
        default="energy",
        metavar="NAME=WEIGHT,...",
        help="of singular vectors: energy (default), by standard names of the data, "
        "or weights of variables, T=1.86,SP=3.9e-6",
    )
    add("--out", required=True, metavar="FILE", help="the gradient: NetCDF, .nc")
    add("--map", metavar="FILE", help="a map of one level of it: .png, .svg or .pdf")
    add_mesh_options(parser)
    add_verify_option(parser)
    add("--cache", metavar="DIR", help=CACHE_HELP)
    add_process_options(parser)


def run(args: argparse.Namespace) -> int:
    """Computes and writes the gradient, or the singular vectors.

    Raises:
        CommandError: the number is not finite.
        ValueError, OSError: the target, the model or its data are invalid.
    """
    target = None if args.of is None else parse_target(args.of)
    if target is None and args.singular_vectors < 1:
        raise ValueError(
            f"--singular-vectors: got {args.singular_vectors}, expected 1 or more"
        )
    out = Path(args.out)
    check_suffix(out, (".nc",))
    refuse_existing(out)
    if args.map is not None:
        if target is None:
            raise ValueError("--map is of --of; singular vectors have no map")
        check_suffix(Path(args.map), SUFFIXES)
    compile_sooner()
    package = package_of(args)
    config = config_of(args, package)
    steps_of(args.lead, config.data.time_step, "--lead")
    use_cache(args.cache)
    join_processes(args)
    planned = planned_forecasts(
        args,
        config,
        package,
        init_times=[args.init_time],
        length=args.lead,
        changes={"output": OutputConfig(), "members": 1},
    )
    plan, model, outputs = planned.plan, planned.model, planned.outputs
    if target is not None:
        target.place(outputs)
        target.weights(outputs)
    start = plan.schedule.starts[0]
    weights = Forecaster(model, *planned.checkpoint.restore(model)).weights
    forecast = map_of_plan(plan, model, weights, plan.schedule.num_steps)
    frames = range(1 - model.model_def.frames, 1)
    times = [plan.reader.data.time(start, frame) for frame in frames]
    if target is None:
        end = plan.schedule.valid_time(0, plan.schedule.num_steps)
        factors = _factors(args.norm, outputs, forecast.state)
        norm = area_weights(forecast.state, outputs.latitude, factors)
        vectors = singular_vectors(
            forecast, forecast.state, args.singular_vectors, norm
        )
        dataset = dataset_of(vectors, outputs, (start, end))
        values = ", ".join(f"{value:.4g}" for value in vectors.values)
        text = f"singular values of {args.lead} after {_date(start)}: {values}"
        figure = None
    else:
        try:
            result = sensitivity(forecast, target, outputs, times)
        except FloatingPointError as error:
            raise CommandError(str(error), DIVERGED) from error
        dataset = result.gradient
        text = f"{target.text}, {args.lead} after {_date(start)}: {result.value:.6g}"
        name = target.place(outputs)[2]
        figure = None if args.map is None else map_of(result, name, args.lead)
    if jax.process_index() == 0:
        with new_file(out) as path:
            write_netcdf(dataset, path, {})
        print_line(text)
        print_line(f"written: {out}")
        if figure is not None and args.map is not None:
            save_figure(figure, args.map)
            print_line(f"written: {args.map}")
    return OK


def _date(start: np.datetime64) -> str:
    """A start date, to the minute."""
    return str(start)[:16]


def _factors(norm: str, outputs: Outputs, state: State) -> dict[str, float]:
    """Key -> factor of a variable in the norm of `--norm`.

    Raises:
        ValueError: it is neither energy nor weights of prognostic variables.
    """
    if norm == "energy":
        return energy_factors(outputs, state)
    keys, factors = {variable_of(key): key for key in state}, {}
    for entry in norm.split(","):
        name, _, text = entry.partition("=")
        if name.strip() not in keys:
            raise not_available("--norm: the variable", name.strip(), keys)
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise ValueError(
                f"--norm: got {entry!r}, expected NAME=WEIGHT with a positive number, "
                "such as T=1.86"
            )
        factors[keys[name.strip()]] = weight
    return factors


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
