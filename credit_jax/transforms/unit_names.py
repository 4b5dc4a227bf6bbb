"""Compares names of units; only known units of the same quantity can differ."""

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
    """Whether two names are known, different units of the same quantity.

    >>> differ("Pa", "hPa"), differ("m s**-1", "m/s"), differ("K", "blob")
    (True, False, False)
    """
    names = _plain(one), _plain(other)
    for family in _FAMILIES:
        places = [
            i
            for name in names
            for i, spellings in enumerate(family)
            if name in spellings
        ]
        if len(places) == 2 and places[0] != places[1]:
            return True
    return False


def _plain(name: str) -> str:
    """Normalizes a name: lower case, without blanks and signs of powers."""
    plain = name.strip().lower().replace("degrees", "deg").replace("degree", "deg")
    for sign in ("**", "^", "-", "_", ".", " ", "°", "(", ")"):
        plain = plain.replace(sign, "")
    return plain
