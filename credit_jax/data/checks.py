"""Checks of the data before anything is compiled: grids, times, variables, values."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Shaped

from credit_jax.data.channels import ChannelSchema
from credit_jax.data.dataset import Dataset
from credit_jax.data.local import LocalSource, check_variables

# Files of one field type that are opened in advance; of more, every n-th is.
MANY_FILES = 200
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
        for kind in source.files:
            if kind != "static":
                _check_times(source, kind, _times(dataset, name, kind))


def check_grid(dataset: Dataset, grid: tuple[int, int] | None = None) -> None:
    """Check that all files have the model's grid and the same coordinates."""
    first = None
    for source, kind in _field_types(dataset):
        opened = source.first_file(kind)
        config = source.fields(kind)
        assert config is not None
        name = (config.vars_3D + config.vars_2D)[0]
        shape = opened.variable(name).shape[-2:]
        if grid is not None and shape != grid:
            raise ValueError(
                f"{opened.path}: {name} has a grid of {shape[0]} x {shape[1]} (latitude"
                f" x longitude), the model has image_height {grid[0]} x image_width "
                f"{grid[1]}; set them to {shape[0]} and {shape[1]}, or take other "
                "files"
            )
        if first is None:
            first = (opened, name, shape)
        if shape != first[2]:
            raise ValueError(
                f"{opened.path}: {name} has a grid of {shape[0]} x {shape[1]}, but "
                f"{first[1]} in {first[0].path} has {first[2][0]} x {first[2][1]}"
            )
        for which in ("latitude", "longitude"):
            here, there = getattr(opened, which), getattr(first[0], which)
            if here is not None and there is not None:
                _check_coordinate(which, here.values, there.values, opened, first[0])


def _check_coordinate(
    which: str, here: np.ndarray, there: np.ndarray, opened: Any, first: Any
) -> None:
    if np.allclose(here, there, rtol=0, atol=SAME_DEGREES):
        return
    flipped = np.allclose(here[::-1], there, rtol=0, atol=SAME_DEGREES)
    hint = "; one is upside down" if flipped else ""
    raise ValueError(
        f"{opened.path}: {which} runs from {here[0]:g} to {here[-1]:g}, but in "
        f"{first.path} from {there[0]:g} to {there[-1]:g}{hint}; rows would not be the "
        "same places. Bring both to one grid"
    )


def _check_times(source: LocalSource, field_type: str, times: np.ndarray) -> None:
    """Check that the files have all times to read, and the variables and their dims."""
    files = source.files[field_type]
    places = np.array([files.find(time) or "" for time in times])
    missing = list(times[places == ""])
    paths = sorted(set(places[places != ""]))
    for path in paths[:: -(-len(paths) // MANY_FILES)] if paths else []:
        opened = source.reader.open(path)
        check_variables(source, field_type, opened)
        if opened.times is None:
            raise ValueError(
                f"{path}: no time coordinate {source.config.time_coord!r}; set "
                f"data.source.{source.name}.time_coord"
            )
        wanted = times[places == path]
        missing += list(wanted[~np.isin(wanted, opened.times.to_numpy())])
    if missing:
        raise ValueError(_missing_times(source, field_type, missing, len(times)))


def _missing_times(
    source: LocalSource, field_type: str, missing: list, count: int
) -> str:
    files = source.files[field_type]
    shown = [str(time)[:16] for time in sorted(missing)]
    listed = ", ".join(shown[:3]) + (f", ... {shown[-1]}" if len(shown) > 3 else "")
    ends: list[Any] = [source.reader.open(files.paths[i]).times for i in (0, -1)]
    covers = " to ".join(
        times[i].isoformat()[:16]
        for times, i in zip(ends, (0, -1), strict=True)
        if times is not None and len(times)
    )
    return (
        f"data.source.{source.name}.variables.{field_type}: {len(missing)} of {count} "
        f"times are missing in the files of {files.template!r}: {listed}. They cover "
        f"{covers} ({len(files.paths)} file{'s' if len(files.paths) > 1 else ''}); "
        "change start_datetime, end_datetime or timestep, or complete the files"
    )


def _times(dataset: Dataset, name: str, field_type: str) -> np.ndarray:
    """The times of a field type that the samples read, sorted."""
    clock = dataset.clocks[name]
    wanted = []
    for step in range(dataset.num_steps):
        starts = dataset.starts_at(step)
        if field_type != "diagnostic" and step == 0:
            wanted.append(clock.input_times(starts).ravel())
        elif field_type == "dynamic_forcing":
            wanted.append(starts)
        if field_type in ("prognostic", "diagnostic"):
            wanted.append(clock.target_times(starts).ravel())
    return np.unique(np.concatenate(wanted))


def _field_types(dataset: Dataset) -> Iterator[tuple[LocalSource, str]]:
    for source in dataset.sources.values():
        for kind in source.files:
            yield source, kind


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
