"""The forecasts at the end of a run: their scores and files."""

import dataclasses
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.config import build_config
from credit_jax.extensions.plots import held_out
from credit_jax.extensions.plots.held_out import held_out_starts, plan_held_out
from credit_jax.forecast import Forecaster
from credit_jax.named_fields import latitude_weights
from credit_jax.plan import plan_run
from credit_jax.training.setup import prepare
from tests.support import assert_close
from tests.training.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("tiny_model")
HOUR = np.timedelta64(1, "h")


def setup_of(world, folder, num_devices=1, length="6h", **changes):
    """A run whose forecasts have this length; the default is that of a config."""
    inference = {"run_mode": "single", "single_forecast": {"forecast_length": length}}
    config = tiny_config(world, folder, **changes)
    config = build_config(config | ({"inference": inference} if length else {}))
    devices = jax.devices()[:num_devices]
    return prepare(plan_run(config, num_devices=num_devices), devices)


def scored(setup, folder):
    """Scores with fresh weights, and the stored forecast."""
    scores = plan_held_out(setup).score(setup.fresh_state(), folder)
    with xr.open_zarr(folder / "forecast.zarr") as kept:
        return scores, kept.load()


@pytest.fixture(scope="module")
def five_days(world, tiny_model, tmp_path_factory):
    """The scores and the stored forecast of the default length, and the setup."""
    setup = setup_of(world, tmp_path_factory.mktemp("days"), length=None)
    return *scored(setup, tmp_path_factory.mktemp("days") / "f"), setup


@pytest.mark.slow
def test_errors_of_one_step(world, tmp_path, monkeypatch):
    """The scores equal those of the loader's samples, in physical units."""
    setup = setup_of(world, tmp_path)
    loader = dataclasses.replace(setup.valid_loader, is_raw=False)
    places = setup.plan.schema.target_slices()
    # No sample has its truth at the input time of the first sample.
    starts = loader.dataset.starts[1:]
    monkeypatch.setattr(held_out, "held_out_starts", lambda *_: (starts, 1))
    scores, _ = scored(setup, tmp_path / "f")
    assert scores.attrs["num_start_dates"] == len(starts) == 15
    assert np.array_equal(scores["prediction_timedelta"] / HOUR, [6])
    samples = [loader.read([i]) for i in range(len(loader.dataset))]
    truth = loader.units.denormalize(
        np.concatenate([own.y[:, :, 0] for own in samples])
    )
    state = setup.fresh_state()
    model = Forecaster(setup.valid_model, *state.evaluated)
    made = np.concatenate([model(own.x)[:, :, 0] for own in samples])
    rmse = scores["rmse"].sel(region="global").isel(prediction_timedelta=0)
    expected = {
        "forecast": loader.units.denormalize(made)[1:] - truth[1:],
        "persistence": truth[1:] - truth[:-1],
        "climatology": truth[1:] - climatology(world, starts),
    }
    labels = ["U1", "U4.6", "T1", "T4.6", "SP", "TP"]
    assert sorted(labels) == sorted(scores["channel"].values)
    assert [key.rsplit("/", 1)[1] for key in places] == ["U", "T", "SP", "TP"]
    for name, error in expected.items():
        weights = latitude_weights(loader.latitude)[:, None]
        found = np.sqrt((np.square(error) * weights).mean(axis=(0, 2, 3)))
        assert_close(rmse.sel(system=name, channel=labels).values, found, 1e-5, name)


def climatology(world, starts):
    """Returns means of the training days by hour, (start, channel, lat, lon)."""
    with xr.open_mfdataset(str(world / "w_*.nc")) as files:
        part = files.sel(time=slice("1999-12-28", "2000-01-05T00")).load()
    means = part.isel(level=[0, 2]).groupby("time.hour").mean("time")
    fields = []
    for start in starts:
        own = means.sel(hour=pd.Timestamp(start + 6 * HOUR).hour)
        flat = [own[name].values[None] for name in ("SP", "TP")]
        fields.append(np.concatenate([own["U"], own["T"], *flat]))
    return np.stack(fields)


@pytest.mark.slow
def test_five_days_and_what_is_kept(five_days):
    scores, kept, setup = five_days
    leads = scores["prediction_timedelta"] / HOUR
    # The held-out period has five days; forecasts are as long as it allows.
    assert leads.values.tolist() == [6.0 * step for step in range(1, leads.size + 1)]
    assert kept.sizes["prediction_timedelta"] == leads.size + 1
    assert kept["time"].values.tolist() == [
        held_out_starts(setup.valid_loader.dataset, leads.size)[0][-1].item()
    ]
    assert np.isfinite(scores["rmse"].sel(system=["forecast", "persistence"])).all()
    assert np.isfinite(kept["T"]).all()


@pytest.mark.slow
def test_forecasts_of_others_are_not_removed(world, tmp_path):
    """That of an earlier report is replaced."""
    setup, folder = setup_of(world, tmp_path), tmp_path / "f"
    folder.mkdir()
    (folder / "notes.txt").write_text("of mine")
    scored(setup, folder)
    (aside,) = tmp_path.glob("f_*")
    assert (aside / "notes.txt").read_text() == "of mine"
    assert not (folder / "notes.txt").exists()
    scored(setup, folder)
    assert [*tmp_path.glob("f_*")] == [aside]


def test_start_dates_are_thinned_out_and_steps_fitted(world, tmp_path, monkeypatch):
    """Forecasts are as long as those of the config, or as the period allows."""
    for length, steps in {"12h": 2, None: 16}.items():
        schedule = plan_held_out(setup_of(world, tmp_path, length=length)).plan.schedule
        assert (schedule.num_steps, len(schedule.starts)) == (steps, 17 - steps)
    dataset = setup_of(world, tmp_path).valid_loader.dataset
    starts, steps = held_out_starts(dataset, 4)
    assert steps == 4
    assert np.array_equal(starts, dataset.starts[: len(dataset) - 3])
    starts, steps = held_out_starts(dataset, 1000)
    assert (len(starts), steps) == (1, len(dataset))
    monkeypatch.setattr(held_out, "MAX_STARTS", 5)
    starts, _ = held_out_starts(dataset, 1)
    assert len(starts) == 5
    assert np.array_equal(starts[[0, -1]], dataset.starts[[0, -1]])


@pytest.mark.slow
def test_what_cannot_be_used_is_left_out_and_counted(world, tmp_path, monkeypatch):
    """A held-out field has NaN, a held-out time and two of the training are missing."""
    folder = tmp_path / "damaged"
    shutil.copytree(world, folder)
    path = folder / "w_2000.nc"
    lost = np.array(["2000-01-02", "2000-01-03T06", "2000-01-08T12"], "datetime64[ns]")

    fields = xr.load_dataset(path)
    fields["SP"].loc["2000-01-07"][0, 2] = np.nan
    fields.sel(time=~np.isin(fields["time"], lost)).to_netcdf(path)
    setup = setup_of(folder, tmp_path, data__on_bad_sample="skip")
    made = plan_held_out(setup)
    # One-step forecasts from each time and to it.
    text = "4 of 16 start dates are left out of the scores, as their data cannot be"
    assert made.left_out.startswith(text)
    assert "w_2000.nc: SP" in made.left_out
    starts = made.plan.schedule.starts
    scores = made.score(setup.fresh_state(), tmp_path / "f")
    assert scores.attrs["num_start_dates"] == len(starts) == 12
    assert scores.attrs["left_out"] == made.left_out
    assert "times of the training period" in scores.attrs["climatology"]
    assert scores.attrs["climatology"].endswith("without 2 that cannot be read")
    monkeypatch.setattr(held_out, "held_out_starts", lambda *_: (starts, 1))
    whole, _ = scored(setup_of(world, tmp_path), tmp_path / "f")
    systems = ["forecast", "persistence"]
    ours, theirs = (own["rmse"].sel(system=systems) for own in (scores, whole))
    assert np.array_equal(ours, theirs, equal_nan=True)
    systems = [*systems, "climatology"]
    assert np.isfinite(scores["rmse"].sel(region="global", system=systems)).all()


def test_no_start_date_can_be_used(world, tmp_path):
    setup = setup_of(world, tmp_path, data__on_bad_sample="skip")
    setup.valid_loader.bad.update(dict.fromkeys(range(20), "SP has NaN"))
    with pytest.raises(ValueError, match=r"16 of 16 start dates .*first: SP has NaN"):
        plan_held_out(setup)


@pytest.mark.slow
def test_renamed_variables_are_scored_by_their_new_names(world, tmp_path):
    plain, _ = scored(setup_of(world, tmp_path), tmp_path / "f")
    names = {
        "ERA5/prognostic/3d/T": "ERA5/prognostic/3d/temperature",
        "ERA5/diagnostic/2d/TP": "ERA5/diagnostic/2d/rain",
    }
    steps = tiny_config(world, tmp_path)["preblocks"]["per_step"]
    rename = {"type": "rename", "args": {"mapping": names}}
    blocks = {"norm": steps["norm"], "names": rename, "concat": steps["concat"]}
    setup = setup_of(world, tmp_path, preblocks__per_step=blocks)
    scores, kept = scored(setup, tmp_path / "f")
    assert {*kept.data_vars} == {"temperature", "U", "SP", "rain"}
    labels = ["temperature1", "temperature4.6", "rain", "SP"]
    old = ["T1", "T4.6", "TP", "SP"]
    ours, theirs = scores.sel(channel=labels), plain.sel(channel=old)
    systems = ["persistence", "climatology"]
    # Fresh weights depend on the channels alone, whose order is the same.
    for name, of in (("rmse", systems), ("acc", systems), ("rmse", "forecast")):
        own, other = (x[name].sel(system=of).values for x in (ours, theirs))
        assert np.array_equal(own, other, equal_nan=True), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallelism", "num_devices"),
    [
        ({"data": "none", "tensor": 1, "domain": 4}, 4),
        ({"data": "ddp", "tensor": 2, "domain": 2}, 8),
    ],
)
def test_every_mesh_has_the_same_scores(
    world, five_days, tmp_path, parallelism, num_devices
):
    one, kept, _ = five_days
    changes = {"trainer__parallelism": parallelism, "trainer__valid_batch_size": 3}
    setup = setup_of(world, tmp_path, num_devices, length=None, **changes)
    other, others = scored(setup, tmp_path / "other")
    for name in ("rmse", "acc", "energy_spectrum"):
        assert_close(other[name].fillna(0), one[name].fillna(0), 1e-5, name)
    for name in kept.data_vars:
        assert_close(others[name].fillna(0), kept[name].fillna(0), 1e-5, name)
