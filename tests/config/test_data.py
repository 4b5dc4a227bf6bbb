"""The section `data`: its dates."""

import pytest

from credit_jax.config.data import in_training, raw_ranges

PERIODS = (("2000-01-01", "2000-01-31T18:00"), ("2001-01-01", "2001-01-31"))


@pytest.mark.parametrize(
    ("times", "count"),
    [
        (["2000-02-01", "1999-12-31T18", "2001-01-31T06"], 0),
        (["2000-01-01", "2000-01-31T18", "2000-02-01"], 2),
        (["2001-01-31", "2001-01-15T12"], 2),
    ],
)
def test_dates_of_the_training_are_counted(times, count):
    text = in_training(times, PERIODS)
    if not count:
        assert text == ""
        return
    assert text.startswith(f"{count} of {len(times)} dates are in the training period")
    assert "2000-01-01 to 2000-01-31T18:00, 2001-01-01 to 2001-01-31" in text
    assert text.endswith("and not held out")


@pytest.mark.parametrize(
    ("data", "ranges"),
    [
        ({"start_datetime": "2000-01-01", "end_datetime": "2000-01-02"}, 1),
        ({"date_ranges": [["2000-01-01", "2000-01-02"]]}, 1),
        ({"start_datetime": "2000-01-01"}, 0),
        (None, 0),
    ],
)
def test_ranges_of_a_config_that_was_written(data, ranges):
    assert raw_ranges({"data": data}) == (("2000-01-01", "2000-01-02"),) * ranges
