"""The record of a folder of forecasts: the coordinates of what it holds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from credit_jax.data.schedule import ForecastSchedule
from credit_jax.forecast.archive import Archive

GRID = {
    "latitude": np.linspace(75, -75, 6),
    "longitude": np.arange(10) * 36.0,
    "level": np.array([500.0, 850.0]),
}


@pytest.fixture
def archive(tmp_path):
    schedule = ForecastSchedule(
        np.array(["2000-01-01"], "datetime64[ns]"), 2, pd.Timedelta("6h")
    )
    made = Archive(tmp_path, schedule, {"steps": 2}, {}, GRID)
    made.create()
    return made


def test_the_same_coordinates(archive):
    archive.check((), resume=True)
    rounded = {name: np.float32(values) for name, values in GRID.items()}
    replace(archive, coordinates=rounded).check((), resume=True)


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("latitude", GRID["latitude"][::-1], "latitudes from 75 to -75, this run from"),
        ("longitude", (GRID["longitude"] + 180) % 360, "in another order"),
        ("level", np.array([850.0, 500.0]), "levels from 500 to 850"),
        ("latitude", GRID["latitude"] + 1, r"forecast\.json: 6 latitudes run from 75"),
        ("level", np.array([500.0, 925.0]), r"has the levels \[500.0, 850.0\]"),
        ("latitude", np.ones((6, 10)), "in another order"),
    ],
)
def test_other_coordinates_are_refused(archive, name, values, text):
    other = replace(archive, coordinates={**GRID, name: values})
    with pytest.raises(ValueError, match=text):
        other.check((), resume=True)


def test_files_that_were_changed_are_refused(archive):
    names = ("preblocks.per_step.scale.args.mean_path", "model.edge_path")
    # What the record has no digest of is not compared.
    replace(archive, digests=dict.fromkeys(names, "1")).check((), resume=True)
    (archive.folder / "forecast.json").unlink()
    before = replace(archive, digests=dict.fromkeys(names, "1"))
    before.create()
    before.check((), resume=True)
    with pytest.raises(ValueError, match=rf"the files of {names[1]}: they were"):
        replace(before, digests={names[0]: "1", names[1]: "2"}).check((), resume=True)


def test_a_record_of_an_earlier_version(archive):
    path = archive.folder / "forecast.json"
    path.write_text('{"identity": {"steps": 2}, "provenance": {}}')
    turned = {name: values[::-1] for name, values in GRID.items()}
    replace(archive, coordinates=turned).check((), resume=True)
