"""Every physics block beside CREDIT's, on the host, traced, and on every mesh."""

from functools import cache

import jax
import numpy as np
import pytest

from credit_jax.physics import conservation as physics
from credit_jax.physics.conservation import VerticalLevels
from tests.physics import world
from tests.physics.runs import build, changed, run_blocks, run_credit
from tests.support import assert_close, make_mesh
from tests.transforms.cases import credit_block

LAT = 13
NAMES = tuple(world.blocks({"physics": "", "levels": ""}))
NET = "net energy, sigma"
# Blocks that move rows or sum over them; the others act on columns.
ACROSS_ROWS = ("mass", "water, trapezoidal", "energy", "wind, anisotropic")
ACROSS_ROWS += ("advection", NET)
# In float32 CREDIT subtracts logarithms of pressures of close levels.
GRADIENT_TOLERANCE = {"hybrid levels": 1e-4, "hybrid levels from below": 1e-4}


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """Number of rows -> the blocks on a grid with that many rows."""

    @cache
    def make(lat):
        paths = world.write_files(tmp_path_factory.mktemp(f"grid{lat}"), lat)
        return world.blocks(paths)

    return make


@pytest.fixture(scope="module")
def single(specs):
    """All blocks in float32 on one device."""
    return run_blocks(specs(LAT), world.tree(LAT))


@pytest.fixture(scope="module")
def double(specs):
    """Number of rows -> results in float64 of blocks on one device."""

    @cache
    def run(lat):
        names = NAMES if lat == LAT else ACROSS_ROWS
        chosen = {name: specs(lat)[name] for name in names}
        with jax.enable_x64(True):
            return run_blocks(chosen, world.tree(lat, np.float64))

    return run


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", NAMES)
def test_as_credit_and_on_the_host(name, credit, specs, single):
    tree, (kind, args) = world.tree(LAT), specs(LAT)[name]
    is_net = kind == "global_energy_fixer_net"
    theirs = world.credit_net_energy(args) if is_net else credit_block(kind, args)
    expected, expected_gradients = run_credit(theirs, tree)
    values, gradients = single[name]
    assert values.keys() == expected.keys()
    for key, value in expected.items():
        assert values[key].dtype == np.float32
        assert_close(values[key], value, 1e-6, f"{name}: {key}")
    for key, gradient in expected_gradients.items():
        if np.any(gradient):
            tolerance = GRADIENT_TOLERANCE.get(name, 1e-5)
            what = f"{name}: gradient by {key}"
            assert_close(gradients[key], gradient, tolerance, what)
        else:
            assert not gradients[key].any()
    after = build(kind, args)(tree, None)
    for key, field in changed(tree, after).items():
        assert isinstance(field, np.ndarray), key
        assert field.dtype == np.float32, key
        assert_close(field, values[key], 1e-6, f"{name}: {key} on the host")


@pytest.mark.slow(but=["13-shape1-names1"])
@pytest.mark.parametrize(
    ("lat", "shape", "names"),
    [
        (13, {"dp": 2, "domain": 2}, NAMES),
        (13, {"domain": 3}, ACROSS_ROWS),
        (12, {"domain": 4}, ACROSS_ROWS),
        (13, {"domain": 8}, ACROSS_ROWS),
    ],
)
def test_same_on_every_mesh(lat, shape, names, specs, double):
    chosen = {name: specs(lat)[name] for name in names}
    with jax.enable_x64(True):
        sharded = run_blocks(chosen, world.tree(lat, np.float64), make_mesh(**shape))
    for name in names:
        for own, other in zip(double(lat)[name], sharded[name], strict=True):
            assert own.keys() == other.keys()
            for key in own:
                text = f"{name}: {key} on {shape}"
                assert own[key].dtype == other[key].dtype == np.float64
                if np.any(own[key]):
                    assert_close(other[key], own[key], 1e-12, text)
                else:
                    assert not other[key].any(), text


@pytest.mark.slow
def test_surface_geopotential_of_a_file(specs, double):
    """As of the data, on one device and on shards; the tree needs no static fields."""
    names = ("sea level", "geopotential", "pressure levels")
    path = specs(LAT)["mass"][1]["save_loc_physics"]
    of_file = {
        name: (kind, {**args, "surface_geopotential_file": path})
        for name, (kind, args) in ((name, specs(LAT)[name]) for name in names)
    }
    tree = {**world.tree(LAT, np.float64), "ic_raw": {"S": {}}}
    for mesh in (None, make_mesh(dp=2, domain=3)):
        with jax.enable_x64(True):
            found = run_blocks(of_file, tree, mesh)
        for name in names:
            for ours, theirs in zip(found[name], double(LAT)[name], strict=True):
                for key in theirs:
                    assert_close(ours[key], theirs[key], 1e-12, f"{name}: {key}")


@pytest.mark.reference
def test_no_strong_wind(credit, specs):
    """CREDIT's gradient is NaN: sqrt(num / (den + 1e-12)) of wind_filter.py, at 0 / 0.

    The mask is 0 everywhere then, and with it both sums. Values are not changed.
    """
    kind, args = specs(LAT)["wind, anisotropic"]
    args = {**args, "speed_threshold": 1e4}
    fields = world.tree(LAT)
    expected, theirs = run_credit(credit_block(kind, args), fields)
    assert np.isnan(theirs[world.U]).any()
    values, gradients = run_blocks({"wind": (kind, args)}, fields)["wind"]
    for key, field in expected.items():
        assert_close(values[key], field, 1e-6, key)
        assert_close(field, fields["y_processed"]["S"][key], 1e-6, f"{key}, unchanged")
        assert np.isfinite(gradients[key]).all(), key
        assert gradients[key].any(), key


def test_net_energy_of_rates(specs):
    """W / m^2 is J / m^2 by the seconds of the step."""
    tree, (kind, args) = world.tree(LAT, np.float64), specs(LAT)[NET]
    joule = build(kind, args)(tree, None)
    fields = tree["y_processed"]["S"]
    rates = {key: fields[key] / (6 * 3600) for key in world.FLUXES}
    rates = {**tree, "y_processed": {"S": {**fields, **rates}}}
    watt = build(kind, {**args, "flux_units": "W m-2"})(rates, None)
    ours, theirs = (x["y_processed"]["S"][world.T] for x in (watt, joule))
    assert_close(ours, theirs, 1e-13, "net energy of rates")
    assert not np.allclose(theirs, fields[world.T], rtol=1e-4)


GRAVITY, WATER, CP, CP_VAPOR, LATENT = 9.80665, 1000.0, 1004.64, 1810.0, 2.501e6


def column(values, pressure, kind):
    """Returns the integral over pressure in float64, by explicit sums."""
    a, b = (world.A_HALF, world.B_HALF)
    if kind == "trapezoidal":
        a, b = a[1:], b[1:]
        values = 0.5 * (values[:, 1:] + values[:, :-1])
    shape = (1, -1, 1, 1, 1)
    thickness = np.diff(a.reshape(shape) + b.reshape(shape) * pressure, axis=1)
    return (values * thickness).sum(axis=1, keepdims=True) / GRAVITY


def total(values):
    """Returns the integral over the sphere of each sample."""
    lon, lat = np.meshgrid(world.longitude(), world.latitude(LAT))
    return (values * physics.cell_areas(lon, lat)).sum(axis=(1, 2, 3, 4))


def dry_mass(fields, kind):
    return total(column(1 - fields[world.Q], fields[world.SP], kind))


def energy(fields, kind):
    q = fields[world.Q]
    capacity = (1 - q) * CP + q * CP_VAPOR
    kinetic = 0.5 * (fields[world.U] ** 2 + fields[world.V] ** 2)
    other = LATENT * q + world.ground(LAT) + kinetic
    return total(column(capacity * fields[world.T] + other, fields[world.SP], kind))


@pytest.mark.parametrize("kind", ["midpoint", "trapezoidal"])
def test_budgets_close(kind, specs):
    """Which CREDIT's tests of these corrections do not check; fields are float32."""
    tree, seconds = world.tree(LAT), 6 * 3600
    double = lambda fields: {k: x.astype(float) for k, x in fields.items()}  # noqa: E731
    before = double({k: x[:, :, -1:] for k, x in tree["x_physical"]["S"].items()})
    plain = double(tree["y_processed"]["S"])

    def fixed(name):
        name += "" if kind == "midpoint" else ", trapezoidal"
        return double(build(*specs(LAT)[name])(tree, None)["y_processed"]["S"])

    start = dry_mass(before, kind)
    assert np.abs(dry_mass(fixed("mass"), kind) / start - 1).max() < 1e-7
    assert np.abs(dry_mass(plain, kind) / start - 1).min() > 1e-4

    after, rate = fixed("water"), WATER / seconds
    rain = total(after[world.RAIN]) * rate
    stored = [total(column(x[world.Q], x[world.SP], kind)) for x in (after, before)]
    residual = (stored[1] - stored[0]) / seconds - total(after[world.EVAP]) * rate
    assert np.abs((residual - rain) / rain).max() < 1e-6
    assert np.abs(1 - total(plain[world.RAIN]) * rate / rain).min() > 1e-2

    after = fixed("energy")
    flux = [after[key] for key in world.FLUXES]
    top = before[world.SOLIN] - flux[0] - flux[1]
    surface = flux[2] - flux[3] + flux[4] - flux[5] + flux[6] + flux[7]
    wanted = energy(before, kind) + seconds * total(top) - total(surface)
    assert np.abs(energy(after, kind) / wanted - 1).max() < 1e-7
    assert np.abs(energy(plain, kind) / wanted - 1).min() > 1e-4


def test_dry_mass_by_humidity_on_pressure_levels():
    """Midpoint sums close; trapezoidal sums except for the first corrected layer."""
    tree = world.tree(LAT, np.float64)
    before = tree["x_physical"]["S"][world.Q][:, :, -1:]
    after = tree["y_processed"]["S"][world.Q]
    levels = VerticalLevels(world.A_HALF.cumsum(), 0 * world.B_HALF, midpoint=True)
    grid = physics.PhysicsGrid(levels, np.ones((LAT, world.LON)))
    fixed = physics.fix_dry_mass_by_humidity(grid, before, after, 4, None)
    assert np.array_equal(fixed[:, :4], after[:, :4])
    thickness = np.diff(levels.a).reshape(1, -1, 1, 1, 1)
    start, end = (((1 - q) * thickness).sum(axis=(1, 3, 4)) for q in (before, fixed))
    assert np.allclose(end, start, rtol=1e-14)
