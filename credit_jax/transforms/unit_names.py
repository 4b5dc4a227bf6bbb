"""Compares names of units; only known ones can differ."""

from __future__ import annotations

from collections.abc import Mapping

# For each quantity, the names of each of its units, normalized by `_plain`.
_FAMILIES = (
    (
        {"pa", "pascal", "pascals"},
        {"hpa", "mb", "mbar", "millibar", "millibars"},
        {"kpa"},
    ),
    (
        {"k", "kelvin", "degk"},
        {"c", "degc", "celsius", "degcelsius", "degreecelsius", "degreescelsius"},
        {"f", "degf", "fahrenheit"},
    ),
    ({"kg/kg", "kgkg1"}, {"g/kg", "gkg1"}, {"%", "percent"}),
    ({"m/s", "ms1"}, {"km/h", "kmh1"}, {"kt", "kts", "knot", "knots"}),
    ({"m2/s2", "m2s2"}, {"m", "gpm", "meter", "meters"}, {"dam", "gpdm"}),
    ({"m", "meter", "meters", "mofwaterequivalent"}, {"mm", "kgm2", "kg/m2"}),
    ({"pa/s", "pas1"}, {"hpa/s", "hpas1"}),
)
# Argument of a block that is the key of a variable -> unit of that variable.
EXPECTED: Mapping[str, str] = {
    "surface_pressure_var": "Pa",
    "sp_var": "Pa",
    "temperature_var": "K",
    "T_var": "K",
    "specific_humidity_var": "kg/kg",
    "q_var": "kg/kg",
    **dict.fromkeys(("u_var", "v_var", "U_var", "V_var"), "m/s"),
    "omega_var": "Pa/s",
    "surface_geopotential_var": "m2/s2",
    "precip_var": "m",
    "evapor_var": "m",
}


def differ(one: str, other: str) -> bool:
    """Whether two names are known, different units, perhaps of different quantities.

    >>> differ("Pa", "hPa"), differ("m s**-1", "m/s"), differ("K", "blob")
    (True, False, False)
    """
    first, second = _meanings(one), _meanings(other)
    return bool(first and second) and first.isdisjoint(second)


def comparable(one: str, other: str) -> bool:
    """Whether `differ` can tell: both names are known, or they are the same."""
    return _plain(one) == _plain(other) or bool(_meanings(one) and _meanings(other))


def _meanings(name: str) -> set[tuple[int, int]]:
    """Places in `_FAMILIES` of the units of a name."""
    plain = _plain(name)
    return {
        (number, place)
        for number, family in enumerate(_FAMILIES)
        for place, spellings in enumerate(family)
        if plain in spellings
    }


def _plain(name: str) -> str:
    """Normalizes a name: lower case, without blanks and signs of powers."""
    plain = name.strip().lower().replace("degrees", "deg").replace("degree", "deg")
    for sign in ("**", "^", "-", "_", ".", " ", "°", "(", ")"):
        plain = plain.replace(sign, "")
    return plain
