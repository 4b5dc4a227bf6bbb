"""Forecasts of two real processes equal those of one bitwise."""

from pathlib import Path

import pytest
import xarray as xr

from credit_jax.commands import OK
from credit_jax.evaluation.scores import read_scores
from tests.inference.tiny_run import forecast, read
from tests.support.processes import on_two_processes

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
        "credit_jax.forecast.__main__",
        *("--config", config, "--out", str(two), *given, "--score", str(scores[1])),
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
