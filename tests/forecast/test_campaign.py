"""Forecast campaigns: interrupted, killed, split up, with failing writes and NaN."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.commands import FAILED, OK, USER_ERROR
from credit_jax.config.messages import counted
from credit_jax.evaluation.scores import read_scores
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.parallel.processes.watch import RESUME
from tests.forecast.fuzz import try_seeds
from tests.forecast.tiny_run import chunks, forecast, make_run, read, write_config
from tests.support.processes import PROGRAM, ROOT, on_processes

ONE = ("--init-time", "2000-01-01")


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 7])
def test_resumed_after_a_failing_write(
    config, whole, tmp_path, monkeypatch, capsys, after
):
    out = tmp_path / "out"
    write, calls = ZarrStore.write, []

    def fail(self, *arguments):
        """As on a full disk."""
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(28, "No space left on device")
        return write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ZarrStore, "write", fail)
        assert forecast(config, out) == FAILED
    assert "No space left on device" in capsys.readouterr().err
    done = len([*(out / "done").glob("*")]) if (out / "done").exists() else 0
    assert (done > 0) == (after > 0)
    assert forecast(config, out, "--resume") == OK
    assert f"{counted(5 - done, 'forecast')} made, in" in capsys.readouterr().out
    assert chunks(out) == chunks(whole)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert forecast(config, out, "--resume") == OK
    after_it = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert after_it == before, "nothing was left to do"


def test_killed_and_run_again(config, tmp_path):
    options = ("--length", "4d")
    assert forecast(config, tmp_path / "whole", *options) == OK
    out = tmp_path / "out"
    arguments = ["--config", config, "--out", os.fspath(out), "--cache", "none"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM,
            "credit_jax.cli.forecast",
            *arguments,
            *options,
        ],
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
    ours, theirs = read(out), read(tmp_path / "whole")
    assert set(ours.data_vars) == set(theirs.data_vars)
    for name in theirs.data_vars:
        # The subprocess compiles with other flags than the tests.
        assert np.allclose(ours[name], theirs[name], rtol=1e-4, equal_nan=True), name


@pytest.mark.slow
def test_a_campaign_in_parts(config, whole, tmp_path, capsys):
    """In shards, and stopped by a time limit."""
    for shard, count in (("1/2", 3), ("2/2", 2)):
        assert forecast(config, tmp_path / "parts", "--shard", shard) == OK
        assert f"{count} forecasts made, in" in capsys.readouterr().out
    assert chunks(tmp_path / "parts") == chunks(whole)
    out = tmp_path / "out"
    assert forecast(config, out, "--stop-after", "1ms") == RESUME
    shown = capsys.readouterr().out
    assert "1 forecast made, in" in shown
    assert "Stopped by --stop-after; --resume makes those that are missing" in shown
    assert len([*(out / "done").glob("*")]) == 1
    assert forecast(config, out, "--resume", "--stop-after", "11h50m") == OK
    assert "4 forecasts made, in" in capsys.readouterr().out
    assert chunks(out) == chunks(whole)


def test_nan_is_filled_and_counted(world, tmp_path, capsys):
    """Of weights that are too large for float32."""
    config = make_run(world, tmp_path, scale=1e38)
    options = ("--nan", "fill", *ONE, "--steps", "2")
    assert forecast(config, tmp_path / "out", *options) == OK
    leads = read(tmp_path / "out")["T"].isel(prediction_timedelta=slice(1, None))
    count = int(np.isnan(leads).sum())
    assert count > 0
    assert not np.isinf(leads).any()
    assert f"T {count}" in capsys.readouterr().out


OUTPUT = {"format": "zarr", "output_interval": "6h"}
CHANGES_NO_VALUE = (
    {"inference__output": {**OUTPUT, "max_pending": 1}},
    # --format replaces it, and NetCDF files alone have the others.
    {"inference__output": {**OUTPUT, "format": "netcdf"}},
    {"inference__output": {**OUTPUT, "group_by": "day", "encoding": {"zlib": True}}},
    # What ensembles alone have, and what training alone reads.
    {"inference__perturbation": {"type": "gaussian"}, "seed": 5},
    {"data__on_bad_sample": "skip", "data__data_clamp": [-9, 9]},
)


def test_resumed_with_keys_that_change_no_value(world, run, tmp_path, capsys):
    out, same = tmp_path / "out", ("--format", "zarr", *ONE)
    for changes in ({}, *CHANGES_NO_VALUE):
        changes = {"inference__output": OUTPUT} | changes
        config = write_config(world, run / "run", tmp_path, **changes)
        resume = ("--resume",) if out.exists() else ()
        assert forecast(config, out, *same, *resume) == OK
        assert not resume or "1 found there" in capsys.readouterr().out, changes


def test_a_run_without_coordinates_takes_those_of_its_files(world, tmp_path, capsys):
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


# Forecasts by several real processes equal those by one bitwise.
# Start dates in two groups, the second padded; lagged members run the model, too.
MEMBERS = (
    *("--init-time", "1999-12-30", "--init-time", "1999-12-31", *ONE, "--steps", "2"),
    *("--members", "2", "--set", "inference.perturbation.type=lagged", "--batch", "2"),
)
CASES = {
    "each its own members": ("data=ddp", 2, 2, MEMBERS),
    "one globe": ("data=none,tensor=2,domain=2", 4, 2, ("--format", "netcdf")),
    "members, each on two": ("data=ddp,domain=2", 4, 4, MEMBERS),
    "one globe on four": ("data=none,tensor=2,domain=2", 4, 4, ("--format", "netcdf")),
}


def files(folder: Path) -> list[Path]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder) for path in paths)


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
        for path in one.rglob("*.nc"):
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_values_are_those_of_numpy(tmp_path: Path) -> None:
    """Of some data sets of `tests.forecast.fuzz`; `benchmarks.fuzz` tries all."""
    results = [*try_seeds(tmp_path, range(34, 40))]
    wrong = [own for own in results if own[2] not in ("read", "refused")]
    assert not wrong, "\n".join(map(str, wrong))
    assert {own[2] for own in results} == {"read", "refused"}
