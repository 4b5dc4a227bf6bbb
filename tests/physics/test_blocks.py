"""Every physics block against CREDIT's, on the host, traced, and on every mesh."""

from functools import cache

import jax
import numpy as np
import pytest

from tests.physics import world
from tests.physics.runs import build, changed, run_blocks, run_credit
from tests.support import assert_close, make_mesh

LAT = 13
NAMES = tuple(world.blocks({"physics": "", "levels": ""}))
# Blocks that move rows or sum over them; the others act on columns.
ACROSS_ROWS = ("mass", "water, trapezoidal", "energy", "wind, anisotropic", "advection")
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
@pytest.mark.parametrize("name", NAMES)
def test_as_credit(name, credit, specs, single):
    expected = run_credit(specs(LAT)[name], world.tree(LAT))
    values, gradients = single[name]
    assert values.keys() == expected[0].keys()
    for key, value in expected[0].items():
        assert values[key].dtype == np.float32
        assert_close(values[key], value, 1e-6, f"{name}: {key}")
    for key, gradient in expected[1].items():
        if np.any(gradient):
            tolerance = GRADIENT_TOLERANCE.get(name, 1e-5)
            what = f"{name}: gradient by {key}"
            assert_close(gradients[key], gradient, tolerance, what)
        else:
            assert not gradients[key].any()


@pytest.mark.parametrize("name", NAMES)
def test_on_the_host_as_traced(name, specs, single):
    tree = world.tree(LAT)
    after = build(*specs(LAT)[name])(tree, None)
    for key, field in changed(tree, after).items():
        assert isinstance(field, np.ndarray), key
        assert field.dtype == np.float32, key
        assert_close(field, single[name][0][key], 1e-6, f"{name}: {key} on the host")


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
    serial = double(lat)
    with jax.enable_x64(True):
        sharded = run_blocks(chosen, world.tree(lat, np.float64), make_mesh(**shape))
    for name in names:
        for what, own, other in zip(
            ("value of", "gradient by"), serial[name], sharded[name], strict=True
        ):
            assert own.keys() == other.keys()
            for key in own:
                text = f"{name}: {what} {key} on {shape}"
                assert own[key].dtype == other[key].dtype == np.float64
                if np.any(own[key]):
                    assert_close(other[key], own[key], 1e-12, text)
                else:
                    assert not other[key].any(), text


@pytest.mark.slow
def test_surface_geopotential_of_a_file(tmp_path):
    """As of the data, on one device and on shards; the tree needs no static fields."""
    paths = world.write_files(tmp_path, LAT)
    names = ("sea level", "geopotential", "pressure levels")
    of_data = {name: world.blocks(paths)[name] for name in names}
    of_file = {
        name: (kind, {**args, "surface_geopotential_file": paths["physics"]})
        for name, (kind, args) in of_data.items()
    }
    with jax.enable_x64(True):
        tree = world.tree(LAT, np.float64)
        expected = run_blocks(of_data, tree)
        tree["ic_raw"] = {"S": {}}
        for mesh in (None, make_mesh(dp=2, domain=3)):
            found = run_blocks(of_file, tree, mesh)
            for name in names:
                for ours, theirs in zip(found[name], expected[name], strict=True):
                    for key in theirs:
                        assert_close(ours[key], theirs[key], 1e-12, f"{name}: {key}")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """The arguments of `global_energy_fixer_net` in every setting."""
    paths = world.write_files(tmp_path_factory.mktemp("net"), LAT)
    return world.net_energy(paths)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", ["sigma", "sigma, trapezoidal", "pressure"])
def test_net_energy_as_credit(name, credit, net):
    """CREDIT 2026.2.0 has the formula in gen1's fixer, by channels."""
    tree = world.tree(LAT)
    after = build("global_energy_fixer_net", net[name])(tree, None)
    fixed = world.gen1_net_energy(tree, net[name])
    ours = after["y_processed"]["S"][world.T]
    assert_close(ours, fixed, 1e-6, f"net energy, {name}")
    assert not np.allclose(ours, tree["y_processed"]["S"][world.T], rtol=1e-4)


def test_net_energy_of_rates(net):
    """W / m^2 is J / m^2 by the seconds of the step."""
    tree = world.tree(LAT, np.float64)
    joule = build("global_energy_fixer_net", net["sigma"])(tree, None)
    args = {**net["sigma"], "flux_units": "W m-2"}
    seconds = 3600 * args["lead_time_periods"]
    fields = tree["y_processed"]["S"]
    rates = {key: fields[key] / seconds for key in world.FLUXES}
    watt = build("global_energy_fixer_net", args)(
        {**tree, "y_processed": {"S": {**fields, **rates}}}, None
    )
    ours, theirs = (x["y_processed"]["S"][world.T] for x in (watt, joule))
    assert_close(ours, theirs, 1e-13, "net energy of rates")


@pytest.mark.slow(but=["{'domain': 3}"])
@pytest.mark.parametrize("shape", [{"dp": 2, "domain": 2}, {"domain": 3}], ids=str)
def test_net_energy_on_meshes(shape, net):
    specs = {name: ("global_energy_fixer_net", args) for name, args in net.items()}
    with jax.enable_x64(True):
        tree = world.tree(LAT, np.float64)
        serial = run_blocks(specs, tree)
        sharded = run_blocks(specs, tree, make_mesh(**shape))
    for name in specs:
        for own, other in zip(serial[name], sharded[name], strict=True):
            for key in own:
                assert_close(other[key], own[key], 1e-12, f"{name}: {key} on {shape}")


def test_net_energy_of_hybrid_levels_needs_pressure(net):
    args = {key: value for key, value in net["sigma"].items() if key != "sp_var"}
    with pytest.raises(ValueError, match="sp_var: missing; hybrid levels"):
        build("global_energy_fixer_net", args)
