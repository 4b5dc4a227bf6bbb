"""Corrected budgets close, which CREDIT's tests of these corrections do not check."""

import numpy as np
import pytest

from credit_jax.physics import conservation as physics
from credit_jax.physics.conservation import VerticalLevels
from tests.physics import world
from tests.physics.runs import build

LAT = 13
SECONDS = 6 * 3600
GRAVITY, WATER, CP, CP_VAPOR, LATENT = 9.80665, 1000.0, 1004.64, 1810.0, 2.501e6


@pytest.fixture(params=["midpoint", "trapezoidal"])
def kind(request):
    return request.param


@pytest.fixture
def fixed(kind, tmp_path):
    """Block name -> fields before and after the block, in float32."""
    specs = world.blocks(world.write_files(tmp_path, LAT))

    def run(name):
        suffix = "" if kind == "midpoint" else ", trapezoidal"
        tree = world.tree(LAT)
        after = build(*specs[name + suffix])(tree, None)
        before = {k: x[:, :, -1:] for k, x in tree["x_physical"]["S"].items()}
        return (
            {key: x.astype(np.float64) for key, x in before.items()},
            {k: x.astype(np.float64) for k, x in after["y_processed"]["S"].items()},
        )

    return run


def column(values, pressure, kind):
    """Returns the integral over pressure in float64, by explicit sums."""
    a, b = (world.A_HALF, world.B_HALF)
    if kind == "trapezoidal":
        a, b = a[1:], b[1:]
    shape = (1, -1, 1, 1, 1)
    thickness = np.diff(a.reshape(shape) + b.reshape(shape) * pressure, axis=1)
    if kind == "trapezoidal":
        values = 0.5 * (values[:, 1:] + values[:, :-1])
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
    rest = LATENT * q + world.ground(LAT) + kinetic
    return total(column(capacity * fields[world.T] + rest, fields[world.SP], kind))


def test_dry_mass_closes(fixed, kind):
    before, after = fixed("mass")
    start = dry_mass(before, kind)
    error = np.abs(dry_mass(after, kind) / start - 1).max()
    moved = np.abs(dry_mass(world.tree(LAT)["y_processed"]["S"], kind) / start - 1)
    print(f"dry mass, {kind}: off by {error:.1e}, without the fixer {moved.max():.1e}")
    assert error < 1e-7
    assert moved.min() > 1e-4


def test_water_closes(fixed, kind):
    before, after = fixed("water")
    rate = WATER / SECONDS
    rain = total(after[world.RAIN]) * rate
    stored = total(column(after[world.Q], after[world.SP], kind))
    stored = stored - total(column(before[world.Q], before[world.SP], kind))
    residual = -stored / SECONDS - total(after[world.EVAP]) * rate - rain
    without = world.tree(LAT)["y_processed"]["S"][world.RAIN].astype(np.float64)
    moved = np.abs(1 - total(without) * rate / rain).min()
    error = np.abs(residual / rain).max()
    print(f"water, {kind}: residual {error:.1e} of the rain, without {moved:.1e}")
    assert error < 1e-6
    assert moved > 1e-2


def test_energy_closes(fixed, kind):
    before, after = fixed("energy")
    flux = [after[key] for key in world.FLUXES]
    top = before[world.SOLIN] - flux[0] - flux[1]
    surface = flux[2] - flux[3] + flux[4] - flux[5] + flux[6] + flux[7]
    wanted = energy(before, kind) + SECONDS * total(top) - total(surface)
    error = np.abs(energy(after, kind) / wanted - 1).max()
    tree = world.tree(LAT, np.float64)["y_processed"]["S"]
    moved = np.abs(energy(tree, kind) / wanted - 1).min()
    print(f"energy, {kind}: off by {error:.1e}, without the fixer {moved:.1e}")
    assert error < 1e-7
    assert moved > 1e-4


def test_dry_mass_by_humidity_on_pressure_levels():
    """Midpoint sums close; trapezoidal sums except for the first corrected layer."""
    tree = world.tree(LAT, np.float64)
    before = tree["x_physical"]["S"][world.Q][:, :, -1:]
    after = tree["y_processed"]["S"][world.Q]
    levels = VerticalLevels(world.A_HALF.cumsum(), 0 * world.B_HALF, midpoint=True)
    weights = np.ones((LAT, world.LON))
    grid = physics.PhysicsGrid(levels, weights)
    fixed = physics.fix_dry_mass_by_humidity(grid, before, after, 4, None)
    assert np.array_equal(fixed[:, :4], after[:, :4])
    thickness = np.diff(levels.a).reshape(1, -1, 1, 1, 1)
    start, end = (((1 - q) * thickness).sum(axis=(1, 3, 4)) for q in (before, fixed))
    assert np.allclose(end, start, rtol=1e-14)
