"""Small models of every registered type, and what is tested of each: `cases.yml`.

The checks of a row are written once, for all: `test_credit` beside serial CREDIT,
`test_meshes` beside one device. `test_sections` has what sections refuse.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import yaml

Section = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A small model: a row of `cases.yml`, whose head describes the other keys.

    Attributes:
        block: the `model:` section; that of `graph` lacks its file (`conftest.py`).
    """

    block: Section
    checks: str = ""
    seed: int = 3
    remat: str = "full"
    batch: int = 4
    samples: float = 1e-4


def section(
    base: Mapping[str, Any],
    grid: tuple[int, int] | None = None,
    pad: tuple[str, list[int], list[int]] | None = None,
    **changes: Any,
) -> Section:
    """Returns a section with some keys changed; `grid` and `pad` are several keys."""
    if grid:
        changes |= dict(zip(("image_height", "image_width"), grid, strict=True))
    if pad:
        padding = dict(zip(("mode", "pad_lat", "pad_lon"), pad, strict=True))
        changes["padding_conf"] = {"activate": True, **padding}
    return {**base, **changes}


def checks(*kinds: str) -> pytest.MarkDecorator:
    """Parametrizes a test by `name` and `check`: the checks of all cases that it makes.

    Args:
        kinds: first parts of the names of checks, up to "_".
    """
    rows = [
        pytest.param(name, check, id=f"{name}-{check}", marks=marks)
        for name, case in CASES.items()
        for marks, text in zip(
            ((), pytest.mark.slow), case.checks.split("|"), strict=False
        )
        for check in text.split()
        if check.partition("_")[0] in kinds
    ]
    return pytest.mark.parametrize(("name", "check"), rows)


def _case(row: Section, family: Mapping[str, Section]) -> Case:
    """Returns the case of a row of a family."""

    def whole(row: Section) -> Section:
        parts = [whole(family.get(name) or _PARTS[name]) for name in row.get("of", ())]
        return dict(ChainMap({k: v for k, v in row.items() if k != "of"}, *parts))

    keys = whole(row)
    block = {key: value for key, value in keys.items() if key not in _CHECKED}
    if block["type"] == "unet-diffusion":  # CREDIT takes tuples alone for lists.
        heads = ("attn_dim_head", "attn_heads", "full_attn")
        lists = {key for key in heads if isinstance(block.get(key), list)}
        block |= {key: tuple(block[key]) for key in lists}
    return Case(block, **{key: keys[key] for key in keys.keys() & _CHECKED})


_CHECKED = {field.name for field in fields(Case)}
_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
_PARTS = _TABLE.pop("parts")
BASE = _case(_PARTS["base"], {}).block
FAMILIES = {
    family: {name: _case(row, rows) for name, row in rows.items()}
    for family, rows in _TABLE.items()
}
CASES: Mapping[str, Case] = {
    f"{family} {name}": case
    for family, rows in FAMILIES.items()
    for name, case in rows.items()
}
DOWNSCALING, ENSEMBLE, NEXTGEN = (
    FAMILIES[name] for name in ("crossformer_downscaling", "ensemble", "nextgen")
)
FUXI_BASE, SWIN_BASE, UNET_BASE = (
    CASES[name].block for name in ("fuxi shifted", "swin oblong", "unet two frames")
)
GRAPH_GRID = (7, 8)
