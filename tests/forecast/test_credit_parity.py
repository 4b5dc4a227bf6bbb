"""The forecast command against CREDIT's own rollout with the same weights."""

from pathlib import Path

import pytest
import xarray as xr

from credit_jax.cli.forecast import main
from credit_jax.cli.score import main as score
from credit_jax.evaluation.scores import read_scores
from tests.forecast.credit_forecast import credit_rollout, raw_config, write_run
from tests.forecast.layouts import assert_same_layout
from tests.support import assert_close

BATCH = {
    "forecast_length": "18h",
    "first_init_date": "2000-01-02",
    "last_init_date": "2000-01-02T12",
    "init_interval": "12h",
}
OUTPUT = {
    "group_by": "day",
    "metadata": "era5.yaml",
    "encoding": {"dtype": "float32", "zlib": True, "complevel": 4},
}
FIELD = 1e-5  # tolerance of every field


@pytest.fixture(scope="module")
def run(credit, tmp_path_factory):
    """The folder of a run, with CREDIT's forecasts in `theirs`."""
    folder = tmp_path_factory.mktemp("forecast")
    raw = raw_config(
        run_mode="batch", save_forecast="./theirs", batch_forecast=BATCH, output=OUTPUT
    )
    credit_rollout(write_run(folder, raw))
    return folder


def forecast(folder: Path, *arguments: str) -> int:
    return main(["--config", str(folder / "case.yml"), "--cache", "none", *arguments])


def names(folder: Path) -> list[str]:
    found = folder.rglob("*.nc")
    return sorted(path.relative_to(folder).as_posix() for path in found)


@pytest.mark.slow(but=["data=none,tensor=2,domain=2"])
@pytest.mark.parametrize(
    "mesh",
    ["data=none", "data=none,domain=3", "data=none,tensor=2,domain=2"],
)
def test_forecasts_as_credit(run, monkeypatch, tmp_path, mesh):
    monkeypatch.chdir(run)
    assert forecast(run, "--out", str(tmp_path), "--parallelism", mesh) == 0
    assert names(tmp_path) == names(run / "theirs")
    for name in names(tmp_path):
        with (
            xr.open_dataset(tmp_path / name) as ours,
            xr.open_dataset(run / "theirs" / name) as theirs,
        ):
            assert_same_layout(ours, theirs)
            for variable in theirs.data_vars:
                for step, time in enumerate(theirs["time"].values):
                    assert_close(
                        ours[variable].values[step],
                        theirs[variable].values[step],
                        FIELD,
                        f"{mesh} {name} {variable} {str(time)[:13]}",
                    )


@pytest.mark.slow
def test_scores_of_credits_files(run, monkeypatch, tmp_path):
    """Files written by CREDIT get the same scores as our forecasts."""
    monkeypatch.chdir(run)
    options = ["--climatology", "none", "--truth", "case.yml"]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    online = ["--format", "none", "--out", str(ours), "--score", str(ours)]
    assert forecast(run, *online, *options) == 0
    given = ["--forecast", "theirs", "--out", str(theirs), "--cache", "none"]
    assert score([*given, *options]) == 0
    pair = [read_scores(own) for own in (ours, theirs)]
    assert pair[0].sizes == pair[1].sizes
    assert [*pair[0]["channel"].values] == [*pair[1]["channel"].values]
    found, expected = (own["rmse"].sel(system="forecast") for own in pair)
    for channel in expected["channel"].values:
        places = {"channel": channel, "region": "global"}
        assert_close(found.sel(places), expected.sel(places), FIELD, f"rmse {channel}")
