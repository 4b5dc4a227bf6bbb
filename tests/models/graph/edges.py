"""Small edge files: the nearest neighbors of every point of a global grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr


def write_edges(
    path: Path, height: int, width: int, neighbors: int, *, alone: int | None = None
) -> str:
    """Writes a file as CREDIT's `graph_edges_knn`, with self-loops.

    Args:
        path: path of the file.
        height, width: of the grid; its first and last rows are near the poles.
        neighbors: number of neighbors of each node, including itself.
        alone: a node without any edge.
    """
    east = (np.arange(width) * 360 / width + 179) % 360 - 179  # -179 to 180
    lon, lat = (x.ravel() for x in np.meshgrid(east, np.linspace(80, -80, height)))
    a, b = np.deg2rad(lat), np.deg2rad(lon)
    points = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], 1)
    angle = np.arccos(np.clip(points @ points.T, -1, 1))
    nearest = np.argsort(angle, axis=1, kind="stable")[:, :neighbors]
    pairs = np.stack([nearest.ravel(), np.repeat(np.arange(len(lat)), neighbors)], 1)
    pairs = pairs[(pairs != (-1 if alone is None else alone)).all(1)]
    variables = {"edges": (("node", "pair"), pairs)}
    variables["distances"] = (("node",), 6371 * angle[pairs[:, 0], pairs[:, 1]])
    variables |= {"longitude": (("index",), lon), "latitude": (("index",), lat)}
    xr.Dataset(variables).to_netcdf(path)
    return str(path)
