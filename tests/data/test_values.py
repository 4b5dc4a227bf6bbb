"""Values that are NaN, infinite, or fill values read as numbers."""

import numpy as np
import pytest

from tests.data.damaged import load, refused, rewrite


def test_nan_in_the_first_sample(folder):
    def damage(dataset):
        dataset["T"][12, 2, 0, :3] = np.nan
        return dataset

    rewrite(folder / "w_1999.nc", damage)
    refused(
        folder,
        "T 5 of the input",
        "1999-12-28T00:00 has 3 of 60 values",
    )


def test_nan_later_is_found_when_it_is_read(folder):
    def damage(dataset):
        dataset["TP"][4] = np.inf
        return dataset

    rewrite(folder / "w_2000.nc", damage)
    loader = load(folder, trainer__thread_workers=2)
    with pytest.raises(ValueError, match=r"TP of the target.*has 60 of 60 values"):
        list(loader.epoch(0))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (9.96921e36, "SP at 1999-12-28T00:00 has 6 of 60 values that are 9.96921e+36"),
        (-9999.0, "SP at 1999-12-28T00:00 has 6 of 60 values that are -9999, a fill"),
    ],
)
def test_fill_value_read_as_a_number(folder, number, text):
    def damage(dataset):
        dataset["SP"][12, 2:4, :3] = number
        dataset["SP"].encoding["_FillValue"] = None
        return dataset

    rewrite(folder / "w_1999.nc", damage)
    refused(folder, f"{folder}/w_1999.nc: data.source.ERA5: {text}")


def test_declared_fill_values_are_nan(folder):
    def damage(dataset):
        dataset["SP"][12, 2:4, :3] = np.nan
        dataset["SP"].encoding["_FillValue"] = -9999.0
        return dataset

    rewrite(folder / "w_1999.nc", damage)
    refused(folder, "SP of the input", "has 6 of 60 values that are NaN")
