"""Brings sources to common coordinates: those of a run, or of the first source."""

from collections.abc import Mapping

from credit_jax.data.sources.source import Source
from credit_jax.named_fields.coordinates import Axes, Coordinates


def arrange(
    sources: Mapping[str, Source],
    like: Coordinates | None = None,
    *,
    same_grid: bool = True,
) -> dict[str, Source]:
    """Returns sources whose fields have the same rows, columns and levels, in order.

    Args:
        sources: opened sources by name.
        like: the coordinates of a run; None takes those of the first source with known
            ones.
        same_grid: whether all sources have one grid; False if preblocks regrid, and
            each has its own.

    Raises:
        ValueError: see `Source.at`.
    """
    grid = Axes() if like is None or not same_grid else like.grid
    arranged: dict[str, Source] = {}
    for name, source in sources.items():
        axes = source.axes()
        known = Axes() if like is None else like.sources.get(name, Axes())
        if same_grid:
            levels = Axes(None, None, known.levels, known.where)
            grid = grid.over(axes.grid)
            known = grid.over(levels) if known.levels is None else levels.over(grid)
        arranged[name] = source.at(known.over(axes))
    return arranged
