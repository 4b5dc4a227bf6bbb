"""Forecasts of two real processes equal those of one bitwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

from credit_jax.commands import OK
from credit_jax.evaluation.scores import read_scores
from tests.inference.tiny_run import forecast, read
from tests.parallel.processes.test_connect import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import sys; from tests.inference.process_forecast import main; main(*sys.argv[1:])"
)
# Start dates in two groups, the second filled up; lagged members run the model, too.
MEMBERS = (
    *("--init-time", "1999-12-30", "--init-time", "1999-12-31"),
    *("--init-time", "2000-01-01", "--steps", "2"),
    *("--members", "2", "--set", "inference.perturbation.type=lagged"),
)
CASES = {
    "each its own members": ("data=ddp", 2, ("--batch", "2", *MEMBERS)),
    "one globe": ("data=none,tensor=2,domain=2", 4, ("--format", "netcdf")),
}


def on_two_processes(*options: str) -> list[str]:
    """The command; what each process printed."""
    by_hand = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2"]
    environ = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM, "--cache", "none", *options),
                *(*by_hand, "--process", str(number), "--connect-timeout", "120"),
            ],
            cwd=ROOT,
            env=environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in (0, 1)
    ]
    texts = [process.communicate(timeout=300)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0, 0], "\n".join(text[-3000:] for text in texts)
    return texts


def files(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_forecast_as_one(config, tmp_path, name):
    parallelism, devices, options = CASES[name]
    given = ("--parallelism", parallelism, "--devices", str(devices), *options)
    one, two = tmp_path / "one", tmp_path / "two"
    scores = tmp_path / "scores of one", tmp_path / "scores of two"
    assert forecast(config, one, *given, "--score", str(scores[0])) == OK
    texts = on_two_processes(
        *("--config", config, "--out", str(two), *given, "--score", str(scores[1]))
    )
    assert "forecasts are in" in texts[0]
    assert "forecasts" not in texts[1], "process 0 alone speaks of the run"
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
    # Again, by the other number of processes: everything is there.
    again = ("--resume", "--score", str(scores[1]))
    assert forecast(config, two, *given, *again) == OK
