"""Start times: CREDIT's master clock."""

import numpy as np
import pytest

from credit_jax.data import open_dataset
from tests.data.world import parsed, raw_config


def starts(raw):
    return open_dataset(parsed(raw).data).starts


def with_second_source(raw, **own):
    first = raw["data"]["source"]["ERA5"]
    raw["data"]["source"]["other"] = {**first, **own}
    return raw


CASES = {
    "one source": {},
    "shorter source": {"start_datetime": "1999-12-30", "end_datetime": "2000-01-02"},
    "coarser source": {"timestep": "12h"},
    "source with ranges": {
        "date_ranges": [["1999-12-26", "1999-12-29"], ["2000-01-01", "2000-01-02"]]
    },
}


@pytest.mark.reference
@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_equals_credits(credit, world, name, history):
    from tests.data.credit_batches import credit_loader

    raw = raw_config(world, data__history_len=history)
    raw = with_second_source(raw, **CASES[name]) if CASES[name] else raw
    theirs = credit_loader(raw, 0, 1, True).dataset.datetimes
    assert np.array_equal(starts(raw), theirs.to_numpy("datetime64[ns]"))


def test_time_zone_is_utc(world):
    raw = raw_config(world, data__start_datetime="1999-12-28T00:00Z")
    assert np.array_equal(starts(raw), starts(raw_config(world)))


def test_no_common_start(world):
    raw = with_second_source(
        raw_config(world), start_datetime="1999-12-25", end_datetime="1999-12-26"
    )
    text = "data.source.other: 1999-12-25 00:00:00 to 1999-12-26 00:00:00 every 0 days"
    with pytest.raises(ValueError, match=text):
        starts(raw)


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([["2000-01-02", "2000-01-01"]], "ends before it begins"),
        ([["2000-01-01", "2000-01-04"], ["2000-01-03", "2000-01-05"]], "overlaps"),
        ([["2000-01-01", "2000-01-03"], ["2000-01-04", "2000-01-04T01"]], "too short"),
    ],
)
def test_bad_ranges(world, ranges, text):
    raw = raw_config(world, data__date_ranges=ranges)
    for key in ("start_datetime", "end_datetime"):
        del raw["data"][key]
    with pytest.raises(ValueError, match=text):
        starts(raw)
