"""Makes credit_jax/extensions/plots/coastline.npz: the coastlines of maps.

They are Natural Earth's land of 1:110 million, version 4.1.0 (public domain,
naturalearthdata.com), as TopoJSON in the npm package world-atlas 2.0.2 (ISC):

    npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
    python tools/coastline.py package/land-110m.json
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "credit_jax/extensions/plots/coastline.npz"
# Segments there close polygons at the edges of the map; they are not coast.
EAST_EDGE, SOUTH_EDGE = 179.99, -89.99


def lines_of(topology: dict) -> Iterator[np.ndarray]:
    """The arcs of a quantized TopoJSON topology, (point, 2) degrees east and north."""
    scale, translate = (topology["transform"][key] for key in ("scale", "translate"))
    for arc in topology["arcs"]:
        yield np.cumsum(arc, axis=0) * scale + translate


def without_edges(line: np.ndarray) -> Iterator[np.ndarray]:
    """The parts of a line that do not run along the edges of the map."""
    edge = (np.abs(line[:, 0]) > EAST_EDGE) | (line[:, 1] < SOUTH_EDGE)
    along = edge[1:] & edge[:-1]
    for part in np.split(np.arange(len(line)), np.flatnonzero(along) + 1):
        if len(part) > 1:
            yield line[part]


def main() -> None:
    topology = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    parts = [piece for line in lines_of(topology) for piece in without_edges(line)]
    points = np.concatenate(parts)
    hundredths = np.round(100 * points).astype(np.int16)
    lengths = np.array([len(part) for part in parts], np.int16)
    np.savez_compressed(TARGET, points=hundredths, lengths=lengths)
    print(f"{TARGET}: {len(parts)} lines, {len(points)} points")


if __name__ == "__main__":
    main()
