"""docs/architecture.md shows the layers that the import contract has."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = r"[a-z_]+"


def contract() -> list[set[str]]:
    """The layers of the contract, from the top."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = (found["layers"] for found in contracts if found["type"] == "layers")
    return [set(re.findall(NAME, layer)) - {"__main__"} for layer in layers]


def page() -> list[set[str]]:
    """The layers below the line of the first block of the page, from the top."""
    block = (ROOT / "docs/architecture.md").read_text().split("    ------")[1]
    lines = block.split("\n\n")[0].splitlines()[1:]
    return [set(re.findall(NAME, re.split(r" {2,}", line)[1])) for line in lines]


def test_the_page_has_the_layers_of_the_contract():
    assert page() == [layer for layer in contract() if layer]
