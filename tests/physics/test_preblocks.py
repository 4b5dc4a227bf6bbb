"""Blocks that can run before the model, on the host, against CREDIT's."""

import dataclasses
import importlib

import numpy as np
import pytest

from tests.physics import world
from tests.physics.runs import build
from tests.support import assert_close

LAT = 13
NAMES = ("hybrid levels", "hybrid levels from below", "advection")
CREDIT = {
    "hybrid_level_interp": ("credit.preblock.hybrid_interp", "HybridLevelInterpPre"),
    "semilagrangian_advection": (
        "credit.preblock.advect",
        "SemiLagrangianAdvectionPre",
    ),
}


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of a channel layout."""

    var_key: str
    n_levels: int
    levels: tuple[float, ...] | None = None


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("parts", [("input", "target"), ("input",)])
@pytest.mark.parametrize("name", NAMES)
def test_as_credit(name, parts, credit, tmp_path):
    import torch

    kind, args = world.blocks(world.write_files(tmp_path, LAT))[name]
    args = args | {"data_types": list(parts)}
    tree = {
        part: {"S": world.state(LAT, seed, np.float32)}
        for seed, part in enumerate(("input", "target"))
    }
    given = {
        part: {"S": {key: torch.from_numpy(x.copy()) for key, x in own["S"].items()}}
        for part, own in tree.items()
    }
    module, attribute = CREDIT[kind]
    theirs = getattr(importlib.import_module(module), attribute)(**args)(given)
    ours = build(kind, args, "preblocks")(tree, None)
    for part in tree:
        assert list(ours[part]["S"]) == list(theirs[part]["S"]), "order of variables"
        for key, expected in theirs[part]["S"].items():
            field = ours[part]["S"][key]
            assert isinstance(field, np.ndarray)
            assert field.dtype == np.float32
            assert_close(field, expected.numpy(), 1e-6, f"{name}: {part} {key}")


def test_layout_and_levels(tmp_path):
    kind, args = world.blocks(world.write_files(tmp_path, LAT))["hybrid levels"]
    block = build(kind, args, "preblocks")
    layout = {"input": [Variable(world.T, world.LEVELS), Variable(world.SP, 1)]}
    block.check(layout)
    assert block.schema_after(layout) == {
        "input": [Variable(world.T, 3), Variable(world.SP, 1)]
    }
    text = rf"{world.T} of input has 4 levels, .*levels\.nc: a_half, b_half\) are of 6"
    with pytest.raises(ValueError, match=text):
        block.check({"input": [Variable(world.T, 4)]})
