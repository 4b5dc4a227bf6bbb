"""The commands sensitivity and optimize-ic."""

import warnings
from contextlib import chdir

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import DIVERGED, OK
from credit_jax.config import build_config
from credit_jax.data import build_loader
from credit_jax.data.sample_reader import SampleReader
from credit_jax.extensions.adjoint import adjoint, forecast_map
from credit_jax.extensions.adjoint.optimization import StateIteration
from credit_jax.extensions.adjoint.optimize_command import loss_notes
from credit_jax.extensions.adjoint.optimize_command import main as optimize_ic
from credit_jax.extensions.adjoint.sensitivity_command import main
from tests.data.world import GRID
from tests.extensions.adjoint.conftest import *  # noqa: F403
from tests.forecast.credit_forecast import raw_config, write_run
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close
from tests.support.processes import on_processes

CASES = Cases("sensitivity")

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
    both = [*options, "--out", str(names[1])]
    texts = on_processes(2, "credit_jax.sensitivity", *both)
    assert [text.count("written: ") for text in texts] == [1, 0]
    one, two = (xr.load_dataset(name) for name in names)
    assert set(one) == set(two)
    for name in one.data_vars:
        assert_close(two[name].values, one[name].values, 2e-6, name)


def gradient(of, options, run, tmp_path):
    return lambda: call(run, tmp_path / "gradient.nc", *options, of=of)


CASES.rows(
    gradient,
    ("T2", []),
    ("mean T9", []),
    ("mean T1 in atlantis", []),
    ("mean T1 in 46..50N", []),
    (OF, ["--lead", "7h"]),
    (OF, ["--lead", "soon"]),
    (None, ["--singular-vectors", "0"]),
    (None, ["--singular-vectors", "1", "--norm", "energy"]),
    (None, ["--singular-vectors", "1", "--norm", "Q=1"]),
    (None, ["--singular-vectors", "1", "--norm", "T=x"]),
    (None, ["--singular-vectors", "1", "--norm", "T=1,U=-1"]),
    (None, ["--singular-vectors", "1", "--norm", "T=nan"]),
)


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


START, STEPS = "2000-01-03", 2
SECTION = {
    **{"starting_window": 1, "window": 1, "iterations": 3, "learning_rate": 0.02},
    **{"weight_decay": 0.1, "max_norm": "dynamic"},
}
PROGNOSTIC = 5  # of the channels of x and of y


@pytest.fixture(scope="module")
def config(tmp_path_factory, torch):
    """A run with CREDIT's weights, for two steps, with the mean square as its loss."""
    folder = tmp_path_factory.mktemp("optimize")
    raw = raw_config()
    raw["data"]["forecast_len"] = STEPS
    raw["loss"] = {"training_loss": "mse", "use_latitude_weights": False}
    raw["optimize_ic"] = SECTION
    # Of the training; forecasts have their own mesh.
    raw["trainer"]["parallelism"] = {"data": "none", "tensor": 2, "domain": 2}
    return write_run(folder, raw)


def optimize(config, out, *options):
    arguments = ["--config", str(config), "--init-time", START, "--out", str(out)]
    with chdir(config.parent):
        return optimize_ic([*arguments, "--cache", "none", *options])


@pytest.fixture(scope="module")
def expected_iterations(config):
    """Losses and the last state of CREDIT's model, with torch's AdamW."""
    import torch

    from tests.support.credit_modules import credit_attribute

    raw = yaml.safe_load(config.read_text())
    with chdir(config.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = credit_attribute("models", "load_model")({"model": dict(raw["model"])})
        state = torch.load(config.parent / "run" / "checkpoint.pt")["model_state_dict"]
        # One sample for each step, whose x has the forcing of its time.
        steps = _samples(raw)
    module.load_state_dict(state)
    module.eval()
    x = torch.tensor(steps[0][0][:, :PROGNOSTIC], requires_grad=True)
    rest = [torch.tensor(step[0][:, PROGNOSTIC:]) for step in steps]
    truth = [torch.tensor(step[1]) for step in steps]
    optimizer = torch.optim.AdamW([x], lr=0.02, weight_decay=0.1)
    total = STEPS * SECTION["iterations"]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=total - 1, eta_min=1e-4 * 0.02
    )
    losses = []
    for window in (1, 2):
        for _ in range(SECTION["iterations"]):
            optimizer.zero_grad()
            field, loss = x, 0.0
            for step in range(window):
                y = module(torch.cat([field, rest[step]], dim=1))
                loss = loss + torch.nn.functional.mse_loss(y, truth[step])
                field = y[:, :PROGNOSTIC]
            loss = loss / window
            loss.backward()
            norm = x.grad.detach().norm(2).sqrt()
            torch.nn.utils.clip_grad_norm_([x], max_norm=norm)
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            schedule.step()
            losses.append((window, rate, loss.item()))
    return losses, x.detach().numpy()


@pytest.mark.slow
def test_other_configs_of_the_same_numbers(config, tmp_path):
    """What no postblock undoes is undone; objects of ones own under other names."""
    raw = yaml.safe_load(config.read_text())
    raw["postblocks"]["per_step"].pop("scaler")
    config.with_name("twice.yml").write_text(yaml.safe_dump(raw, sort_keys=False))
    (tmp_path / "mine.py").write_text(MINE)
    raw = yaml.safe_load(config.read_text())
    raw["custom_objects"] = {
        name: {"object_type": kind, "module_path": str(tmp_path / "mine.py")}
        for name, kind in {"my_source": "dataset", "my_loss": "loss"}.items()
    }
    for source in raw["data"]["source"].values():
        source["dataset_type"] = "my_source"
    raw["loss"]["training_loss"] = "my_loss"
    config.with_name("mine.yml").write_text(yaml.safe_dump(raw, sort_keys=False))
    logs = []
    for name in (config.name, "twice.yml", "mine.yml"):
        assert optimize(config.with_name(name), tmp_path / name) == OK
        logs.append(pd.read_csv(tmp_path / name / "log.csv"))
    np.testing.assert_allclose(logs[1]["loss"], logs[0]["loss"], rtol=1e-5)
    pd.testing.assert_frame_equal(logs[2], logs[0], check_exact=True)


def _samples(raw):
    """x and y of one step from each of the times, as the loader reads them."""
    samples = []
    for step in range(STEPS):
        start = np.datetime64(START) + np.timedelta64(6 * step, "h")
        dates = {
            "start_datetime": str(start),
            "end_datetime": str(start + np.timedelta64(6, "h")),
            "forecast_len": 1,
        }
        one = {**raw, "data": {**raw["data"], **dates}}
        one["trainer"] = {**raw["trainer"], "train_batch_size": 1}
        loader = build_loader(build_config(one), split="train")
        batch = SampleReader(loader.dataset, loader.pipeline).read([0])
        samples.append((batch.x, batch.y))
    return samples


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [(), ("--parallelism", "data=none,tensor=2,domain=2", "--devices", "4")],
    ids=["one", "tp2xdomain2"],
)
def test_the_iterations_are_those_of_credit(
    config, expected_iterations, tmp_path, mesh
):
    assert optimize(config, tmp_path / "fitted", *mesh) == OK
    losses, last = expected_iterations
    log = pd.read_csv(tmp_path / "fitted/log.csv")
    windows, rates, values = (np.array(column) for column in zip(*losses, strict=True))
    assert log["window"].tolist() == windows.tolist()
    np.testing.assert_allclose(log["learning_rate"], rates, rtol=1e-9)
    np.testing.assert_allclose(log["loss"], values, rtol=1e-5)
    analysis, increment = (
        xr.load_dataset(tmp_path / f"fitted/{name}.nc")
        for name in ("analysis", "increment")
    )
    statistics = [xr.load_dataset(config.parent / f"{n}.nc") for n in ("mean", "std")]
    channels = {"T": slice(0, 2), "U": slice(2, 4), "SP": slice(4, 5)}
    for name, place in channels.items():
        mean, std = (each[name].values for each in statistics)
        mean, std = (np.reshape(x, (-1, 1, 1)) for x in (mean, std))
        actual = (analysis[name].values[0] - mean) / std
        assert_close(
            np.reshape(actual, last[0, place, 0].shape), last[0, place, 0], 1e-5, name
        )
        assert np.abs(increment[name]).max() > 0


MINE = """
from credit_jax.config.sources.sections import LocalConfig
from credit_jax.data.sources.local import open_local
from credit_jax.data.sources.registry import SourceEntry
from credit_jax.losses import LOSSES
my_source = SourceEntry(LocalConfig, open_local)
my_loss = LOSSES["mse"]
"""


@pytest.mark.parametrize("losses", [(1.0, 1.2, 0.9), (1.0,), (1.0, 0.9, 1.25)])
def test_a_loss_that_does_not_fall_is_said(losses):
    rows = [StateIteration(2, 0.1, x) for x in losses]
    notes = loss_notes([StateIteration(1, 0.1, 0.5), *rows])
    text = "the loss of 2 steps did not fall, from 1 to 1.25; take a"
    assert [text in line for line in notes] == [True] * (losses[-1] == 1.25)


@CASES.case
def starting_window(config, tmp_path):
    return lambda: optimize(
        config, tmp_path / "out", "--set", "optimize_ic.starting_window=9"
    )


@CASES.case
def something_already(config, tmp_path):
    (tmp_path / "analysis.nc").touch()
    return lambda: optimize(config, tmp_path)
