"""Checks of the channels of x and y, as preblocks make them, and what follows."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from credit_jax.data import values
from credit_jax.data.opened_data import InputData, OpenedData
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.values import BadValuesError
from credit_jax.transforms import FieldTree, Phase, Pipeline, after_aligned, for_forcing
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
class ChannelChecks:
    """Checks channels that preblocks make of the fields of data."""

    data: OpenedData
    pipeline: Pipeline
    schema: ChannelSchema  # of x and y
    read: ChannelSchema  # of the data before preblocks
    noted: bool  # whether outliers are notes, otherwise they are errors
    first_row: int = 0  # row of the grid of the first row of x and y
    scaling: Pipeline | None = None  # preblocks that normalize, if others

    def check(
        self,
        x: Shaped[np.ndarray, "batch channel time lat lon"],
        y: Shaped[np.ndarray, "batch channel_out time_out lat lon"] | None,
        times: np.ndarray,  # (batch,) last input times
        check_raw: Callable[[], None],  # raises an error for fill values in files
        names: Sequence[str] | None = None,  # in errors; by default the times
    ) -> None:
        """Checks x and y (None in a forecast); errors name variables as files do."""
        origins, schema = self.pipeline.origins, self.schema
        try:
            suspects = values.check_finite(x, y, times, schema, self._normalized, names)
        except BadValuesError as error:
            check_raw()  # raises a more specific error, if it finds the cause
            error.key = origins.get(error.key, error.key)
            raise
        if suspects.plateau:
            check_raw()
        for outlier in suspects.outliers:
            grid: Any = self.pipeline.grid or self.data.coordinates()
            sample, time, row, column = outlier.place
            step = time + 1 if outlier.which == "target" else time + 1 - x.shape[2]
            key, start = schema.key_of(outlier.channel, outlier.which), times[sample]
            key, row = origins.get(key, key), row + self.first_row
            name = schema.describe(outlier.channel, outlier.which)
            source, field_type, *_ = key.split("/")
            label, clock = self.data.time(start, step), self.data.clocks.get(source)
            if clock is not None:
                label = clock.input_times(label)[-1]
            label = None if field_type == "static" else label
            location = ", ".join(
                f"{axis} {degrees[i]:g}"
                for axis, i in (("latitude", row), ("longitude", column))
                if (degrees := getattr(grid, axis)) is not None
            )
            text = (
                f"{name}{'' if label is None else f' at {str(label)[:16]}'} has a "
                f"value that is {outlier.value:.4g} deviations from the mean, at row "
                f"{row}, column {column}{f' ({location})' if location else ''}; more "
                f"than {values.OUTLIER:g} are implausible: compare the field with its "
                "neighbors in time (data.on_outlier: note, raise or skip)"
            )
            error = values.OutlierError(text, key, start, step)
            if not self.noted:
                raise error
            # Each field is named once.
            field = self.data.path_of(key, start, step), key, name, label
            if field not in _NAMED and names_outliers():
                _NAMED.add(field)
                are_many = len(_NAMED) > MOST_NOTES
                last = "further outliers are not named" if are_many else None
                _LOG.warning("note: %s", last or error.in_file(self.data.path_of))

    def check_forcing(
        self,
        forcing: Mapping[str, Mapping[str, np.ndarray]],
        times: np.ndarray,
        check_raw: Callable[[], None],
        names: Sequence[str] | None = None,
    ) -> None:
        """Checks the dynamic forcing of a later step, as that step takes it."""
        if any(forcing.values()):
            preblocks, checks = self._forcing
            tree: FieldTree = preblocks.with_input_names({"input": forcing})
            x = preblocks.run(Phase.BEFORE_STEP, tree)["x"]
            checks.check(x, None, times, check_raw, names)

    @cached_property
    def _normalized(self) -> frozenset[str]:
        return (self.scaling or self.pipeline).normalized(self.read.as_read())

    @cached_property
    def _forcing(self) -> tuple[Pipeline, ChannelChecks]:
        """Preblocks of forcing by itself, and the checks of what they make."""
        groups = (g for g in self.read.input if g.field_type == DYNAMIC_FORCING)
        previous, pipeline = (
            ChannelSchema(tuple(groups), ()),
            for_forcing(self.pipeline),
        )
        # Outliers are on the grid and by the names of all transforms.
        checks = dataclasses.replace(
            self, read=previous, schema=previous.after(pipeline), scaling=pipeline
        )
        return after_aligned(pipeline), checks


def further_arrays(
    data: InputData,
    starts: Sequence[np.datetime64],
    pipeline: Pipeline,
    *,
    noted: bool,
    thorough: bool = False,
) -> dict[str, np.ndarray]:
    """Returns the inputs other than x of one sample, with its steps concatenated."""

    def field(name: str, start: np.datetime64) -> Float[np.ndarray, "_ _ lat lon"]:
        read, raw = (
            data.further[name],
            {
                source: {key: x[None] for key, x in fields.items()}
                for source, fields in data.fields(name, start).items()
            },
        )
        check_raw = partial(values.check_fields, raw, [start])
        if thorough:
            check_raw()
        aligned = pipeline.aligned({"input": raw}, Phase.INITIAL)
        array = np.asarray(pipeline.run(Phase.BEFORE_STEP, aligned)["x"], np.float32)
        chosen = data if pipeline.grid else data.only(raw)
        checks = ChannelChecks(chosen, pipeline, read.after(pipeline), read, noted)
        checks.check(array, None, np.array([start]), check_raw)
        return array[0]

    steps = [
        {name: field(name, start) for name in data.further} | data.vectors(start)
        for start in starts
    ]
    # Fields (1, channel, step x time, lat, lon), vectors (1, step x size).
    return {
        name: np.concatenate([arrays[name] for arrays in steps], axis=x.ndim // 4)[None]
        for name, x in steps[0].items()
    }
