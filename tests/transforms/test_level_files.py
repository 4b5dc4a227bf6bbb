"""Levels without coordinates: matched by number, and noted where only counted."""

import numpy as np
import pytest

from credit_jax.data import ChannelGroup
from credit_jax.named_fields.bridgescaler import write_scalers
from credit_jax.named_fields.coordinates import UNKNOWN
from credit_jax.transforms import notes_on_order
from credit_jax.transforms.base import LevelFile
from tests.transforms.cases import CONCAT, SP, T, preblocks

MEANS = np.array([220.0, 250.0, 280.0, 290.0])
LEVELS = (100.0, 300.0, 500.0, 850.0)


def layout(levels, count=4):
    """The variables of data with some levels."""
    groups = [ChannelGroup(T, count, 1, levels), ChannelGroup(SP, 1, 1)]
    return {"input": groups, "target": groups}


def scalers(path, columns):
    """A block with scalers of T and SP, whose channels have some names."""
    common = {"type": "DStandardScalerTensor", "channels_last": False}
    own = {T: (MEANS, columns), SP: (np.array([1e5]), [0])}
    made = {
        key: {**common, "mean_x_": mean, "var_x_": mean**0, "x_columns_": names}
        for key, (mean, names) in own.items()
    }
    write_scalers(path, {part: {"S": made} for part in ("input", "target")})
    args = {"scaler_path": str(path), "variables": ["S/prognostic"]}
    scale = {"type": "bridgescaler_transform", "args": args}
    return preblocks(scale=scale, concat=CONCAT)


def means_of(pipeline):
    """The means of T, by level of the data."""
    return pipeline.blocks[0].transform._scalers["input"]["S"][T].mean


def test_scalers_are_put_in_the_order_of_the_data(tmp_path):
    pipeline = scalers(tmp_path / "s.json", [*LEVELS])
    assert pipeline.at(layout(LEVELS), UNKNOWN) is pipeline
    turned = pipeline.at(layout(LEVELS[::-1]), UNKNOWN)
    np.testing.assert_array_equal(means_of(turned), MEANS[::-1])
    in_pascal = pipeline.at(layout(tuple(100 * x for x in LEVELS[::-1])), UNKNOWN)
    np.testing.assert_array_equal(means_of(in_pascal), MEANS[::-1])
    assert notes_on_order(pipeline, layout(LEVELS)) == []
    text = r"s\.json: S/prognostic/3d/T: has the levels \[100.0, .* 925.0"
    with pytest.raises(ValueError, match=text):
        pipeline.at(layout((100.0, 300.0, 500.0, 925.0)), UNKNOWN)


def test_channels_that_are_only_counted_are_noted(tmp_path):
    """`credit preprocess` writes numbers from 0."""
    pipeline = scalers(tmp_path / "s.json", [0, 1, 2, 3])
    assert pipeline.at(layout(LEVELS[::-1]), UNKNOWN) is pipeline
    (note,) = notes_on_order(pipeline, layout(LEVELS))
    assert f"{tmp_path}/s.json (T): without values of levels" in note


@pytest.mark.parametrize("kind", ["hybrid_level_interp", "semilagrangian_advection"])
def test_hybrid_levels_are_known_by_their_numbers(kind):
    numbers = (100.0, 110.0, 130.0, 137.0)
    chosen = [*map(int, numbers)]
    args = {
        "hybrid_level_interp": {
            "variables": [T],
            "surface_pressure_var": SP,
            "source_level_info_file": "ERA5_Lev_Info.nc",
            "source_levels": chosen,
        },
        "semilagrangian_advection": {
            "u_var": T,
            "v_var": T,
            "surface_pressure_var": SP,
            "tracer_vars": [T],
            "timestep_seconds": 3600,
            "level_info_file": "ERA5_Lev_Info.nc",
            "levels": chosen,
        },
    }[kind]
    pipeline = preblocks(block={"type": kind, "args": args}, concat=CONCAT)
    pipeline.at(layout(numbers), UNKNOWN)
    assert notes_on_order(pipeline, layout(numbers)) == []
    text = r"ERA5_Lev_Info\.nc: a_half, b_half is of the levels \[100.0, .*order \[137"
    with pytest.raises(ValueError, match=text):
        pipeline.at(layout(numbers[::-1]), UNKNOWN)
    (note,) = notes_on_order(pipeline, layout(LEVELS))
    assert "ERA5_Lev_Info.nc: a_half, b_half (T)" in note


def test_levels_without_numbers():
    file = LevelFile("x.nc: a, b", [T].__contains__)
    file.check(layout((3.0, 2.0, 1.0, 0.0)))
    groups = [(group.var_key, same) for group, same in file.groups(layout(None))]
    assert groups == [(T, False)] * 2
    assert not [*file.groups(layout(None, count=1))], "one level has no order"
