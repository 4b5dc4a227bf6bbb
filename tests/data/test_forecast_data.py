"""The data of forecasts, opened for their start dates."""

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.data import open_dataset
from credit_jax.data.forecast_data import open_forecast_data
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.references import open_truth
from tests.data.world import parsed, raw_config
from tests.support.custom_objects import no_objects_left

__all__ = ["no_objects_left"]

START = np.datetime64("2000-01-05", "ns")


@pytest.mark.parametrize(("start", "is_noted"), [("1999-12-30", False), (START, True)])
def test_a_persistent_source_behind_its_dates(world, start, is_noted):
    """Its fields are those of the last date of the config, whatever the start is."""
    raw = raw_config(
        world,
        data__source__ERA5__temporal_mode="persist",
        data__start_datetime="1999-12-25",
        data__end_datetime="2000-01-02",
    )
    starts = np.array([start], "datetime64[ns]")
    data = open_forecast_data(parsed(raw).data, starts, 2)
    notes = data.notes_on_persistence(starts, 2)
    assert len(notes) == is_noted
    for note in notes:
        assert note.startswith("data.source.ERA5: temporal_mode: persist: 1 of 1")
        assert "2000-01-0" in note


@pytest.mark.parametrize(
    "opened",
    [
        lambda data: open_forecast_data(data, [START], 2),
        lambda data: open_truth(NamedData(data), np.array([START])),
        open_dataset,
    ],
    ids=["forecast", "truth", "training"],
)
def test_one_rule_for_calendars(world, opened):
    """Start dates in a calendar with more dates than the files are refused, always."""
    raw = raw_config(
        world, data__source__ERA5__calendar="noleap", data__calendar="standard"
    )
    data = parsed(raw).data
    with pytest.raises(
        ValueError, match=r"ERA5: has the calendar noleap.* fewer dates"
    ):
        opened(data)


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


@pytest.mark.usefixtures("no_objects_left")
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
