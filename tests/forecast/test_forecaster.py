"""Forecasts of the model: outputs, feedback, diffusion, without training."""

from __future__ import annotations

import io
import time
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml
from rich.console import Console

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.forecast import footer
from credit_jax.config import build_config, parse
from credit_jax.config.inference import OutputConfig
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.forecast import Forecaster
from credit_jax.forecast.campaign import CampaignTimes, DeviceClock, Summary
from credit_jax.forecast.outputs import Outputs, choose_outputs
from credit_jax.io.workers import Workers
from credit_jax.models import registry
from credit_jax.nn import parameters
from credit_jax.packages.package import restore
from credit_jax.plan import plan_model, plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import read_log
from credit_jax.training.run import run_training
from credit_jax.training.setup import prepare
from credit_jax.transforms import build_pipeline
from tests.data.world import MODEL
from tests.forecast.tiny_run import BATCH, assert_same_runs, forecast, make_run, read
from tests.support import assert_close, make_mesh
from tests.training.conftest import tiny_model
from tests.training.tiny import Tiny, TinyConfig, tiny_config, write_yaml
from tests.transforms.test_full_levels import ARGS, KIND, LEVELS

__all__ = ["tiny_model"]


def forecaster(parallelism, num_devices):
    plan = plan_model(
        {**MODEL, "type": "tiny"},
        parse_parallelism(parallelism),
        num_devices=num_devices,
    )
    model = plan.build(jax.devices()[:num_devices])
    return Forecaster(model, *model.init(jax.random.key(0)))


@pytest.fixture
def x():
    shape = (4, 7, 1, MODEL["image_height"], MODEL["image_width"])
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.usefixtures("tiny_model")
def test_no_spectral_norm_is_left():
    found = forecaster("data=none", 1)
    assert found.model.model_def.matrices
    assert found.weights[1][parameters.SPECTRAL_NORM] == {}


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize(
    ("parallelism", "num_devices", "num_rows"),
    [("data=none,tensor=2,domain=4", 8, 8), ("data=fsdp2,domain=2", 4, 6)],
)
def test_every_mesh_forecasts_the_same(x, parallelism, num_devices, num_rows):
    serial = forecaster("data=none", 1)(x)
    assert serial.shape == (4, 6, 1, 6, 10)
    assert serial.dtype == np.float32
    found = forecaster(parallelism, num_devices)
    assert_close(found(x), serial, 1e-6, parallelism)
    on_mesh = found.step(found.place(x))
    assert on_mesh.shape == (4, 6, 1, num_rows, 10), "rows are padded on the mesh"
    assert_close(np.asarray(on_mesh)[..., :6, :], serial, 1e-6, parallelism)


@pytest.mark.usefixtures("tiny_model")
def test_samples_that_cannot_be_shared(x):
    with pytest.raises(ValueError, match="4 samples, which 3 data-parallel devices"):
        forecaster("data=ddp", 3)(x)


SOURCE = "A/derived_diagnostic/3d"


def test_fields_of_blocks_have_their_own_levels():
    """Also where there are as many as the data have."""
    args = {
        key: value.replace("S/", "A/") if isinstance(value, str) else value
        for key, value in ARGS.items()
    }
    args["interp_fields"] = ["A/prognostic/3d/T"]
    args["pressure_levels"] = [500.0 + n for n in range(len(LEVELS))]
    pipeline = build_pipeline(
        parse(PreblocksConfig, {"per_step": {"concat": {"type": "concat"}}}),
        parse(
            PostblocksConfig,
            {
                "per_step": {
                    "fields": {"type": "reconstruct"},
                    "levels": {"type": KIND, "args": args},
                }
            },
        ),
    )
    shapes = {
        "A/prognostic/3d/T": len(LEVELS),
        f"{SOURCE}/T_PRES": len(LEVELS),
        f"{SOURCE}/P": len(LEVELS),
        f"{SOURCE}/T_HEIGHT": len(ARGS["height_levels"]),
    }
    variables = choose_outputs(OutputConfig(), shapes, {"A": LEVELS}, pipeline)
    dims = {variable.name: variable.level_dim for variable in variables}
    assert dims == {
        "T": "level",
        "T_PRES": "pressure",
        "P": "level",
        "T_HEIGHT": "height_agl",
    }
    levels = {variable.name: [*variable.levels] for variable in variables}
    assert levels["T_PRES"] == args["pressure_levels"]
    assert levels["T_HEIGHT"] == ARGS["height_levels"]
    outputs = Outputs(variables, np.zeros(1), np.zeros(1))
    assert outputs.attributes_of_levels("pressure") == {"units": "hPa"}
    assert outputs.attributes_of_levels("height_agl")["units"] == "m"


START = "1999-12-30"
LENGTH = ("--length", "12h")


@pytest.fixture
def alone(config, tmp_path):
    """Writes the config without training, its data changed; returns the path."""
    with open(config) as file:
        whole = yaml.safe_load(file)

    def write(**dates):
        own = {k: v for k, v in whole.items() if k not in ("loss", "trainer")}
        own["inference"] = {"output": {"format": "zarr"}}
        gone = ("start_datetime", "end_datetime", "date_ranges", "forecast_len")
        own["data"] = {k: v for k, v in whole["data"].items() if k not in gone} | dates
        own.pop("validation_data", None)
        path = tmp_path / "alone.yml"
        path.write_text(yaml.safe_dump(own, sort_keys=False))
        return str(path)

    return write


def test_the_forecasts_are_those_of_the_whole_config(config, alone, tmp_path):
    options = ("--init-time", START, *LENGTH)
    assert forecast(config, tmp_path / "whole", *options) == OK
    assert forecast(alone(), tmp_path / "no_dates", *options) == OK
    assert forecast(alone(start_datetime=START), tmp_path / "a_start", *LENGTH) == OK
    whole = read(tmp_path / "whole").drop_attrs()
    for name in ("no_dates", "a_start"):
        xr.testing.assert_identical(read(tmp_path / name).drop_attrs(), whole)


@pytest.mark.slow
def test_scores_have_no_climatology_of_no_training(alone, tmp_path, capsys):
    path = alone(start_datetime=START)
    out, scores = tmp_path / "out", tmp_path / "scores"
    assert forecast(path, out, *LENGTH, "--score", str(scores)) == OK
    shown = capsys.readouterr().out
    assert "persistence" in shown
    assert "climatology" not in (scores / "scores.csv").read_text()


def test_other_keys_are_still_checked(alone, tmp_path, capsys):
    path = alone(start_datetime=START, timestep="soon")
    assert forecast(path, tmp_path / "out") == USER_ERROR
    assert "data.timestep: must be a positive duration" in capsys.readouterr().err
    assert forecast(alone(), tmp_path / "out") == USER_ERROR
    assert "batch_forecast: missing" in capsys.readouterr().err


DIFFUSION = {
    **MODEL,
    "type": "unet-diffusion",
    "dim": [4],
    "dim_mults": [1],
    "attn_dim_head": 2,
    "attn_heads": 2,
    "diffusion": {
        "image_size": [MODEL["image_height"], MODEL["image_width"]],
        "timesteps": 30,
        "sampling_timesteps": 3,
        "objective": "pred_x0",
        "clip_denoised": False,
    },
}


@cache
def _run(world: Path, folder: Path, domain: int) -> tuple[dict[str, Any], Any]:
    """Trains one epoch; returns the last row of its log, and forecasts."""
    own = folder / str(domain)
    own.mkdir()
    raw = tiny_config(
        world,
        own / "run",
        model=DIFFUSION,
        postblocks={"per_step": {"reconstruct": {"type": "reconstruct"}}},
        inference={"batch_forecast": BATCH, "output": {"format": "zarr"}},
        trainer__parallelism={"data": "none", "tensor": 1, "domain": domain},
        trainer__epochs=1,
        trainer__batches_per_epoch=2,
        trainer__valid_batches_per_epoch=1,
    )
    setup = prepare(
        plan_run(build_config(raw), num_devices=domain), jax.devices()[:domain]
    )
    run_training(setup, own / "run", Display(Console(file=io.StringIO())))
    (log,) = read_log(own / "run" / "training_log.csv")
    config = write_yaml(own / "model.yml", raw)
    arguments = ["--parallelism", f"domain={domain}", "--members", "2"]
    assert forecast(config, own / "out", *arguments) == OK
    return log, read(own / "out")


@pytest.mark.slow
def test_a_run_and_its_forecasts(world: Path, tmp_path: Path) -> None:
    """Noise steps, noise and samples are the same on two shards."""
    assert_same_runs(*(_run(world, tmp_path, n) for n in (1, 2)))


START_FEEDBACK, NUM_STEPS = pd.Timestamp("2000-01-01"), 3
STEP = pd.Timedelta("6h")
TWIN = {
    "reconstruct": {"type": "reconstruct"},
    "twin": {"type": "reconstruct", "args": {"in_key": "y", "out_key": "y_twin"}},
}


class Newest(Tiny):
    """The tiny model, which predicts one time from any number of input times."""

    def __call__(self, inputs, context):
        return super().__call__(inputs, context)[:, :, -1:]


@pytest.fixture
def newest(monkeypatch):
    """`model.type: tiny` predicts one time."""
    monkeypatch.setitem(
        registry.MODELS, "tiny", registry.ModelEntry(TinyConfig, Newest)
    )


@pytest.mark.slow(but=["1"])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_forecast_step_by_step(world, tmp_path, newest, frames):
    config = make_run(
        world,
        tmp_path,
        data__history_len=frames,
        model__frames=frames,
        postblocks={"per_step": TWIN},
    )
    dates = ("--init-time", str(START_FEEDBACK), "--steps", str(NUM_STEPS))
    assert forecast(config, tmp_path / "out", *dates) == 0
    store = read(tmp_path / "out").isel(time=0)
    with xr.open_mfdataset(str(world / "w_*.nc")) as data:
        fields = data.load()
    mean, std, mask = (
        xr.load_dataset(world / f"{name}.nc") for name in ("mean", "std", "static")
    )

    def scaled(name: str, time: pd.Timestamp) -> np.ndarray:
        values = fields[name].sel(time=time).values.astype(np.float32)
        if name == "tsi":
            return values[None]
        levels = [0, 2] if values.ndim == 3 else None
        moments = [np.atleast_1d(x[name].values) for x in (mean, std)]
        if levels is not None:
            values, moments = values[levels], [x[levels] for x in moments]
        m, s = (x.astype(np.float32)[:, None, None] for x in moments)
        return (np.atleast_3d(values.T).T - m) / s

    def given(time: pd.Timestamp, state: np.ndarray | None = None) -> np.ndarray:
        if state is None:
            state = np.concatenate([scaled(name, time) for name in ("U", "T", "SP")])
        still = mask["LSM"].values.astype(np.float32)[None]
        return np.concatenate([state, still, scaled("tsi", time)])

    forecaster = _forecaster(tmp_path)
    times = [START_FEEDBACK - k * STEP for k in reversed(range(frames))]
    x = np.stack([given(time) for time in times], axis=1)[None]
    for step in range(1, NUM_STEPS + 1):
        y = forecaster(x)[0, :, 0]
        time = START_FEEDBACK + step * STEP
        for name, place in (("U", 0), ("T", 2)):
            m, s = (
                v[name].values[[0, 2]].astype(np.float32)[:, None, None]
                for v in (mean, std)
            )
            found = store[name].isel(prediction_timedelta=step)
            expected = y[place : place + 2] * s + m
            assert_close(found - m, expected - m, 1e-5, f"{name}, step {step}")
        new = given(time, y[:5])[:, None]
        x = np.concatenate([x[0, :, 1:], new], axis=1)[None]


def _forecaster(folder) -> Forecaster:
    raw = yaml.safe_load((folder / "model.yml").read_text())
    (folder / "run" / "model.yml").write_text(yaml.safe_dump(raw))
    mesh = make_mesh()
    return Forecaster(*restore(folder / "run", mesh))


SHORT = 0.05


class Slow:
    """A result that takes some time to compute."""

    def block_until_ready(self):
        time.sleep(SHORT)
        return self


def test_copies_to_the_host_do_not_count_the_steps_they_wait_for():
    clock, host = DeviceClock(), Workers(1, 2, "host")
    for _ in range(3):
        host.submit(lambda: clock.ready({"T": Slow()}))
    host.close()
    assert clock.awaited >= 3 * SHORT
    assert host.seconds >= clock.awaited
    assert host.seconds - clock.awaited < SHORT


def test_the_total_begins_with_the_end_of_the_first_step():
    clock, start = DeviceClock(), time.perf_counter()
    assert clock.total == 0.0
    for _ in range(2):
        clock.wait(start, Slow())
    assert SHORT <= clock.busy <= clock.total <= time.perf_counter() - start - SHORT


def test_time_for_which_a_full_queue_blocks():
    files = Workers(1, 1, "write")
    for _ in range(3):
        files.submit(lambda: time.sleep(SHORT))
    assert files.blocked >= 1.5 * SHORT
    files.close()
    assert files.seconds >= 3 * SHORT


def test_the_last_lines_of_a_forecast():
    times = CampaignTimes(unroll=9.0, read=0.5, write=3.25, total=10.0)
    lines = footer(Summary(3, 1, {"T": 7}, times), Path("out"))
    assert lines == [
        "3 forecasts made, in out, 1 found there",
        "unroll 9.00 s, read 0.50 s, write 3.25 s beside each other; devices idle "
        "10.0 % of the 10.00 s since the first step",
        "values that are not finite, written as missing: T 7",
    ]
