"""Fields of the sphere: harmonics, filters, files, and blocks before a model."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from benchmarks.trajectory import atmosphere
from credit_jax.physics.files import read_arrays, read_coefficients
from credit_jax.physics.harmonics import (
    legendre_functions,
    legendre_slopes,
    neighbor_ratio,
)
from credit_jax.physics.laplace_filter import filter_scalar, filter_wind
from credit_jax.transforms.conservation import MassFixer
from credit_torch_bridge.compare.jax_side import import_credit
from tests.physics import world
from tests.physics.runs import build, run_blocks
from tests.support import assert_close, make_mesh
from tests.transforms.cases import credit_block, group, tensors

COUNT = 12
LATITUDE = np.linspace(-80.0, 80.0, 9)


def test_slopes_are_those_of_differences():
    step = 1e-4
    above, below = (legendre_functions(LATITUDE + d, COUNT) for d in (step, -step))
    differences = (above - below) / (2 * np.deg2rad(step))
    slopes = legendre_slopes(legendre_functions(LATITUDE, COUNT + 1))
    expected = np.cos(np.deg2rad(LATITUDE)) * differences
    assert_close(slopes, expected, 1e-8, "cos(lat) dP/dlat")


def test_the_sine_times_a_function_is_a_sum_of_its_neighbors():
    whole = legendre_functions(LATITUDE, COUNT + 1)
    ratio = neighbor_ratio(COUNT + 1)[..., None]
    products = ratio[2:] * whole[2:] + ratio[1:-1] * whole[:-2]
    expected = np.sin(np.deg2rad(LATITUDE)) * whole[1:-1]
    inner = slice(None, COUNT)
    assert_close(products[:, inner], expected[:, inner], 1e-13, "sin(lat) P")


# With fewer columns no wave is filtered near the poles; 151 have no Nyquist wave.
GRIDS = [(24, 150), (22, 151)]


def drawn(rows: int, columns: int) -> np.ndarray:
    """Three fields (1, 1, 1, row, column)."""
    rng = np.random.default_rng(rows)
    return 10 * rng.normal(size=(3, 1, 1, 1, rows, columns))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")
@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_as_credit(credit, torch, rows, columns):
    theirs = import_credit("pol_lapdiff_filt").Diffusion_and_Pole_Filter(rows, columns)
    fields = drawn(rows, columns)
    x, u, v = (torch.from_numpy(field[0, 0, 0].copy()) for field in fields)
    for steps, strength, function in (
        (5, 1e8, theirs.polefilt_lap2d_V1),
        (8, 0.5e8, theirs.polefilt_lap2d_QV1),
    ):
        expected = function(x.clone(), substeps=steps).numpy()
        ours = filter_scalar(fields[0], steps, strength)[0, 0, 0]
        # CREDIT's ramp is of float32.
        assert_close(ours, expected, 1e-9, f"{steps} steps of a scalar")
        waves = filter_scalar(fields[0], 0, strength)[0, 0, 0]
        assert_close(ours - waves, expected - waves, 1e-6, "of it diffusion")
        assert abs(waves - fields[0, 0, 0, 0]).max() > 1.0, "of it the poles"
    expected = theirs.polefilt_lap2d_V2(u.clone(), v.clone(), substeps=6)
    ours, waves = (filter_wind(fields[1], fields[2], steps) for steps in (6, 0))
    for own, plain, other, name in zip(ours, waves, expected, "uv", strict=True):
        assert_close(own[0, 0, 0], other.numpy(), 1e-9, name)
        rest = other.numpy() - plain[0, 0, 0]
        assert_close((own - plain)[0, 0, 0], rest, 1e-6, f"{name}, of it diffusion")


def test_traced_as_on_the_host():
    rows, columns = GRIDS[0]
    x, u, v = drawn(rows, columns).astype(np.float32)
    found = jax.jit(lambda x: filter_scalar(x, 5, 1e8))(x)
    assert found.dtype == np.float32
    assert_close(np.asarray(found), filter_scalar(x, 5, 1e8), 1e-6, "scalar")
    both = jax.jit(lambda u, v: filter_wind(u, v, 6))(u, v)
    for ours, expected, name in zip(both, filter_wind(u, v, 6), "uv", strict=True):
        assert_close(np.asarray(ours), expected, 1e-6, name)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["ERA5_Lev_Info.nc", "cesm_level_info.nc"])
def test_files_that_come_with_the_package(credit, name):
    import credit.metadata

    theirs = xr.open_dataset(Path(credit.metadata.__file__).parent / name)
    unused = ("time", "utc_date", "weight", "zero")
    wanted = [str(key) for key in theirs.variables if key not in unused]
    for key, ours in zip(wanted, read_arrays(name, wanted), strict=True):
        assert np.array_equal(ours, theirs[key].values), key


def test_levels_of_the_data():
    a, b = read_coefficients("ERA5_Lev_Info.nc", "a_half", "b_half")
    some = read_coefficients(
        "ERA5_Lev_Info.nc", "a_half", "b_half", (1, 5, 137), interfaces=True
    )
    assert np.array_equal(some[0], a[[0, 4, 136, 137]])
    assert np.array_equal(some[1], b[[0, 4, 136, 137]])
    middle = read_coefficients(
        "ERA5_Lev_Info.nc", "a_half", "b_half", (137,), between=True
    )
    assert middle[0] == 0.5 * (a[136] + a[137])


ARGS = atmosphere.fixers()["mass"]["args"]
Q, SP = ARGS["q_var"], ARGS["sp_var"]
NUM_TIMES = 12
PAIRS = (slice(None, -1), slice(1, None))


def states(fields, dtype):
    """The state before and after each of several steps."""
    humidity = fields["Q"].values[: NUM_TIMES + 1, :, None].astype(dtype)
    pressure = fields["SP"].values[: NUM_TIMES + 1, None, None].astype(dtype)
    both = {Q: humidity, SP: pressure}
    before, after = ({k: x[own] for k, x in both.items()} for own in PAIRS)
    return {"x_physical": {"ERA5": before}, "y_processed": {"ERA5": after}}


def credit_fixed(tree, dtype):
    """Returns surface pressure after CREDIT's fixer, computed in a dtype."""
    import torch
    from credit.postblock.conservation import GlobalMassFixer

    wide = getattr(torch, dtype)
    fixer = GlobalMassFixer(**ARGS).to(wide)
    for owner in (fixer, fixer.core):
        for name, value in list(vars(owner).items()):
            if torch.is_tensor(value) and value.is_floating_point():
                setattr(owner, name, value.to(wide))
    tensors = {
        part: {"ERA5": {k: torch.tensor(x) for k, x in own["ERA5"].items()}}
        for part, own in tree.items()
    }
    return fixer(tensors)["y_processed"]["ERA5"][SP].numpy()


@pytest.mark.reference
def test_mean_surface_pressure_is_nearer_to_float64_than_credit(
    credit, tmp_path, monkeypatch
):
    """CREDIT subtracts global sums in float32, which biases the fixed field."""
    monkeypatch.chdir(tmp_path)
    atmosphere.write(tmp_path)
    with xr.open_dataset("d_2000.nc") as fields:
        exact = credit_fixed(states(fields, np.float64), "float64")
        theirs = credit_fixed(states(fields, np.float32), "float32")
        tree = states(fields, np.float32)
    fixer = MassFixer(**ARGS)
    fixer.open()
    ours = fixer(tree)["y_processed"]["ERA5"][SP]
    assert exact.dtype == np.float64
    assert ours.dtype == theirs.dtype == np.float32

    def away(values):
        """Returns the largest difference of global means, in Pa."""
        return np.abs((values - exact).mean((1, 2, 3, 4))).max()

    one_bit = np.spacing(np.float32(1e5))
    assert away(ours) <= one_bit
    assert away(theirs) > away(ours)


LAT = 13
NAMES = ("hybrid levels", "hybrid levels from below", "advection")


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("parts", [("input", "target"), ("input",)])
@pytest.mark.parametrize("name", NAMES)
def test_as_credit_preblocks(name, parts, credit, tmp_path):
    kind, args = world.blocks(world.write_files(tmp_path, LAT))[name]
    args = args | {"data_types": list(parts)}
    tree = {
        part: {"S": world.state(LAT, seed, np.float32)}
        for seed, part in enumerate(("input", "target"))
    }
    given = {part: {"S": tensors(own["S"])} for part, own in tree.items()}
    theirs = credit_block(kind, args, "preblocks")(given)
    ours = build(kind, args, "preblocks")(tree, None)
    for part in tree:
        assert list(ours[part]["S"]) == list(theirs[part]["S"]), "order of variables"
        for key, expected in theirs[part]["S"].items():
            field = ours[part]["S"][key]
            assert isinstance(field, np.ndarray)
            assert field.dtype == np.float32
            assert_close(
                field, expected.detach().numpy(), 1e-6, f"{name}: {part} {key}"
            )


def test_the_layout_after_an_interpolation(tmp_path):
    kind, args = world.blocks(world.write_files(tmp_path, LAT))["hybrid levels"]
    block = build(kind, args, "preblocks")
    layout = {"input": [group(world.T, world.LEVELS), group(world.SP, 1)]}
    block.check(layout)
    after = {"input": [group(world.T, 3), group(world.SP, 1)]}
    assert block.schema_after(layout) == after


KEYS = (world.U, world.V, world.T, world.Q)
FILTER = {
    "winds": [{"u": world.U, "v": world.V, "steps": 3}],
    "scalars": [
        {"variables": [world.T]},
        {"variables": [world.Q], "steps": 8, "strength": 5e7},
    ],
}


def filtered_tree(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    fields = {key: rng.normal(size=(2, 2, 1, rows, 150)) for key in KEYS}
    empty = {"S": {}}
    return {"y_processed": {"S": fields}, "x_physical": empty, "ic_raw": empty}


def test_each_variable_has_its_filter_on_a_mesh_too():
    before = filtered_tree(23)["y_processed"]["S"]
    after = build("laplace_filter", FILTER)(filtered_tree(23), None)
    wind = filter_wind(before[world.U], before[world.V], 3)
    scalars = (
        filter_scalar(before[world.T], 5, 1e8),
        filter_scalar(before[world.Q], 8, 5e7),
    )
    for key, expected in zip(KEYS, (*wind, *scalars), strict=True):
        assert_close(after["y_processed"]["S"][key], expected, 1e-12, key)
    specs = {"filter": ("laplace_filter", FILTER)}
    with jax.enable_x64(True):
        whole = run_blocks(specs, filtered_tree(23))["filter"]
        split = run_blocks(specs, filtered_tree(23), make_mesh(dp=2, domain=3))
    for what, ours, theirs in zip(
        ("value", "gradient"), split["filter"], whole, strict=True
    ):
        for key in theirs:
            assert_close(ours[key], theirs[key], 1e-12, f"{what} {key}")
