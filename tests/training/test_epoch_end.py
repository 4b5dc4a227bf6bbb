"""The end of an epoch, averages, reports, and what a run restores."""

import io
import json
import logging
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config import ConfigError, build_config, parse
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.plots import report
from credit_jax.extensions.plots.page import page_of
from credit_jax.extensions.preprocess.scaler_fitting import fit_scalers
from credit_jax.forecast import Forecaster
from credit_jax.nn.parameters import (
    BATCH_STATS,
    wide_statistics,
    with_averaged_statistics,
)
from credit_jax.packages.package import restore
from credit_jax.plan.run_record import RunRecord
from credit_jax.training.display import Display
from credit_jax.training.loop import Outcome, plateau_after
from credit_jax.training.setup import Setup
from credit_jax.training.state import effective_decay, update_ema
from tests.cli.test_predict import AVERAGED, expected, run, x
from tests.data.world import EXACT
from tests.extensions.plots.synthetic import make_scores
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close
from tests.support.configs import plan_problems
from tests.training.tiny import tiny_config

__all__ = ["run", "x"]
CASES = Cases("epoch_end")
BASE = 2e-3
PLATEAUS = {
    "defaults": {},
    "impatient": {"patience": 0, "factor": 0.5},
    "cooldown": {"patience": 1, "cooldown": 3, "factor": 0.7},
    "absolute": {"patience": 1, "threshold": 0.05, "threshold_mode": "abs"},
    "largest": {"mode": "max", "patience": 2, "threshold": 0.02, "factor": 0.3},
    "largest, absolute": {"mode": "max", "patience": 0, "threshold_mode": "abs"},
    "lowest": {"patience": 0, "factor": 0.2, "min_lr": 1e-4},
    "small steps": {"patience": 0, "factor": 0.5, "eps": 3e-4},
}


def metrics() -> list[float]:
    """Returns metrics that fall, stay equal, rise, are NaN, and fall again."""
    noise = np.random.default_rng(0).normal(0, 0.03, 60)
    trend = np.concatenate([np.linspace(1, 0.3, 20), np.full(40, 0.3)])
    values = (trend + noise).tolist()
    return [*values[:30], math.nan, math.inf, -0.2, *values[30:]]


@pytest.mark.parametrize("name", PLATEAUS)
def test_equals_credit(name, credit):
    import torch
    from credit.scheduler import load_scheduler

    section = {"scheduler_type": "plateau", **PLATEAUS[name]}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    theirs = load_scheduler(
        optimizer, {"trainer": {"use_scheduler": True, "scheduler": dict(section)}}
    )
    config, state, rate = parse(PlateauConfig, section), PlateauState(), BASE
    rates = set()
    for epoch, value in enumerate(metrics()):
        theirs.step(value)
        state, rate = plateau_after(config, state, rate, value)
        # Saved and resumed after each epoch.
        saved = json.dumps(Progress(learning_rate=rate, plateau=state).to_json())
        progress = Progress.from_json(json.loads(saved))
        assert progress.plateau is not None
        assert progress.learning_rate is not None
        state, rate = progress.plateau, progress.learning_rate
        what = f"{name}, epoch {epoch}"
        assert rate == optimizer.param_groups[0]["lr"], what
        best = theirs.mode_worse if state.best is None else state.best
        assert best == theirs.best, what
        assert (state.epochs, state.bad_epochs) == (epoch + 1, theirs.num_bad_epochs)
        assert state.cooldown == theirs.cooldown_counter, what
        rates.add(rate)
    assert len(rates) > 1, "the rate must change"


# The moving average against CREDIT's EMATracker.


def test_average_equals_that_of_credit(credit, rng):
    import torch
    from credit.trainers.base_trainer import EMATracker

    model = torch.nn.Linear(3, 2)
    weights = rng.normal(size=(8, 2, 3)).astype(np.float32)
    model.weight.data = torch.tensor(weights[0])
    tracker = EMATracker(model, decay=0.4)
    ours = {"weight": jnp.asarray(weights[0])}
    for s, weight in enumerate(weights[1:], start=1):
        model.weight.data = torch.tensor(weight)
        tracker.update(model)
        ours = update_ema(ours, {"weight": jnp.asarray(weight)}, jnp.int32(s), 0.4)
        shadow = tracker.shadow["weight"].numpy()
        assert_close(ours["weight"], shadow, 1e-6, f"average after {s} updates")


def test_running_statistics_are_averaged_as_credit_averages_them(credit, rng):
    """Averaged is the state dict without vectors; forward passes use the averages."""
    import torch
    from credit.trainers.base_trainer import EMATracker

    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3)).train()

    def live():
        own = {k: v.numpy().copy() for k, v in model.state_dict().items()}
        names = {"mean": "running_mean", "variance": "running_var"}
        stats = {ours: own[f"0.{theirs}"] for ours, theirs in names.items()}
        count = own["0.num_batches_tracked"].astype(np.int32)
        norm = {name: jnp.asarray(x) for name, x in {**stats, "count": count}.items()}
        return {BATCH_STATS: {"norm": norm}}

    tracker, ours = EMATracker(model, decay=0.4), wide_statistics(live())
    for s in range(1, 5):
        model(torch.tensor(rng.normal(size=(2, 3, 4, 4)) + s, dtype=torch.float32))
        tracker.update(model)
        ours = update_ema(ours, live()[BATCH_STATS], jnp.int32(s), 0.4)
    before = live()
    tracker.swap(model)
    after = with_averaged_statistics(before, ours)[BATCH_STATS]["norm"]
    swapped = live()[BATCH_STATS]["norm"]
    assert not np.allclose(swapped["mean"], before[BATCH_STATS]["norm"]["mean"])
    for name, value in swapped.items():
        assert after[name].dtype == value.dtype
        assert_close(after[name], value, 1e-6, name)


def test_decay_ramps_up_to_its_limit():
    decays = [float(effective_decay(jnp.int32(s), 0.9999)) for s in (1, 10, 10**6)]
    assert np.allclose(decays, [2 / 11, 11 / 20, 0.9999], rtol=1e-6)
    # Of parameters in low precision, too, the average is in float32.
    ema, low = {"w": jnp.ones(2, jnp.float32)}, {"w": jnp.zeros(2, jnp.bfloat16)}
    assert update_ema(ema, low, jnp.int32(1), 0.5)["w"].dtype == jnp.float32


# The end of a run without scores, and losses; with scores: tests/cli/test_train.py.


def test_a_run_that_cannot_forecast_says_why_and_ends_well(monkeypatch, tmp_path):
    def refuse(setup):
        raise ConfigError(["data.source: no times"], "this forecast cannot start")

    monkeypatch.setattr(report, "plan_held_out", refuse)
    said = io.StringIO()
    display = Display(Console(file=said, width=200))
    setup, outcome = object.__new__(Setup), object.__new__(Outcome)
    report.report_scores(setup, tmp_path, outcome, display)
    text = said.getvalue()
    assert text.startswith("No scores: ")
    assert "data.source: no times" in text
    assert not any(tmp_path.iterdir())


def test_variables_that_the_data_do_not_have_are_not_on_maps():
    """A preblock `rename` gives the forecast names that the data do not have."""
    channels = {"variable": ("channel", ["U", "U", "SP"])}
    scores = xr.Dataset(coords={"channel": ["U500", "U850", "SP"], **channels})
    assert report.scored(["SP", "T", "U"], scores) == ["SP", "U"]


def test_losses_are_a_chart():
    scores = make_scores(levels=(500.0,), num_days=5, members=3).isel(region=[0, 1])
    rows = [
        {"epoch": 0, "train_loss": 3.0, "valid_loss": 4.0},
        {"epoch": 1, "train_loss": 2.0},
    ]
    text = page_of(scores, title="one", losses=report.loss_chart(rows))
    assert "<figcaption>loss by epoch</figcaption>" in text
    assert '"name": "validation", "width": 1.5, "x": [1.0], "y": [4.0]' in text


# A run's model and weights on a mesh, for use as a library.


@pytest.fixture
def folder(run):
    """The folder of a run with its config."""
    shutil.copyfile(run[0], run[1] / "model.yml")
    return run[1]


@pytest.mark.slow(but=["{'dp': 2, 'tp': 2, 'domain': 2}"])
@pytest.mark.parametrize("degrees", [{}, {"dp": 2, "tp": 2, "domain": 2}], ids=str)
def test_the_newest_checkpoint_on_a_mesh(run, folder, x, make_mesh, degrees):
    model, *weights = restore(folder, make_mesh(**degrees))
    assert model.model_def.config == run[2].config
    wanted = expected(run, x, AVERAGED)
    assert_close(Forecaster(model, *weights)(x), wanted, 1e-6, str(degrees))


def test_nothing_is_printed_or_logged(folder, make_mesh, caplog, capfd):
    # Commands, which other tests run, silence this logger for good.
    caplog.set_level(logging.WARNING, "absl")
    restore(folder, make_mesh())
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


@CASES.case
def another_config(run, folder, make_mesh, monkeypatch):
    config = read_yaml(folder / "model.yml")
    recorded = {**config, "data": {**config["data"], "timestep": "12h"}}
    record = RunRecord.of(recorded, "checkpoint 2", forecasts=True)
    monkeypatch.setattr("credit_jax.checkpoint.run.RunArtifact.record", record)
    return lambda: restore(folder, make_mesh())


def test_options_are_those_of_build_parallel_model(folder, make_mesh):
    model, params, _ = restore(folder, make_mesh(dp=2), min_shard_size=2**30)
    assert model.parallel_config.rules.min_shard_size == 2**30
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(params))


CASES.call(
    "no run", lambda tmp_path, make_mesh: restore(tmp_path / "none", make_mesh())
)


@CASES.case
def no_checkpoint(run, tmp_path, make_mesh):
    (tmp_path / "empty").mkdir()
    shutil.copyfile(run[0], tmp_path / "empty" / "model.yml")
    return lambda: restore(tmp_path / "empty", make_mesh())


# Variances of tendencies: fitted by `preprocess`, read by the loss, against numpy.


@pytest.fixture
def config(world, tmp_path, tiny_model):
    """Returns a config whose loss has weights by tendency."""
    named = {"loss__tendency_weights": str(tmp_path / "tendencies.json")}
    few = {"trainer__batches_per_epoch": 0}
    return build_config(tiny_config(world, tmp_path / "run", **EXACT, **named, **few))


def test_fit_and_weights(config, world, tmp_path):
    """They are numpy's on the same files, and the weights of the loss."""
    missing = plan_problems(config)
    path = tmp_path / "tendencies.json"
    fits = "does not exist; `credit-jax preprocess` fits it"
    assert missing == (f"loss.tendency_weights: {path} {fits}",)
    assert fit_scalers(config) == [path]
    fitted = json.loads(path.read_text())
    files = [xr.open_dataset(world / f"w_{year}.nc") for year in (1999, 2000)]
    data = xr.concat(files, "time", data_vars="minimal")
    data = data.sel(time=slice("1999-12-28", "2000-01-05T00"), level=[1.0, 5.0])
    deviations = xr.open_dataset(world / "std.nc").isel(level=[0, 2])
    assert list(fitted) == [
        "ERA5/prognostic/3d/U",
        "ERA5/prognostic/3d/T",
        "ERA5/prognostic/2d/SP",
    ]
    for key, variances in fitted.items():
        name = key.rsplit("/", 1)[-1]
        deviation = deviations[name].values.reshape(-1, 1, 1)
        values = data[name].values.reshape(len(data.time), -1, 6, 10)
        change = np.diff(values.astype(np.float64), axis=0) / deviation
        expected = change.var(axis=(0, 2, 3))
        assert_close(variances, expected, 1e-5, f"variances of {key}")
    assert plan_problems(config) == ()
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_scalers(config)


def tendencies(text, config, tmp_path):
    (tmp_path / "tendencies.json").write_text(text)
    return lambda: list(plan_problems(config))


CASES.rows(
    tendencies,
    *("[1, 2]", "{", "{}", '{"ERA5/prognostic/3d/U": [1, 2, 3]}'),
    *('{"ERA5/prognostic/3d/V": [1, 2]}', '{"ERA5/prognostic/3d/U": [1, 0]}'),
)


@CASES.case
def not_with_type_base(world, tmp_path, tiny_model):
    loss = {"type": "base", "tendency_weights": "t.json"}
    return lambda: build_config(tiny_config(world, tmp_path / "run", loss=loss))
