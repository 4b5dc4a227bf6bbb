"""The command `sensitivity`: gradients of a number of a forecast."""

import jax
import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.commands import DIVERGED, OK, USER_ERROR
from credit_jax.extensions.adjoint import adjoint, forecast_map
from credit_jax.extensions.adjoint.sensitivity_command import main
from tests.data.world import GRID
from tests.extensions.adjoint.conftest import *  # noqa: F403
from tests.support import assert_close
from tests.support.processes import on_processes

T = "ERA5/prognostic/3d/T"
OF = "mean T1 in 20..80N 30W..80E"
MESHES = [(), ("--parallelism", "data=none,domain=2", "--devices", "2")]


def call(run, out, *options, of=OF):
    arguments = ["--config", str(run), "--checkpoint", str(run.parent / "run")]
    arguments += ["--init-time", "2000-01-01", "--lead", "12h"]
    arguments += [] if of is None else ["--of", of]
    return main([*arguments, "--out", str(out), "--cache", "none", *options])


@pytest.fixture(scope="module")
def expected(forecaster, initial):
    """Value and gradient of two steps, of T at level 1 over 2 x 3 points."""
    forecast = forecast_map(forecaster, initial, 2)
    levels = list(forecaster.states.reader.data.schema.input[0].levels)
    rows = np.cos(np.deg2rad(GRID["latitude"])) * (GRID["latitude"] > 20)
    inside = np.isin(GRID["longitude"], [0.0, 36.0, 72.0])
    weights = rows[:, None] * inside
    weights = np.float32(weights / weights.sum())

    def mean(state):
        return (forecast(state)[T][-1, 0, levels.index(1.0)] * weights).sum()

    return jax.value_and_grad(mean)(forecast.state)


@pytest.mark.slow(but=["domain2"])
@pytest.mark.parametrize("mesh", MESHES, ids=["one", "domain2"])
def test_the_gradient(run, expected, tmp_path, mesh, capsys):
    out, figure = tmp_path / "gradient.nc", tmp_path / "map.png"
    assert call(run, out, "--map", str(figure), *mesh) == OK
    assert f"written: {out}" in capsys.readouterr().out
    assert figure.stat().st_size > 10_000
    with xr.open_dataset(out) as file:
        gradient = file.load()
    assert gradient.attrs["target"] == OF
    assert gradient["T"].dims == ("time", "level", "latitude", "longitude")
    assert np.array_equal(gradient["latitude"], GRID["latitude"])
    value, by_key = expected
    assert gradient.attrs["value"] == pytest.approx(float(value), rel=1e-6)
    for key, field in by_key.items():
        actual = gradient[key.split("/")[-1]].values
        field = np.moveaxis(field[0], 1, 0)
        assert_close(actual, np.reshape(field, actual.shape), 2e-6, key)


def test_missing_values_count_in_the_region_alone(run, tmp_path, monkeypatch, capsys):
    """Fields, the last of T with a missing value at the first point, in the north."""

    def with_missing(forecast, state, cotangents):
        fields, gradient = adjoint(forecast, state, cotangents)
        return fields | {T: fields[T].at[..., 0, 0].set(np.nan)}, gradient

    monkeypatch.setattr("credit_jax.extensions.adjoint.target.adjoint", with_missing)
    south, north = "mean T1 in 20..80S", "mean T1 in 20..90N"
    assert call(run, tmp_path / "south.nc", of=south) == OK
    assert call(run, tmp_path / "north.nc", of=north) == DIVERGED
    assert f"{north} is nan: the forecast" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "north.nc").exists()


def test_processes_but_the_first_write_nothing(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jax.process_index", lambda *_: 1)
    assert call(run, tmp_path / "gradient.nc") == OK
    assert not (tmp_path / "gradient.nc").exists()
    assert "written" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("what", [("--of", OF), ("--singular-vectors", "2")])
def test_processes_compute_the_same(run, tmp_path, what):
    """Gradients, or singular vectors, of two processes; the first one writes."""
    norm = () if what[0] == "--of" else ("--norm", "T=1,U=0.5")
    folder = run.parent / "run"
    options = [*("--config", str(run), "--checkpoint", str(folder)), *what, *norm]
    options += ["--init-time", "2000-01-01", "--lead", "12h", *MESHES[1]]
    names = [tmp_path / f"{name}.nc" for name in ("one", "two")]
    assert main([*options, "--out", str(names[0]), "--cache", "none"]) == OK
    texts = on_processes(
        2,
        "credit_jax.sensitivity",
        *options,
        "--out",
        str(names[1]),
    )
    assert [text.count("written: ") for text in texts] == [1, 0]
    one, two = (xr.load_dataset(name) for name in names)
    assert set(one) == set(two)
    for name in one.data_vars:
        assert_close(two[name].values, one[name].values, 2e-6, name)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        ("T2", "--of: got 'T2', expected mean CHANNEL [in REGION], such as"),
        ("mean T9", "--of: the channel 'T9' is not available; there are: "),
        ("mean T1 in atlantis", "--of: the region 'atlantis' is neither ranges"),
        ("mean T1 in 46..50N", "--of: no point of the grid is in 46..50N; latitudes"),
    ],
)
def test_misuse(run, tmp_path, capsys, of, text):
    assert call(run, tmp_path / "gradient.nc", of=of) == USER_ERROR
    assert text in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "gradient.nc").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--lead", "7h"], "--lead: 7h is no multiple of the time step, 6h"),
        (["--lead", "soon"], "--lead: "),
        (["--singular-vectors", "0"], "--singular-vectors: must be at least 1, got 0"),
    ],
)
def test_misuse_of_options(run, tmp_path, capsys, options, text):
    of = None if "--singular-vectors" in options else OF
    assert call(run, tmp_path / "gradient.nc", *options, of=of) == USER_ERROR
    assert text in " ".join(capsys.readouterr().err.split())


def test_singular_vectors(run, tmp_path, capsys):
    out = tmp_path / "vectors.nc"
    options = ["--singular-vectors", "2", "--norm", "T=1,U=0.5"]
    assert call(run, out, *options, of=None) == OK
    assert "singular values of 12h after 2000-01-01" in capsys.readouterr().out
    with xr.open_dataset(out) as file:
        vectors = file.load()
    assert vectors["T"].dims == ("vector", "level", "latitude", "longitude")
    dates = [str(vectors[f"{x}_time"].values)[:16] for x in ("initial", "final")]
    assert dates == ["2000-01-01T00:00", "2000-01-01T12:00"]
    values = vectors["singular_value"].values
    assert values[0] > values[1] > 0
    area = np.cos(np.deg2rad(vectors["latitude"]))
    for suffix, size in (("", np.ones(2)), ("_final", values)):
        parts = [
            factor
            * (vectors[name + suffix] ** 2)
            .weighted(area)
            .mean(("latitude", "longitude", "level"))
            for name, factor in (("T", 1.0), ("U", 0.5))
        ]
        assert np.sqrt(sum(parts).values) == pytest.approx(size, rel=1e-4)


@pytest.mark.parametrize(
    ("norm", "text"),
    [
        ("energy", "--norm energy: no prognostic variable of the data has one of"),
        ("Q=1", "--norm: the variable 'Q' is not available; there are: U, T, SP"),
        ("T=x", "--norm: got 'T=x', expected NAME=WEIGHT"),
        ("T=1,U=-1", "--norm: got 'U=-1', expected NAME=WEIGHT with a positive"),
        ("T=nan", "--norm: got 'T=nan', expected NAME=WEIGHT with a positive"),
    ],
)
def test_misuse_of_norms(run, tmp_path, capsys, norm, text):
    options = ["--singular-vectors", "1", "--norm", norm]
    assert call(run, tmp_path / "vectors.nc", *options, of=None) == USER_ERROR
    assert text in " ".join(capsys.readouterr().err.split())
