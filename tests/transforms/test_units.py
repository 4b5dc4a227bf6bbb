"""Units of channels."""

from credit_jax.transforms.units import Units, channel_units
from tests.transforms.cases import CONCAT, T, group, preblocks


def test_units_without_a_normalizer():
    units = channel_units(preblocks(concat=CONCAT).normalizer, [group(T, 2)])
    assert isinstance(units, Units)
    assert units.std.tolist() == [1, 1]
