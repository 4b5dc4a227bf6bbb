"""docs/architecture.md shows the layers of the import contract and model families."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "credit_jax/models"
# What families of models share.
SHARED = {"common", "diffusion"}
NAME = r"[a-z_]+"
# Columns of the block of layers where names and descriptions begin.
INDENT, DESCRIPTION = 4, 32


def contract() -> list[set[str]]:
    """The layers of the contract, from the top."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = (
        found["layers"]
        for found in contracts
        if found.get("containers") == ["credit_jax"]
    )
    return [set(re.findall(NAME, layer)) - {"__main__"} for layer in layers]


def page() -> list[set[str]]:
    """The layers below the line of the first block of the page, from the top."""
    block = (ROOT / "docs/architecture.md").read_text().split("    ------")[1]
    layers: list[set[str]] = []
    for line in block.split("\n\n")[0].splitlines()[1:]:
        if line[INDENT] != " ":  # not the rest of the layer above
            layers.append(set())
        layers[-1].update(re.findall(NAME, line[:DESCRIPTION]))
    return layers


def test_the_page_has_the_layers_of_the_contract():
    assert page() == [layer for layer in contract() if layer]


def test_families_of_models_never_import_one_another():
    """As docs/adding_a_model.md states; a contract would have to name every family."""
    folders = [path.parent for path in MODELS.glob("*/__init__.py")]
    families = {folder.name for folder in folders} - SHARED
    assert families, "there are models"
    for folder in folders:
        text = "".join(path.read_text() for path in folder.rglob("*.py"))
        seen = set(re.findall(r"credit_jax\.models\.(\w+)", text)) & families
        assert seen <= {folder.name}, f"{folder.name} imports {seen}"
