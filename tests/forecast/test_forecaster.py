"""Forecasts of the model: outputs, feedback, diffusion, without training."""

import shutil
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import OK
from credit_jax.cli.forecast import footer
from credit_jax.config import parse
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
from credit_jax.plan import plan_model
from credit_jax.transforms import build_pipeline
from tests.data.world import MODEL
from tests.forecast import tiny_run
from tests.support import assert_close, make_mesh
from tests.training.tiny import Tiny, TinyConfig, tiny_config, write_yaml
from tests.transforms.test_full_levels import ARGS, KIND, LEVELS

START, STEP = pd.Timestamp("1999-12-30"), pd.Timedelta("6h")


def forecaster(parallelism, num_devices):
    plan = plan_model(
        {**MODEL, "type": "tiny"},
        parse_parallelism(parallelism),
        num_devices=num_devices,
    )
    model = plan.build(jax.devices()[:num_devices])
    return Forecaster(model, *model.init(jax.random.key(0)))


def test_every_mesh_forecasts_the_same(rng):
    shape = (4, 7, 1, MODEL["image_height"], MODEL["image_width"])
    x = rng.normal(size=shape).astype(np.float32)
    alone = forecaster("data=none", 1)
    assert alone.model.model_def.matrices
    assert alone.weights[1][parameters.SPECTRAL_NORM] == {}, "it is undone once"
    serial = alone(x)
    assert serial.shape == (4, 6, 1, 6, 10)
    assert serial.dtype == np.float32
    for parallelism, num_devices, num_rows in (
        ("data=none,tensor=2,domain=4", 8, 8),
        ("data=fsdp2,domain=2", 4, 6),
    ):
        found = forecaster(parallelism, num_devices)
        assert_close(found(x), serial, 1e-6, parallelism)
        on_mesh = found.step(found.place(x))
        assert on_mesh.shape == (4, 6, 1, num_rows, 10), "rows are padded on the mesh"
        assert_close(np.asarray(on_mesh)[..., :6, :], serial, 1e-6, parallelism)


def test_fields_of_blocks_have_their_own_levels():
    """Also where there are as many as the data have."""
    args = {
        k: v.replace("S/", "A/") if isinstance(v, str) else v for k, v in ARGS.items()
    }
    args["interp_fields"] = ["A/prognostic/3d/T"]
    args["pressure_levels"] = [500.0 + n for n in range(len(LEVELS))]
    before = {"concat": {"type": "concat"}}
    after = {"fields": {"type": "reconstruct"}, "levels": {"type": KIND, "args": args}}
    pipeline = build_pipeline(
        parse(PreblocksConfig, {"per_step": before}),
        parse(PostblocksConfig, {"per_step": after}),
    )
    source = "A/derived_diagnostic/3d"
    shapes = {
        "A/prognostic/3d/T": len(LEVELS),
        f"{source}/T_PRES": len(LEVELS),
        f"{source}/P": len(LEVELS),
        f"{source}/T_HEIGHT": len(ARGS["height_levels"]),
    }
    variables = choose_outputs(OutputConfig(), shapes, {"A": LEVELS}, pipeline)
    dims = {variable.name: variable.level_dim for variable in variables}
    same = dict.fromkeys("TP", "level")
    assert dims == {**same, "T_PRES": "pressure", "T_HEIGHT": "height_agl"}
    levels = {variable.name: [*variable.levels] for variable in variables}
    assert levels["T_PRES"] == args["pressure_levels"]
    assert levels["T_HEIGHT"] == ARGS["height_levels"]
    outputs = Outputs(variables, np.zeros(1), np.zeros(1))
    assert outputs.attributes_of_levels("pressure") == {"units": "hPa"}
    assert outputs.attributes_of_levels("height_agl")["units"] == "m"


def test_a_config_without_training(run, config, tmp_path, capsys):
    """Its forecasts are those of the whole config; its scores have no climatology."""
    raw = yaml.safe_load((run / "model.yml").read_text())
    del raw["loss"], raw["trainer"], raw["validation_data"]
    raw["inference"] = {"output": {"format": "zarr"}}
    for key in ("start_datetime", "end_datetime", "forecast_len"):
        del raw["data"][key]
    alone = write_yaml(tmp_path / "alone.yml", raw)
    raw["data"]["start_datetime"] = str(START)[:10]
    a_start = write_yaml(tmp_path / "a_start.yml", raw)
    date, length = ("--init-time", str(START)[:10]), ("--length", "12h")
    assert tiny_run.forecast(config, tmp_path / "whole", *date, *length) == OK
    assert tiny_run.forecast(alone, tmp_path / "no_dates", *date, *length) == OK
    out, scores = tmp_path / "start", tmp_path / "scores"
    assert tiny_run.forecast(a_start, out, *length, "--score", str(scores)) == OK
    whole = tiny_run.read(tmp_path / "whole").drop_attrs()
    for folder in (tmp_path / "no_dates", out):
        xr.testing.assert_identical(tiny_run.read(folder).drop_attrs(), whole)
    assert "persistence" in capsys.readouterr().out
    assert "climatology" not in (scores / "scores.csv").read_text()


SIZE = [MODEL["image_height"], MODEL["image_width"]]
DIFFUSION = {
    **MODEL,
    **{"type": "unet-diffusion", "dim": [4], "dim_mults": [1]},
    **{"attn_dim_head": 2, "attn_heads": 2},
    "diffusion": {
        **{"image_size": SIZE, "timesteps": 30, "sampling_timesteps": 3},
        **{"objective": "pred_x0", "clip_denoised": False},
    },
}


@pytest.mark.slow
def test_a_run_of_diffusion_and_its_forecasts(world: Path, tmp_path: Path) -> None:
    """Noise steps, noise and samples are the same on two shards."""
    runs = []
    for domain in (1, 2):
        folder = tmp_path / str(domain)
        folder.mkdir()
        settings = tiny_run.FORECASTS | {"model": DIFFUSION, "trainer__epochs": 1}
        settings |= {"trainer__batches_per_epoch": 2}
        settings |= {"trainer__valid_batches_per_epoch": 1}
        settings |= {"trainer__parallelism__domain": domain}
        raw = tiny_config(world, folder / "run", **settings)
        options = ("--parallelism", f"domain={domain}", "--members", "2")
        runs.append(tiny_run.train_and_forecast(raw, folder, domain, *options))
    tiny_run.assert_same_runs(*runs)


class Newest(Tiny):
    """The tiny model, which predicts one time from any number of input times."""

    def __call__(self, inputs, context):
        return super().__call__(inputs, context)[:, :, -1:]


def test_a_forecast_of_two_frames_step_by_step(world, tmp_path, monkeypatch):
    """That of one is compared in `tests.forecast.fuzz`."""
    entry = registry.ModelEntry(TinyConfig, Newest)
    monkeypatch.setitem(registry.MODELS, "tiny", entry)
    twin = {"type": "reconstruct", "args": {"in_key": "y", "out_key": "y_twin"}}
    blocks = {"reconstruct": {"type": "reconstruct"}, "twin": twin}
    frames = {"data__history_len": 2, "model__frames": 2}
    config = tiny_run.make_run(
        world, tmp_path, postblocks={"per_step": blocks}, **frames
    )
    dates = ("--init-time", str(START), "--steps", "3")
    assert tiny_run.forecast(config, tmp_path / "out", *dates) == 0
    store = tiny_run.read(tmp_path / "out").isel(time=0)
    with xr.open_mfdataset(str(world / "w_*.nc")) as data:
        fields = data.load()
    mean, std, mask = (
        xr.load_dataset(world / f"{name}.nc") for name in ("mean", "std", "static")
    )

    def moments(name):
        """Mean and deviation of the levels of a variable."""
        both = (np.atleast_1d(x[name].values)[[0, -1]] for x in (mean, std))
        return [x.astype(np.float32)[:, None, None] for x in both]

    def scaled(name, time):
        values = fields[name].sel(time=time).values.astype(np.float32)
        values = values[[0, 2]] if values.ndim == 3 else values[None]
        m, s = (x[: len(values)] for x in moments(name))
        return (values - m) / s

    def given(time, state=None):
        if state is None:
            state = np.concatenate([scaled(name, time) for name in ("U", "T", "SP")])
        others = mask["LSM"], fields["tsi"].sel(time=time)
        others = [x.values.astype(np.float32)[None] for x in others]
        return np.concatenate([state, *others])

    shutil.copy(config, tmp_path / "run" / "model.yml")
    model = Forecaster(*restore(tmp_path / "run", make_mesh()))
    x = np.stack([given(START - STEP), given(START)], axis=1)[None]
    for step in range(1, 4):
        y = model(x)[0, :, 0]
        for name, place in (("U", 0), ("T", 2)):
            m, s = moments(name)
            found = store[name].isel(prediction_timedelta=step)
            expected = y[place : place + 2] * s
            assert_close(found - m, expected, 1e-5, f"{name}, step {step}")
        new = given(START + step * STEP, y[:5])[:, None]
        x = np.concatenate([x[0, :, 1:], new], axis=1)[None]


SHORT = 0.05


class Slow:
    """A result that takes some time to compute."""

    def block_until_ready(self):
        time.sleep(SHORT)
        return self


def test_times_of_a_campaign():
    """Copies to the host do not count the steps they wait for."""
    clock, host = DeviceClock(), Workers(1, 1, "host")
    for _ in range(3):
        host.submit(lambda: clock.ready({"T": Slow()}))
    host.close()
    assert clock.awaited >= 3 * SHORT
    assert clock.awaited <= host.seconds < clock.awaited + SHORT
    assert host.blocked >= 1.5 * SHORT
    clock, start = DeviceClock(), time.perf_counter()
    assert clock.total == 0.0
    for _ in range(2):
        clock.wait(start, Slow())
    # The total begins with the end of the first step.
    assert SHORT <= clock.busy <= clock.total <= time.perf_counter() - start - SHORT
    times = CampaignTimes(unroll=9.0, read=0.5, write=3.25, total=10.0)
    assert footer(Summary(3, 1, {"T": 7}, times), Path("out")) == [
        "3 forecasts made, in out, 1 found there",
        "unroll 9.00 s, read 0.50 s, write 3.25 s beside each other; devices idle "
        "10.0 % of the 10.00 s since the first step",
        "values that are not finite, written as missing: T 7",
    ]
