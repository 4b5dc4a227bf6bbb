"""Checks of the data before anything is compiled: grids, times, variables, values."""

import numpy as np
from jaxtyping import Shaped

from credit_jax.data.channels import ChannelSchema
from credit_jax.data.dataset import Dataset
from credit_jax.data.sources.source import Grid

# Largest difference of two files' coordinates, in degrees.
SAME_DEGREES = 1e-2


def check_dataset(dataset: Dataset, grid: tuple[int, int] | None = None) -> None:
    """Check times, grids and variables of all files against each other.

    Args:
        dataset: opened.
        grid: (latitudes, longitudes) that the model takes; None does not compare.

    Raises:
        ValueError: naming the file, what it has, and what was expected.
    """
    check_grid(dataset, grid)
    for name, source in dataset.sources.items():
        for kind in source.config.variables.given:
            source.check(kind, np.unique(dataset.window(name, kind)))


def check_grid(dataset: Dataset, grid: tuple[int, int] | None = None) -> None:
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
