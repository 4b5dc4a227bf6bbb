"""The keys that the sections of all sources have, and the variables of a source."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, Literal

import pandas as pd
from pydantic import Field

from credit_jax.config.base import StrictModel
from credit_jax.config.credit_keys import NEVER_READ
from credit_jax.config.dates import Calendar, Dates, Timestep, duration

FIELD_TYPES = ("prognostic", "static", "dynamic_forcing", "diagnostic")
INPUT_TYPES = ("prognostic", "static", "dynamic_forcing")
OUTPUT_TYPES = ("prognostic", "diagnostic")


def variables_of(
    sources: Mapping[str, Any], kinds: Sequence[str] = FIELD_TYPES
) -> Iterator[tuple[str, str]]:
    """Yields name and key of variables, of sections of sources as they are written."""
    for source, section in sources.items():
        for kind, dim in product(kinds, ("3D", "2D")):
            fields = (section.get("variables") or {}).get(kind) or {}
            for name in fields.get(f"vars_{dim}") or ():
                yield name, f"{source}/{kind}/{dim.lower()}/{name}"


class FieldConfig(StrictModel):
    """Variables of one field type, and their files.

    Attributes:
        vars_3D: names of variables with levels, in channel order.
        vars_2D: names of variables without levels, in channel order.
        path: file name with strftime codes, such as "era5_%Y.zarr"; for `goes` the
            parent folder of those of the satellites. Sources that find their files in
            another way, or read none, have no path.
    """

    vars_3D: tuple[str, ...] = ()
    vars_2D: tuple[str, ...] = ()
    path: str | None = None

    ignored: ClassVar = {"filename_time_format": NEVER_READ}

    def conflicts(self) -> Iterator[str]:
        names = self.vars_3D + self.vars_2D
        if not names:
            yield "must name at least one variable in vars_3D or vars_2D"
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield f"must name a variable once, got {twice} twice"


class VariablesConfig(StrictModel):
    """The four field types of a source; null means that there is none.

    Attributes:
        prognostic: read, predicted, and carried to the next step.
        dynamic_forcing: read at every time, never predicted.
        static: read once, without time.
        diagnostic: predicted only.
    """

    prognostic: FieldConfig | None = None
    dynamic_forcing: FieldConfig | None = None
    static: FieldConfig | None = None
    diagnostic: FieldConfig | None = None

    @property
    def by_type(self) -> dict[str, FieldConfig]:
        """The field types that are not null, by name."""
        fields = {kind: getattr(self, kind) for kind in FIELD_TYPES}
        return {kind: field for kind, field in fields.items() if field is not None}

    @property
    def predicted(self) -> bool:
        return any(kind in self.by_type for kind in OUTPUT_TYPES)

    @property
    def has_levels(self) -> bool:
        return any(field.vars_3D for field in self.by_type.values())


# xarray's default engine, which is replaced by thread-safe ones.
NETCDF4 = "netcdf4"

# The default of `SourceConfig.input`.
MAIN_INPUT = "x"


class SourceConfig(Dates):
    """Keys that the sections of all sources have.

    Attributes:
        dataset_type: type of the source, a key of `SOURCE_CONFIGS`.
        variables: variables to read.
        levels: values of the level coordinate to read; null reads all levels.
        level_coord: name of the level coordinate.
        time_coord: name of the time coordinate.
        engine: xarray's engine; null or "netcdf4", whose C library is not thread-safe,
            chooses it by the file's content.
        calendar: calendar of the times; null uses that of the files.
        temporal_mode: the time to read for the time t of a sample: "exact" reads t;
            "persist" the last time of this source at or before t; "cyclic" the time of
            the same date in `cycle_year`; "next" the first multiple of its `timestep`
            after the target.
        input: the input of the model that its variables are part of, for models with
            several; CREDIT has no such key.
        cycle_year: the year of a cyclic source; null uses that of the file.
        grid_type: "unstructured" has one dim instead of rows and columns; "rectilinear"
            says of files without latitudes and longitudes that their rows and columns
            are in the order of the run.
        start_datetime, end_datetime, date_ranges, timestep: override those of the data
            section for this source.
        history_len, forecast_len: equal to those of the data section; a source of
            another input than x may have another history_len.
    """

    dataset_type: str
    variables: VariablesConfig
    levels: tuple[float, ...] | None = None
    level_coord: str | None = None
    time_coord: str = "time"
    engine: str | None = None
    calendar: Calendar | None = None
    temporal_mode: Literal["exact", "persist", "cyclic", "next"] = "exact"
    input: str = MAIN_INPUT
    cycle_year: int | None = None
    grid_type: Literal["rectilinear", "curvilinear", "unstructured"] | None = None
    timestep: Timestep | None = None
    history_len: int | None = Field(default=None, ge=1)
    forecast_len: int | None = Field(default=None, ge=0)

    def without_effect(self) -> dict[str, str]:
        if self.engine != NETCDF4:
            return {}
        return {"engine": "h5netcdf reads the same files, and is thread-safe"}

    @property
    def time_step(self) -> pd.Timedelta | None:
        """The time between its fields; None if it is the time step of the model."""
        return None if self.timestep is None else duration(self.timestep)

    @property
    def level_values(self) -> tuple[float, ...] | None:
        """The levels that are read; None if only the files define them."""
        return self.levels

    @property
    def file_templates(self) -> dict[str, str]:
        """Path templates of files that must exist before a run, by field type."""
        return {}

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        kinds = [kind for kind in self.variables.by_type if kind != "dynamic_forcing"]
        if self.input != MAIN_INPUT and kinds:
            yield (
                f"variables.{kinds[0]}: a source of input {self.input!r} is read at "
                "every step and never predicted; put its variables into dynamic_forcing"
            )
        day: Any = pd.Timedelta("1D")
        is_next = self.temporal_mode == "next"
        if is_next and (self.time_step is None or day % self.time_step):
            yield (
                f"temporal_mode: next needs a timestep of the source that divides a "
                f"day, such as 3h; got {self.timestep}"
            )
        if is_next and self.input == MAIN_INPUT:
            yield (
                "temporal_mode: next is for sources of another input of the model than "
                f"{MAIN_INPUT}; name it with the key input"
            )
        if self.temporal_mode == "cyclic" and self.date_ranges is not None:
            yield (
                "temporal_mode: cyclic cannot be combined with date_ranges; "
                "start_datetime and end_datetime are those of its one year"
            )
