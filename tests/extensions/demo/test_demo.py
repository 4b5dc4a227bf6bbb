"""The demo: its dynamics, physics, and data set."""

import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.config.config import DemoConfig, ForcingConfig
from credit_jax.data import open_dataset
from credit_jax.extensions.demo import dataset as demo
from credit_jax.extensions.demo import dynamics, forcing, physics, write
from credit_jax.extensions.demo.command import main
from tests.data.world import parsed, raw_config
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tools.spin_up import spin_up

CASES = Cases("demo")
QUIET = Console(quiet=True)
DAYS = ["--days", "3", "--spinup-days", "1", "--held-out-days", "1"]
SIZES = {"time": 12, "level": 8, "latitude": 32, "longitude": 64}
BOUNDS = {
    **{"T": (180, 330), "SP": (85_000, 108_000), "Q": (0, 0.05), "TP": (0, 0.2)},
    **{"Z500": (4.8e4, 6e4), "U": (-120, 120)},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data set of three days after one of spin-up; the last day is held out."""
    folder = tmp_path_factory.mktemp("demo") / "t21"
    assert main(["--out", str(folder), *DAYS]) == 0
    return folder


@pytest.fixture(scope="module")
def data(made):
    return xr.open_dataset(made / "demo_2000.zarr").load()


def test_layout_and_values(made, data):
    """The values are those of an atmosphere."""
    names = ["demo.json", "demo_2000.zarr", "mean.nc", "static.nc", "std.nc"]
    assert sorted(path.name for path in made.iterdir()) == names
    assert [path.name for path in made.parent.iterdir()] == ["t21"]
    assert dict(data.sizes) == SIZES
    assert data["T"].dims == tuple(SIZES)
    assert data["T"].dtype == np.float32
    assert str(data.time.values[0])[:13] == "2000-01-01T00"
    assert data.latitude.values[0] > 80 > -80 > data.latitude.values[-1]
    for name, variable in data.data_vars.items():
        assert {"units", "long_name", "standard_name"} <= set(variable.attrs), name
        assert np.isfinite(variable.values).all(), name
    for name, (low, high) in BOUNDS.items():
        assert low <= data[name].min() < data[name].max() < high, name
    assert 250 < data["tsi"].mean() < 350
    # V at 500 hPa lies between the levels around it where the surface is at 1000 hPa.
    around = data["V"].sel(level=[0.4375, 0.5625])
    low, high = around.min("level"), around.max("level")
    close = (abs(data["SP"] - 1e5) < 100) & (low != 0)
    inside = (data["V500"] <= high + 1e-3) & (data["V500"] >= low - 1e-3)
    assert bool(inside.where(close, True).all())
    static = xr.open_dataset(made / "static.nc")
    assert np.array_equal(static.latitude, data.latitude)
    assert set(np.unique(static["LSM"])) == {0.0, 1.0}


def test_statistics_are_of_the_training_days(made, data):
    mean, std = (xr.open_dataset(made / f"{name}.nc") for name in ("mean", "std"))
    for name, fields in data.isel(time=slice(0, 8)).astype(np.float64).items():
        over = [dim for dim in fields.dims if dim != "level"]
        assert np.allclose(mean[name], fields.mean(over), rtol=1e-9), name
        assert np.allclose(std[name], fields.std(over), rtol=1e-6), name


def test_the_loader_reads_it(made):
    raw, path = raw_config(made), str(made / "demo_%Y.zarr")
    raw["data"] |= {"start_datetime": "2000-01-01", "end_datetime": "2000-01-02T18:00"}
    source = raw["data"]["source"]["ERA5"]
    del source["levels"]
    variables = source["variables"]
    for kind in ("prognostic", "dynamic_forcing", "diagnostic"):
        variables[kind]["path"] = path
    variables["prognostic"]["vars_3D"] = ["U", "V", "T", "Q"]
    variables["static"]["vars_2D"] = ["Z_GDS4_SFC", "LSM"]
    variables["diagnostic"]["vars_2D"] = ["V500", "TP"]
    dataset = open_dataset(parsed(raw).data)
    assert len(dataset) == 7
    assert dataset.schema.num_input_channels == 36
    assert dataset.schema.num_target_channels == 35


def test_it_is_kept(made, monkeypatch):
    monkeypatch.setattr(demo, "_make", lambda *_: pytest.fail("made again"))
    wanted = DemoConfig(out=str(made), days=3, spinup_days=1, held_out_days=1)
    assert demo.ensure_demo_data(wanted, QUIET) == made


@pytest.mark.slow
def test_same_seed_same_numbers(data, tmp_path):
    main(["--out", str(tmp_path / "again"), *DAYS])
    assert xr.open_dataset(tmp_path / "again/demo_2000.zarr").load().identical(data)


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(settings, folder, advance):
        (folder / "demo_2000.zarr").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_make", fail)
    wanted = DemoConfig(out=str(tmp_path / "deep" / "t21"), days=3, held_out_days=1)
    with pytest.raises(KeyboardInterrupt):
        demo.ensure_demo_data(wanted, QUIET)
    assert list((tmp_path / "deep").iterdir()) == []


def another(changes, made):
    wanted = DemoConfig(out=str(made), days=3, spinup_days=1, held_out_days=1)
    other = wanted.model_copy(update=changes)
    return lambda: demo.ensure_demo_data(other, QUIET)


CASES.rows(
    another,
    ({"days": 5, "seed": 2},),
    ({"forcing": ForcingConfig(season=0.2)},),
    name="another demo:",
)


@CASES.case
def a_foreign_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    wanted = DemoConfig(out=str(tmp_path), days=3, held_out_days=1)
    return lambda: demo.ensure_demo_data(wanted, QUIET)


CASES.rows(
    lambda *words, tmp_path: lambda: main(["--out", str(tmp_path / "x"), *words]),
    ("--truncation", "T7"),
    ("--days", "1"),
    ("--days", "9", "--held-out-days", "9"),
)


def test_years_are_split(tmp_path, rng):
    axes = np.array([0.5]), np.array([45.0, -45.0]), np.array([0.0])
    coordinates = write.DemoCoordinates(*axes)
    times = pd.date_range("2000-12-30", periods=16, freq="6h")
    fields = rng.normal(size=(16, 2, 1)).astype(np.float32)
    for part in (slice(0, 4), slice(4, 16)):
        write.append_times(tmp_path, coordinates, times[part], {"SP": fields[part]})
    years = [xr.open_dataset(tmp_path / f"demo_{y}.zarr") for y in (2000, 2001)]
    assert [year.sizes["time"] for year in years] == [8, 8]
    joined = xr.concat(years, "time")
    assert np.array_equal(joined["SP"], fields)
    assert np.array_equal(joined["time"], times)


# The simulated climate, and the state after the spin-up that comes with the package.


@pytest.fixture(scope="module")
def climate():
    with jax.numpy_rank_promotion("allow"):
        yield dynamics.build_climate("T21", 0)


@pytest.fixture(scope="module")
def advanced(climate):
    with jax.numpy_rank_promotion("allow"):
        return climate.advance(climate.initial, 0.0)


def test_six_hours_from_rest(climate, advanced):
    """Dry air mass is conserved, the seed shifts the first wave, and winds increase."""
    other = dynamics.build_climate("T21", 1)
    before, after = climate.fields(climate.initial), climate.fields(advanced[0])
    weights = np.cos(np.radians(climate.latitude))[:, None]
    means = [float(np.mean(f["SP"] * weights)) for f in (before, after)]
    assert np.isclose(means[0], means[1], rtol=1e-4)
    assert np.max(np.abs(before["U"])) < 1e-3
    assert np.max(np.abs(after["U"])) > 1.0
    assert advanced[1].shape == (32, 64)
    assert not np.allclose(before["SP"], other.fields(other.initial)["SP"])


def test_the_spin_up_is_that_of_the_defaults_alone():
    """After a change of the climate (LAYOUT) the file is to be made anew."""
    assert demo.is_spun_up(DemoConfig(out="x", days=3, held_out_days=1))
    season = {"forcing": ForcingConfig(season=0.2)}
    for other in ({"truncation": "T42"}, {"spinup_days": 199}, {"seed": 1}, season):
        assert not demo.is_spun_up(DemoConfig(out="x", **other))
    assert demo.FILE.stat().st_size < 100_000


@pytest.mark.slow
def test_a_data_set_begins_with_it(climate, tmp_path):
    wanted = DemoConfig(out=str(tmp_path / "t21"), days=2, held_out_days=1)
    text = io.StringIO()
    demo.ensure_demo_data(wanted, Console(file=text, width=200))
    assert "(after the spin-up that comes with the package)" in text.getvalue()
    state, rain = demo.read_spun_up(climate)
    data = xr.open_dataset(tmp_path / "t21" / "demo_2000.zarr").isel(time=0)
    for name, field in climate.fields(state).items():
        assert np.array_equal(data[name], field), name
    assert np.array_equal(data["TP"], rain)
    # Weather, as after 200 days and not at rest.
    assert data["U"].max() > 25
    assert data["Q"].max() > 5e-3
    assert rain.max() > 1e-3


def test_what_is_written_is_read(climate, advanced, tmp_path, monkeypatch):
    state, rain = advanced
    demo.write_spun_up(state, rain, tmp_path / "spun_up.npz")
    monkeypatch.setattr(demo, "FILE", tmp_path / "spun_up.npz")
    again, same = demo.read_spun_up(climate)
    assert np.array_equal(same, rain)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, again, jax.device_get(state))


@pytest.mark.slow
def test_its_climate_is_that_of_a_spin_up(climate):
    """Weather differs from machine to machine after a month, its statistics do not."""
    new = jax.device_get(climate.fields(spin_up()[0]))
    kept = jax.device_get(climate.fields(demo.read_spun_up(climate)[0]))
    latitude = np.deg2rad(climate.latitude)
    area = (np.cos(latitude) / np.cos(latitude).mean())[:, None]
    for name in ("T", "SP"):  # the mass of the air is conserved
        means = ((new[name] - kept[name]) * area).mean((-2, -1))
        assert abs(means).max() < 1.0, name
    for name in ("U", "V", "Q"):
        ratio = new[name].std() / kept[name].std()
        assert 0.7 < ratio < 1 / 0.7, name


# The discretization, and diagnostic fields against closed forms.


@pytest.fixture(scope="module")
def disc():
    return forcing.discretize("T21")


@pytest.mark.parametrize(
    ("truncation", "shape"), [("T21", (64, 32)), ("T42", (128, 64))]
)
def test_grid_and_levels(truncation, shape):
    """In one unit: the radius is Earth's, 6371 km, and g is 9.81 m s-2."""
    disc = forcing.discretize(truncation)
    fields = (disc.longitude, disc.latitude, disc.land, disc.height)
    assert {field.shape for field in fields} == {shape}
    assert np.all(np.diff(disc.latitude, axis=1) > 0)
    assert np.isclose(disc.thickness.sum(), 1)
    assert np.allclose(disc.sigma.ravel(), (np.arange(8) + 0.5) / 8)
    assert np.isclose(disc.specs.radius / disc.meter, 6.371e6, rtol=1e-4)
    gravity = disc.specs.g / (disc.meter / disc.second**2)
    assert np.isclose(gravity, 9.81, rtol=1e-3)


def test_geopotential_of_an_isothermal_atmosphere(disc, rng):
    """It is g z + R T ln(1 / sigma)."""
    temperature = jnp.full((8, *disc.height.shape), 250.0)
    wanted = physics.GRAVITY * disc.height
    wanted = wanted - physics.DRY_AIR_GAS * 250.0 * np.log(disc.sigma)
    assert np.allclose(dynamics.geopotential(disc, temperature), wanted, rtol=1e-5)
    field = rng.normal(size=(8, 64, 32))
    found = dynamics.to_north_first(field)
    assert found.shape == (8, 32, 64)
    assert np.array_equal(found[3, 0, 5], field[3, 5, -1])


@pytest.mark.parametrize("surface", [4e4, 9e4, 1e5, 1.05e5])
def test_500_hpa_is_linear_in_the_logarithm_of_pressure(disc, surface):
    """Below the lowest level it is that of the lowest level."""
    pressure = np.log(disc.sigma * surface) + np.zeros((8, *disc.height.shape))
    ground = jnp.full(disc.height.shape, surface)
    found = dynamics.at_500_hpa(disc, jnp.asarray(pressure), ground)
    wanted = min(np.log(5e4), pressure[-1, 0, 0])
    assert np.allclose(found, wanted, rtol=1e-5)


# Sunlight and moisture against published values.


def test_solar_irradiance_and_saturation():
    """Daily means against Hartmann (1994), fig. 2.6; Bolton's formula at 1000 hPa."""
    hours = np.arange(0, 24, 0.25)[:, None, None] / 24.0
    latitude = np.radians([[-90.0, 0.0, 90.0]])[..., None]
    days = physics.solar_irradiance(172.0 + hours, latitude, np.zeros((1, 1, 1)))
    south, equator, north = days.mean(axis=0).ravel()
    assert south == 0
    assert np.isclose(north, 525, rtol=0.01)
    assert np.isclose(equator, 385, rtol=0.01)
    noon = physics.solar_irradiance(79.5, np.zeros(1), np.zeros(1))
    assert np.isclose(noon[0], 1361, rtol=0.01)
    warm = jnp.array([273.15, 293.15])
    q = physics.saturation_specific_humidity(warm, jnp.full(2, 1e5))
    assert np.allclose(q, [0.00381, 0.0147], rtol=0.01)


# The forcing: equilibrium temperature, drag, relaxation and the water budget.


EQUINOX = jnp.float32(physics.EQUINOX_DAY)


def equilibrium(disc, day, pressure=1e5, **settings):
    full = jnp.full((8, *disc.latitude.shape), pressure)
    config = ForcingConfig(**settings)
    return np.asarray(forcing.equilibrium_temperature(disc, full, day, config))


def test_equilibrium_temperature_of_held_and_suarez(disc):
    """At the equinox and over sea: 315 - 60 sin^2 at 1000 hPa, and at least 200 K."""
    sea, square = disc.land == 0, np.sin(disc.latitude) ** 2
    wanted = 315.0 - 60.0 * square
    found = equilibrium(disc, EQUINOX)[-1]
    assert np.allclose(found[sea], wanted[sea], rtol=1e-5)
    assert np.allclose(equilibrium(disc, EQUINOX, 1e3)[0], 200.0)
    # A weaker contrast, without a summer; and land as the sea.
    found = equilibrium(disc, EQUINOX + 91, equator_to_pole=40, season=0)[-1]
    assert np.allclose(found[sea], (315.0 - 40.0 * square)[sea], rtol=1e-5)
    found = equilibrium(disc, EQUINOX, land_heating=0)
    assert np.allclose(found, wanted, rtol=1e-5)


def test_land_is_warmer_by_day(disc):
    change = equilibrium(disc, EQUINOX + 0.5) - equilibrium(disc, EQUINOX)
    # Land within 40 degrees of Greenwich and 20 of the equator; 0.04 K is the season.
    near = (disc.land > 0) & (disc.longitude < 0.7) & (abs(disc.latitude) < 0.35)
    assert near.any()
    assert np.all(change[-1][near] > 20.0)
    assert np.allclose(change[:, disc.land == 0], 0.0, atol=0.1)
    assert np.allclose(change[0], 0.0, atol=0.1)


def forced(disc, climate, **changes):
    state = dataclasses.replace(climate.initial, **changes)
    return state, *forcing.forcing_step(disc, 4320.0, ForcingConfig())(state, EQUINOX)


def test_drag_slows_the_boundary_layer_only(disc, climate):
    ones = jnp.ones_like(climate.initial.vorticity)
    _, slowed, _ = forced(disc, climate, vorticity=ones)
    wanted = 1.0 / (1.0 + 4320.0 / 86400.0 * forcing.boundary_layer(disc))
    ratio = np.asarray(slowed.vorticity).max(axis=(1, 2))
    assert np.allclose(ratio, wanted.ravel(), rtol=1e-6)


def test_rain_is_the_water_that_leaves_the_air(disc, climate):
    """Over land, where nothing evaporates, the column loses what falls."""
    wet = disc.grid.to_modal(jnp.full((8, *disc.latitude.shape), 0.03))
    state, dried, rain = forced(disc, climate, tracers={"q": wet})
    nodal = disc.grid.to_nodal
    surface = np.exp(nodal(state.log_surface_pressure))[0] / disc.pascal
    lost = np.sum((0.03 - nodal(dried.tracers["q"])) * disc.thickness, axis=0)
    column = lost * surface / physics.GRAVITY / physics.WATER_DENSITY
    inland = disc.land == 1
    assert np.all(np.asarray(rain) > 0)
    # q was truncated to T21 once more, which preserves its mean.
    assert np.isclose(column[inland].mean(), np.asarray(rain)[inland].mean(), rtol=0.02)
