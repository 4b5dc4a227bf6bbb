"""Feedback in forecasts, against a loop with one forward pass per step."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.forecast import Forecaster
from credit_jax.models import registry
from credit_jax.packages.package import restore
from tests.forecast.tiny_run import forecast, make_run, read
from tests.support import assert_close, make_mesh
from tests.training.tiny import Tiny, TinyConfig

START, NUM_STEPS = pd.Timestamp("2000-01-01"), 3
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
    dates = ("--init-time", str(START), "--steps", str(NUM_STEPS))
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
    times = [START - k * STEP for k in reversed(range(frames))]
    x = np.stack([given(time) for time in times], axis=1)[None]
    for step in range(1, NUM_STEPS + 1):
        y = forecaster(x)[0, :, 0]
        time = START + step * STEP
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
