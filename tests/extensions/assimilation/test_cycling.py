"""Windows one after another: what is said of them."""

import pytest

from credit_jax.extensions.assimilation.cycling import (
    background_variance,
    far_departures,
)
from tests.extensions.assimilation.conftest import *  # noqa: F403
from tests.extensions.assimilation.windows import drawn, observing, window


def test_observations_far_from_the_background_are_said(forecaster, initial):
    """Those in another unit, by variable, with the first row."""
    problem = window(forecaster, initial, drawn(40))
    table = problem.observed.table.assign(value=problem.first.values)
    celsius = table.index[table["variable"] == "T"][2:4]
    table.loc[celsius, "value"] -= 273.15
    table.loc[table["variable"] == "U", "value"] += 3.0
    first = observing(problem, table).first
    (line,) = far_departures(first, background_variance(first, 0))
    count, row = (table["variable"] == "T").sum(), table.loc[celsius[0]]
    assert line.startswith(f"T: 2 of {count} observations more than 10 standard")
    assert f"the first is row {row['row']} of drawn.csv: {row['value']:.6g}, " in line
    assert float(line.rpartition(" ")[2]) == pytest.approx(row["value"] + 273.15)
