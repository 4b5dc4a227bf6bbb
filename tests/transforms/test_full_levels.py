"""gen1's interpolation of all levels beside CREDIT's; levels known by numbers."""

from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.data import ChannelGroup
from credit_jax.named_fields.bridgescaler import write_scalers
from credit_jax.named_fields.coordinates import UNKNOWN
from credit_jax.physics.files import read_coefficients
from credit_jax.transforms import notes_on_order
from credit_jax.transforms.base import LevelFile
from credit_torch_bridge.compare.jax_side import import_credit
from tests.physics.runs import build, run_blocks
from tests.support import assert_close, make_mesh
from tests.transforms.cases import CONCAT, preblocks

KIND = "full_state_pressure_interpolation"
LEVELS = (10, 60, 90, 120, 137)
# Rows over the sea, a hill, high ground of each formula below it.
HEIGHTS = np.array([0.0, 300.0, 1500.0, 2200.0, 3100.0])
PRESSURES, ABOVE = [0.005, 300.0, 850.0, 1000.0], [2.0, 150.0, 3000.0, 9e4]
T, U, V, Q = (f"S/prognostic/3d/{name}" for name in "TUVQ")
SP, PHIS = "S/prognostic/2d/SP", "S/static/2d/PHIS"
ARGS: dict[str, Any] = {
    "interp_fields": [U, T, Q],
    "temperature_var": T,
    "q_var": Q,
    "surface_pressure_var": SP,
    "surface_geopotential_var": PHIS,
    "pressure_levels": PRESSURES,
    "height_levels": ABOVE,
    "levels": LEVELS,
}


def columns(dtype: Any = np.float64) -> dict[str, Any]:
    """A tree of two times of columns, of a plausible atmosphere."""
    rng = np.random.default_rng(3)
    ground = 9.80665 * np.repeat(HEIGHTS[:, None], 4, axis=1)
    surface = 101325.0 * np.exp(-ground / 287.05 / 270.0)
    surface = surface * rng.uniform(0.98, 1.02, (2, 1, 1, *ground.shape))
    a, b = read_coefficients("ERA5_Lev_Info.nc", "a_model", "b_model", LEVELS)
    pressure = a.reshape(-1, 1, 1, 1) + b.reshape(-1, 1, 1, 1) * surface
    warm = 285.0 * (pressure / 101325.0) ** 0.15 + rng.normal(size=pressure.shape)
    # Both sides of the limits of temperature at sea level.
    warm[1] += 30.0
    wind = rng.normal(size=pressure.shape) * 10
    moist = 1e-2 * (pressure / 101325.0) ** 3
    fields = {T: warm, U: wind, V: 5.0 - wind, Q: moist, SP: surface}
    still = np.broadcast_to(ground, (2, 1, 1, *ground.shape))
    return {
        "y_processed": {"S": {key: x.astype(dtype) for key, x in fields.items()}},
        "ic_raw": {"S": {PHIS: still.astype(dtype)}},
        "x_physical": {"S": {}},
    }


def credit_fields(tree: Any, **options: Any) -> tuple[xr.Dataset, list[Any]]:
    """CREDIT's fields, and what its inner loop returns for each time."""
    interp = import_credit("interp")
    fields = tree["y_processed"]["S"]
    space = ("latitude", "longitude")
    state = xr.Dataset(
        {
            **{
                key[-1]: (("time", "level", *space), fields[key][:, :, 0])
                for key in (T, U, V, Q)
            },
            "SP": (("time", *space), fields[SP][:, 0, 0]),
        },
        {
            "time": [0, 1],
            "level": list(LEVELS),
            "latitude": HEIGHTS,
            "longitude": [*range(4)],
        },
    )
    loop, made = interp.fast_state_interp_loop, []

    def watched(*arguments: Any) -> Any:
        made.append(loop(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interp, "fast_state_interp_loop", watched)
        found = interp.full_state_pressure_interpolation(
            state, tree["ic_raw"]["S"][PHIS][0, 0, 0], **options
        )
    return found, made


def theirs_of(name: str, found: xr.Dataset, inner: list[Any]) -> np.ndarray:
    """CREDIT's field (time, level, 1, lat, lon) in float64.

    On heights its file has float32, and zeros for the pressure.
    """
    values = found[name].values
    if name.endswith("_HEIGHT"):
        values = np.stack([each[name] for each in inner])
    return values.reshape(2, -1, 1, *values.shape[-2:])


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_as_credit(credit):
    """Every variable that CREDIT writes; the pressure at heights, which it has as 0."""
    tree = columns()
    expected, inner = credit_fields(
        tree,
        pressure_levels=PRESSURES,
        height_levels=ABOVE,
        interp_fields=["U", "T", "Q"],
    )
    ours = build(KIND, ARGS)(tree, None)["y_processed"]["S"]
    made = {key.split("/")[-1]: x for key, x in ours.items() if "derived" in key}
    assert made.keys() == set(expected.data_vars)
    assert not expected["P_HEIGHT"].any()
    for name, field in made.items():
        assert_close(field, theirs_of(name, expected, inner), 1e-12, name)
    single = build(KIND, ARGS)(columns(np.float32), None)["y_processed"]["S"]
    for key, x in single.items():
        if "derived" in key:
            assert x.dtype == np.float32
            # The heights of the lowest levels are differences of logarithms.
            tolerance = 1e-4 if key.endswith("_HEIGHT") else 1e-5
            assert_close(x, ours[key], tolerance, f"{key} in float32")


@pytest.mark.slow
def test_the_same_on_a_mesh():
    specs = {"levels": (KIND, ARGS)}
    with jax.enable_x64(True):
        whole = run_blocks(specs, columns())
        split = run_blocks(specs, columns(), make_mesh(dp=2, domain=2))
    for name, results in whole.items():
        for what, ours, theirs in zip(
            ("value", "gradient"), split[name], results, strict=True
        ):
            for key in theirs:
                assert_close(ours[key], theirs[key], 1e-12, f"{name}: {what} {key}")


MEANS = np.array([220.0, 250.0, 280.0, 290.0])
VALUES = (100.0, 300.0, 500.0, 850.0)


def layout(levels, count=4):
    """The variables of data with some levels."""
    groups = [ChannelGroup(T, count, 1, levels), ChannelGroup(SP, 1, 1)]
    return {"input": groups, "target": groups}


def scaled_by(path, columns):
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
    pipeline = scaled_by(tmp_path / "s.json", [*VALUES])
    assert pipeline.at(layout(VALUES), UNKNOWN) is pipeline
    turned = pipeline.at(layout(VALUES[::-1]), UNKNOWN)
    np.testing.assert_array_equal(means_of(turned), MEANS[::-1])
    in_pascal = pipeline.at(layout(tuple(100 * x for x in VALUES[::-1])), UNKNOWN)
    np.testing.assert_array_equal(means_of(in_pascal), MEANS[::-1])
    assert notes_on_order(pipeline, layout(VALUES)) == []


def test_channels_that_are_only_counted_are_noted(tmp_path):
    """`credit preprocess` writes numbers from 0."""
    pipeline = scaled_by(tmp_path / "s.json", [0, 1, 2, 3])
    assert pipeline.at(layout(VALUES[::-1]), UNKNOWN) is pipeline
    (note,) = notes_on_order(pipeline, layout(VALUES))
    assert f"{tmp_path}/s.json (T): without values of levels" in note


NUMBERS = (100.0, 110.0, 130.0, 137.0)


def numbered(kind):
    """A pipeline with a block of some numbered levels."""
    chosen = [*map(int, NUMBERS)]
    args = {
        "hybrid_level_interp": {
            "variables": [T],
            "source_level_info_file": "ERA5_Lev_Info.nc",
            "source_levels": chosen,
        },
        "semilagrangian_advection": {
            **{"u_var": T, "v_var": T, "tracer_vars": [T]},
            "timestep_seconds": 3600,
            "level_info_file": "ERA5_Lev_Info.nc",
            "levels": chosen,
        },
    }[kind]
    args["surface_pressure_var"] = SP
    return preblocks(block={"type": kind, "args": args}, concat=CONCAT)


@pytest.mark.parametrize("kind", ["hybrid_level_interp", "semilagrangian_advection"])
def test_hybrid_levels_are_known_by_their_numbers(kind):
    pipeline = numbered(kind)
    pipeline.at(layout(NUMBERS), UNKNOWN)
    assert notes_on_order(pipeline, layout(NUMBERS)) == []
    (note,) = notes_on_order(pipeline, layout(VALUES))
    assert "ERA5_Lev_Info.nc: a_half, b_half (T)" in note


def test_levels_without_numbers():
    file = LevelFile("x.nc: a, b", [T].__contains__)
    file.check(layout((3.0, 2.0, 1.0, 0.0)))
    groups = [(group.var_key, same) for group, same in file.groups(layout(None))]
    assert groups == [(T, False)] * 2
    assert not [*file.groups(layout(None, count=1))], "one level has no order"
