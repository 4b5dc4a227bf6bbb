"""Checks of the channels of x and y, as preblocks make them, and what follows."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from credit_jax.data.further_inputs import FurtherInputs, InputData
from credit_jax.data.opened_data import OpenedData
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.values import (
    OUTLIER,
    BadValuesError,
    Outlier,
    OutlierError,
    check_fields,
    check_finite,
)
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.transforms import (
    FieldTree,
    Grid,
    Phase,
    Pipeline,
    after_aligned,
    for_forcing,
)
from credit_jax.transforms.rollout import DYNAMIC_FORCING

# Largest number of outliers that are named in a log.
MOST_NOTES = 50
# What was logged before: file, key, level and time.
_NAMED: set[tuple[Any, ...]] = set()
_LOG = logging.getLogger("credit_jax")


def names_outliers() -> bool:
    """Whether further outliers are named in the log."""
    return len(_NAMED) <= MOST_NOTES


@dataclasses.dataclass(frozen=True)
class OutlierPolicy:
    """What is done with values that normalization makes implausible.

    Attributes:
        data: the data with the fields.
        grid: latitudes and longitudes of the fields, degrees, of all rows.
        noted: whether they are notes, otherwise they are errors.
        first_row: row of the grid of the first row of the fields.
    """

    data: OpenedData
    grid: Grid | Coordinates
    noted: bool
    first_row: int = 0

    def __call__(
        self,
        outlier: Outlier,
        key: str,
        name: str,
        start: np.datetime64,
        step: int = 0,
    ) -> None:
        """Logs an outlier, unless its field was named before, or raises the error.

        Args:
            outlier: the outlier.
            key: key of the variable in the data.
            name: name of the channel, for people.
            start: a time of the master clock.
            step: number of steps from it to the field.

        Raises:
            OutlierError: outliers are errors.
        """
        label = self._label(key, start, step)
        error = OutlierError(self._text(outlier, name, label), key, start, step)
        if not self.noted:
            raise error
        field = self.data.path_of(key, start, step), key, name, label
        if field in _NAMED or not names_outliers():
            return
        _NAMED.add(field)
        last = "further outliers are not named" if len(_NAMED) > MOST_NOTES else None
        _LOG.warning("note: %s", last or error.in_file(self.data.path_of))

    def _label(self, key: str, start: np.datetime64, step: int) -> np.datetime64 | None:
        """The time of a field in its file; None for a static field."""
        source, field_type, *_ = key.split("/")
        time, clock = self.data.time(start, step), self.data.clocks.get(source)
        if field_type == "static":
            return None
        return time if clock is None else clock.input_times(time)[-1]

    def _text(self, outlier: Outlier, name: str, label: np.datetime64 | None) -> str:
        _, _, row, column = outlier.place
        row += self.first_row
        axes = self.grid.latitude, self.grid.longitude
        named = zip(("latitude", "longitude"), axes, (row, column), strict=True)
        place = ", ".join(
            f"{axis} {values[i]:g}" for axis, values, i in named if values is not None
        )
        return (
            f"{name}{'' if label is None else f' at {str(label)[:16]}'} has a value "
            f"that is {outlier.value:.4g} deviations from the mean, at row {row}, "
            f"column {column}{f' ({place})' if place else ''}; more than {OUTLIER:g} "
            "are implausible: compare the field with its neighbors in time "
            "(data.on_outlier: note, raise or skip)"
        )


@dataclasses.dataclass(frozen=True)
class ChannelChecks:
    """Checks the channels of x and y.

    Attributes:
        data: the data of the channels.
        pipeline: the transforms, whose preblocks make them.
        schema: the channels of x and y.
        noted: whether outliers are notes, otherwise they are errors.
        first_row: row of the grid of the first row of x and y.
    """

    data: InputData
    pipeline: Pipeline
    schema: ChannelSchema
    noted: bool
    first_row: int = 0

    def check(
        self,
        x: Shaped[np.ndarray, "batch channel time lat lon"],
        y: Shaped[np.ndarray, "batch channel_out time_out lat lon"] | None,
        times: np.ndarray,
        check_raw: Callable[[], None],
    ) -> None:
        """Checks x and y.

        Args:
            x: input of the model.
            y: target; None in a forecast.
            times: (batch,) last input times.
            check_raw: raises an error if the fields have fill values as they are read.

        Raises:
            BadValuesError: a value is not finite, a fill value, or an outlier where
                these are errors.
        """
        channels = self.schema, self._normalized
        check_channels(x, y, times, check_raw, self.pipeline, channels, self._policy)

    def check_forcing(
        self,
        forcing: Mapping[str, Mapping[str, np.ndarray]],
        times: np.ndarray,
        check_raw: Callable[[], None],
        names: Sequence[str] | None = None,
    ) -> None:
        """Checks the dynamic forcing of a later step, as that step takes it.

        Args:
            forcing: fields (batch, level, 1, lat, lon) after `Pipeline.aligned`.
            times: (batch,) their times.
            check_raw: see `check`.
            names: (batch,) names in errors; by default the times.

        Raises:
            BadValuesError: see `check`.
        """
        if any(forcing.values()):
            pipeline, channels = self._forcing
            tree: FieldTree = pipeline.named_as_before({"input": forcing})
            x = pipeline.before_step(tree)["x"]
            policy, before = self._policy, self.pipeline
            check_channels(x, None, times, check_raw, before, channels, policy, names)

    @cached_property
    def _normalized(self) -> frozenset[str]:
        return self.pipeline.normalized(self.data.schema.as_read())

    @cached_property
    def _forcing(self) -> tuple[Pipeline, tuple[ChannelSchema, frozenset[str]]]:
        """Preblocks, channels and normalized variables of forcing by itself."""
        groups = self.data.schema.input
        forcing = tuple(g for g in groups if g.field_type == DYNAMIC_FORCING)
        before = ChannelSchema(forcing, ())
        pipeline = for_forcing(self.pipeline)
        normalized = pipeline.normalized(before.as_read())
        return after_aligned(pipeline), (before.after(pipeline), normalized)

    @cached_property
    def _policy(self) -> OutlierPolicy:
        grid = self.pipeline.grid or self.data.coordinates()
        return OutlierPolicy(self.data, grid, self.noted, self.first_row)


def check_channels(
    x: Shaped[np.ndarray, "batch channel time lat lon"],
    y: Shaped[np.ndarray, "batch channel_out time_out lat lon"] | None,
    times: np.ndarray,
    check_raw: Callable[[], None],
    pipeline: Pipeline,
    channels: tuple[ChannelSchema, frozenset[str]],
    policy: OutlierPolicy,
    names: Sequence[str] | None = None,
) -> None:
    """Checks arrays of channels; errors name variables as the files do.

    Args:
        x, y, times, check_raw: see `ChannelChecks.check`.
        pipeline: the transforms, which know the names of variables in the data.
        channels: the channels, and keys of the normalized variables.
        policy: what is done with outliers.
        names: (batch,) names in errors; by default the times.

    Raises:
        BadValuesError: see `ChannelChecks.check`.
    """
    schema, normalized = channels
    try:
        suspects = check_finite(x, y, times, schema, normalized, names)
    except BadValuesError as error:
        check_raw()  # raises a more specific error, if it finds the cause
        error.key = pipeline.origins.get(error.key, error.key)
        raise
    if suspects.plateau:
        check_raw()
    for outlier in suspects.outliers:
        sample, time, *_ = outlier.place
        step = time + 1 if outlier.which == "target" else time + 1 - x.shape[2]
        key = schema.key_of(outlier.channel, outlier.which)
        key = pipeline.origins.get(key, key)
        name = schema.describe(outlier.channel, outlier.which)
        policy(outlier, key, name, times[sample], step)


def further_arrays(
    further: FurtherInputs,
    starts: Sequence[np.datetime64],
    pipeline: Pipeline,
    *,
    noted: bool,
    thorough: bool = False,
) -> dict[str, np.ndarray]:
    """Returns the inputs other than x of one sample, with its steps concatenated.

    Args:
        further: the opened inputs.
        starts: last time of x in each step.
        pipeline: the transforms, whose preblocks are applied as for x.
        noted: whether outliers are notes, otherwise they are errors.
        thorough: whether to check for fill values, which is done in any case where
            fields look like it.

    Returns:
        Fields (1, channel, step x time, lat, lon) and vectors (1, step x size), by name
        of the input.

    Raises:
        ValueError: a time is missing, a value is not finite or a fill value, or an
            outlier is an error.
    """
    steps = [
        {
            name: _field(further, name, start, pipeline, noted=noted, thorough=thorough)
            for name in further.schemas
        }
        | further.vectors(start)
        for start in starts
    ]
    return {
        name: np.concatenate([arrays[name] for arrays in steps], axis=x.ndim // 4)[None]
        for name, x in steps[0].items()
    }


def _field(
    further: FurtherInputs,
    name: str,
    start: np.datetime64,
    pipeline: Pipeline,
    *,
    noted: bool,
    thorough: bool,
) -> Float[np.ndarray, "channel time lat lon"]:
    raw = further.fields(name, start)
    if thorough:
        check_fields(raw, start)
    batched = {
        source: {key: field[None] for key, field in fields.items()}
        for source, fields in raw.items()
    }
    aligned = pipeline.aligned({"input": batched}, Phase.INITIAL)
    array = np.asarray(pipeline.before_step(aligned)["x"], np.float32)
    schema = further.schemas[name].after(pipeline)
    normalized = pipeline.normalized(further.schemas[name].as_read())
    grid = pipeline.grid or further.only(raw).coordinates()
    check_channels(
        array,
        None,
        np.array([start]),
        partial(check_fields, raw, start),
        pipeline,
        (schema, normalized),
        OutlierPolicy(further, grid, noted),
    )
    return array[0]
