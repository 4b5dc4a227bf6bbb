"""Notes of forecasts on what they take, and write, otherwise than one may think."""

import numpy as np
import pytest

from credit_jax.config.base import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.forecast.forecast_data import open_forecast_data
from credit_jax.forecast.plan import notes_on_initial
from credit_jax.transforms import build_pipeline
from tests.data.world import parsed, raw_config

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


@pytest.mark.parametrize("restored", [False, True])
def test_fields_that_are_written_without_units(restored):
    """A log of the initial state alone, which nothing undoes, is noted."""
    args = {"variables": ["ERA5/prognostic/2d/SP"]}
    preblocks = {
        "ic_only": {"log": {"type": "log_transform", "args": args}},
        "per_step": {"concat": {"type": "concat"}},
    }
    after = {"reconstruct": {"type": "reconstruct"}}
    if restored:
        after["exp"] = {"type": "exp_transform", "args": args}
    pipeline = build_pipeline(
        parse(PreblocksConfig, preblocks), parse(PostblocksConfig, {"per_step": after})
    )
    notes = notes_on_initial(pipeline)
    assert len(notes) == (not restored)
    for note in notes:
        assert "preblocks.ic_only.log (type log_transform): changes the initial" in note
        assert "not in physical units" in note
