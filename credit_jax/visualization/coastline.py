"""The coastlines of maps: Natural Earth's of 1:110 million, which is public domain.

The package contains them in a file made by tools/coastline.py. They are accurate to
about 20 km, enough for maps of continents and of the globe.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

import numpy as np
from jaxtyping import Float


@cache
def _lines() -> list[np.ndarray]:
    """Lines (point, 2) of degrees east, from -180 to 180, and north."""
    with (
        as_file(files("credit_jax.visualization").joinpath("coastline.npz")) as path,
        np.load(path) as stored,
    ):
        points, lengths = stored["points"] / 100.0, stored["lengths"]
    return np.split(points, np.cumsum(lengths)[:-1])


def coastline(west: float = -180.0) -> list[Float[np.ndarray, "point 2"]]:
    """Coastlines with longitudes from `west` to `west + 360`, cut at these meridians.

    Args:
        west: degrees east.

    Returns:
        Lines of degrees east and north.
    """
    pieces: list[np.ndarray] = []
    for line in _lines():
        east = np.mod(line[:, 0] - west, 360.0) + west
        shifted = np.stack([east, line[:, 1]], axis=1)
        leaves = np.flatnonzero(np.abs(np.diff(east)) > 180.0) + 1
        pieces += [piece for piece in np.split(shifted, leaves) if len(piece) > 1]
    return pieces
