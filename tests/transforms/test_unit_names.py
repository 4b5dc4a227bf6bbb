"""Names of units that certainly differ."""

import pytest

from credit_jax.transforms.unit_names import EXPECTED, differ


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        ("Pa", "hPa", True),
        ("mbar", "hPa", False),
        ("Pa", "pascals", False),
        ("K", "degrees_C", True),
        ("degC", "degree_Celsius", False),
        ("kg kg**-1", "kg/kg", False),
        ("kg kg-1", "g/kg", True),
        ("m s^-1", "m/s", False),
        ("m s**-1", "knots", True),
        ("m**2 s**-2", "gpm", True),
        ("m of water equivalent", "m", False),
        ("mm", "m", True),
        ("Pa", "K", True),
        ("m", "m/s", True),
        ("m of water equivalent", "m2/s2", True),
        ("K", "blob", False),
        ("(0 - 1)", "1", False),
    ],
)
def test_names(one, other, result):
    assert differ(one, other) is result
    assert differ(other, one) is result


def test_every_expected_unit_is_known():
    wrong = {"Pa": "hPa", "K": "degC", "kg/kg": "g/kg", "m/s": "knots", "Pa/s": "hPa/s"}
    wrong |= {"m2/s2": "gpm", "m": "mm"}
    for unit in EXPECTED.values():
        assert differ(unit, wrong[unit])
