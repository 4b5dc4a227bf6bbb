"""Units of variables and axes: the texts of CF and of GRIB as pint's units."""

from __future__ import annotations

import logging
import re
import tokenize
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

# Key of a variable -> its unit and the file or checkpoint that says so.
VariableUnits: TypeAlias = Mapping[str, tuple[str, str]]

# Texts in lower case that pint reads as something else, or not at all.
_ALIASES = {
    **dict.fromkeys(("(0 - 1)", "(0-1)", "0-1", "fraction", "proportion"), "1"),
    **dict.fromkeys(("mb", "mbs"), "millibar"),
    **dict.fromkeys(("k", "deg k", "degree_k", "degrees_k"), "kelvin"),
    **dict.fromkeys(("c", "deg c", "°c", "degree_c", "degrees_c"), "degC"),
    **dict.fromkeys(("degree celsius", "degrees celsius"), "degC"),
    **dict.fromkeys(("f", "deg f", "degree_f", "degrees_f"), "degF"),
    # A mass in pint.
    **dict.fromkeys(("blob", "blobs"), ""),
    **{"pa": "Pa", "hpa": "hPa", "kpa": "kPa", "gpdm": "dam", "gpm": "m"},
}
_WATER = re.compile(r" of (liquid )?water( equivalent)?$", re.IGNORECASE)
# Density of water, kg m-3, by which depths of it are masses.
_OF_WATER = 1000.0

# Standard name -> SI unit.
UNIT_OF: Mapping[str, str] = {
    "eastward_wind": "m/s",
    "northward_wind": "m/s",
    "air_temperature": "K",
    "surface_air_pressure": "Pa",
}
# CF's attributes of latitudes and longitudes.
DEGREES: Mapping[str, Mapping[str, str]] = {
    "latitude": {"standard_name": "latitude", "units": "degrees_north"},
    "longitude": {"standard_name": "longitude", "units": "degrees_east"},
}

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


def text_of(attributes: Mapping[Any, Any], key: str) -> str:
    """An attribute of a file as text, "" if there is none."""
    value = attributes.get(key)
    parts = [] if value is None else np.asarray(value).ravel().tolist()
    return " ".join(p.decode() if isinstance(p, bytes) else str(p) for p in parts)


@cache
def unit_of(text: str) -> Any:
    """Pint's unit of a text; None for one that is not known, and for none."""
    plain = _WATER.sub("", " ".join(text.split()))
    plain = _ALIASES.get(plain.lower(), plain)
    for spelling in (plain, plain.lower()):
        if spelling:
            try:
                return _registry().parse_units(spelling)
            except (
                ValueError,
                TypeError,
                AttributeError,
                AssertionError,
                SyntaxError,
                tokenize.TokenError,
            ):
                continue
    return None


@cache
def _registry() -> Any:
    # pint and its registry take half a second, which not every command needs. What
    # cf-xarray defines anew, pint logs as warnings.
    logging.getLogger("pint.util").setLevel(logging.ERROR)
    from cf_xarray.units import units

    return units


@cache
def conversion(of: str, to: str) -> tuple[float, float] | None:
    """Factor and offset from one unit to another; None if there are none."""
    first, second = unit_of(of), unit_of(to)
    if first is None or second is None:
        return (1.0, 0.0) if of == to else None
    registry = _registry()
    depths = registry.m.dimensionality, (registry.m / registry.s).dimensionality
    # Depths of water are masses: 1 mm is 1 kg m-2. A rate is no accumulation.
    is_water = first.dimensionality in depths or second.dimensionality in depths
    for power in (0, 1, -1) if is_water else (0,):
        unit = first * registry.Unit("kg / m**3") ** power if power else first
        if unit.is_compatible_with(second):
            zero, one = (
                float(registry.Quantity(x * _OF_WATER**power, unit).to(second).m)
                for x in (0.0, 1.0)
            )
            return float(f"{one - zero:.12g}"), float(f"{zero:.12g}")
    return None


def differ(one: str, other: str) -> bool:
    """Whether two units are known and numbers in them differ."""
    both = unit_of(one) is not None and unit_of(other) is not None
    return both and conversion(one, other) != (1.0, 0.0)


def comparable(one: str, other: str) -> bool:
    """Whether `differ` can tell: both units are known, or they are the same."""
    return one.split() == other.split() or None not in (unit_of(one), unit_of(other))


def unique_names(variables: Sequence[tuple[str, str]]) -> list[str]:
    """The names of (name, key) pairs; keys where a name occurs twice."""
    names = [name for name, _ in variables]
    return [name if names.count(name) == 1 else key for name, key in variables]


def unit_problems(base: VariableUnits, units: VariableUnits) -> list[str]:
    """A line for each variable of a run that has another unit in its base."""
    expected, here = (
        dict(zip(unique_names([(k.split("/", 2)[2], k) for k in x]), x, strict=True))
        for x in (base, units)
    )
    # Names of units that are not known differ from none.
    problems = []
    for name, key in here.items():
        unit, path = units[key]
        recorded, origin = base[expected[name]] if name in expected else (unit, path)
        if differ(unit, recorded):
            problems.append(
                f"{path}: variable {name.split('/')[-1]!r} has units {unit!r}, "
                f"expected {recorded!r} as in {origin}; bring the file to that unit"
            )
    return problems
