"""Targets of gradients: the regions that their texts name."""

import numpy as np
import pytest

from credit_jax.extensions.adjoint.target import parse_target
from credit_jax.forecast.outputs import Outputs
from credit_jax.named_fields.variables import Variable

LONGITUDES = {
    "10W..20E": ((350.0, 360.0), (0.0, 20.0)),
    "170E..170W": ((170.0, 190.0),),
    "350..10E": ((350.0, 360.0), (0.0, 10.0)),
    "60..30W": ((300.0, 330.0),),
    "30..60W": ((300.0, 330.0),),
    "30W..60W": ((300.0, 330.0),),
    "0..0E": ((0.0, 0.0),),
    "0..360E": None,
    "180W..180E": None,
}


@pytest.mark.parametrize(("text", "expected"), LONGITUDES.items())
def test_longitudes(text, expected):
    region = parse_target(f"mean T500 in {text}").region
    assert region.longitudes == expected
    assert region.latitudes == ((-90.0, 90.0),)


def test_a_variable_named_like_a_level_of_another():
    """U10, the wind at 10 m, beside U at level 10, in any order."""
    deep = Variable("era/prognostic/3d/U", np.array([5.0, 10.0]))
    flat = Variable("era/diagnostic/2d/U10")
    for variables in ((deep, flat), (flat, deep)):
        outputs = Outputs(variables, np.zeros(1), np.zeros(1))
        places = {
            name: parse_target(f"mean {name}").place(outputs)
            for name in ("U5", "U10", "U_10")
        }
        assert places == {
            "U5": (deep.key, 0, "U"),
            "U10": (flat.key, 0, "U10"),
            "U_10": (deep.key, 1, "U"),
        }
    with pytest.raises(ValueError, match="'U_5' is not available"):
        parse_target("mean U_5").place(outputs)


def test_both_in_any_order():
    one, other = (
        parse_target(f"mean SP in {text}").region
        for text in ("60..45S 10W..20E", "10W..20E 45S..60S")
    )
    assert one.latitudes == other.latitudes == ((-60.0, -45.0),)
    assert one.longitudes == other.longitudes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10N..20E", "the range '10N..20E' is not between two latitudes from 90S"),
        ("80..95N", "the range '80..95N' is not between"),
        ("0..400E", "two longitudes from 360W to 360E"),
        ("10..20N 30..40N", "has two ranges of latitude; expected one of latitudes"),
        ("10..20N 30..40E 50..60E", "is neither ranges such as"),
    ],
)
def test_misuse(text, expected):
    with pytest.raises(ValueError, match=f"--of: .*{expected}"):
        parse_target(f"mean T500 in {text}")
