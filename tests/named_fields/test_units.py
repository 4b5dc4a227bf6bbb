"""Units: spellings that are equal, and what can be converted."""

import numpy as np
import pytest

from credit_jax.named_fields.units import EXPECTED, conversion, differ, text_of


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
        ("m2 s-2", "m**2 s**-2", False),
        ("millibar", "mb", False),
        ("kg m-2", "mm", False),
        ("kelvin", "K", False),
        ("W m-2", "J m-2", True),
        ("%", "1", True),
        ("mm day-1", "kg m-2 s-1", True),
        ("cm s-1", "m s-1", True),
        ("radian", "degree", True),
        ("mm", "mm day-1", True),
        ("kg m-3", "1", True),
    ],
)
def test_names(one, other, result):
    assert differ(one, other) is result
    assert differ(other, one) is result


@pytest.mark.parametrize(
    ("of", "to", "expected"),
    [
        ("cm s-1", "m s**-1", (0.01, 0.0)),
        ("%", "1", (0.01, 0.0)),
        ("mm day-1", "kg m-2 s-1", (1 / 86400, 0.0)),
        ("m of water equivalent", "kg m-2", (1000.0, 0.0)),
        ("degC", "K", (1.0, 273.15)),
        ("radians", "degrees", (180 / np.pi, 0.0)),
        ("W m-2", "J m-2", None),
        ("m", "m2 s-2", None),
        ("blob", "K", None),
    ],
)
def test_conversions(of, to, expected):
    found = conversion(of, to)
    assert found == expected or found == pytest.approx(expected, rel=1e-9)


def test_attributes_as_text():
    texts = [text_of({"units": x}, "units") for x in ("K", ["K"], np.array([b"K"]), 1)]
    assert texts == ["K", "K", "K", "1"]


def test_every_expected_unit_is_known():
    wrong = {"Pa": "hPa", "K": "degC", "kg/kg": "g/kg", "m/s": "knots", "Pa/s": "hPa/s"}
    wrong |= {"m2/s2": "gpm", "m": "mm"}
    for unit in EXPECTED.values():
        assert differ(unit, wrong[unit])
