"""The package of a graph model contains its edge file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import main as forecast
from credit_jax.extensions.packaging import command as package
from tests.data.world import NUM_LAT, NUM_LON
from tests.forecast.tiny_run import make_run, read
from tests.models.graph.edges import write_edges
from tests.training.tiny import write_yaml

pytestmark = pytest.mark.slow


def test_forecasts_need_nothing_else(world: Path, data: Path, tmp_path: Path) -> None:
    """The edge file of the training is deleted before the package is used."""
    edges = tmp_path / "edges.nc"
    write_edges(edges, NUM_LAT, NUM_LON, 5)
    graph: dict[str, Any] = {
        "type": "graph",
        "n_variables": 2,
        "n_surface_variables": 1,
        "n_static_variables": 2,
        "levels": 2,
        "hidden_size": 8,
        "dim_head": 4,
        "n_blocks": 1,
        "edge_path": str(edges),
        "image_height": NUM_LAT,
        "image_width": NUM_LON,
    }
    run = Path(make_run(world, tmp_path / "graph", model=graph, data__history_len=2))
    raw = yaml.safe_load(run.read_text())
    del raw["data"]["source"]["ERA5"]["variables"]["diagnostic"]
    write_yaml(run, raw)
    saved = os.fspath(run.parent / "run")
    own = ["--config", str(run), "--checkpoint", saved]
    assert package.main([*own, "--out", str(tmp_path / "made")]) == OK
    assert forecast([*own, "--out", str(tmp_path / "of_run"), "--cache", "none"]) == OK
    edges.unlink()
    options = ["--package", str(tmp_path / "made"), "--data", str(data)]
    times = [o for d in ("1999-12-30T00",) for o in ("--init-time", d)]
    out = ["--out", str(tmp_path / "of_package"), "--cache", "none"]
    assert forecast([*options, *times, "--length", "18h", *out]) == OK
    ours, theirs = (read(tmp_path / name) for name in ("of_package", "of_run"))
    for name in ours.data_vars:
        np.testing.assert_array_equal(
            ours[name].values[0], theirs[name].values[0], err_msg=str(name)
        )
