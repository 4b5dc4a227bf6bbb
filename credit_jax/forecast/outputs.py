"""The contents of forecast files: variables, levels, coordinates, CF attributes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from credit_jax.config.inference import OutputConfig, read_attributes
from credit_jax.config.messages import nearest
from credit_jax.data.calendars import STANDARD
from credit_jax.data.dataset import regridded_axes
from credit_jax.data.forecast_data import ForecastReader
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields.coordinates import listed
from credit_jax.named_fields.variables import LEVEL, Variable, Variables, labeled_levels
from credit_jax.plan.forecast import ForecastPlan, levels_of
from credit_jax.transforms import Pipeline
from credit_jax.transforms.base import HEIGHT, PRESSURE, variable_of

# Name of a level coordinate that a block makes -> its CF attributes.
_COORDINATE_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    PRESSURE: {"units": "hPa"},
    HEIGHT: {"units": "m", "long_name": "height above ground level"},
}


@dataclass(frozen=True, eq=False)
class Outputs:
    """The variables of the files, and the coordinates of their values."""

    variables: tuple[Variable, ...]  # in the order in which they are written
    latitude: np.ndarray  # (lat,) degrees, or (y, x) on a curvilinear grid
    longitude: np.ndarray
    calendar: str = STANDARD  # of the valid times
    # CF attributes that the config names, by variable, and those of "time"; then those
    # of data files and derived fields, by key.
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    described: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        config: OutputConfig,
        counts: Mapping[str, int],
        levels: Mapping[str, Sequence[float] | None],
        reader: ForecastReader,
        grid: tuple[np.ndarray, np.ndarray],
        calendar: str,
    ) -> Outputs:
        """The fields of a step that a config chooses; predicted ones come first."""
        order = [key for key in reader.schema.target_slices() if key in counts]
        order += [key for key in counts if key not in order]
        shapes, pipeline = {key: counts[key] for key in order}, reader.pipeline
        variables = choose_outputs(config, shapes, levels, pipeline)
        attributes = read_attributes(config.metadata)
        described = pipeline.described(reader.data.attributes())
        return cls(variables, *grid, calendar, attributes, described)

    def over(self, described: Mapping[str, Mapping[str, Any]]) -> Outputs:
        """Returns the outputs with attributes of variables whose files give none."""
        entries = {k: v for k, v in self.described.items() if v}
        return replace(self, described={**described, **entries})

    def only(self, keys: Container[str]) -> Outputs:
        """Returns the outputs of some variables."""
        chosen = tuple(v for v in self.variables if v.key in keys)
        return replace(self, variables=chosen)

    @property
    def curvilinear(self) -> bool:
        """Whether latitudes differ along a row."""
        return self.latitude.ndim == 2

    @property
    def space(self) -> tuple[str, str]:
        """Names of the dims of rows and columns."""
        return ("y", "x") if self.curvilinear else ("latitude", "longitude")

    @property
    def table(self) -> Variables:
        """The variables by name, with their units, and pressures in hPa."""
        table = {}
        for v in self.variables:
            entries = self.attributes_of(v)
            names = ("units", "long_name")
            about: dict[str, Any] = {key: str(entries.get(key, "")) for key in names}
            if v.levels is not None:
                labels = labeled_levels(
                    v.levels, self.attributes_of_levels(v.level_dim)
                )
                about |= dict(zip(("levels", "level_units"), labels, strict=True))
            table[v.name] = replace(v, **about)
        return Variables("the forecast", table, self.latitude, self.longitude)

    @property
    def selection(self) -> dict[str, tuple[int, ...] | None]:
        """Key -> positions of levels, for `ForecastStep`."""
        return {variable.key: variable.chosen for variable in self.variables}

    def chosen(self, fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Those of whole fields (batch, level, lat, lon) that are written."""
        return {
            key: fields[key] if levels is None else fields[key][:, list(levels)]
            for key, levels in self.selection.items()
            if key in fields
        }

    def attributes_of(self, variable: Variable) -> dict[str, Any]:
        """CF attributes of a variable: those of the config come first."""
        return {
            **self.described.get(variable.key, {}),
            **self.attributes.get(variable.name, {}),
        }

    def attributes_of_levels(self, dim: str) -> dict[str, Any]:
        """CF attributes of a level coordinate, as in the data files; {} if unknown."""
        if dim != LEVEL:
            return dict(_COORDINATE_ATTRIBUTES.get(dim, {}))
        keys = (
            v.key for v in self.variables if v.level_dim == dim and v.levels is not None
        )
        source = next(keys).split("/")[0]
        return dict(self.described.get(f"{source}/{LEVEL}", {}))

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """Name of a dim -> values of latitudes, longitudes and levels."""
        space = {"latitude": self.latitude, "longitude": self.longitude}
        return space | self.levels()

    def levels(self) -> dict[str, np.ndarray]:
        """Values of each level coordinate, ordered as in the deepest variable."""
        by_dim: dict[str, np.ndarray] = {}
        deep = [(v.level_dim, v.levels) for v in self.variables if v.levels is not None]
        for dim, levels in sorted(deep, key=lambda pair: -len(pair[1])):
            both = np.concatenate([by_dim.get(dim, levels), levels])
            _, first = np.unique(both, return_index=True)
            by_dim[dim] = both[np.sort(first)]
        return by_dim


def outputs_of(plan: ForecastPlan, model: ParallelModel) -> Outputs:
    """The variables of forecasts that are written; nothing is compiled."""
    task, reader = plan.schedule.tasks[0], plan.reader
    size = model.axes.num_data
    first = _shapes_on(model, reader.first([task]).arrays, size)
    forcing: Any = {}
    if plan.schedule.num_steps > 1:
        forcing = _shapes_on(model, reader.forcing([task], 1), size)
    shapes = ForecastStep(model, plan.rollout).shapes(first, forcing)
    grid = reader.pipeline.grid
    if grid is None:
        latitude, longitude = reader.data.latitude_longitude()
    else:
        latitude, longitude = regridded_axes(grid)
    levels = levels_of(plan.config, plan.schema)
    grid, calendar = (latitude, longitude), plan.schedule.calendar
    return Outputs.of(plan.inference.output, shapes, levels, reader, grid, calendar)


def _shapes_on(model: ParallelModel, arrays: Any, size: int) -> Any:
    """Shapes of arrays of one sample as global arrays of `size` samples on the mesh."""
    domain = model.axes.num_domain

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        if x.ndim < 5:
            return jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
        rows = -(-x.shape[-2] // domain) * domain
        full = (size, *x.shape[1:-2], rows, x.shape[-1])
        return jax.ShapeDtypeStruct(full, x.dtype)

    return jax.tree.map(shape, arrays)


def choose_outputs(
    config: OutputConfig,
    shapes: Mapping[str, int],
    levels: Mapping[str, Sequence[float] | None],
    pipeline: Pipeline,
) -> tuple[Variable, ...]:
    """Chooses variables that are written, in the order of `shapes`, as in CREDIT."""
    asked = dict.fromkeys(shapes)
    if config.variables is not None:
        asked = {choice.name: choice.levels for choice in config.variables}
    origin = "inference.output.variables"
    if not asked:
        raise ValueError(
            f"{origin}: empty, so that nothing would be written; leave it out to write "
            f"all, or name some of: {', '.join(shapes)}"
        )
    missing = [key for key in asked if key not in shapes]
    if missing:
        entries = {variable_of(key): key for key in shapes}
        near = nearest(variable_of(missing[0]), entries)
        meant = "" if near is None else f" (nearest: {entries[near]!r})"
        raise ValueError(
            f"{origin}: {', '.join(missing)}: not predicted; there are: "
            f"{', '.join(shapes)}{meant}"
        )
    chosen = []
    for key in (name for name in shapes if name in asked):
        requested = asked[key]
        if key.split("/")[2] != "3d":
            if requested is not None:
                raise ValueError(
                    f"{origin}: {key} has no levels, got levels {requested}"
                )
            chosen.append(Variable(key))
            continue
        # Differs from CREDIT: fields on pressure levels have a separate coordinate;
        # CREDIT fails if their number differs from that of `data.source.*.levels`.
        count, of_source = shapes[key], levels.get(key.split("/")[0])
        other = LEVEL, of_source
        if of_source is not None and len(of_source) != count:
            other = f"{LEVEL}_{count}", None
        dim, values = pipeline.output_levels.get(key, other)
        values = np.arange(count) if values is None else np.array(values)
        positions = None
        if requested is not None:
            every = values.tolist()
            if absent := sorted({*requested} - {*every}):
                raise ValueError(
                    f"{origin}: {key}: levels {listed(absent)} are not predicted; "
                    f"there are: {listed(every)}"
                )
            positions = tuple(i for i, x in enumerate(every) if x in requested)
            values = values[list(positions)]
        chosen.append(Variable(key, values, positions, dim))
    keys: dict[str, str] = {}
    for variable in chosen:
        other = keys.setdefault(variable.name, variable.key)
        if other != variable.key:
            raise ValueError(
                f"{origin}: {other} and {variable.key} would both be written as "
                f"{variable.name}; name one of them, or rename the other"
            )
    return tuple(chosen)
