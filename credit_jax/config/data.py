"""The `data:` section: sources, dates, and the length of a sample."""

from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from pydantic import BeforeValidator, Field, field_validator, model_validator

from credit_jax.config.dates import Calendar, Dates, Timestep
from credit_jax.config.fields import NEVER_READ
from credit_jax.config.sources import MAIN_INPUT, SourceConfig, parse_source

DateRange = tuple[str, str]

# A sample holds all of its times in memory.
MAX_TIMES = 10_000

# A section whose class is that of its `dataset_type`.
AnySource = Annotated[SourceConfig, BeforeValidator(parse_source)]


# Which times a vector of the model's input encodes, besides those of sources by name.
INPUT_TIMES, TARGET_TIME = "input", "target"

# Steps of a forecast whose loss counts, from 1.
BackpropSteps = tuple[Annotated[int, Field(ge=1)], ...]


class _Window(Dates):
    """Keys that `data` and `validation_data` share."""

    calendar: Calendar | None = None

    passes_over: ClassVar = True

    ignored: ClassVar = {
        "one_shot": NEVER_READ,
        "lead_time_periods": NEVER_READ,
        "skip_periods": NEVER_READ,
        "static_first": NEVER_READ,
        "scaler_type": NEVER_READ,
        "mean_path": "the era5_normalizer preblock has its own",
        "std_path": "the era5_normalizer preblock has its own",
        "retain_graph": "trainer.backprop says how far gradients go",
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
        calendar: of the start times; by default that of the sources, the one with
            fewer dates where they differ.
        on_bad_sample: what is done with a sample that cannot be used: a time or a chunk
            is missing or damaged, a value is NaN or a fill value. "raise" ends the run
            with an error that names file, variable and time; "skip" takes the next good
            sample in time instead, reports it, and counts it in the log. CREDIT has no
            such key and ignores it.
        time_encoding: inputs of the model that are vectors -> the times that they
            encode: "input" are those of x, "target" that of y, and the name of a source
            with an `input` of its own those at which it is read. CREDIT has no such
            key.
    """

    source: dict[str, AnySource] = Field(min_length=1)
    timestep: Timestep
    history_len: int = Field(default=1, ge=1, le=MAX_TIMES)
    forecast_len: int = Field(ge=0, le=MAX_TIMES)
    backprop_on_timestep: BackpropSteps | None = None
    data_clamp: tuple[float, float] | None = None
    on_bad_sample: Literal["raise", "skip"] = "raise"
    time_encoding: dict[str, tuple[str, ...]] = Field(default_factory=dict)

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

    @model_validator(mode="after")
    def _predicts(self) -> "DataConfig":
        if not any(source.variables.predicted for source in self.source.values()):
            raise ValueError(
                "no source has prognostic or diagnostic variables: nothing is predicted"
            )
        return self

    @model_validator(mode="after")
    def _encodes_known_times(self) -> "DataConfig":
        own = [k for k, source in self.source.items() if source.input != MAIN_INPUT]
        known = (INPUT_TIMES, TARGET_TIME, *own)
        for name, times in self.time_encoding.items():
            lost = [time for time in times if time not in known]
            if lost or not times:
                raise ValueError(
                    f"time_encoding.{name} has {', '.join(lost) or 'no times'}; "
                    f"expected some of {', '.join(known)}"
                )
        return self

    def sources_of(self, name: str = MAIN_INPUT) -> dict[str, SourceConfig]:
        """The sources of an input of the model, by name."""
        return {k: own for k, own in self.source.items() if own.input == name}

    @property
    def further_inputs(self) -> tuple[str, ...]:
        """Inputs of the model beside x that sources make, in order."""
        names = dict.fromkeys(own.input for own in self.source.values())
        return tuple(name for name in names if name != MAIN_INPUT)

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

    source: dict[str, AnySource] | None = Field(default=None, min_length=1)
    timestep: Timestep | None = None
    history_len: int | None = Field(default=None, ge=1, le=MAX_TIMES)
    forecast_len: int | None = Field(default=None, ge=0, le=MAX_TIMES)

    ignored: ClassVar = {
        **_Window.ignored,
        "backprop_on_timestep": "validation has no gradient",
        "data_clamp": "that of data holds for validation, too",
        "on_bad_sample": "that of data holds for validation, too",
        "time_encoding": "that of data holds for validation, too",
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
