"""Forecasts from and to xarray Datasets: fields by name, with coordinates.

A Dataset is matched by its coordinates: rows, columns, levels and times in another
order, and dims in any order, are put in that of the model; other values are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.config.inference import InferenceConfig
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.data import ChannelGroup
from credit_jax.data.calendars import calendar_of, names_of_times, to_labels
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.netcdf import to_dataset
from credit_jax.forecast.outputs import Outputs
from credit_jax.forecast.stepping import StateBatch, StateForecaster, load_forecaster
from credit_jax.named_fields.axes import horizontal, level_values
from credit_jax.named_fields.coordinates import LevelValues, grid_indices, indices_of
from credit_jax.named_fields.units import conversion, differ, text_of
from credit_jax.packages.package import open_artifact
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.forecast import levels_of
from credit_jax.transforms.base import variable_of

TIME, MEMBER = "time", "number"
_WHERE = "initial"


@dataclass(frozen=True, eq=False)
class DatasetForecaster:
    """A trained model as a function from an initial state to a forecast.

    It makes the forecasts of `credit-jax forecast`, with the same values. For gradients
    and losses there are functions of arrays: `credit_jax.restore`.

    Attributes:
        states: the model as a function of arrays in physical units.

    >>> forecaster = credit_jax.open_forecaster("RUN")
    >>> era5 = xr.open_dataset("era5.nc")
    >>> step = next(forecaster(era5.sel(time=["2000-01-01T00"]), steps=4))
    >>> step["T"].dims
    ('time', 'level', 'latitude', 'longitude')
    """

    states: StateForecaster

    def __call__(
        self, initial: xr.Dataset, steps: int, *, members: int | None = None
    ) -> Iterator[xr.Dataset]:
        """Yields the steps of a forecast, one after another, as they are computed.

        Args:
            initial: the prognostic variables in physical units, with the dims time,
                level (of variables on levels), latitude and longitude in any order, as
                in the files of the run. Its
                times are the start of the forecast and, for models of several input
                frames and for perturbations that need earlier states, the times before
                it. Of dask arrays only these variables and levels are
                read.
            steps: how many time steps; each is computed when it is asked for.
            members: number of ensemble members, perturbed as the config says; None for
                one forecast without the dim "number".

        Yields:
            Every predicted variable at one time: dims ([number], time, [level],
            latitude, longitude), float32, in physical units.

        Raises:
            ValueError: a variable is missing, has other dims, units, coordinates or
                times, or values that are not finite, or the forcing of a step cannot be
                read.
        """
        if steps < 1 or (members is not None and members < 1):
            raise ValueError(
                f"steps is {steps} and members {members}; both must be at least 1"
            )
        count = 1 if members is None else members
        start, state = self._state(initial, count)
        # Data-parallel devices share the members, the last of which may be computed
        # more than once.
        size = self.states.step.model.axes.num_data
        numbers = [min(k, count - 1) for k in range(-(-count // size) * size)]
        many = {
            key: np.broadcast_to(x[None], (len(numbers), *x.shape))
            for key, x in state.items()
        }
        times = np.full(len(numbers), start)
        forecast = self.states.forecast(many, times, numbers)
        return self._labeled(forecast, start, steps, members)

    def batch(self, initial: xr.Dataset) -> StateBatch:
        """A state without perturbations, as the model reads it.

        Args:
            initial: see `__call__`.

        Returns:
            A copy of it for each rank of data parallelism.

        Raises:
            ValueError: it does not fit the model, see `__call__`.
        """
        start, state = self._state(initial, 1)
        copies = self.states.step.model.axes.num_data
        fields = {key: np.stack([x] * copies) for key, x in state.items()}
        return self.states.batch(fields, np.array([start] * copies), [0] * copies)

    @property
    def timestep(self) -> np.timedelta64:
        """Time between two steps."""
        return self.states.timestep

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables of an initial state."""
        return tuple(map(variable_of, self._groups))

    def _labeled(
        self,
        forecast: Iterator[Mapping[str, Any]],
        start: np.datetime64,
        steps: int,
        members: int | None,
    ) -> Iterator[xr.Dataset]:
        states, data, outputs = self.states, self.states.reader.data, None
        for number in range(1, steps + 1):
            fields = {key: to_host(x) for key, x in next(forecast).items()}
            if outputs is None:
                # Those of the files of the command.
                config = (states.config.inference or InferenceConfig()).output
                counts = {key: x.shape[1] for key, x in fields.items()}
                levels = levels_of(states.config, states.schema)
                grid = states.latitude, states.longitude
                arguments = config, counts, levels, states.reader, grid, data.calendar
                outputs = Outputs.of(*arguments).over(states.checkpoint.described)
            chosen = outputs.chosen(fields)
            times, parts = [data.time(start, number)], []
            for member in range(members or 1):
                of_member = [{key: x[member] for key, x in chosen.items()}]
                name = None if members is None else member
                parts.append(to_dataset(outputs, times, of_member, name))
            dataset = parts[0]
            if members is not None:
                # All members have the same coordinates.
                options: dict[str, Any] = {"data_vars": "all", "coords": "minimal"}
                options |= {"compat": "override", "join": "exact"}
                dataset = xr.concat(parts, MEMBER, **options)
            for variable in outputs.variables:
                dataset[variable.name].attrs |= outputs.attributes_of(variable)
            yield dataset

    @cached_property
    def _groups(self) -> dict[str, ChannelGroup]:
        """Key -> variable of a state."""
        inputs = self.states.reader.data.schema.input
        groups = {group.var_key: group for group in inputs}
        return {key: groups[key] for key in self.states.prognostic}

    @cached_property
    def _units(self) -> dict[str, str]:
        """Key -> units of the variables of a state, those that are known."""
        recorded = {k: unit for k, (unit, _) in self.states.checkpoint.units.items()}
        files = self.states.reader.data.attributes()
        return recorded | {
            key: str(entry["units"])
            for key, entry in files.items()
            if entry.get("units")
        }

    def _state(
        self, initial: xr.Dataset, num_members: int
    ) -> tuple[np.datetime64, dict[str, np.ndarray]]:
        """The start date, and key -> (level, time, lat, lon) of a Dataset."""
        dates = names_of_times(initial)
        if TIME not in dates and len(dates) == 1:
            initial = initial.rename({dates[0]: TIME})
        names = {key: variable_of(key) for key in self._groups}
        missing = [name for name in names.values() if name not in initial]
        if missing:
            raise ValueError(
                f"{_WHERE}: lacks {', '.join(missing)}; expected a Dataset with "
                f"{', '.join(names.values())}, got {', '.join(map(str, initial))}"
            )
        data = self.states.reader.data
        if TIME not in initial.coords:
            raise ValueError(
                f"{_WHERE}: has no coordinate {TIME}; give the date of the state"
            )
        times = np.atleast_1d(initial[TIME].values)
        calendar = calendar_of(times, _WHERE)
        if calendar != data.calendar:
            raise ValueError(
                f"{_WHERE}: its times are in the calendar {calendar}, those of the "
                f"model in {data.calendar}; convert them"
            )
        labels = to_labels(times, _WHERE)
        order = np.argsort(labels)
        labels, steps = labels[order], self.states.times_of_state(num_members)
        expected = [data.time(labels[-1], step) for step in steps]
        if labels.tolist() != np.array(expected, "datetime64[ns]").tolist():
            raise ValueError(
                f"{_WHERE}: has {_dates(labels)}; expected {len(expected)} time(s), "
                f"{_dates(expected)}: choose them with .sel(time=[...])"
            )
        state = {}
        for key, name in names.items():
            array = initial[name]
            if TIME in array.dims:
                array = array.isel({TIME: order})
            elif len(labels) > 1:
                raise ValueError(
                    f"{_WHERE}: {name} has the dims {array.dims}; expected {TIME}"
                )
            state[key] = self._field(array, self._groups[key])
        return labels[-1], state

    def _field(self, array: xr.DataArray, group: ChannelGroup) -> np.ndarray:
        """(level, time, lat, lon) of a variable; only what is needed is read."""
        name = str(array.name)
        units, expected = text_of(array.attrs, "units"), self._units.get(group.var_key)
        change = conversion(units, expected or "") or (1.0, 0.0)
        if change == (1.0, 0.0) and differ(units, expected or ""):
            raise ValueError(
                f"{_WHERE}: {name} is in {units!r}; expected {expected!r}: convert it"
            )
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{_WHERE}: {name} holds {array.dtype}; expected numbers")
        grid = self.states.grids[group.source]
        ndim = grid[0].ndim
        latitude, longitude = horizontal(array.to_dataset(), _WHERE, ndim)
        axes = {"latitude": latitude, "longitude": longitude}
        missing = [kind for kind, axis_values in axes.items() if axis_values is None]
        if missing:
            raise ValueError(
                f"{_WHERE}: {array.name} has no coordinate {' and '.join(missing)}; "
                f"its coordinates are {', '.join(map(str, array.coords)) or 'none'}"
            )
        assert latitude is not None, "checked above"
        assert longitude is not None, "checked above"
        available = latitude.values, longitude.values
        indices = grid_indices(
            grid, available, _WHERE, str(self.states.checkpoint.path)
        )
        for index, axis in zip(indices, (latitude, longitude), strict=True):
            if index is not None:
                array = array.isel({axis.dims[0]: index})
        space = latitude.dims[0], longitude.dims[-1]
        deep = [dim for dim in array.dims if dim not in (TIME, *space)]
        has_levels = "/3d/" in group.var_key
        if len(deep) != int(has_levels):
            levels = "level, " if has_levels else ""
            raise ValueError(
                f"{_WHERE}: {name} has the dims {tuple(array.dims)}; expected "
                f"({TIME}, {levels}latitude, longitude) in any order"
            )
        if deep:
            array = array.isel({deep[0]: self._levels(array, deep[0], group)})
        if TIME not in array.dims:
            array = array.expand_dims(TIME)
        values = array.transpose(*deep, TIME, *space).values
        if change != (1.0, 0.0):
            values = np.multiply(values, change[0], dtype=float) + change[1]
        return np.asarray(values if deep else values[None], np.float32)

    def _levels(self, array: xr.DataArray, dim: Any, group: ChannelGroup) -> Any:
        """Positions of the levels of a state along a dim."""
        config = self.states.config
        section = (config.inference or InferenceConfig()).data or config.data
        listed = section.source[group.source].levels
        if listed is not None:
            listed = LevelValues(listed, getattr(group.levels, "unit", ""))
        # A config may list values that are only near those of the files.
        choices = [levels for levels in (group.levels, listed) if levels is not None]
        candidates = choices or [np.arange(group.n_levels)]
        if dim not in array.coords:
            raise ValueError(
                f"{_WHERE}: {array.name} has no coordinate {dim}; expected the levels "
                f"{', '.join(f'{value:g}' for value in candidates[0])}"
            )
        available, errors = level_values(array[dim], _WHERE), []
        for levels in candidates:
            origin = str(self.states.checkpoint.path)
            arguments = levels, available, "level", _WHERE, origin
            try:
                order = indices_of(*arguments, some=True, of_run=True)
            except ValueError as error:
                errors.append(error)
            else:
                return slice(None) if order is None else order
        raise errors[0]


def _dates(labels: Sequence[np.datetime64] | np.ndarray) -> str:
    dates = ", ".join(str(label)[:16] for label in labels[:5])
    return f"{dates} ..." if len(labels) > 5 else dates


def open_forecaster(
    source: str | Path,
    *,
    data: str | Path | None = None,
    base: str | Path | None = None,
    step: int | None = None,
    weights: str | None = None,
    overrides: Sequence[str] = (),
    parallelism: str = "data=none",
    devices: int | None = None,
    precision: str = "float32",
    matmul_precision: str = "highest",
) -> DatasetForecaster:
    """Opens a run or a package as a function of xarray Datasets.

    Args:
        source: folder of a run of `credit-jax train` or `convert`, or of a package.
        data: path of the YAML file that says where the dynamic forcing of a package is.
        base: run, package or checkpoint of CREDIT that the adapters of a package of
            them were trained on; None for a package or a run with all weights.
        step: step of the checkpoint of a run; None is the newest.
        weights: "average", "last", or None for the moving average if there is one.
        overrides: texts "KEY=VALUE" that replace values of the config.
        parallelism, devices: the mesh, and how many devices it has, as in `credit-jax
            forecast`.
        precision: dtype of activations.
        matmul_precision: see `trainer.matmul_precision`.

    Raises:
        FileNotFoundError: there is no run and no package, or no base.
        ValueError: a file of it is invalid, the base is missing, needless or another
            one, the mesh does not fit the model, forcing has no path, or data are in
            another unit than those of the training.

    >>> credit_jax.open_forecaster("RUN").variables
    ('U', 'T', 'SP')
    """
    checkpoint = open_artifact(source, step, weights, base=base)
    policy = default_mp_policy(precision, matmul_precision=matmul_precision)
    mesh = parse_parallelism(parallelism), devices
    return DatasetForecaster(load_forecaster(checkpoint, data, overrides, mesh, policy))
