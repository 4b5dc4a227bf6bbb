"""The section of a case, with the file that it reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.cases import CASES, GRAPH_GRID
from tests.models.graph.edges import write_edges


@pytest.fixture(scope="session")
def edge_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An edge file with neighbors over both poles; node 20 has no edge."""
    path = tmp_path_factory.mktemp("graph") / "edges.nc"
    return write_edges(path, *GRAPH_GRID, 6, alone=20)


@pytest.fixture
def block(name: str, edge_path: str) -> dict[str, Any]:
    """The `model:` section of the case that the test names."""
    return section_of(name, edge_path)


def section_of(name: str, edge_path: str) -> dict[str, Any]:
    """Returns the section of a case; that of a graph names a file."""
    section = CASES[name].block
    return section | ({"edge_path": edge_path} if section["type"] == "graph" else {})
