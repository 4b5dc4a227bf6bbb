"""Windows one after another: the forecast of an analysis is the next background.

A folder has the stores `analyses` (the state at the start of each window) and
`forecasts` (of all steps of the window from it), and `innovations`, a NetCDF file for
each window, with `statistics.csv` of them all and `statistics.png`, a figure of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.config.assimilation import AssimilationConfig
from credit_jax.config.inference import OutputConfig
from credit_jax.config.messages import counted, typeset_units
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.extensions.adjoint import ForecastMap
from credit_jax.extensions.adjoint.maps import map_of_plan
from credit_jax.extensions.assimilation import variational
from credit_jax.extensions.assimilation.background import StateCovariance
from credit_jax.extensions.assimilation.observations import TrajectoryGrid, first_row
from credit_jax.extensions.assimilation.operators import Observer
from credit_jax.extensions.plots.canvas import (
    Chart,
    Line,
    panels_figure,
    save_figure,
    with_units,
)
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.netcdf import NetcdfStore
from credit_jax.forecast.outputs import Outputs
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_file
from credit_jax.io.netcdf import write_netcdf
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.transforms.rollout import PROGNOSTIC, field_type_of

ANALYSES, FORECASTS, INNOVATIONS = "analyses", "forecasts", "innovations"
STATISTICS, FIGURE = "statistics.csv", "statistics.png"
# Told apart without colors, too.
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "background": {"color": "#d9822b", "linestyle": "--"},
    "analysis": {"color": "#2f7ed8", "linewidth": 2.0},
}
# Random control variables that the variance of the background at the observations is
# estimated from.
_NUM_DRAWS = 4
# Departures, in standard deviations, that errors of no model and observation explain.
_FAR = 10
_COLUMNS = ("time", "latitude", "longitude", "level", "value", "error")


def trajectory_grid(
    outputs: Outputs, schedule: ForecastSchedule, first: int, last: int
) -> TrajectoryGrid:
    """The points of forecasts, at all steps from one start to the end of a window."""
    times = [schedule.valid_time(first, 0)]
    for number in range(first, last + 1):
        steps = range(1, schedule.num_steps + 1)
        times += [schedule.valid_time(number, step) for step in steps]
    units = {
        v.name: str(outputs.attributes_of(v).get("units", ""))
        for v in outputs.variables
    }
    return TrajectoryGrid(
        {variable.name: variable for variable in outputs.variables},
        outputs.latitude,
        outputs.longitude,
        np.array(times),
        units,
        {
            v.name: str(outputs.attributes_of_levels(v.level_dim).get("units", ""))
            for v in outputs.variables
            if v.levels is not None
        },
        frozenset(
            v.name for v in outputs.variables if field_type_of(v.key) != PROGNOSTIC
        ),
    )


@dataclass(eq=False)
class Cycling:
    """The windows of an `assimilation` section."""

    config: AssimilationConfig
    plan: ForecastPlan
    model: ParallelModel
    weights: Any  # of `Forecaster.weights`
    outputs: Outputs
    covariance: StateCovariance
    observer: Observer
    observations: pd.DataFrame  # the usable ones, of all windows
    folder: Path
    archive: Archive  # records which windows are done
    show: Callable[[str], None] = lambda line: None
    first_steps: int = 0  # of the first background's forecast; 0: state of the data
    _map: ForecastMap | None = field(default=None, init=False)

    def run(self) -> None:
        """Makes the analyses of all windows that are not done."""
        writes = jax.process_index() == 0
        background: Mapping[str, np.ndarray] | None = None
        for number, start in enumerate(self.plan.schedule.starts):
            if self.archive.done(Task(number, 0)):
                background = None
                self.show(f"{str(start)[:16]}: done before")
                continue
            with activity(f"assimilating the window of {str(start)[:16]}"):
                schedule = self.plan.schedule
                steps = range(1, schedule.num_steps + 1)
                plan = self.plan, self.model, self.weights
                forecast = map_of_plan(*plan, steps, number=number)
                self._map = self._map or forecast
                forecast.compiled_as(self._map)
                if background is None:
                    background = self._background(number, forecast)
                background = self._window(number, forecast, background, writes)
            wait_for_all(f"window {number}")

    def _window(
        self,
        number: int,
        forecast: ForecastMap,
        background: Mapping[str, np.ndarray],
        writes: bool,
    ) -> dict[str, np.ndarray]:
        """Makes and writes an analysis; returns the background of the next window."""
        schedule, start = self.plan.schedule, self.plan.schedule.starts[number]
        grid = trajectory_grid(self.outputs, schedule, number, number)
        times = self.observations["time"].to_numpy()
        inside = (times >= grid.times[0]) & (times < grid.times[-1])
        observed = self.observer.observed(self.observations.loc[inside], grid)
        window = variational.Window(
            forecast, background, self.covariance, self.observer, observed
        )

        def progress(iteration: variational.CGIteration) -> None:
            self.show(
                f"{str(start)[:16]}: outer {iteration.outer}, inner {iteration.inner}: "
                f"cost {iteration.cost:.6g}, gradient {iteration.gradient_norm:.3g}"
            )

        try:
            _ = window.first
        except variational.MissingFieldError as error:
            if "missing" not in self.config.leave_out:
                raise
            self.show(f"{str(start)[:16]}: note: left out: {error.line}")
            table = observed.table.loc[~error.missing]
            window = replace(window, observed=self.observer.observed(table, grid))
        variance = background_variance(window.first, number)
        for line in far_departures(window.first, variance):
            self.show(f"{str(start)[:16]}: note: {line}")
        analysis = variational.analyze(window, self.config, progress)
        innovations = innovations_of(analysis, variance, start)
        state = analysis.state
        steps = {key: to_host(x)[:, 0] for key, x in analysis.last.fields.items()}
        if writes:
            self._write(number, state, steps, innovations)
        if analysis.note:
            self.show(f"{str(start)[:16]}: note: {analysis.note}")
        for line in _summary(innovations):
            self.show(f"{str(start)[:16]}: {line}")
        return {key: steps[key][-1] for key in state}

    def _write(
        self,
        number: int,
        state: Mapping[str, np.ndarray],
        steps: Mapping[str, np.ndarray],
        innovations: xr.Dataset,
    ) -> None:
        task, schedule = Task(number, 0), self.plan.schedule
        start = schedule.starts[number]
        # Now, so that a first window that cannot be analyzed leaves nothing.
        self.archive.create()
        self._stores[ANALYSES].write(task, [start], [dict(state)])
        for step in range(1, schedule.num_steps + 1):
            fields = {key: x[step - 1] for key, x in steps.items()}
            time = schedule.valid_time(number, step)
            self._stores[FORECASTS].write(task, [time], [fields])
        name = pd.Timestamp(start).strftime("%Y%m%d_%H%MZ.nc")
        with new_file(self.folder / INNOVATIONS / name) as partial:
            write_netcdf(innovations, partial)
        files = sorted((self.folder / INNOVATIONS).glob("*.nc"))
        rows = [row for file in files for row in statistics(xr.load_dataset(file))]
        with new_file(self.folder / STATISTICS) as partial:
            pd.DataFrame(rows).to_csv(partial, index=False)
        if rows:
            units = trajectory_grid(self.outputs, schedule, number, number).units
            figure = departures_figure(pd.DataFrame(rows), units)
            save_figure(figure, self.folder / FIGURE)
        self.archive.mark(task, {})

    def _background(self, number: int, forecast: ForecastMap) -> dict[str, np.ndarray]:
        """The first background, or the end of the forecast before, from its file."""
        if number == 0 and not self.first_steps:
            return {key: x[0, :, -1] for key, x in forecast.state.items()}
        if number == 0:
            start = self.plan.schedule.valid_time(0, -self.first_steps)
            plan, steps = (self.plan, self.model, self.weights), [self.first_steps]
            previous = map_of_plan(*plan, steps, start=start)
            fields = previous(previous.state)
            return {key: to_host(fields[key])[0, 0] for key in previous.state}
        schedule = self.plan.schedule
        end = schedule.valid_time(number - 1, schedule.num_steps)
        fields = xr.load_dataset(self._stores[FORECASTS].path(Task(number - 1, 0), end))
        state = {}
        for variable in self._stores[ANALYSES].outputs.variables:
            array = fields[variable.name].isel(time=0)
            if variable.levels is None:
                state[variable.key] = array.values[None]
            else:
                at = {variable.level_dim: variable.levels}
                state[variable.key] = array.sel(at).values
        return state

    @cached_property
    def _stores(self) -> dict[str, NetcdfStore]:
        """The files of analyses, of prognostic variables alone, and of forecasts."""
        schedule, config = self.plan.schedule, OutputConfig()
        states = self.outputs.only(self.covariance.levels)
        return {
            name: NetcdfStore(self.folder / name, outputs, schedule, config)
            for name, outputs in ((ANALYSES, states), (FORECASTS, self.outputs))
        }


def background_variance(first: variational.Guess, seed: int) -> np.ndarray:
    """(obs,) estimates of the variance of the background where it is observed."""
    rng = np.random.default_rng(seed)
    # The diagonal of G G'. Means over observations are more exact than each.
    drawn = [
        first.product(rng.standard_normal(len(first.control)))
        for _ in range(_NUM_DRAWS if len(first.values) else 0)
    ]
    return np.mean(np.square(drawn), 0) if drawn else np.zeros(0)


def far_departures(first: variational.Guess, variance: np.ndarray) -> list[str]:
    """A line for each variable with observations that no errors explain."""
    table = first.window.observed.table.assign(
        departure=first.departures, variance=variance
    )
    lines = []
    for name, part in table.groupby("variable"):
        # Such as those in another unit, or with a number for what is missing.
        size = np.sqrt(np.square(part["error"]) + part["variance"].mean())
        far = part.loc[np.abs(part["departure"]) > _FAR * size]
        if len(far):
            row = far.iloc[0]
            expected = row["value"] - row["departure"]
            lines.append(
                f"{name}: {len(far)} of {counted(len(part), 'observation')} more than "
                f"{_FAR} standard deviations from the background, "
                + first_row(row, f"{row['value']:.6g}, not {expected:.6g}")
            )
    return lines


def innovations_of(
    analysis: variational.Analysis, variance: np.ndarray, start: np.datetime64
) -> xr.Dataset:
    """Observations of a window beside background and analysis, and the iterations."""
    table = analysis.first.window.observed.table
    columns = {name: table[name].to_numpy() for name in _COLUMNS}
    columns["variable"] = table["variable"].to_numpy(object)
    columns["background"] = analysis.first.values
    columns["analysis"] = analysis.last.values
    columns["background_variance"] = variance
    variables = {name: ("observation", values) for name, values in columns.items()}
    for name in ("outer", "inner", "cost", "gradient_norm"):
        values = [getattr(iteration, name) for iteration in analysis.iterations]
        variables[name] = ("iteration", np.array(values, float))
    attributes = {
        "window": str(start)[:16],
        "background_cost": analysis.first.cost,
        "analysis_cost": analysis.last.cost,
        "chi_squared": analysis.chi_squared,
        "note": analysis.note,
    }
    return xr.Dataset(variables, attrs=attributes)


def statistics(innovations: xr.Dataset) -> list[dict[str, Any]]:
    """A row for each observed variable of a window."""
    rows = []
    names = innovations["variable"].values.astype(str)
    for name in np.unique(names):
        part = innovations.isel(observation=names == name)
        previous, after = (
            (part["value"] - part[guess]).values for guess in ("background", "analysis")
        )
        rms = [float(np.sqrt(np.mean(np.square(x)))) for x in (previous, after)]
        expected = np.square(part["error"]) + part["background_variance"]
        rows.append(
            {
                "window": innovations.attrs["window"],
                "variable": name,
                "count": len(previous),
                "background_mean": float(previous.mean()),
                "background_rms": rms[0],
                "analysis_mean": float(after.mean()),
                "analysis_rms": rms[1],
                # Of the root mean square, from background to analysis.
                "reduction": 1 - rms[1] / rms[0] if rms[0] else 0.0,
                # 1 if errors of observations and background are as large as assumed.
                "spread": rms[0] / float(np.sqrt(expected.mean())),
                "chi_squared": innovations.attrs["chi_squared"],
            }
        )
    return rows


def departures_figure(table: pd.DataFrame, units: Mapping[str, str]) -> Any:
    """The departures of background and analysis from the observations, by window."""
    windows, panels = np.unique(table["window"]), []
    for name, part in table.groupby("variable"):
        x = 1.0 + np.searchsorted(windows, part["window"])
        lines = [
            Line(guess, x, part[f"{guess}_rms"].to_numpy(), look, has_markers=True)
            for guess, look in LOOKS.items()
        ]
        text = with_units(
            f"departures of {name}", typeset_units(units.get(str(name), ""))
        )
        looks = {"y_label": text, "has_integer_x": True, "y_from": 0.0}
        panels.append(Chart(str(name), "window", lines, **looks).panel)
    return panels_figure(panels, title="Root mean square departures of observations")


def _summary(innovations: xr.Dataset) -> list[str]:
    """Lines of the log on a window."""
    rows = statistics(innovations)
    if not rows:
        return ["no observations: the analysis is the background"]
    attributes = innovations.attrs
    costs = [f"{attributes[f'{x}_cost']:.6g}" for x in ("background", "analysis")]
    first = (
        f"cost {costs[0]} -> {costs[1]}, chi squared {attributes['chi_squared']:.3g}"
    )
    return [
        first,
        *(
            f"{row['variable']}: {counted(row['count'], 'observation')}, departures "
            f"{row['background_rms']:.4g} -> {row['analysis_rms']:.4g}, spread "
            f"{row['spread']:.3g}"
            for row in rows
        ),
    ]
