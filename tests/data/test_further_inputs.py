"""Model inputs in addition to x: fields of other sources and encoded times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.config import ConfigError
from credit_jax.data import build_loader
from credit_jax.data.opened_data import encode_times
from credit_jax.plan import plan_run
from tests.data.damaged import rewrite
from tests.data.region import WRF, region, region_config, write_outside
from tests.data.world import parsed, set_key, write_world
from tests.support.configs import plan_problems
from tests.support.credit_modules import credit_attribute

__all__ = ["region"]


def _credit_dataset(folder: Path, history_len: int, history_outside: int) -> Any:
    """Returns CREDIT's data set of wrf on the files of the second year."""
    inside = {
        "varname_upper_air": ["U", "T"],
        "varname_surface": ["SP"],
        "varname_diagnostic": ["TP"],
        "filenames": [str(folder / "w_2000.nc")],
        "filename_surface": [str(folder / "w_2000.nc")],
        "filename_diagnostic": [str(folder / "w_2000.nc")],
        "history_len": history_len,
        "forecast_len": 0,
    }
    for name in ("dyn_forcing", "forcing", "static"):
        inside |= {f"varname_{name}": [], f"filename_{name}": None}
    outside = {
        "varname_upper_air": ["Z"],
        "varname_surface": ["MSL"],
        "filenames": [str(folder / f"o_{year}.nc") for year in (1999, 2000)],
        "filename_surface": [str(folder / f"o_{year}.nc") for year in (1999, 2000)],
        "history_len": history_outside,
        "forecast_len": 0,
    }
    module = "datasets.gen_1.wrf_singlestep"
    return credit_attribute(module, "WRFDataset")(inside, outside)


@pytest.mark.slow(but=["2-1"])
@pytest.mark.parametrize(("history", "outside"), [(1, 2), (2, 1)])
def test_fields_and_times_are_those_of_credit(
    credit: Any, region: Path, history: int, outside: int
) -> None:
    """All samples of a year, with the fields around the region and encoded times."""
    theirs = _credit_dataset(region, history, outside)
    raw = region_config(
        region,
        data__start_datetime="2000-01-01",
        data__end_datetime="2000-01-08",
        data__history_len=history,
    )
    raw["data"]["source"]["AROUND"]["history_len"] = outside
    raw["model"]["param_interior"] |= {"frames": history, "frame_patch_size": history}
    raw["model"]["param_outside"] |= {"frames": outside, "frame_patch_size": outside}
    loader = build_loader(parsed(raw), split="train")
    assert len(loader.dataset) > 20
    for index in range(len(loader.dataset)):
        batch, sample = loader.read([index]), theirs[index]
        around = sample["boundary_input"]
        fields = [around["Z"].values.swapaxes(0, 1), around["MSL"].values[None]]
        expected = np.concatenate(fields)[None]
        np.testing.assert_array_equal(batch.further["x_outside"], expected)
        encoded = np.asarray(sample["time_encode"], np.float32)[None]
        np.testing.assert_array_equal(batch.further["x_extra"], encoded)


def test_all_steps_of_a_forecast(region: Path) -> None:
    """Each step gets the inputs of the sample that begins at its time."""
    made = {}
    for steps in (1, 2):
        raw = region_config(region, data__forecast_len=steps)
        made[steps] = build_loader(parsed(raw), split="train")
    both, now, later = (made[k].read([i]).further for k, i in ((2, 4), (1, 4), (1, 5)))
    assert both["x_outside"].shape == (1, 3, 4, 12, 10)
    joined = np.concatenate([now["x_outside"], later["x_outside"]], axis=2)
    np.testing.assert_array_equal(both["x_outside"], joined)
    joined = np.concatenate([now["x_extra"], later["x_extra"]], axis=1)
    np.testing.assert_array_equal(both["x_extra"], joined)


@pytest.mark.slow(but=["nan-NaN"])
@pytest.mark.parametrize(("value", "words"), [(np.nan, "NaN"), (1e6, "deviations")])
def test_values_around_that_cannot_be_used(
    tmp_path: Path, value: float, words: str
) -> None:
    """They are errors as those of x are, which name the file."""
    write_world(tmp_path)
    write_outside(tmp_path)
    for name, number in (("mean", 0.0), ("std", 1.0)):
        rewrite(tmp_path / f"{name}.nc", lambda d, number=number: d.assign(MSL=number))
    place = {"time": slice(12, 20), "latitude": 3, "longitude": 7}

    def damage(dataset: xr.Dataset) -> xr.Dataset:
        dataset["MSL"][place] = value
        return dataset

    rewrite(tmp_path / "o_2000.nc", damage)
    raw = region_config(tmp_path, data__on_outlier="raise")
    loader = build_loader(parsed(raw), split="train")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/o_2000.nc: MSL.*{words}"):
        list(loader.epoch(0))


@pytest.mark.slow
def test_samples_without_fields_around_are_left_out(region: Path) -> None:
    raw = region_config(region, data__end_datetime="2000-01-10")
    every = len(build_loader(parsed(raw), split="train").dataset)
    raw["data"]["source"]["AROUND"]["end_datetime"] = "2000-01-08"
    few = build_loader(parsed(raw), split="train").dataset
    assert every - len(few) == 9
    last = few.clocks["AROUND"].input_times(few.starts[-1:])
    assert last.max() <= np.datetime64("2000-01-08")
    steps = parsed(region_config(region, data__forecast_len=3))
    assert len(build_loader(steps, split="train").dataset) > 0


def test_encoded_times() -> None:
    times = np.array(["2000-01-01T06", "2001-07-02T18"], "datetime64[ns]")
    hours, days = np.array([6, 18]) / 24, np.array([1, 183]) / 365.25
    angles = [2 * np.pi * own for own in (hours, days)]
    expected = np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)])
    np.testing.assert_allclose(encode_times(times), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "model__time_encode_dim",
            12,
            "encodes 4 times, 4 numbers each, but",
        ),
        ("data__time_encoding", {}, "set data.time_encoding: {x_extra: [...]}"),
        ("data__time_encoding__x_more", ["input"], "makes the input 'x_more'"),
        ("data__source__AROUND__input", "x_other", "key input: x_outside"),
        ("data__source__AROUND__history_len", 1, "the 2 frames of x_outside"),
        ("model__param_outside__channels", 2, "x_outside has 5 channels"),
        ("model__param_outside__image_height", 13, "x_outside of the model 13 x 10"),
    ],
)
def test_what_does_not_fit_the_model(
    region: Path, key: str, value: Any, words: str
) -> None:
    raw = region_config(region)
    set_key(raw, key, value)
    problems = "\n".join(plan_problems(parsed(raw), num_devices=1))
    assert words in problems


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("time_encoding__x_extra", ["soon"], "expected some of input, target, AROUND"),
        ("source__AROUND__timestep", "5h", "divides a day"),
        ("source__AROUND__input", "x", "another input of the model"),
        ("source__ERA5__input", "x_outside", "put its variables into dynamic_forcing"),
    ],
)
def test_what_cannot_be_read(region: Path, key: str, value: Any, words: str) -> None:
    raw = region_config(region)
    set_key(raw, f"data__{key}", value)
    with pytest.raises(ConfigError, match=words):
        parsed(raw)


def test_a_plan_without_problems(region: Path) -> None:
    plan = plan_run(parsed(region_config(region)), num_devices=1)
    assert plan.config.model["type"] == WRF["type"]
    assert pd.Timedelta(plan.config.data.timestep) == pd.Timedelta("6h")
