"""Checks of values: not finite, fill values read as numbers, not normalized."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from credit_jax.data.dataset import Sample
from credit_jax.data.schema import ChannelSchema
from credit_jax.named_fields.tree import by_key

# Usual fill values, which files do not always declare as _FillValue.
FILL_NUMBERS = (-9999.0, -999.0, -99999.0, 9999.0, -32768.0, -32767.0)
# A number above is taken for a fill value if more than this share of points has it.
FILL_SHARE = 1e-3
# Normalized values with a larger magnitude are suspicious.
OUTSTANDING = 10.0
# Normalized values with a larger magnitude are implausible, in deviations.
OUTLIER = 50.0
# No field in physical units is this large; NetCDF's default fill value is 1e37.
LARGEST = 1e15
# Key of a field, a time, number of steps from it -> file; see `Dataset.path_of`.
PathOf = Callable[[str, np.datetime64, int], str | None]


class BadValuesError(ValueError):
    """An error for values of a field of a sample."""

    def __init__(
        self, message: str, key: str, time: np.datetime64, step: int = 0
    ) -> None:
        super().__init__(message)
        self.key = key
        self.time = time
        self.step = step

    def in_file(self, path_of: PathOf) -> "BadValuesError":
        """Returns the error that names the file of the field, if it is known."""
        path = path_of(self.key, self.time, self.step)
        if path is None:
            return self
        return type(self)(f"{path}: {self}", self.key, self.time, self.step)


@contextmanager
def files_named(path_of: PathOf) -> Iterator[None]:
    """Adds their file to errors of values."""
    try:
        yield
    except BadValuesError as error:
        raise error.in_file(path_of) from error


def check_sample(sample: Sample) -> None:
    """Checks that no field of a sample has a fill value or an infinity."""
    for part, time in (
        (sample.input, sample.input_time),
        (sample.target, sample.target_time),
    ):
        for key, field in by_key(part).items():
            _check_fill_value(key, field, time)
        for key, field in by_key(part).items():
            if (count := int(np.isinf(field).sum())) > 0:
                raise BadValuesError(
                    f"{_at(key, time)} has {count} of {field.size} values that are "
                    "infinite; repair the data",
                    key,
                    time,
                )


def check_fields(
    fields: Mapping[str, Mapping[str, np.ndarray]],
    times: Sequence[np.datetime64] | np.ndarray,
) -> None:
    """Checks that no field has a fill value."""
    for number, time in enumerate(times):
        for key, field in by_key(fields).items():
            _check_fill_value(key, field[number], time)


def _check_fill_value(
    key: str, field: Shaped[np.ndarray, "..."], time: np.datetime64
) -> None:
    size = np.abs(field)
    number, count = None, int(((size >= LARGEST) & np.isfinite(size)).sum())
    if count:
        number = float(np.max(size, initial=0.0, where=np.isfinite(size)))
    else:
        # Only the extremes of a field can be far outside of its range.
        ends = {float(np.fmin.reduce(field, None)), float(np.fmax.reduce(field, None))}
        for end in sorted(ends.intersection(FILL_NUMBERS)):
            count = int((field == end).sum())
            number = end if FILL_SHARE * field.size < count else number
    if number is not None:
        raise BadValuesError(
            f"{_at(key, time)} has {count} of {field.size} values that are "
            f"{number:g}, a fill value read as a number; declare it in the file as the "
            "attribute _FillValue of the variable, or repair the data",
            key,
            time,
        )


def _at(key: str, time: np.datetime64) -> str:
    source, _, _, variable = key.split("/")
    return f"data.source.{source}: {variable} at {str(time)[:16]}"


class OutlierError(BadValuesError):
    """An error for a value that normalization makes implausible."""


class Outlier(NamedTuple):
    """A value that normalization makes implausible."""

    which: str  # "input" or "target"
    channel: int
    place: tuple[int, int, int, int]  # (sample, time, row, column)
    value: float  # normalized


class Suspects(NamedTuple):
    """What `check_finite` finds."""

    # Whether the extreme of a channel is above `OUTSTANDING` and occurs at many points,
    # as if a fill value was read as a number.
    plateau: bool = False
    # The largest value of each normalized channel in which one is beyond `OUTLIER`.
    outliers: tuple[Outlier, ...] = ()


def check_finite(
    x: Shaped[np.ndarray, "batch channel time lat lon"],
    y: Shaped[np.ndarray, "batch channel_out time_out lat lon"] | None,
    times: np.ndarray,  # (batch,) last input times
    schema: ChannelSchema,
    normalized: Collection[str] = (),  # to find outliers in
    samples: Sequence[str] | None = None,  # in errors; by default their times
) -> Suspects:
    """Checks that a batch has no NaN and no infinity."""
    plateau, outliers = False, list[Outlier]()
    for which, array in (("input", x), ("target", y)):
        if array is None:
            continue
        # By channel, so that the second pass finds it in the processor's cache.
        extremes = [(field.min(), field.max()) for field in np.moveaxis(array, 1, 0)]
        low, high = np.array(extremes).T
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            bad = ~np.isfinite(array)
            sample, channel, time = map(int, np.argwhere(bad.any(axis=(3, 4)))[0])
            field = bad[sample, channel]
            name = f"the sample at {str(times[sample])[:16]}"
            name = name if samples is None else samples[sample]
            raise BadValuesError(
                f"{schema.describe(channel, which)} of the {which} of {name} has "
                f"{int(field.sum())} of {field.size} values that are NaN or infinite "
                "(fields of this batch with such values: "
                f"{int(bad.any(axis=(3, 4)).sum())}); repair the data, fill them with "
                "a preblock of type fill_values, or leave the variable or the dates "
                "out",
                schema.key_of(channel, which),
                times[sample],
                time + 1 if which == "target" else 0,
            )
        for ends in (low, high):
            for channel in np.flatnonzero(np.abs(ends) > OUTSTANDING):
                values = array[:, channel]
                at_end = (values == ends[channel]).sum((1, 2, 3)).max()
                plateau |= bool(at_end > FILL_SHARE * values[0].size)
        size = np.maximum(np.abs(low), np.abs(high))
        for channel in np.flatnonzero(size > OUTLIER).tolist():
            if schema.key_of(channel, which) in normalized:
                values = array[:, channel]
                worst = int(np.abs(values).argmax())
                point: Any = np.unravel_index(worst, values.shape)
                origin: Any = tuple(map(int, point))
                outliers.append(Outlier(which, channel, origin, float(values[origin])))
    return Suspects(plateau, tuple(outliers))


def scale_notes(
    x: Shaped[np.ndarray, "batch channel time lat lon"],
    y: Shaped[np.ndarray, "batch channel_out time_out lat lon"],
    times: np.ndarray,
    schema: ChannelSchema,
) -> dict[str, str]:
    """Returns a text for each variable of a normalized sample that is far from 0."""
    notes: dict[str, str] = {}
    for part, array, slices in (
        ("input", x, schema.input_slices()),
        ("target", y, schema.target_slices()),
    ):
        for key, point in slices.items():
            # Such a variable is not normalized, its unit in the files is not that of
            # its mean and deviation, or its deviation is 0 where the field varies.
            size = np.sqrt(np.square(array[:, point], dtype=float).mean((0, 2, 3, 4)))
            worst = int(np.argmax(size))
            if key in notes or size[worst] <= OUTSTANDING:
                continue
            name = schema.describe(point.start + worst, part)
            mean = array[:, point.start + worst].mean(dtype=float)
            notes[key] = (
                f"{name} ({key}) is {mean:.3g} on average and {size[worst]:.3g} in "
                f"root mean square after the preblocks, in the {part} of the sample at "
                f"{str(times[0])[:16]}: not normalized, by a mean and deviation of "
                "other units, or by a deviation of 0; compare them with the file"
            )
    return notes
