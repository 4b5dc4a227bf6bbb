"""Forecast campaigns: interrupted, killed, split up, with failing writes and NaN."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import DIVERGED, FAILED, OK, USER_ERROR
from credit_jax.config.messages import counted
from credit_jax.data.schedule import ForecastSchedule
from credit_jax.evaluation.scores import read_scores
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.netcdf import NetcdfStore
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.parallel.processes.watch import RESUME
from tests.forecast.fuzz import try_seeds
from tests.forecast.tiny_run import forecast, make_run, read
from tests.support.processes import on_processes
from tests.training.tiny import MODEL, write_yaml

ROOT = Path(__file__).parents[2]
IN_A_PROCESS = """
import sys
from credit_jax.models import registry
from tests.training.tiny import Tiny, TinyConfig
registry.MODELS["tiny"] = registry.ModelEntry(TinyConfig, Tiny)
from credit_jax.cli.forecast import main
sys.exit(main(sys.argv[1:]))
"""


def chunks(out: Path) -> dict[str, bytes]:
    """Returns the bytes of the store's files but its root, which has the command."""
    store = out / "forecast.zarr"
    paths = [path for path in store.rglob("*") if path.is_file()]
    names = {path.relative_to(store).as_posix(): path.read_bytes() for path in paths}
    return {name: data for name, data in names.items() if name != "zarr.json"}


def failing(monkeypatch: pytest.MonkeyPatch, store: type, after: int) -> None:
    """Makes writing fail after some calls, as on a full disk."""
    write, calls = store.write, []

    def fail(self, *arguments):
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(28, "No space left on device")
        return write(self, *arguments)

    monkeypatch.setattr(store, "write", fail)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 7])
def test_resumed_after_a_failing_write(config, tmp_path, monkeypatch, capsys, after):
    assert forecast(config, tmp_path / "whole") == OK
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        failing(patch, ZarrStore, after)
        assert forecast(config, out) == FAILED
    assert "No space left on device" in capsys.readouterr().err
    done = len([*(out / "done").glob("*")]) if (out / "done").exists() else 0
    assert (done > 0) == (after > 0)
    assert forecast(config, out, "--resume") == OK
    shown = capsys.readouterr().out
    assert f"{counted(5 - done, 'forecast')} made, in" in shown
    assert chunks(out) == chunks(tmp_path / "whole")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert forecast(config, out, "--resume") == OK
    after_it = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert after_it == before, "nothing was left to do"


@pytest.mark.slow
def test_a_failing_netcdf_file_ends_the_command(config, tmp_path, monkeypatch, capsys):
    failing(monkeypatch, NetcdfStore, 2)
    assert forecast(config, tmp_path / "out", "--format", "netcdf") == FAILED
    assert "No space left on device" in capsys.readouterr().err


def test_killed_and_run_again(config, tmp_path):
    options = ("--length", "4d")
    assert forecast(config, tmp_path / "whole", *options) == OK
    out = tmp_path / "out"
    arguments = ["--config", config, "--out", os.fspath(out), "--cache", "none"]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS, *arguments, *options],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not [*out.glob("done/2*"), *out.glob("done/1*")]:
        assert process.poll() is None or process.returncode == 0
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert forecast(config, out, "--resume", *options) == OK
    ours, whole = read(out), read(tmp_path / "whole")
    assert set(ours.data_vars) == set(whole.data_vars)
    for name in whole.data_vars:
        # The subprocess compiles with other flags than the tests.
        assert np.allclose(ours[name], whole[name], rtol=1e-4, equal_nan=True), name


@pytest.mark.slow
def test_parts_of_a_campaign(config, tmp_path, capsys):
    assert forecast(config, tmp_path / "whole") == OK
    out = tmp_path / "out"
    for shard in ("1/2", "2/2"):
        assert forecast(config, out, "--shard", shard) == OK
    assert chunks(out) == chunks(tmp_path / "whole")
    shown = capsys.readouterr().out
    assert "3 forecasts made, in" in shown
    assert "2 forecasts made, in" in shown


@pytest.fixture
def diverging(world, tmp_path, tiny_model):
    """A run whose weights are too large for float32."""
    return make_run(world, tmp_path, scale=1e38)


def test_nan_is_an_error(diverging, tmp_path, capsys):
    assert forecast(diverging, tmp_path / "out") == DIVERGED
    error = capsys.readouterr().err
    assert "values that are NaN or infinite at step 1" in error
    assert "--nan fill" in error


def test_nan_is_filled_and_counted(diverging, tmp_path, capsys):
    options = ("--nan", "fill", "--init-time", "2000-01-01", "--steps", "2")
    assert forecast(diverging, tmp_path / "out", *options) == OK
    store = read(tmp_path / "out")
    leads = store["T"].isel(prediction_timedelta=slice(1, None))
    count = int(np.isnan(leads).sum())
    assert count > 0
    assert not np.isinf(leads).any()
    assert f"T {count}" in capsys.readouterr().out


@pytest.mark.slow(but=["day-files0"])
@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("day", ["2000-01-01.nc", "2000-01-02.nc"]),
        ("month", ["2000-01.nc"]),
        ("full", ["full.nc"]),
    ],
)
def test_steps_that_share_a_file(world, tmp_path, tiny_model, group, files):
    output = {"group_by": group, "output_interval": "12h"}
    config = make_run(world, tmp_path, inference__output=output)
    options = ("--init-time", "2000-01-01", "--length", "30h")
    assert forecast(config, tmp_path / "out", *options) == OK
    found = sorted((tmp_path / "out" / "20000101_0000Z").glob("*.nc"))
    assert [path.name for path in found] == files
    times = []
    for path in found:
        with xr.open_dataset(path) as steps:
            times += [*steps["time"].values]
    hours = (np.array(times) - np.datetime64("2000-01-01")) / np.timedelta64(1, "h")
    assert np.array_equal(hours, [12, 24]), "also those before the last step"


@pytest.mark.slow
def test_a_campaign_stopped_by_its_time_limit(config, tmp_path, capsys):
    assert forecast(config, tmp_path / "whole") == OK
    out = tmp_path / "out"
    assert forecast(config, out, "--stop-after", "1ms") == RESUME
    shown = capsys.readouterr().out
    assert "1 forecast made, in" in shown
    assert "Stopped by --stop-after; --resume makes those that are missing" in shown
    assert len([*(out / "done").glob("*")]) == 1
    assert forecast(config, out, "--resume", "--stop-after", "11h50m") == OK
    assert "4 forecasts made, in" in capsys.readouterr().out
    assert chunks(out) == chunks(tmp_path / "whole")


OUTPUT = {"format": "zarr", "output_interval": "6h"}
PART = {
    "the queue of writers": {"inference__output": {**OUTPUT, "max_pending": 1}},
    "format, which --format replaces": {"inference__output__format": "netcdf"},
    "what NetCDF files alone have": {
        "inference__output": {**OUTPUT, "group_by": "day", "encoding": {"zlib": True}}
    },
    "what ensembles alone have": {
        "inference__perturbation": {"type": "gaussian"},
        "seed": 5,
    },
    "what training alone reads": {
        "data__on_bad_sample": "skip",
        "data__data_clamp": [-9, 9],
    },
}


@pytest.mark.slow(but=["the queue of writers"])
@pytest.mark.parametrize("name", PART)
def test_resumed_with_keys_that_change_no_value(
    world, tmp_path, tiny_model, capsys, name
):
    out, same = tmp_path / "out", ("--format", "zarr", "--init-time", "2000-01-01")
    config = make_run(world, tmp_path / "one", inference__output=OUTPUT)
    assert forecast(config, out, *same) == OK
    changes = {"inference__output": OUTPUT} | PART[name]
    config = make_run(world, tmp_path / "other", **changes)
    checkpoint = ("--checkpoint", os.fspath(tmp_path / "one" / "run"))
    assert forecast(config, out, *same, "--resume", *checkpoint) == OK
    assert "1 found there" in capsys.readouterr().out


@pytest.fixture
def statistics(config, world, tmp_path):
    """The config with statistics of its own, and their mean, which may be changed."""
    shutil.copy(world / "mean.nc", tmp_path / "mean.nc")
    raw = yaml.safe_load(Path(config).read_text())
    raw["preblocks"]["per_step"]["norm"]["args"]["mean_path"] = f"{tmp_path}/mean.nc"
    return write_yaml(tmp_path / "own.yml", raw), tmp_path / "mean.nc"


@pytest.mark.slow
def test_statistics_that_were_fitted_again(statistics, tmp_path, capsys):
    (config, mean), out = statistics, tmp_path / "out"
    options = ("--checkpoint", os.fspath(tmp_path / "run"))
    assert forecast(config, out, *options, "--init-time", "2000-01-01") == OK
    before, content = chunks(out), mean.read_bytes()
    with xr.open_dataset(mean) as fitted:
        again = fitted.load() + 1
    again.to_netcdf(mean)
    same = (*options, "--init-time", "2000-01-01", "--resume")
    for marker in (out / "done").iterdir():
        marker.unlink()
    assert forecast(config, out, *same) == USER_ERROR
    error = capsys.readouterr().err
    assert "preblocks.per_step.norm.args.mean_path" in error
    assert chunks(out) == before
    mean.write_bytes(content)
    assert forecast(config, out, *same) == OK
    assert chunks(out) == before


def test_processes_that_read_other_files(config, tmp_path, monkeypatch, capsys):
    create = Archive.create

    def of_the_first_process(self):
        create(replace(self, digests=dict.fromkeys(self.digests, "other")))

    monkeypatch.setattr(Archive, "create", of_the_first_process)
    assert forecast(config, tmp_path / "out") == USER_ERROR
    assert "std_path: they were changed since" in capsys.readouterr().err


NOISE = {"inference__members": 2, "inference__perturbation": {"std": 0.1}}


@pytest.mark.slow(but=["change0-seed (1000 there, 5 here)"])
@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"seed": 5}, "seed (1000 there, 5 here)"),
        (
            {"inference__perturbation": {"std": 0.1, "length_scale": 5}},
            "perturbation.length_scale (20.0 there, 5.0 here)",
        ),
    ],
)
def test_members_of_another_ensemble(
    world, tmp_path, tiny_model, capsys, change, shown
):
    out, same = tmp_path / "out", ("--init-time", "2000-01-01")
    config = make_run(world, tmp_path / "one", **{"seed": 1000, **NOISE})
    assert forecast(config, out, *same) == OK
    config = make_run(world, tmp_path / "other", **{"seed": 1000, **NOISE, **change})
    checkpoint = ("--checkpoint", os.fspath(tmp_path / "one" / "run"))
    assert forecast(config, out, *same, "--resume", *checkpoint) == USER_ERROR
    assert f"which differ in {shown}; give another folder" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["soon", "-3h", "0s"])
def test_a_time_limit_that_is_none(config, tmp_path, capsys, wrong):
    assert forecast(config, tmp_path / "out", f"--stop-after={wrong}") == USER_ERROR
    assert f"such as '6h', got '{wrong}'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_draws_noise(world: Path, tmp_path: Path) -> None:
    """Repeated forecasts are equal, and differ from those of another seed."""
    own = {"type": "crossformer-ensemble", "depth": [1, 0, 0, 0], "freeze": False}
    height, width = MODEL["image_height"], MODEL["image_width"]
    own |= {"noise_latent_dim": 4, "decoder_noise_factor": 5.0, "interp": True}
    own |= {"cross_embed_strides": [1, 2, 2, 2], "dim": [8, 16, 32, 64]}
    own |= {"dim_head": 8, "local_window_size": 2}
    own |= {"global_window_size": [2, 1, 1, 1]}
    own |= {"cross_embed_kernel_sizes": [[3], [2], [2], [2]]}
    padding = {"pad_lat": [8 - height, 0], "pad_lon": [16 - width, 0]}
    model = {**MODEL, **own, "padding_conf": {"mode": "earth", **padding}}
    stores = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        config = make_run(world, tmp_path / name, model=model, seed=seed)
        assert forecast(config, tmp_path / name / "out") == OK
        stores.append(read(tmp_path / name / "out"))
    assert stores[0].identical(stores[1].assign_attrs(stores[0].attrs))
    variable = next(iter(stores[0].data_vars))
    change = np.abs(stores[0][variable] - stores[2][variable])
    assert float(change.max()) > 0


# The record of a folder of forecasts: the coordinates of what it holds.


GRID = {
    "latitude": np.linspace(75, -75, 6),
    "longitude": np.arange(10) * 36.0,
    "level": np.array([500.0, 850.0]),
}


@pytest.fixture
def archive(tmp_path):
    schedule = ForecastSchedule(
        np.array(["2000-01-01"], "datetime64[ns]"), 2, pd.Timedelta("6h")
    )
    made = Archive(tmp_path, schedule, {"steps": 2}, {}, GRID)
    made.create()
    return made


def test_the_same_coordinates(archive):
    archive.check((), resume=True)
    rounded = {name: np.float32(values) for name, values in GRID.items()}
    replace(archive, coordinates=rounded).check((), resume=True)


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("latitude", GRID["latitude"][::-1], "latitudes from 75 to -75, this run from"),
        ("longitude", (GRID["longitude"] + 180) % 360, "in another order"),
        ("level", np.array([850.0, 500.0]), "levels from 500 to 850"),
        ("latitude", GRID["latitude"] + 1, r"forecast\.json: 6 latitudes run from 75"),
        ("level", np.array([500.0, 925.0]), r"has the levels \[500.0, 850.0\]"),
        ("latitude", np.ones((6, 10)), "in another order"),
    ],
)
def test_other_coordinates_are_refused(archive, name, values, text):
    other = replace(archive, coordinates={**GRID, name: values})
    with pytest.raises(ValueError, match=text):
        other.check((), resume=True)


def test_a_run_without_coordinates_takes_those_of_its_files(
    world, tmp_path, tiny_model, capsys
):
    """Of converted checkpoints; later files are read in that order, or refused."""
    for path in world.iterdir():
        shutil.copy(path, tmp_path)
    config = make_run(tmp_path, tmp_path)
    shutil.copy(config, tmp_path / "run" / "model.yml")
    one = "--init-time", "1999-12-30", "--steps", "1"
    # Data that the config of the run does not name are no origin.
    other = f"data.source.ERA5.variables.prognostic.path={world}/w_%Y.nc"
    assert forecast(config, tmp_path / "other", *one, "--set", other) == OK
    record = tmp_path / "run/coordinates.json"
    assert not record.exists()
    assert forecast(config, tmp_path / "first", *one) == OK
    assert f"{record} now records" in "".join(capsys.readouterr().out.split("\n"))
    path = tmp_path / "w_1999.nc"
    with xr.open_dataset(path) as data:
        turned, moved = data.load()[{"latitude": slice(None, None, -1)}], data.copy()
    turned.to_netcdf(path)
    assert forecast(config, tmp_path / "second", *one) == OK
    first, second = read(tmp_path / "first"), read(tmp_path / "second")
    xr.testing.assert_equal(first, second)
    moved.assign_coords(latitude=moved.latitude + 5.0).to_netcdf(path)
    assert forecast(config, tmp_path / "third", *one) == USER_ERROR
    assert str(record) in "".join(capsys.readouterr().err.split("\n"))


def test_files_that_were_changed_are_refused(archive):
    names = ("preblocks.per_step.scale.args.mean_path", "model.edge_path")
    # What the record has no digest of is not compared.
    replace(archive, digests=dict.fromkeys(names, "1")).check((), resume=True)
    (archive.folder / "forecast.json").unlink()
    before = replace(archive, digests=dict.fromkeys(names, "1"))
    before.create()
    before.check((), resume=True)
    with pytest.raises(ValueError, match=rf"the files of {names[1]}: they were"):
        replace(before, digests={names[0]: "1", names[1]: "2"}).check((), resume=True)


def test_a_record_of_an_earlier_version(archive):
    path = archive.folder / "forecast.json"
    path.write_text('{"identity": {"steps": 2}, "provenance": {}}')
    turned = {name: values[::-1] for name, values in GRID.items()}
    replace(archive, coordinates=turned).check((), resume=True)


# Forecasts by several real processes equal those by one bitwise.


# Start dates in two groups, the second padded; lagged members run the model, too.
MEMBERS = (
    *("--init-time", "1999-12-30", "--init-time", "1999-12-31"),
    *("--init-time", "2000-01-01", "--steps", "2"),
    *("--members", "2", "--set", "inference.perturbation.type=lagged"),
)
CASES = {
    "each its own members": ("data=ddp", 2, 2, ("--batch", "2", *MEMBERS)),
    "one globe": ("data=none,tensor=2,domain=2", 4, 2, ("--format", "netcdf")),
    "members, each on two": (
        *("data=ddp,domain=2", 4, 4),
        ("--batch", "2", *MEMBERS),
    ),
    "one globe on four": (
        *("data=none,tensor=2,domain=2", 4, 4),
        ("--format", "netcdf"),
    ),
}


def files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_processes_forecast_as_one(config, tmp_path, name):
    parallelism, devices, count, options = CASES[name]
    given = ("--parallelism", parallelism, "--devices", str(devices), *options)
    one, two = tmp_path / "one", tmp_path / "several"
    scores = tmp_path / "scores of one", tmp_path / "scores of several"
    assert forecast(config, one, *given, "--score", str(scores[0])) == OK
    texts = on_processes(
        count,
        "credit_jax.cli.forecast",
        *("--config", config, "--out", str(two), *given, "--score", str(scores[1])),
    )
    assert "made, in" in texts[0]
    assert all(" made, in " not in text for text in texts[1:]), "process 0 alone speaks"
    assert files(one) == files(two)
    if "netcdf" in options:
        for path in sorted(one.rglob("*.nc")):
            with (
                xr.open_dataset(path) as ours,
                xr.open_dataset(two / path.relative_to(one)) as theirs,
            ):
                xr.testing.assert_identical(ours.load(), theirs.load())
    else:
        ours, theirs = read(one).drop_attrs(), read(two).drop_attrs()
        assert ours["T"].notnull().all()
        xr.testing.assert_identical(ours, theirs)
    ours, theirs = (read_scores(folder).drop_attrs() for folder in scores)
    assert ours["rmse"].notnull().any()
    xr.testing.assert_identical(ours, theirs)
    # A second run with another number of processes finds all forecasts complete.
    again = ("--resume", "--score", str(scores[1]))
    assert forecast(config, two, *given, *again) == OK


# Some data sets of `tests.forecast.fuzz`; `benchmarks.fuzz` tries all.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.usefixtures("tiny_model")
def test_values_are_those_of_numpy(tmp_path: Path) -> None:
    results = [*try_seeds(tmp_path, range(34, 40))]
    wrong = [own for own in results if own[2] not in ("read", "refused")]
    assert not wrong, "\n".join(map(str, wrong))
    assert {own[2] for own in results} == {"read", "refused"}
