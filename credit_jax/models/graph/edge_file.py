"""Edge files of CREDIT's graph model, as written by its graph_edges programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import xarray as xr
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from credit_jax.io.open_files import opened
from credit_jax.physics.arrays import EARTH_RADIUS

EPSILON = np.float32(1e-5)


@dataclass(frozen=True, eq=False)
class EdgeFile:
    """Edges in both directions and their attributes."""

    # Size of the grid, whose points are the nodes in row-major order.
    height: int
    width: int
    # (edge, 2), source and target; each ordered pair of nodes once.
    edges: Int[np.ndarray, "edge 2"]
    # (edge, 3), exp(-d^2) of the standardized differences of latitude and longitude and
    # of the standardized distance. The values of an edge that the file has in both
    # directions, or from a node to itself, are added up.
    attributes: Float[np.ndarray, "edge 3"]


def nearest_edges(
    latitude: Float[np.ndarray, " lat"],
    longitude: Float[np.ndarray, " lon"],
    neighbors: int,
) -> xr.Dataset:
    """Returns an edge file of a grid, as CREDIT's `graph_edges_knn` writes it.

    Args:
        latitude, longitude: coordinates of the rows and columns, degrees; longitudes
            of 180 or more become negative.
        neighbors: number of the nearest points that each is joined to, among them
            itself.
    """
    east = (longitude + 180.0) % 360.0 - 180.0
    lon, lat = (x.ravel() for x in np.meshgrid(east, latitude))
    a, b = np.deg2rad(lat), np.deg2rad(lon)
    points = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], 1)
    chords, nearest = KDTree(points).query(points, neighbors)
    ends = np.repeat(np.arange(len(points)), neighbors)
    angles = 2 * np.arcsin(np.clip(chords.ravel() / 2, 0, 1))
    return xr.Dataset(
        {
            "edges": (("node", "pair"), np.stack([nearest.ravel(), ends], 1)),
            "distances": (("node",), EARTH_RADIUS / 1000 * angles),
            "longitude": (("index",), lon),
            "latitude": (("index",), lat),
        }
    )


def read_edges(path: str) -> EdgeFile:
    """Reads an edge file; the last four files are cached until they are modified."""
    if not Path(path).exists():
        raise FileNotFoundError(
            f"model.edge_path: {path} does not exist; CREDIT's graph_edges programs "
            "write it for a grid"
        )
    return _read(path, Path(path).stat().st_mtime_ns)


@lru_cache(4)
def _read(path: str, _: int) -> EdgeFile:
    with opened(path) as dataset:
        names = ("edges", "distances", "latitude", "longitude")
        missing = [name for name in names if name not in dataset.variables]
        if missing:
            raise ValueError(
                f"{path} has no {', '.join(missing)}; expected an edge file with "
                f"{', '.join(names)}, as CREDIT's graph_edges programs write it"
            )
        pairs, *remainder = (dataset[name].values for name in names)
    distances, latitude, longitude = (x.astype(np.float32) for x in remainder)
    # Consecutive nodes of equal latitude are a row.
    ends = np.flatnonzero(np.diff(latitude))
    width = int(ends[0]) + 1 if len(ends) else len(latitude)
    if len(latitude) % width:
        raise ValueError(
            f"{path} has {len(latitude)} nodes, {width} of them in the first row; "
            "expected a grid, row by row"
        )
    edge_values = np.concatenate(
        [
            _standard(latitude + np.float32(180))[pairs].T[1:]
            - _standard(latitude + np.float32(180))[pairs].T[:1],
            _standard(longitude)[pairs].T[1:] - _standard(longitude)[pairs].T[:1],
            _standard(distances)[None],
        ]
    ).T
    edge_values = np.exp(-(edge_values**2)).astype(np.float32)
    # PyTorch Geometric's to_undirected, which sums the attributes of equal edges.
    pairs, nodes = pairs.astype(np.int64), len(latitude)
    every = np.concatenate([pairs, pairs[:, ::-1]])
    number, index = np.unique(every[:, 0] * nodes + every[:, 1], return_inverse=True)
    total = np.zeros((len(number), 3), np.float32)
    np.add.at(total, index.ravel(), np.concatenate([edge_values, edge_values]))
    edges = np.stack([number // nodes, number % nodes], 1)
    return EdgeFile(nodes // width, width, edges, total)


def _standard(x: Float[np.ndarray, " item"]) -> Float[np.ndarray, " item"]:
    """Returns (x - mean) / (unbiased standard deviation + epsilon), float32."""
    deviation = np.float32(x.std(ddof=1, dtype=np.float64))
    return (x - np.float32(x.mean(dtype=np.float64))) / (deviation + EPSILON)
