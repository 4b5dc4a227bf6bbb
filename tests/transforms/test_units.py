"""Units of channels."""

import numpy as np

from credit_jax.transforms import Units, channel_units
from tests.transforms.cases import CONCAT, T, group, preblocks


def test_units_without_a_normalizer():
    units = channel_units(preblocks(concat=CONCAT), [group(T, 2)])
    assert isinstance(units, Units)
    fields = np.arange(8.0).reshape(1, 2, 2, 2)
    assert np.array_equal(units.normalize(fields), fields)
    assert np.array_equal(units.denormalize(fields), fields)
