"""Forecasts that are appended to an Icechunk repository, a commit for each date."""

import icechunk
import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.commands import FAILED, OK, USER_ERROR
from credit_jax.cli.forecast import main
from credit_jax.evaluation.scores import read_scores
from credit_jax.forecast import repository
from credit_jax.io import icechunk as io_icechunk
from tests.forecast.test_messages import score
from tests.forecast.tiny_run import read, write_config
from tests.io.s3_server import served
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("repository")
DATES = [f"forecast from 1999-12-{day}" for day in ("30T00", "30T12", "31T00", "31T12")]
DATES.append("forecast from 2000-01-01T00")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    io_icechunk.session_at.cache_clear()


@pytest.fixture
def bucket(monkeypatch):
    with served("bucket") as (server, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield server


def append(config, folder, *options, ref=""):
    out = f"icechunk+{'' if '//' in str(folder) else 'file://'}{folder}{ref}"
    return main(["--config", config, "--out", out, "--cache", "none", *options])


def opened(folder):
    return io_icechunk.writable_repository(f"icechunk+{folder}")[0]


def commits(folder):
    messages = [each.message for each in opened(folder).ancestry(branch="main")]
    return [text.removesuffix(":00") for text in messages[-2::-1]]


def stored(folder):
    session = opened(folder).readonly_session("main")
    return xr.open_zarr(session.store, consolidated=False).load()


def test_dates_of_several_jobs(config, whole, tmp_path, capsys):
    """In parts, killed, and once more; the scores are those of the files."""
    folder = tmp_path / "r"
    url = f"file://{folder}"
    day = ("--init-time", "1999-12-31")
    assert append(config, folder, *day) == OK
    assert append(config, folder, *day) == USER_ERROR
    assert "holds some of these forecasts already" in capsys.readouterr().err
    for part in ("1/2", "2/2"):
        assert append(config, folder, "--resume", "--shard", part) == OK
    assert append(config, folder, "--resume") == OK
    assert "0 forecasts made" in capsys.readouterr().out
    assert sorted(commits(url)) == DATES
    assert commits(url)[0] == DATES[2]
    xr.testing.assert_identical(
        stored(url).sortby("time").drop_attrs(deep=False),
        read(whole).drop_attrs(deep=False),
    )
    assert not [*(tmp_path / "cache").rglob("T/c/*")]
    assert score(whole, tmp_path / "a") == OK
    assert score(f"icechunk+file://{folder}", tmp_path / "b") == OK
    ours, theirs = read_scores(tmp_path / "b"), read_scores(tmp_path / "a")
    for name in theirs.data_vars:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6)


def test_scores_of_the_forecasts_that_are_appended(config, tmp_path):
    options = "--init-time", "1999-12-31", "--score", str(tmp_path / "scores")
    assert append(config, tmp_path / "r", *options) == OK
    attributes = read_scores(tmp_path / "scores").attrs
    assert attributes["forecast"] == f"icechunk+file://{tmp_path}/r"


def test_commits_that_fail_or_meet_others(config, whole, bucket, monkeypatch):
    """They come with the next start, or after the other one."""
    folder, committed = "s3://bucket/r", repository.committed

    def fail(session, message):
        raise OSError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(repository, "committed", fail)
        assert append(config, folder, "--init-time", "2000-01-01") == FAILED
    assert commits(folder) == []
    assert append(config, folder, "--init-time", "2000-01-01", "--resume") == OK
    calls = []

    def meet(session, message):
        calls.append(message)
        if len(calls) == 1:
            assert append(config, folder, "--init-time", "1999-12-30") == OK
        return committed(session, message)

    with monkeypatch.context() as patch:
        patch.setattr(repository, "committed", meet)
        assert append(config, folder, "--init-time", "1999-12-31") == OK
    assert len(calls) == 3
    assert commits(folder) == [DATES[4], DATES[0], DATES[2]]
    expected = read(whole).isel(time=[4, 0, 2]).drop_attrs(deep=False)
    xr.testing.assert_identical(stored(folder).drop_attrs(deep=False), expected)


@CASES.case
def other_forecasts(world, run, config, tmp_path):
    assert append(config, tmp_path / "r", "--init-time", "1999-12-31") == OK
    other = write_config(world, run / "run", tmp_path / "c", seed=1)
    options = "--init-time", "2000-01-01", "--length", "6h"
    return lambda: append(other, tmp_path / "r", *options)


@CASES.case
def other_data(world, config, tmp_path):
    storage = icechunk.local_filesystem_storage(str(tmp_path / "r"))
    session = icechunk.Repository.create(storage).writable_session("main")
    data = xr.Dataset({"T": ("time", [1.0])})
    data.to_zarr(session.store, consolidated=False)
    session.commit("data")
    return lambda: append(config, tmp_path / "r")


@CASES.case
def a_file(config, tmp_path):
    (tmp_path / "r").write_text("")
    return lambda: append(config, tmp_path / "r")


CASES.rows(
    lambda options, ref, config, tmp_path: append(
        config, tmp_path / "r", *options, ref=ref
    ),
    ((), "?tag=v1"),
    ((), "?version=1"),
    (("--format", "netcdf"), ""),
    (("--zarr-format", "2"), ""),
)


@CASES.case
def no_right_to_write(config, bucket):
    bucket.faults["read-only"] = True
    return lambda: append(config, "s3://bucket/r")


@CASES.case
def no_such_bucket(config, bucket):
    return lambda: append(config, "s3://other/r")
