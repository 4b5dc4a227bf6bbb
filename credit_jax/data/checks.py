"""Checks of the data before anything is compiled: grids, times, variables, values."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from credit_jax.data.channels import ChannelSchema
from credit_jax.data.dataset import Dataset, Sample
from credit_jax.data.sources.source import Grid

# What files write where there is no value, and do not always declare as _FillValue.
FILL_NUMBERS = (-9999.0, -999.0, -99999.0, 9999.0, -32768.0, -32767.0)
# Share of a field's points that has such a number, from which on it is no chance.
FILL_SHARE = 1e-3
# No field in physical units is that large; NetCDF's own fill value is 1e37.
LARGEST = 1e15
# Largest difference of two files' coordinates, in degrees.
SAME_DEGREES = 1e-2


@runtime_checkable
class HasGrids(Protocol):
    """Opened files, whose grids can be compared."""

    def grids(self) -> Iterator[Grid]:
        """The grid of each field type of each source."""
        ...


def check_dataset(dataset: Dataset, grid: tuple[int, int] | None = None) -> None:
    """Check times, grids and variables of all files against each other.

    Args:
        dataset: opened.
        grid: (latitudes, longitudes) of the model; None skips the comparison.

    Raises:
        ValueError: naming the file, what it has, and what was expected.
    """
    check_grid(dataset, grid)
    for name, source in dataset.sources.items():
        for kind in source.config.variables.given:
            source.check(kind, np.unique(dataset.window(name, kind)))
    check_fill_values(dataset)


def check_fill_values(dataset: Dataset) -> None:
    """Check that no field of the first sample holds a fill value as a number.

    Raises:
        ValueError: with the variable, the time, the number and how often it occurs.
    """
    check_sample(dataset[0])


def check_sample(sample: Sample) -> None:
    """Check that no field of a sample holds a fill value or an infinity.

    Raises:
        ValueError: with the variable, the time, the number and how often it occurs.
    """
    for fields, time in (
        (sample.input, sample.input_time),
        (sample.target, sample.target_time),
    ):
        for own in fields.values():
            for key, field in own.items():
                _check_fill_value(key, field, time)


def _check_fill_value(
    key: str, field: Shaped[np.ndarray, "level time *space"], time: np.datetime64
) -> None:
    if np.isnan(field).all():
        return
    large = np.nanmax(np.abs(field), initial=0.0)
    number = float(large) if large >= LARGEST else None
    count = int((np.abs(field) >= LARGEST).sum())
    if number is None:
        # Only the extremes of a field can be far outside of its range.
        ends = {float(np.nanmin(field, initial=np.inf)), float(np.nanmax(field))}
        for end in sorted(ends.intersection(FILL_NUMBERS)):
            count = int((field == end).sum())
            number = end if FILL_SHARE * field.size < count else number
    if number is not None:
        source, _, _, variable = key.split("/")
        raise ValueError(
            f"data.source.{source}: {variable} at {str(time)[:16]} has {count} of "
            f"{field.size} values that are {number:g}, a fill value read as a number; "
            "declare it in the file as the attribute _FillValue of the variable, or "
            "repair the data"
        )


def check_grid(dataset: HasGrids, grid: tuple[int, int] | None = None) -> None:
    """Check that all files have the model's grid and the same coordinates."""
    first = None
    for own in dataset.grids():
        shape, first = own.shape, first or own
        if grid is not None and shape != grid:
            raise ValueError(
                f"{own.where} has a grid of {_shown(shape)} (latitude x longitude), "
                f"the model has image_height {grid[0]} x image_width {grid[1]}; set "
                f"them to {' and '.join(map(str, shape))}, or take other files"
            )
        if shape != first.shape:
            raise ValueError(
                f"{own.where} has a grid of {_shown(shape)}, but {first.where} has "
                f"{_shown(first.shape)}"
            )
        for which in ("latitude", "longitude"):
            _check_coordinate(which, own, first)


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) + (" points" if len(shape) == 1 else "")


def _check_coordinate(which: str, own: Grid, first: Grid) -> None:
    here, there = getattr(own, which), getattr(first, which)
    if here is None or there is None:
        return
    if np.allclose(here, there, rtol=0, atol=SAME_DEGREES):
        return
    flipped = np.allclose(here[::-1], there, rtol=0, atol=SAME_DEGREES)
    hint = "; one is upside down" if flipped else ""
    raise ValueError(
        f"{own.where}: {which} runs from {here[0]:g} to {here[-1]:g}, but in "
        f"{first.where} from {there[0]:g} to {there[-1]:g}{hint}; rows would not be "
        "the same places. Bring both to one grid"
    )


def check_finite(
    x: Shaped[np.ndarray, "batch channel time lat lon"],
    y: Shaped[np.ndarray, "batch channel_out time_out lat lon"],
    times: np.ndarray,
    schema: ChannelSchema,
) -> None:
    """Check that a batch has no NaN and no infinity.

    Args:
        x: input.
        y: target.
        times: (batch,) newest input time of each sample.
        schema: names the channels.

    Raises:
        ValueError: with the variable, the time and how many values of how many.
    """
    for which, array in (("input", x), ("target", y)):
        if np.isfinite(array).all():
            continue
        bad = ~np.isfinite(array)
        sample, channel = np.argwhere(bad.any(axis=(2, 3, 4)))[0]
        field = bad[sample, channel]
        raise ValueError(
            f"{schema.describe(int(channel), which)} of the {which} of the sample "
            f"at {str(times[sample])[:16]} has {int(field.sum())} of {field.size} "
            f"values that are NaN or infinite ({int(bad.any(axis=(3, 4)).sum())} "
            f"fields of this batch are affected); repair the data, or leave the "
            "variable or the dates out"
        )
