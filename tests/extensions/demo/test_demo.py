"""The demo: its dynamics, physics, and data set."""

import dataclasses
import io
import re

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
from credit_jax.extensions.demo import physics, write
from credit_jax.extensions.demo.command import main
from credit_jax.extensions.demo.dataset import (
    FILE,
    ensure_demo_data,
    is_spun_up,
    read_spun_up,
    write_spun_up,
)
from credit_jax.extensions.demo.dynamics import (
    at_500_hpa,
    build_climate,
    geopotential,
    to_north_first,
)
from credit_jax.extensions.demo.forcing import (
    boundary_layer,
    discretize,
    equilibrium_temperature,
    forcing_step,
)
from tests.data.world import parsed, raw_config
from tools.spin_up import spin_up

QUIET = Console(quiet=True)
DAYS = ["--days", "3", "--spinup-days", "1", "--held-out-days", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data set of three days after one of spin-up; the last day is held out."""
    folder = tmp_path_factory.mktemp("demo") / "t21"
    assert main(["--out", str(folder), *DAYS]) == 0
    return folder


def test_layout(made):
    names = ["demo.json", "demo_2000.zarr", "mean.nc", "static.nc", "std.nc"]
    assert sorted(path.name for path in made.iterdir()) == names
    assert [path.name for path in made.parent.iterdir()] == ["t21"]
    data = xr.open_dataset(made / "demo_2000.zarr")
    assert dict(data.sizes) == {
        "time": 12,
        "level": 8,
        "latitude": 32,
        "longitude": 64,
    }
    assert data["T"].dims == ("time", "level", "latitude", "longitude")
    assert data["T"].dtype == np.float32
    assert str(data.time.values[0])[:13] == "2000-01-01T00"
    assert data.latitude.values[0] > 80 > -80 > data.latitude.values[-1]
    for name, variable in data.data_vars.items():
        assert {"units", "long_name", "standard_name"} <= set(variable.attrs), name
        assert np.isfinite(variable.values).all(), name
    static = xr.open_dataset(made / "static.nc")
    assert np.array_equal(static.latitude, data.latitude)
    assert set(np.unique(static["LSM"])) == {0.0, 1.0}


def test_values_are_those_of_an_atmosphere(made):
    data = xr.open_dataset(made / "demo_2000.zarr")
    assert 180 < data["T"].min() < data["T"].max() < 330
    assert 85_000 < data["SP"].min() < data["SP"].max() < 108_000
    assert 0 <= data["Q"].min() < data["Q"].max() < 0.05
    assert 0 <= data["TP"].min() < data["TP"].max() < 0.2
    assert 4.8e4 < data["Z500"].min() < data["Z500"].max() < 6e4
    assert abs(data["U"]).max() < 120
    assert 250 < data["tsi"].mean() < 350
    # V at 500 hPa lies between the levels around it where the surface is at 1000 hPa.
    around = data["V"].sel(level=[0.4375, 0.5625])
    close = (abs(data["SP"] - 1e5) < 100) & (around.min("level") != 0)
    inside = (data["V500"] <= around.max("level") + 1e-3) & (
        data["V500"] >= around.min("level") - 1e-3
    )
    assert bool(inside.where(close, True).all())


def test_statistics_are_of_the_training_days(made):
    data = xr.open_dataset(made / "demo_2000.zarr").isel(time=slice(0, 8))
    mean, std = (xr.open_dataset(made / f"{name}.nc") for name in ("mean", "std"))
    dims = ("time", "latitude", "longitude")
    for name in data.data_vars:
        fields = data[name].astype(np.float64)
        over = [dim for dim in dims if dim in fields.dims]
        assert np.allclose(mean[name], fields.mean(over), rtol=1e-9), name
        assert np.allclose(std[name], fields.std(over), rtol=1e-6), name


def test_the_loader_reads_it(made):
    raw = raw_config(made)
    path = str(made / "demo_%Y.zarr")
    raw["data"] |= {"start_datetime": "2000-01-01", "end_datetime": "2000-01-02T18:00"}
    raw["data"]["source"]["ERA5"] = {
        "dataset_type": "local",
        "level_coord": "level",
        "variables": {
            "prognostic": {
                "vars_3D": ["U", "V", "T", "Q"],
                "vars_2D": ["SP"],
                "path": path,
            },
            "dynamic_forcing": {"vars_2D": ["tsi"], "path": path},
            "static": {
                "vars_2D": ["Z_GDS4_SFC", "LSM"],
                "path": str(made / "static.nc"),
            },
            "diagnostic": {"vars_2D": ["V500", "TP"], "path": path},
        },
    }
    dataset = open_dataset(parsed(raw).data)
    assert len(dataset) == 7
    assert dataset.schema.num_input_channels == 36
    assert dataset.schema.num_target_channels == 35


def test_it_is_kept(made, monkeypatch):
    monkeypatch.setattr(demo, "_make", lambda *_: pytest.fail("made again"))
    wanted = DemoConfig(out=str(made), days=3, spinup_days=1, held_out_days=1)
    assert ensure_demo_data(wanted, QUIET) == made
    other = wanted.model_copy(update={"days": 5, "seed": 2})
    text = "holds another demo data set: days 3 instead of 5, seed 0 instead of 2"
    with pytest.raises(ValueError, match=text):
        ensure_demo_data(other, QUIET)
    other = wanted.model_copy(update={"forcing": ForcingConfig(season=0.2)})
    with pytest.raises(ValueError, match=r"forcing None instead of .*'season': 0.2"):
        ensure_demo_data(other, QUIET)


@pytest.mark.slow
def test_same_seed_same_numbers(made, tmp_path):
    again = tmp_path / "again"
    main(["--out", str(again), *DAYS])
    first, second = (
        xr.open_dataset(folder / "demo_2000.zarr").load() for folder in (made, again)
    )
    assert first.identical(second)


def test_foreign_folders_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a demo data set"):
        ensure_demo_data(DemoConfig(out=str(tmp_path), days=3, held_out_days=1), QUIET)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(settings, folder, advance):
        (folder / "demo_2000.zarr").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_make", fail)
    wanted = DemoConfig(out=str(tmp_path / "deep" / "t21"), days=3, held_out_days=1)
    with pytest.raises(KeyboardInterrupt):
        ensure_demo_data(wanted, QUIET)
    assert list((tmp_path / "deep").iterdir()) == []


# The simulated climate: conserved and changed quantities of one output interval.


def test_six_hours_from_rest():
    """Dry air mass is conserved, the seed shifts the first wave, and winds increase."""
    climate, other = (build_climate("T21", seed) for seed in (0, 1))
    state, rain = climate.advance(climate.initial, 0.0)
    before, after = climate.fields(climate.initial), climate.fields(state)
    elsewhere = other.fields(other.initial)
    weights = np.cos(np.radians(climate.latitude))[:, None]
    means = [float(np.mean(f["SP"] * weights)) for f in (before, after)]
    assert np.isclose(means[0], means[1], rtol=1e-4)
    assert np.max(np.abs(before["U"])) < 1e-3
    assert np.max(np.abs(after["U"])) > 1.0
    assert rain.shape == (32, 64)
    assert not np.allclose(before["SP"], elsewhere["SP"])


# The command `python -m credit_jax.demo`.


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--truncation", "T7"], "truncation"),
        (["--days", "1"], "days"),
        (["--days", "9", "--held-out-days", "9"], "leave no day for training"),
    ],
)
def test_command_line_errors(tmp_path, capsys, arguments, text):
    assert main(["--out", str(tmp_path / "x"), *arguments]) == 2
    assert text in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert not (tmp_path / "x").exists()


# The discretization: shapes, levels, unit scales.


@pytest.mark.parametrize(
    ("truncation", "shape"), [("T21", (64, 32)), ("T42", (128, 64))]
)
def test_grid_and_levels(truncation, shape):
    disc = discretize(truncation)
    fields = (disc.longitude, disc.latitude, disc.land, disc.height)
    assert {field.shape for field in fields} == {shape}
    assert np.all(np.diff(disc.latitude, axis=1) > 0)
    assert np.isclose(disc.thickness.sum(), 1)
    assert np.allclose(disc.sigma.ravel(), (np.arange(8) + 0.5) / 8)


def test_one_si_unit():
    """The nondimensional radius is Earth's, 6371 km, and g is 9.81 m s-2."""
    disc = discretize("T21")
    assert np.isclose(disc.specs.radius / disc.meter, 6.371e6, rtol=1e-4)
    gravity = disc.specs.g / (disc.meter / disc.second**2)
    assert np.isclose(gravity, 9.81, rtol=1e-3)


# Sunlight and moisture against published values.


def test_solar_irradiance():
    """Daily means against Hartmann (1994), fig. 2.6, and noon at the equator."""
    hours = np.arange(0, 24, 0.25)[:, None, None] / 24.0
    latitude = np.radians([[-90.0, 0.0, 90.0]])[..., None]
    days = physics.solar_irradiance(172.0 + hours, latitude, np.zeros((1, 1, 1)))
    south, equator, north = days.mean(axis=0).ravel()
    assert south == 0
    assert np.isclose(north, 525, rtol=0.01)
    assert np.isclose(equator, 385, rtol=0.01)
    noon = physics.solar_irradiance(79.5, np.zeros(1), np.zeros(1))
    assert np.isclose(noon[0], 1361, rtol=0.01)


def test_saturation():
    """Bolton's formula: 3.8 g/kg at 0 C and 14.7 g/kg at 20 C, 1000 hPa."""
    q = physics.saturation_specific_humidity(
        jnp.array([273.15, 293.15]), jnp.array([1e5, 1e5])
    )
    assert np.allclose(q, [0.00381, 0.0147], rtol=0.01)


# Files of the demo data set, and their statistics.


def test_merged_statistics(rng):
    whole = rng.normal(3, 2, (12, 5, 4, 6)).astype(np.float32)
    statistics = write.LevelStatistics()
    for part in np.split(whole, [1, 7]):
        statistics.add("T", part)
    count, mean, squares = statistics._sums["T"]
    assert np.allclose(mean, whole.mean((0, 2, 3), dtype=np.float64))
    std = whole.astype(np.float64).std((0, 2, 3))
    assert np.allclose(np.sqrt(squares / count), std)


def test_years_are_split(tmp_path, rng):
    axes = write.DemoCoordinates(
        np.array([0.5]), np.array([45.0, -45.0]), np.array([0.0])
    )
    writer = write.YearWriter(tmp_path, axes)
    times = pd.date_range("2000-12-30", periods=16, freq="6h")
    fields = rng.normal(size=(16, 2, 1)).astype(np.float32)
    for part in (slice(0, 4), slice(4, 16)):
        writer.add(times[part], {"SP": fields[part]})
    years = [xr.open_dataset(tmp_path / f"demo_{y}.zarr") for y in (2000, 2001)]
    assert [year.sizes["time"] for year in years] == [8, 8]
    joined = np.concatenate([year["SP"].values for year in years])
    assert np.array_equal(joined, fields)
    found = np.concatenate([year.time.values for year in years])
    assert np.array_equal(found, times.values)


# Diagnostic fields against closed forms.


@pytest.fixture(scope="module")
def disc():
    return discretize("T21")


def test_geopotential_of_an_isothermal_atmosphere(disc):
    """It is g z + R T ln(1 / sigma)."""
    temperature = jnp.full((8, *disc.height.shape), 250.0)
    wanted = physics.GRAVITY * disc.height - physics.DRY_AIR_GAS * 250.0 * np.log(
        disc.sigma
    )
    assert np.allclose(geopotential(disc, temperature), wanted, rtol=1e-5)


@pytest.mark.parametrize("surface", [9e4, 1e5, 1.05e5])
def test_500_hpa_is_linear_in_the_logarithm_of_pressure(disc, surface):
    surface_pressure = jnp.full(disc.height.shape, surface)
    field = jnp.asarray(np.log(disc.sigma * surface)) + jnp.zeros(
        (8, *disc.height.shape)
    )
    found = at_500_hpa(disc, field, surface_pressure)
    assert np.allclose(found, np.log(5e4), rtol=1e-5)


def test_500_hpa_below_the_lowest_level_is_that_of_the_lowest_level(disc):
    field = jnp.arange(8.0)[:, None, None] * jnp.ones((8, *disc.height.shape))
    found = at_500_hpa(disc, field, jnp.full(disc.height.shape, 4e4))
    assert np.allclose(found, 7.0)


def test_north_first(rng):
    field = rng.normal(size=(8, 64, 32))
    found = to_north_first(field)
    assert found.shape == (8, 32, 64)
    assert np.array_equal(found[3, 0, 5], field[3, 5, -1])


# The state after the spin-up that comes with the package.


@pytest.fixture(scope="module")
def climate():
    with jax.numpy_rank_promotion("allow"):
        yield build_climate("T21", 0)


def test_it_is_that_of_the_defaults_alone():
    """After a change of the climate (LAYOUT) the file is to be made anew."""
    assert is_spun_up(DemoConfig(out="x", days=3, held_out_days=1))
    for other in (
        {"truncation": "T42"},
        {"spinup_days": 199},
        {"seed": 1},
        {"forcing": ForcingConfig(season=0.2)},
    ):
        assert not is_spun_up(DemoConfig(out="x", **other))
    assert FILE.stat().st_size < 100_000


@pytest.mark.slow
def test_a_data_set_begins_with_it(climate, tmp_path):
    demo = DemoConfig(out=str(tmp_path / "t21"), days=2, held_out_days=1)
    text = io.StringIO()
    ensure_demo_data(demo, Console(file=text, width=200))
    assert "(after the spin-up that comes with the package)" in text.getvalue()
    state, rain = read_spun_up(climate)
    data = xr.open_dataset(tmp_path / "t21" / "demo_2000.zarr").isel(time=0)
    for name, field in climate.fields(state).items():
        assert np.array_equal(data[name], field), name
    assert np.array_equal(data["TP"], rain)
    # Weather, as after 200 days and not at rest.
    assert data["U"].max() > 25
    assert data["Q"].max() > 5e-3
    assert rain.max() > 1e-3


@pytest.mark.slow
def test_what_is_written_is_read(climate, tmp_path, monkeypatch):
    state, rain = climate.advance(climate.initial, 0.0)
    path = tmp_path / "spun_up.npz"
    write_spun_up(state, rain, path)
    monkeypatch.setattr("credit_jax.extensions.demo.dataset.FILE", path)
    again, same = read_spun_up(climate)
    assert np.array_equal(same, rain)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, again, jax.device_get(state))


@pytest.mark.slow
def test_its_climate_is_that_of_a_spin_up(climate):
    """Weather differs from machine to machine after a month, its statistics do not."""
    with jax.numpy_rank_promotion("allow"):
        new = jax.device_get(climate.fields(spin_up()[0]))
        kept = jax.device_get(climate.fields(read_spun_up(climate)[0]))
    latitude = np.deg2rad(climate.latitude)
    area = (np.cos(latitude) / np.cos(latitude).mean())[:, None]
    # The mass of the air is conserved.
    for name, bound in {"T": 1.0, "SP": 1.0}.items():
        means = ((new[name] - kept[name]) * area).mean((-2, -1))
        assert abs(means).max() < bound, name
    for name in ("U", "V", "Q"):
        ratio = new[name].std() / kept[name].std()
        assert 0.7 < ratio < 1 / 0.7, name


# The forcing: equilibrium temperature, drag, relaxation and the water budget.


DEFAULT = ForcingConfig()
DAY_OF_EQUINOX = jnp.float32(physics.EQUINOX_DAY)


def test_equilibrium_temperature_of_held_and_suarez(disc):
    """At the equinox and over sea: 315 - 60 sin^2 at 1000 hPa, and at least 200 K."""
    pressure = jnp.full((8, *disc.latitude.shape), 1e5)
    found = np.asarray(equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX, DEFAULT))
    sea = disc.land == 0
    wanted = 315.0 - 60.0 * np.sin(disc.latitude) ** 2
    assert np.allclose(found[-1][sea], wanted[sea], rtol=1e-5)
    high = equilibrium_temperature(disc, 0.01 * pressure, DAY_OF_EQUINOX, DEFAULT)
    assert np.allclose(high[0], 200.0)


def test_another_forcing_is_another_equilibrium(disc):
    """A weaker contrast on the equator and at sigma 1 over sea, and no summer."""
    pressure = jnp.full((8, *disc.latitude.shape), 1e5)
    weak = ForcingConfig(equator_to_pole=40, season=0)
    solstice = DAY_OF_EQUINOX + 91
    sea = disc.land == 0
    found = np.asarray(equilibrium_temperature(disc, pressure, solstice, weak))[-1]
    wanted = 315.0 - 40.0 * np.sin(disc.latitude) ** 2
    assert np.allclose(found[sea], wanted[sea], rtol=1e-5)
    dry = ForcingConfig(land_heating=0)
    found = np.asarray(equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX, dry))
    wanted = 315.0 - 60.0 * np.sin(disc.latitude) ** 2
    assert np.allclose(found, wanted, rtol=1e-5)


def test_land_is_warmer_by_day(disc):
    pressure = jnp.full((8, *disc.latitude.shape), 1e5)
    noon = equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX + 0.5, DEFAULT)
    night = equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX, DEFAULT)
    change = np.asarray(noon - night)  # 0.04 K of it is the season
    # Land within 40 degrees of Greenwich and 20 of the equator.
    near = (disc.land > 0) & (disc.longitude < 0.7) & (abs(disc.latitude) < 0.35)
    assert near.any()
    assert np.all(change[-1][near] > 20.0)
    assert np.allclose(change[:, disc.land == 0], 0.0, atol=0.1)
    assert np.allclose(change[0], 0.0, atol=0.1)


def test_drag_slows_the_boundary_layer_only(disc):
    state = build_climate("T21", 0).initial
    state = dataclasses.replace(state, vorticity=jnp.ones_like(state.vorticity))
    forced, _ = forcing_step(disc, 4320.0, DEFAULT)(state, DAY_OF_EQUINOX)
    wanted = 1.0 / (1.0 + 4320.0 / 86400.0 * boundary_layer(disc))
    ratio = np.asarray(forced.vorticity).max(axis=(1, 2))
    assert np.allclose(ratio, wanted.ravel(), rtol=1e-6)


def test_rain_is_the_water_that_leaves_the_air(disc):
    """Over land, where nothing evaporates, the column loses what falls."""
    state = build_climate("T21", 0).initial
    wet = disc.grid.to_modal(jnp.full((8, *disc.latitude.shape), 0.03))
    state = dataclasses.replace(state, tracers={"q": wet})
    nodal = disc.grid.to_nodal
    forced, rain = forcing_step(disc, 4320.0, DEFAULT)(state, DAY_OF_EQUINOX)
    surface = np.exp(nodal(state.log_surface_pressure))[0] / disc.pascal
    lost = np.sum((0.03 - nodal(forced.tracers["q"])) * disc.thickness, axis=0)
    column = lost * surface / physics.GRAVITY / physics.WATER_DENSITY
    inland = disc.land == 1
    assert np.all(np.asarray(rain) > 0)
    # q was truncated to T21 once more, which preserves its mean.
    assert np.isclose(column[inland].mean(), np.asarray(rain)[inland].mean(), rtol=0.02)
