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
    lat = np.linspace(80, -80, height)
    lon = np.arange(width) * 360 / width
    lon = np.where(lon > 180, lon - 360, lon)
    lon_flat, lat_flat = (x.ravel() for x in np.meshgrid(lon, lat))
    a, b = np.deg2rad(lat_flat), np.deg2rad(lon_flat)
    points = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], 1)
    angle = np.arccos(np.clip(points @ points.T, -1, 1))
    nearest = np.argsort(angle, axis=1, kind="stable")[:, :neighbors]
    end = np.repeat(np.arange(len(points)), neighbors)
    pairs = np.stack([nearest.ravel(), end], 1)
    if alone is not None:
        pairs = pairs[(pairs != alone).all(1)]
    distances = 6371 * angle[pairs[:, 0], pairs[:, 1]]
    dataset = xr.Dataset(
        {
            "edges": (("node", "pair"), pairs),
            "distances": (("node",), distances),
            "longitude": (("index",), lon_flat),
            "latitude": (("index",), lat_flat),
        }
    )
    dataset.to_netcdf(path)
    return str(path)
