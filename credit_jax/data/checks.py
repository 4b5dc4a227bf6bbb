"""Checks of the data before anything is compiled: grids, times, variables."""

from collections.abc import Iterator
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from credit_jax.data.dataset import Dataset
from credit_jax.data.sources.source import BadSampleError, FileGrid, check_same_files


@runtime_checkable
class HasGrids(Protocol):
    """Data whose grids can be compared."""

    def grids(self) -> Iterator[FileGrid]:
        """The grid of each field type of each source."""
        ...


def check_dataset(
    dataset: Dataset, grid: tuple[int, int] | None = None, *, shared_grid: bool = True
) -> list[str]:
    """Checks times, grids and variables of all files against each other.

    Args:
        dataset: the opened data set.
        grid: (latitudes, longitudes) of the model; None skips the comparison.
        shared_grid: whether all files must have one grid; False if preblocks regrid.

    Returns:
        The notes of the sources; for a data set that skips bad samples, also one line
        for each problem of a source that makes samples bad.

    Raises:
        ValueError: a check failed; names the file, its content and the expected one.
    """
    if shared_grid:
        check_grid(dataset, grid)
    checks = [
        partial(source.check, kind, np.unique(dataset.window(name, kind)))
        for name, source in dataset.sources.items()
        for kind in source.config.variables.by_type
    ]
    if dataset.further is not None:
        starts = [dataset.starts_at(step) for step in range(dataset.num_steps)]
        checks += [partial(dataset.further.check, np.concatenate(starts))]
    lines = []
    for check in checks:
        try:
            check()
        except BadSampleError as error:
            if not dataset.skips_bad:
                raise
            lines.append(str(error))
    return lines + [n for source in dataset.sources.values() for n in source.notes()]


def check_grid(dataset: HasGrids, grid: tuple[int, int] | None = None) -> None:
    """Checks that all files have the model's grid and the same coordinates.

    Args:
        dataset: the data.
        grid: (latitudes, longitudes) of the model; None skips the comparison.

    Raises:
        ValueError: a grid or its coordinates differ.
    """
    first = None
    for source_grid in dataset.grids():
        shape, first = source_grid.shape, first or source_grid
        if grid is not None and shape != grid:
            raise ValueError(
                f"{source_grid.where} has a grid of {source_grid.size} (latitude x "
                f"longitude), the model has image_height {grid[0]} x image_width "
                f"{grid[1]}; set them to {' and '.join(map(str, shape))}, or take "
                "other files"
            )
        check_same_files(source_grid, first)
