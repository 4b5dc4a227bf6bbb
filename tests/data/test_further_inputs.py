"""Inputs in addition to x, and the data of forecasts, opened for their dates."""

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.data import build_loader
from credit_jax.data.forecast_data import open_forecast_data
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.references import open_truth
from tests.data.region import region, region_config
from tests.data.world import parsed, raw_config
from tests.support.credit_modules import credit_attribute

__all__ = ["region"]


def _credit_dataset(folder, history_len, history_outside):
    """Returns CREDIT's data set of wrf on the files of the second year."""
    second = [str(folder / "w_2000.nc")]
    inside = {"varname_upper_air": ["U", "T"], "varname_surface": ["SP"]}
    inside |= {"varname_diagnostic": ["TP"], "filename_diagnostic": second}
    inside |= {"filenames": second, "filename_surface": second}
    for name in ("dyn_forcing", "forcing", "static"):
        inside |= {f"varname_{name}": [], f"filename_{name}": None}
    files = [str(folder / f"o_{year}.nc") for year in (1999, 2000)]
    outside = {"varname_upper_air": ["Z"], "varname_surface": ["MSL"]}
    outside |= {"filenames": files, "filename_surface": files}
    for own, history in ((inside, history_len), (outside, history_outside)):
        own |= {"history_len": history, "forecast_len": 0}
    dataset = credit_attribute("datasets.gen_1.wrf_singlestep", "WRFDataset")
    return dataset(inside, outside)


@pytest.mark.slow(but=["2-1"])
@pytest.mark.parametrize(("history", "outside"), [(1, 2), (2, 1)])
def test_fields_and_times_are_those_of_credit(credit, region, history, outside):
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


def test_all_steps_of_a_forecast(region):
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


@pytest.mark.slow
def test_samples_without_fields_around_are_left_out(region):
    raw = region_config(region, data__end_datetime="2000-01-10")
    every = len(build_loader(parsed(raw), split="train").dataset)
    raw["data"]["source"]["AROUND"]["end_datetime"] = "2000-01-08"
    few = build_loader(parsed(raw), split="train").dataset
    assert every - len(few) == 9
    last = few.clocks["AROUND"].input_times(few.starts[-1:])
    assert last.max() <= np.datetime64("2000-01-08")
    steps = parsed(region_config(region, data__forecast_len=3))
    assert len(build_loader(steps, split="train").dataset) > 0


START = np.datetime64("2000-01-05", "ns")


def test_states_of_other_dates_than_forcing(world, tmp_path):
    """Forecasts that do not begin with the data read forcing alone at their dates."""
    whole, first = xr.load_dataset(world / "w_2000.nc"), START - np.timedelta64(12, "h")
    whole.sel(time=[first]).to_netcdf(tmp_path / "w_2000.nc")
    raw = raw_config(world)
    variables = raw["data"]["source"]["ERA5"]["variables"]
    variables["prognostic"]["path"] = f"{tmp_path}/w_%Y.nc"
    starts, states = np.array([START]), np.array([first])
    data = open_forecast_data(parsed(raw).data, [first, START], 2)
    assert data.problems(starts, 2, states) == []
    (problem,) = data.problems(starts, 2)
    assert "prognostic: 1 of 1 times are missing in" in problem
    fields = data.initial(START, first)["ERA5"]
    for key, time in (("prognostic/2d/SP", first), ("dynamic_forcing/2d/tsi", START)):
        expected = whole[key.split("/")[-1]].sel(time=time)
        np.testing.assert_array_equal(fields[f"ERA5/{key}"][0, 0], expected)


def test_a_truth_from_a_source_of_ones_own(world, tmp_path):
    """The file of the truth names it, as a config does."""
    (tmp_path / "mine.py").write_text(
        "from credit_jax.config.sources.sections import LocalConfig\n"
        "from credit_jax.data.sources.local import open_local\n"
        "from credit_jax.data.sources.registry import SourceEntry\n"
        "mine = SourceEntry(LocalConfig, open_local)\n"
    )
    raw = raw_config(world, data__source__ERA5__dataset_type="mine")
    entry = {"object_type": "dataset", "module_path": str(tmp_path / "mine.py")}
    path = tmp_path / "truth.yaml"
    objects = {"mine": entry}
    path.write_text(yaml.safe_dump({"custom_objects": objects, "data": raw["data"]}))
    truth = open_truth(str(path), np.array([START]))
    field = truth.read(START, {"SP": None})
    expected = open_truth(NamedData(parsed(raw_config(world)).data), np.array([START]))
    assert np.array_equal(field, expected.read(START, {"SP": None}))
