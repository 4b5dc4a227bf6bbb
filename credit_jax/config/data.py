"""The `data:` section: sources, dates, and the length of a sample."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from pydantic import BeforeValidator, Field

from credit_jax.config.base import checked_by
from credit_jax.config.credit_keys import IGNORED_DATA
from credit_jax.config.dates import Calendar, Dates, Timestep, date_label, duration
from credit_jax.config.sources.registry import parse_source
from credit_jax.config.sources.source import (
    FIELD_TYPES,
    INPUT_TYPES,
    MAIN_INPUT,
    OUTPUT_TYPES,
    SourceConfig,
)

DateRange = tuple[str, str]

# Limit of the times of a sample, all of which are in memory.
MAX_TIMES = 10_000

# A source section, validated by the class of its `dataset_type`.
AnySource = Annotated[SourceConfig, BeforeValidator(parse_source)]


# Values of `time_encoding` besides the names of sources.
INPUT_TIMES, TARGET_TIME = "input", "target"

# Steps of a forecast whose losses are minimized, from 1.
BackpropSteps = tuple[Annotated[int, Field(ge=1)], ...]


def _check_clamp(value: tuple[float, float]) -> None:
    if not value[0] < value[1]:
        raise ValueError(f"must be [smallest, largest], got {list(value)}")


class _Window(Dates):
    """Keys that `data` and `validation_data` share."""

    calendar: Calendar | None = None

    passes_over: ClassVar = True
    ignored: ClassVar = IGNORED_DATA


class DataConfig(_Window):
    """The sources, the dates, and the length of a sample.

    Attributes:
        source: data sets by name; their order is the order of channels.
        start_datetime, end_datetime: first and last time that is read, including
            targets.
        date_ranges: pairs of first and last time, instead of these two keys.
        timestep: time between input and target, and between two samples ("6h").
        history_len: number of input times of a sample.
        forecast_len: number of steps of a sample, each with a target time.
        backprop_on_timestep: steps whose losses are minimized, from 1; all by default.
            The same key of `trainer` takes precedence.
        data_clamp: smallest and largest value that the model's normalized input and the
            target are clamped to; null does not clamp.
        calendar: calendar of the start times; by default that of the sources, or the
            one with fewer dates if they differ.
        on_bad_sample: handling of samples in which a time or a chunk is missing or
            damaged, or a value is NaN or a fill value. "raise" ends the run with an
            error that names file, variable and time; "skip" replaces the sample by the
            next good one in time, reports it, and counts it in the log. CREDIT has no
            such key and ignores it.
        on_outlier: handling of values beyond 50 deviations of the normalization. "note"
            names each once with file, variable, time and place, "raise" ends the run
            or the forecasts with that error, "skip" replaces the sample as
            `on_bad_sample: skip` does. CREDIT has no such key and ignores it.
        time_encoding: vector inputs of the model -> the times that they encode:
            "input" for the times of x, "target" for that of y, or the name of a source
            with another `input` for the times at which it is read. CREDIT has no such
            key.
    """

    source: dict[str, AnySource] = Field(min_length=1)
    timestep: Timestep
    history_len: int = Field(default=1, ge=1, le=MAX_TIMES)
    forecast_len: int = Field(ge=1, le=MAX_TIMES)
    backprop_on_timestep: BackpropSteps | None = None
    data_clamp: Annotated[tuple[float, float], checked_by(_check_clamp)] | None = None
    on_bad_sample: Literal["raise", "skip"] = "raise"
    on_outlier: Literal["note", "raise", "skip"] = "note"
    time_encoding: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    needs_dates: ClassVar[bool] = True

    @property
    def time_step(self) -> pd.Timedelta:
        return duration(self.timestep)

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        ends = self.start_datetime and self.end_datetime
        if self.needs_dates and self.date_ranges is None and not ends:
            yield ("no dates; expected start_datetime and end_datetime, or date_ranges")
        if not any(source.variables.predicted for source in self.source.values()):
            yield (
                "no source has prognostic or diagnostic variables: nothing is "
                "predicted; name some in the variables of a source"
            )
        inputs = [k for k, source in self.source.items() if source.input != MAIN_INPUT]
        available = (INPUT_TIMES, TARGET_TIME, *inputs)
        for name, times in self.time_encoding.items():
            unknown = [time for time in times if time not in available]
            if unknown or not times:
                yield (
                    f"time_encoding.{name} has {', '.join(unknown) or 'no times'}; "
                    f"expected some of {', '.join(available)}"
                )

    def sources_of(self, name: str = MAIN_INPUT) -> dict[str, SourceConfig]:
        """The sources of one input of the model, by name."""
        return {k: source for k, source in self.source.items() if source.input == name}

    def of_types(self, kinds: Collection[str]) -> "DataConfig":
        """The section with the variables of some field types alone."""
        dropped = dict.fromkeys(kind for kind in FIELD_TYPES if kind not in kinds)
        sources = {}
        for name, source in self.source.items():
            variables = source.variables.model_copy(update=dropped)
            if variables.by_type:
                sources[name] = source.model_copy(update={"variables": variables})
        return self.model_copy(update={"source": sources})

    def num_levels(self, file_levels: int) -> dict[str, int]:
        """Number of levels of each source's 3-D variables, without opening files."""
        values = {name: source.level_values for name, source in self.source.items()}
        return {k: file_levels if v is None else len(v) for k, v in values.items()}

    def channel_counts(self, file_levels: int) -> dict[str, int]:
        """Numbers of channels of a frame, by key of a model's section."""
        levels = self.num_levels(file_levels)
        kinds = {"input_channels": INPUT_TYPES, "output_channels": OUTPUT_TYPES}
        counts = dict.fromkeys(kinds, 0)
        for name, source in self.sources_of().items():
            for kind, field in source.variables.by_type.items():
                channels = levels[name] * len(field.vars_3D) + len(field.vars_2D)
                for key in kinds:
                    counts[key] += channels * (kind in kinds[key])
        return counts

    @property
    def further_inputs(self) -> tuple[str, ...]:
        """Inputs of the model other than x that sources provide, in order."""
        names = dict.fromkeys(source.input for source in self.source.values())
        return tuple(name for name in names if name != MAIN_INPUT)

    @property
    def ranges(self) -> tuple[DateRange, ...]:
        """The date ranges; a single one for start_datetime and end_datetime."""
        if self.date_ranges is not None:
            return self.date_ranges
        return ((str(self.start_datetime), str(self.end_datetime)),)


class ValidationDataConfig(_Window):
    """The keys of `data` that differ for validation.

    Differs from CREDIT: every missing key is taken from `data`; CREDIT requires all of
    them except `source`.
    """

    source: dict[str, AnySource] | None = Field(default=None, min_length=1)
    timestep: Timestep | None = None
    history_len: int | None = Field(default=None, ge=1, le=MAX_TIMES)
    forecast_len: int | None = Field(default=None, ge=1, le=MAX_TIMES)

    ignored: ClassVar = {
        **_Window.ignored,
        "backprop_on_timestep": "validation has no gradient",
        "data_clamp": "that of data holds for validation, too",
        "on_bad_sample": "that of data holds for validation, too",
        "on_outlier": "that of data holds for validation, too",
        "time_encoding": "that of data holds for validation, too",
    }

    def over(self, data: DataConfig) -> DataConfig:
        """Returns `data` updated with the keys of this section; dates replace dates."""
        changes = {key: getattr(self, key) for key in type(self).model_fields}
        changes = {key: value for key, value in changes.items() if value is not None}
        if "date_ranges" in changes:
            changes |= {"start_datetime": None, "end_datetime": None}
        elif "start_datetime" in changes and "end_datetime" in changes:
            changes["date_ranges"] = None
        return data.model_copy(update=changes)


def num_samples(data: DataConfig) -> int:
    """Number of samples of a data section, by its dates."""
    step: Any = data.time_step
    needed = data.history_len + data.forecast_len
    total = 0
    for first, last in data.ranges:
        length: Any = date_label(last) - date_label(first)
        # A sample needs `history_len` input times and `forecast_len` target times in
        # one range.
        total += max(0, int(length // step) + 2 - needed)
    return total


def raw_ranges(config: Mapping[str, Any]) -> tuple[DateRange, ...]:
    """The date ranges of a config that was written earlier; () if it has none."""
    data = config.get("data")
    data = data if isinstance(data, Mapping) else {}
    ends = data.get("start_datetime"), data.get("end_datetime")
    pairs = data.get("date_ranges") or ([ends] if all(ends) else [])
    return tuple((str(first), str(last)) for first, last in pairs)


def in_training(times: Iterable[Any], ranges: Sequence[DateRange]) -> str:
    """Says how many times are in the training period; "" if none is."""
    ends = [(date_label(first), date_label(last)) for first, last in ranges]
    labels = [date_label(time) for time in times]
    inside = sum(any(a <= label <= b for a, b in ends) for label in labels)
    if not inside:
        return ""
    period = ", ".join(f"{first} to {last}" for first, last in ranges)
    return (
        f"{inside} of {len(labels)} dates are in the training period ({period}), and "
        "not held out"
    )
