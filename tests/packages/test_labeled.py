"""`open_forecaster`: forecasts from and to xarray Datasets, those of the command."""

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.checkpoint.run import open_run
from credit_jax.cli import forecast
from credit_jax.cli.commands import OK
from credit_jax.forecast.labeled import open_forecaster
from tests.data.world import GRID, MODEL, NUM_LAT, NUM_LON, raw_config
from tests.forecast.tiny_run import make_run
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close

CASES = Cases("states")
START = np.datetime64("2000-01-01", "ns")
STEPS = 3


def of_command(config, out, *overrides, start=START, members=2):
    """The steps of each member of a forecast by the command."""
    options = ["--config", str(config), "--checkpoint", str(config.parent / "run")]
    options += ["--out", os.fspath(out), "--init-time", str(start)[:10]]
    options += ["--steps", str(STEPS), "--format", "netcdf", "--cache", "none"]
    options += ["--members", str(members), *(f"--set={own}" for own in overrides)]
    assert forecast.main(options) == OK
    found = []
    for member in range(members):
        files = sorted(out.glob(f"*/member_{member:03d}/*.nc"))
        assert len(files) == STEPS
        found.append([xr.load_dataset(file) for file in files])
    return found


@pytest.fixture(scope="module")
def expected(run, tmp_path_factory):
    """The forecast of two members by the command."""
    return of_command(run, tmp_path_factory.mktemp("command"))


def assert_same(found, wanted):
    """Asserts that two Datasets have the same values and coordinates."""
    assert set(found.data_vars) == set(wanted.data_vars)
    for name, array in wanted.variables.items():
        assert found[name].dims == array.dims, name
        np.testing.assert_array_equal(found[name].values, array.values, name)


def shuffled(initial):
    """The same state with rows, columns, levels and dims in other orders, in chunks."""
    turned = initial.isel(
        latitude=slice(None, None, -1),
        level=[2, 0, 1],
        longitude=[3, 0, 1, 2, 4, *range(5, 10)],
    )
    turned = turned.assign_coords(longitude=(turned.longitude + 180) % 360 - 180)
    dims = ("longitude", "time", "level", "latitude")
    return turned.transpose(*dims).chunk(latitude=2, level=1)


def downloaded(initial):
    """The same state with the names of the Climate Data Store."""
    renamed = initial.rename(time="valid_time", level="pressure_level")
    return renamed.assign_coords(number=0)


@pytest.mark.parametrize("change", [lambda state: state, shuffled, downloaded])
def test_the_forecast_is_that_of_the_command(forecaster, initial, expected, change):
    steps = [*forecaster(change(initial), STEPS)]
    assert len(steps) == STEPS
    for found, wanted in zip(steps, expected[0], strict=True):
        assert_same(found, wanted.drop_vars("number"))
    assert steps[0]["T"].dims == ("time", "level", "latitude", "longitude")


def assert_same_members(steps, wanted):
    """Asserts that the steps of an ensemble are those of each member."""
    assert len(steps) == STEPS
    for place, found in enumerate(steps):
        assert found.number.values.tolist() == [*range(len(wanted))]
        for member, own in enumerate(wanted):
            assert_same(found.isel(number=member), own[place])
    assert not steps[0]["T"][0].equals(steps[0]["T"][1])


def test_members_are_those_of_the_command(forecaster, initial, expected):
    assert_same_members([*forecaster(initial, STEPS, members=2)], expected)


@pytest.mark.slow
@pytest.mark.parametrize("type_", ["bred", "lagged"])
def test_members_from_earlier_states(run, folder, world, tmp_path, type_):
    """Bred vectors and lagged members begin at states before the start date."""
    start, set_ = np.datetime64("2000-01-03", "ns"), "inference.perturbation"
    changes = [f"{set_}.type={type_}", f"{set_}.num_cycles=2", f"{set_}.lag=12h"]
    wanted = of_command(run, tmp_path, *changes, start=start, members=3)
    forecaster = open_forecaster(folder, overrides=changes)
    hours = {"bred": [-12, -6, 0], "lagged": [-24, -12, 0]}[type_]
    with xr.open_dataset(world / "w_2000.nc") as fields:
        times = start + np.array(hours, "timedelta64[h]")
        earlier = fields.sel(time=times[::-1]).load()
    assert_same_members([*forecaster(earlier, STEPS, members=3)], wanted)
    now = earlier.sel(time=[start])
    with pytest.raises(ValueError, match=r"expected 3 time\(s\), 2000-01-0"):
        forecaster(now, 1, members=3)
    assert_same(next(forecaster(now, 1)), wanted[0][0].drop_vars("number"))


@pytest.fixture(scope="module")
def regridded(world, tmp_path_factory, tiny_model):
    """The YAML of a run on means of two columns each, with another name of T."""
    folder = tmp_path_factory.mktemp("regridded")
    new = np.arange(NUM_LAT * NUM_LON // 2)
    columns = np.repeat(2 * new, 2) + np.tile([1, 2], len(new))
    row, column = np.divmod(new, NUM_LON // 2)
    weights = {
        "row": ("n_s", np.repeat(new, 2) + 1),
        "col": ("n_s", columns),
        "S": ("n_s", np.full(len(columns), 0.5)),
        "dst_grid_dims": ("rank", [NUM_LON // 2, NUM_LAT]),
        "xc_b": ("n_b", 18.0 + 72 * column),
        "yc_b": ("n_b", GRID["latitude"][row]),
        "xc_a": ("n_a", np.zeros(NUM_LAT * NUM_LON)),
    }
    xr.Dataset(weights).to_netcdf(folder / "weights.nc")
    names = ("prognostic/3d/U", "prognostic/3d/T", "prognostic/2d/SP")
    names += ("dynamic_forcing/2d/tsi", "static/2d/LSM", "diagnostic/2d/TP")
    args = {"weight_file": f"{folder}/weights.nc"}
    args["variables"] = [f"ERA5/{name}" for name in names]
    renamed = {"mapping": {"ERA5/prognostic/3d/T": "ERA5/prognostic/3d/temperature"}}
    steps = raw_config(world)["preblocks"]["per_step"]
    steps = {
        "regrid": {"type": "regrid", "args": args},
        "norm": steps["norm"],
        "rename": {"type": "rename", "args": renamed},
        "concat": steps["concat"],
    }
    model = {**MODEL, "type": "tiny", "image_width": NUM_LON // 2}
    out = folder / "tiny"
    return Path(make_run(world, out, model=model, preblocks={"per_step": steps}))


@pytest.mark.slow
@pytest.mark.parametrize("type_", ["spherical", "bred"])
def test_states_are_on_the_grid_of_the_data(regridded, world, tmp_path, type_):
    changes = [f"inference.perturbation.type={type_}"]
    changes += ["inference.perturbation.num_cycles=1"]
    wanted = of_command(regridded, tmp_path, *changes)
    shutil.copyfile(regridded, regridded.parent / "run/model.yml")
    forecaster = open_forecaster(regridded.parent / "run", overrides=changes)
    assert forecaster.variables == ("U", "T", "SP")
    with xr.open_mfdataset(sorted(world.glob("w_*.nc"))) as fields:
        times = {"bred": [START - np.timedelta64(6, "h"), START]}.get(type_, [START])
        initial = shuffled(fields.sel(time=times))
        steps = [*forecaster(initial, STEPS, members=2)]
    for found, *own in zip(steps, *wanted, strict=True):
        for member in range(2):
            assert_same(found.isel(number=member), own[member])
    assert found.longitude.values.tolist() == [18.0, 90.0, 162.0, 234.0, 306.0]
    assert not found["temperature"][0].equals(found["temperature"][1])
    with pytest.raises(ValueError, match="5 longitudes run from 18 to 306"):
        forecaster(found.isel(number=0).rename(temperature="T"), 1)


@pytest.mark.slow
def test_members_on_a_mesh(folder, forecaster, initial):
    """Three members on two data-parallel devices, of two latitude shards each."""
    split = open_forecaster(folder, parallelism="data=ddp,domain=2", devices=4)
    found = next(split(initial, 1, members=3))
    wanted = next(forecaster(initial, 1, members=3))
    assert found.number.values.tolist() == [0, 1, 2]
    for name in ("T", "U", "SP", "TP"):
        assert_close(found[name].values, wanted[name].values, 1e-6, name)


def test_a_package_has_the_same_values(made, data, initial, expected):
    found = next(open_forecaster(made, data=data)(initial, 1))
    assert_same(found, expected[0][0].drop_vars("number"))
    with pytest.raises(ValueError, match="package of the moving average"):
        open_forecaster(made, data=data, weights="last")


def test_forcing_from_a_source_of_ones_own(made, data, initial, tmp_path):
    """The data file of a package names it, as a config does."""
    (tmp_path / "mine.py").write_text(
        "from credit_jax.config.sources.sections import LocalConfig\n"
        "from credit_jax.data.sources.local import open_local\n"
        "from credit_jax.data.sources.registry import SourceEntry\n"
        "mine = SourceEntry(LocalConfig, open_local)\n"
    )
    entry = {"object_type": "dataset", "module_path": str(tmp_path / "mine.py")}
    places = yaml.safe_load(data.read_text())
    places["source"]["ERA5"]["dataset_type"] = "mine"
    path = tmp_path / "data.yml"
    path.write_text(yaml.safe_dump(places))
    with pytest.raises(
        ValueError, match=r"type 'mine' is not available; .*custom_objects"
    ):
        open_forecaster(made, data=path)
    path.write_text(yaml.safe_dump({"custom_objects": {"mine": entry}, **places}))
    found = next(open_forecaster(made, data=path)(initial, 1))
    assert_same(found, next(open_forecaster(made, data=data)(initial, 1)))


def test_a_forecast_goes_on_from_its_last_state(forecaster, initial, expected):
    first = next(forecaster(initial, 1))
    found = next(forecaster(first, 1))
    wanted = expected[0][1]
    for name in ("T", "U", "SP", "TP"):
        error = np.abs(found[name].values - wanted[name].values).max()
        assert error <= 1e-5 * np.abs(wanted[name].values).max(), name


def test_steps_are_computed_when_they_are_asked_for(forecaster, initial, monkeypatch):
    calls = []
    reader = type(forecaster.states.reader)
    read = reader.forcing_at

    def counted(self, starts, step):
        calls.append(step)
        return read(self, starts, step)

    monkeypatch.setattr(reader, "forcing_at", counted)
    steps = forecaster(initial, 1000)
    assert calls == []
    next(steps)
    assert calls == [0, 1]


def test_only_what_is_needed_of_dask_arrays_is_read(forecaster, initial):
    def fail(block):
        raise AssertionError("this chunk is not needed")

    lazy = initial.chunk(level=1)
    # Level 2 and TP are not in a state.
    bad = lazy["T"].isel(level=[1]).map_blocks(fail, template=lazy["T"].isel(level=[1]))
    levels = [lazy["T"].isel(level=[0]), bad, lazy["T"].isel(level=[2])]
    lazy["T"] = xr.concat(levels, "level")
    lazy["TP"] = lazy["TP"].map_blocks(fail, template=lazy["TP"])
    assert np.isfinite(next(forecaster(lazy, 1))["T"].values).all()


def test_files_of_states_are_not_needed(forecaster, folder, tmp_path, initial):
    """Where a checkpoint records coordinates, the data of the run may be elsewhere."""
    located = forecaster.states.reader.data.coordinates()
    last = open_run(folder, None, "average")
    params, state = last.on_host(forecaster.states.step.model.model_def)
    progress = Progress(epoch=0, coordinates=located.to_json())
    store = CheckpointStore(tmp_path / "run")
    store.save(3, {"weights": {"params": params, **state}}, progress)
    store.close()
    shutil.copyfile(folder / "model.yml", tmp_path / "run/model.yml")
    gone = "data.source.ERA5.variables.prognostic.path=/nowhere/w_%Y.nc"
    unlisted = "data.source.ERA5.levels=null"  # all levels, as recorded
    for overrides in ([gone, unlisted], [gone]):
        moved = open_forecaster(tmp_path / "run", overrides=overrides)
        assert moved.states.schema == forecaster.states.schema
    assert_same(next(moved(initial, 1)), next(forecaster(initial, 1)))
    with pytest.raises(FileNotFoundError, match="no file matches '/nowhere"):
        open_forecaster(folder, overrides=[gone])


def at(change):
    """A forecast from a changed state."""
    return lambda forecaster, state: next(forecaster(change(state), 1))


def two_times(state):
    later = state.assign_coords(time=state.time + np.timedelta64(6, "h"))
    return xr.concat([state, later], "time")


CALLS = {
    "no T, SP": at(lambda s: s.drop_vars(["T", "SP"])),
    "no latitude": at(lambda s: s.drop_vars("latitude")),
    "no level": at(lambda s: s.drop_vars("level")),
    "no time": at(lambda s: s.drop_vars("time")),
    "other rows": at(lambda s: s.assign_coords(latitude=s.latitude + 1)),
    "fewer columns": at(lambda s: s.isel(longitude=slice(1, None))),
    "other levels": at(lambda s: s.assign_coords(level=[1.0, 2.0, 7.0])),
    "one level": at(lambda s: s.isel(level=0)),
    "members": at(lambda s: s.expand_dims(number=2)),
    "two times": at(two_times),
    "NaN": at(lambda s: s.assign(T=s["T"] * np.nan)),
    "text": at(lambda s: s.assign(T=s["T"].astype(str))),
    "another calendar": at(lambda s: s.convert_calendar("noleap")),
    "no steps": lambda forecaster, state: forecaster(state, 0),
    "no members": lambda forecaster, state: forecaster(state, 1, members=0),
}


def call(name, forecaster, initial):
    CALLS[name](forecaster, initial)


CASES.rows(call, *CALLS)


@CASES.case
def no_checkpoint(tmp_path):
    open_forecaster(tmp_path)


@CASES.case
def amplitudes_of_another_variable(folder, initial):
    other = "inference.perturbation.std={Q: 0.1}"
    open_forecaster(folder, overrides=[other])(initial, 1, members=2)


def test_another_unit_is_converted_or_refused(forecaster, initial):
    known, key = dataclasses.replace(forecaster), "ERA5/prognostic/3d/T"
    vars(known)["_units"] = {key: "K"}
    other = initial.assign(T=initial["T"].assign_attrs(units="m"))
    with pytest.raises(ValueError, match="T is in 'm'; expected 'K': convert it"):
        known(other, 1)
    cold = initial.assign(T=(initial["T"] - 273.15).assign_attrs(units="degC"))
    states = [x[1][key] for x in (known._state(cold, 1), known._state(initial, 1))]
    np.testing.assert_allclose(*states, rtol=1e-6)
    assert known._units.keys() <= {*forecaster.states.prognostic}
