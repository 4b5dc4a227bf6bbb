"""Forecasts by several real processes equal those by one bitwise."""

from pathlib import Path

import pytest
import xarray as xr

from credit_jax.cli.commands import OK
from credit_jax.evaluation.scores import read_scores
from tests.forecast.tiny_run import forecast, read
from tests.support.processes import on_processes

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
