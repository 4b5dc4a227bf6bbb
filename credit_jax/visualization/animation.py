"""Animated GIFs of maps, one frame per lead time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from credit_jax.io.atomic import new_file
from credit_jax.visualization.canvas import style
from credit_jax.visualization.maps import Map, MapFigure

GIF_DPI = 80  # pixels per inch


def write_animation(
    figure: MapFigure,
    frames: Iterable[tuple[str, Sequence[Map]]],
    path: str | Path,
    *,
    frames_per_second: float = 4.0,
) -> Path:
    """Writes a GIF.

    Args:
        figure: figure of the first frame; its fields are replaced.
        frames: title and maps of each frame, consumed one after the other.
        path: path of the file, which ends with .gif.
        frames_per_second: frame rate.
    """
    from matplotlib.animation import PillowWriter

    with style(), new_file(path) as partial:
        writer = PillowWriter(fps=frames_per_second)  # type: ignore[arg-type]
        with writer.saving(figure.figure, str(partial), GIF_DPI):
            for title, maps in frames:
                figure.update(maps, title)
                writer.grab_frame()
    return Path(path)
