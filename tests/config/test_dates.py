"""Dates of configs and of command lines: ISO 8601 alone."""

import datetime

import numpy as np
import pandas as pd
import pytest

from credit_jax.config.dates import date_label


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("2001-06-02", "2001-06-02"),
        ("2001-06-02T06", "2001-06-02T06"),
        ("2001-06-02 06:30:15.5", "2001-06-02T06:30:15.5"),
        ("2001-06-02T06:00Z", "2001-06-02T06"),
        ("2001-06-02T06:00+02:00", "2001-06-02T04"),
        ("20010602T0600", "2001-06-02T06"),
        ("20010602", "2001-06-02"),
        ("2001-06", "2001-06-01"),
        ("2001", "2001-01-01"),
        (datetime.datetime(2001, 6, 2, 6), "2001-06-02T06"),
        (np.datetime64("2001-06-02T06", "ns"), "2001-06-02T06"),
        (str(np.datetime64("2001-06-02T06", "ns")), "2001-06-02T06"),
    ],
)
def test_dates_of_iso_8601(given, label):
    assert date_label(given) == pd.Timestamp(label)
