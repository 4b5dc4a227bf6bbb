"""The `data:` section: sources, variables, dates, and the length of a sample."""

from typing import Annotated, Any, ClassVar

import pandas as pd
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from credit_jax.config.base import StrictModel, Unavailable
from credit_jax.config.messages import got

FIELD_TYPES = ("prognostic", "static", "dynamic_forcing", "diagnostic")
INPUT_TYPES = ("prognostic", "static", "dynamic_forcing")
OUTPUT_TYPES = ("prognostic", "diagnostic")

# The engine of xarray that is replaced by thread-safe ones.
NETCDF4 = "netcdf4"

DateRange = tuple[str, str]

_NEVER_READ = "CREDIT's gen2 does not read it"


def _date_text(value: Any) -> Any:
    """A date as text, also where another YAML reader made an object of it."""
    return value.isoformat() if hasattr(value, "isoformat") else value


def _check_date(value: str) -> str:
    try:
        pd.Timestamp(value)
    except ValueError:
        message = f"must be a date such as '2000-01-31', got {got(value)}"
        raise ValueError(message) from None
    return value


def _check_timestep(value: str) -> str:
    try:
        step = pd.Timedelta(value)
    except ValueError:
        step = pd.Timedelta(0)
    if not step > pd.Timedelta(0):
        raise ValueError(f"must be a positive time step such as '6h', got {got(value)}")
    return value


# Steps of a forecast whose loss counts, from 1.
BackpropSteps = tuple[Annotated[int, Field(ge=1)], ...]
Date = Annotated[str, BeforeValidator(_date_text), AfterValidator(_check_date)]
Timestep = Annotated[str, AfterValidator(_check_timestep)]


class _Dates(StrictModel):
    """The dates of a data section or of a source."""

    start_datetime: Date | None = None
    end_datetime: Date | None = None
    date_ranges: tuple[tuple[Date, Date], ...] | None = None

    @model_validator(mode="after")
    def _one_kind_of_dates(self) -> "_Dates":
        if self.date_ranges is not None and (self.start_datetime or self.end_datetime):
            raise ValueError(
                "date_ranges cannot be combined with start_datetime and end_datetime; "
                "use one or the other"
            )
        return self


class FieldConfig(StrictModel):
    """Variables of one field type, and the files they are in.

    Attributes:
        vars_3D: names of variables with levels, in channel order.
        vars_2D: names of variables without levels, in channel order.
        path: file name with strftime codes, such as "era5_%Y.zarr".
    """

    vars_3D: tuple[str, ...] = ()
    vars_2D: tuple[str, ...] = ()
    path: str

    ignored: ClassVar = {"filename_time_format": _NEVER_READ}

    @model_validator(mode="after")
    def _has_variables(self) -> "FieldConfig":
        names = self.vars_3D + self.vars_2D
        if not names:
            raise ValueError("must name at least one variable in vars_3D or vars_2D")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"names a variable twice: {', '.join(twice)}")
        return self


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


class SourceConfig(_Dates):
    """One data set.

    Attributes:
        dataset_type: how it is read; "local" means NetCDF or Zarr files.
        variables: what is read.
        levels: values of the level coordinate to take (the nearest ones); null takes
            all levels of the file.
        level_coord: name of the level coordinate; needed by 3D variables.
        time_coord: name of the time coordinate.
        engine: xarray's engine; null lets the file's content decide, and so does
            "netcdf4", whose C library is not thread-safe.
        start_datetime, end_datetime, date_ranges, timestep: of this source, where they
            differ from the data section.
        history_len, forecast_len: as in the data section, if they are repeated.
    """

    dataset_type: str
    variables: VariablesConfig
    levels: tuple[float, ...] | None = None
    level_coord: str | None = None
    time_coord: str = "time"
    engine: str | None = None
    timestep: Timestep | None = None
    history_len: int | None = Field(default=None, ge=1)
    forecast_len: int | None = Field(default=None, ge=0)

    ignored: ClassVar = {
        "mode": "files are read where they are",
        "calendar": "read from the files' time coordinate",
    }
    unavailable: ClassVar = {
        "temporal_mode": Unavailable("times must match exactly", ("exact",)),
        "cycle_year": Unavailable("times must match exactly"),
        "grid_type": Unavailable("use a latitude x longitude grid", ("rectilinear",)),
    }

    def without_effect(self) -> dict[str, str]:
        """See `StrictModel.without_effect`."""
        if self.engine != NETCDF4:
            return {}
        return {"engine": "h5netcdf reads the same files, and is thread-safe"}

    @model_validator(mode="after")
    def _has_levels(self) -> "SourceConfig":
        fields = [getattr(self.variables, kind) for kind in FIELD_TYPES]
        if any(f and f.vars_3D for f in fields) and not self.level_coord:
            raise ValueError(
                "vars_3D needs level_coord, the name of the level coordinate"
            )
        if not (self.variables.prognostic or self.variables.diagnostic):
            raise ValueError("must have prognostic or diagnostic variables to predict")
        return self


class _Window(_Dates):
    """Keys that `data` and `validation_data` share."""

    ignored: ClassVar = {
        "one_shot": _NEVER_READ,
        "lead_time_periods": _NEVER_READ,
        "skip_periods": _NEVER_READ,
        "static_first": _NEVER_READ,
        "scaler_type": _NEVER_READ,
        "mean_path": "the era5_normalizer preblock has its own",
        "std_path": "the era5_normalizer preblock has its own",
        "retain_graph": "trainer.backprop says how far gradients go",
        "calendar": "read from the files' time coordinate",
    }

    @field_validator("forecast_len", check_fields=False)
    @classmethod
    def _has_steps(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("must be at least 1, got 0: gen2 counts one step as 1")
        return value


class DataConfig(_Window):
    """What is read, when, and how long a sample is.

    Attributes:
        source: data sets by name; their order is the order of channels.
        start_datetime, end_datetime: first and last time that is read, with targets.
        date_ranges: pairs of such times, instead of the two.
        timestep: time between input and target, and between two samples ("6h").
        history_len: input times of a sample.
        forecast_len: steps of a sample, each with a target time; 1 is one step.
        backprop_on_timestep: steps whose loss counts, from 1; all by default. The
            same key of `trainer` comes first.
        data_clamp: smallest and largest value of the model's normalized input and of
            the target; null clamps nothing.
    """

    source: dict[str, SourceConfig] = Field(min_length=1)
    timestep: Timestep
    history_len: int = Field(default=1, ge=1)
    forecast_len: int = Field(ge=0)
    backprop_on_timestep: BackpropSteps | None = None
    data_clamp: tuple[float, float] | None = None

    @field_validator("data_clamp")
    @classmethod
    def _in_order(cls, value: tuple[float, float] | None) -> Any:
        if value is not None and not value[0] < value[1]:
            raise ValueError(f"must be [smallest, largest], got {list(value)}")
        return value

    @model_validator(mode="after")
    def _has_dates(self) -> "DataConfig":
        if self.date_ranges is None and not (self.start_datetime and self.end_datetime):
            raise ValueError("needs start_datetime and end_datetime, or date_ranges")
        return self

    @property
    def ranges(self) -> tuple[DateRange, ...]:
        """The date ranges; one, if there are start_datetime and end_datetime."""
        if self.date_ranges is not None:
            return self.date_ranges
        return ((str(self.start_datetime), str(self.end_datetime)),)


class ValidationDataConfig(_Window):
    """The keys of `data` that differ for validation.

    Differs from CREDIT: every key that is absent is taken from `data`; CREDIT asks for
    all of them but `source`.
    """

    source: dict[str, SourceConfig] | None = Field(default=None, min_length=1)
    timestep: Timestep | None = None
    history_len: int | None = Field(default=None, ge=1)
    forecast_len: int | None = Field(default=None, ge=0)

    ignored: ClassVar = {
        **_Window.ignored,
        "backprop_on_timestep": "validation has no gradient",
        "data_clamp": "that of data holds for validation, too",
    }

    def over(self, data: DataConfig) -> DataConfig:
        """`data` with the keys given here; one kind of dates replaces the other."""
        given = {key: getattr(self, key) for key in type(self).model_fields}
        given = {key: value for key, value in given.items() if value is not None}
        if "date_ranges" in given:
            given |= {"start_datetime": None, "end_datetime": None}
        elif "start_datetime" in given and "end_datetime" in given:
            given["date_ranges"] = None
        return data.model_copy(update=given)


def num_samples(data: DataConfig) -> int:
    """Samples of a data section: start times whose whole window lies in a date range.

    The times of a range are start, start + timestep, ... up to end; a sample needs
    `history_len` input times and `forecast_len` target times.
    """
    step: Any = pd.Timedelta(data.timestep)
    needed = data.history_len + data.forecast_len
    total = 0
    for first, last in data.ranges:
        start: Any = pd.Timestamp(first)
        end: Any = pd.Timestamp(last)
        total += max(0, int((end - start) // step) + 2 - needed)
    return total
