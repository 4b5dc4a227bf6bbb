"""What a forecast depends on: `python -m credit_jax.sensitivity --config F --of ...`.

Writes the gradient of a number of a forecast by its initial state, and a map of it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from credit_jax.cli.commands import DIVERGED, OK, CommandError, option, print_line
from credit_jax.cli.model import ModelOptions
from credit_jax.config import not_available
from credit_jax.config.inference import OutputConfig
from credit_jax.data.schedule import steps_of
from credit_jax.extensions.adjoint.growth import (
    area_weights,
    dataset_of,
    energy_factors,
    singular_vectors,
)
from credit_jax.extensions.adjoint.maps import State, map_of_plan
from credit_jax.extensions.adjoint.target import parse_target, sensitivity
from credit_jax.extensions.plots import canvas
from credit_jax.extensions.plots.maps import Map, MapFigure, MapGrid, error_colors_of
from credit_jax.forecast.outputs import Outputs
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.io.netcdf import write_netcdf
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.transforms.base import variable_of


class ComputeSensitivity(ModelOptions):
    """Compute the gradient of a number of a forecast by its initial state.

    Or the perturbations of that state that grow most.
    """

    example = (
        "--config RUN/model.yml --init-time 2001-06-01 --lead 3d "
        "--of 'mean T500 in 45..60N 10W..20E' --out gradient.nc"
    )
    one_of = ("of", "singular_vectors")

    init_time: str = option("start date of the forecast", metavar="DATE")
    lead: str = option("length of it: 3d, 36h", metavar="DURATION")
    of: str | None = option(
        "the number: 'mean CHANNEL [in REGION]', weighted by area, such as "
        "'mean T500 in 45..60N 10W..20E' or 'mean SP in europe'",
        None,
        "TARGET",
    )
    singular_vectors: int | None = option(
        "instead: the N perturbations of the state that grow most", None, "N", ge=1
    )
    norm: str = option(
        "of singular vectors: energy, by standard names of the data, or weights of "
        "variables, T=1.86,SP=3.9e-6",
        "energy",
        "NAME=WEIGHT,...",
    )
    out: str = option("the gradient: NetCDF, .nc", metavar="FILE")
    map: str | None = option(
        "a map of one level of it: .png, .svg or .pdf", None, "FILE"
    )

    def run(self) -> int:
        """Computes and writes the gradient, or the singular vectors."""
        target = None if self.of is None else parse_target(self.of)
        out = Path(self.out)
        canvas.check_suffix(out, (".nc",))
        refuse_existing(out)
        if self.map is not None:
            if target is None:
                raise ValueError("--map is of --of; singular vectors have no map")
            canvas.check_suffix(Path(self.map), canvas.SUFFIXES)
        compile_sooner()
        config, package = self.read()
        steps_of(self.lead, config.data.time_step, "--lead")
        planned = self.plan(
            config,
            package,
            init_times=[self.init_time],
            length=self.lead,
            changes={"output": OutputConfig(), "members": 1},
        )
        plan, model, outputs = planned.plan, planned.model, planned.outputs
        if target is not None:
            target.place(outputs)
            target.weights(outputs)
        start = plan.schedule.starts[0]
        forecast = map_of_plan(plan, model, planned.weights, plan.schedule.num_steps)
        frames = range(1 - model.model_def.frames, 1)
        times = [plan.reader.data.time(start, frame) for frame in frames]
        if target is None:
            end = plan.schedule.valid_time(0, plan.schedule.num_steps)
            factors = _factors(self.norm, outputs, forecast.state)
            norm = area_weights(forecast.state, outputs.latitude, factors)
            vectors = singular_vectors(
                forecast, forecast.state, self.singular_vectors or 1, norm
            )
            dataset = dataset_of(vectors, outputs, (start, end))
            values = ", ".join(f"{value:.4g}" for value in vectors.values)
            text = f"singular values of {self.lead} after {str(start)[:16]}: {values}"
            figure = None
        else:
            try:
                dataset = sensitivity(forecast, target, outputs, times)
            except FloatingPointError as error:
                raise CommandError(str(error), DIVERGED) from error
            date, value = str(start)[:16], dataset.attrs["value"]
            text = f"{target.text}, {self.lead} after {date}: {value:.6g}"
            name = target.place(outputs)[2]
            figure = None if self.map is None else map_of(dataset, name, self.lead)
        if jax.process_index() == 0:
            with new_file(out) as path:
                write_netcdf(dataset, path, {})
            print_line(text)
            print_line(f"written: {out}")
            if figure is not None and self.map is not None:
                canvas.save_figure(figure, self.map)
                print_line(f"written: {self.map}")
        return OK


main = ComputeSensitivity.main


def _factors(norm: str, outputs: Outputs, state: State) -> dict[str, float]:
    """Key -> factor of a variable in the norm of `--norm`."""
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


def map_of(gradient: xr.Dataset, variable: str, lead: str) -> Any:
    """A map of the gradient by one variable, at the level where it is largest."""
    # Of others than prognostic variables there is no gradient.
    name = variable if variable in gradient else str(next(iter(gradient.data_vars)))
    newest, level = gradient[name].isel(time=-1), None
    deep = [dim for dim in newest.dims if dim in gradient.coords][:-2]
    if deep:
        sizes = np.square(newest.values).sum(axis=(-2, -1))
        newest = newest.isel({deep[0]: int(sizes.argmax())})
        level = float(newest[deep[0]])
    grid = MapGrid(gradient["latitude"].values, gradient["longitude"].values)
    origin = canvas.field_text(name, level)
    title = f"Gradient of {gradient.attrs['target']}, {lead} later, by {origin}"
    panel = Map("", newest.values, error_colors_of([newest.values]))
    units = str(gradient[name].attrs.get("units", ""))
    return MapFigure([panel], grid, title=title, units=units).figure
