"""Texts of errors: expected and actual values, the nearest name, counts."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

# What is expected, by the beginning of pydantic's type of an error.
_EXPECTED = {
    ("mapping", "model_", "dict_"): "must be a section of keys",
    ("int_",): "must be an integer",
    ("float_",): "must be a number",
    ("finite_number",): "must be a finite number",
    ("bool_",): "must be true or false",
    ("string_type",): "must be a string",
    ("tuple_type", "list_type"): "must be a list",
    ("literal_error",): "must be one of {expected}",
    ("union_tag_invalid",): "must be one of {expected_tags}",
    ("greater_than_equal",): "must be at least {ge}",
    ("greater_than",): "must be greater than {gt}",
    ("less_than_equal",): "must be at most {le}",
    ("less_than",): "must be less than {lt}",
    ("too_short",): "must have at least {min_length} entries",
    ("too_long",): "must have at most {max_length} entries",
    ("missing", "union_tag_not_found"): "missing; this key is required",
}
_FACTOR = re.compile(r"(/?)([A-Za-zµ°%]+)(?:\*\*|\^)?([-+]?\d+)?")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def superscript(number: int) -> str:
    """A number in superscript digits."""
    return str(number).translate(_SUPERSCRIPTS)


def typeset_units(units: str, power: int = 1) -> str:
    """Units of files to a power, as set in print; those of no known form stay.

    >>> [typeset_units(text) for text in ("m s**-1", "kg m^-2 s-1", "W/m2", "(0 - 1)")]
    ['m s⁻¹', 'kg m⁻² s⁻¹', 'W m⁻²', '(0 - 1)']
    >>> typeset_units("m**2 s**-2", 2), typeset_units("dB(Z)", 2)
    ('m⁴ s⁻⁴', '(dB(Z))²')
    """
    factors = [_FACTOR.fullmatch(text) for text in units.replace("/", " /").split()]
    if not all(factors):
        return units if power == 1 else f"({units}){superscript(power)}"
    parts = []
    for slash, name, exponent in (match.groups() for match in factors if match):
        number = power * int(exponent or 1) * (-1 if slash else 1)
        parts.append(name if number == 1 else f"{name}{superscript(number)}")
    return " ".join(parts)


def describe(kind: str, value: Any, detail: Mapping[str, Any] | None = None) -> str:
    """Why `value` was rejected, such as "must be an integer, got 'two'"."""
    context = dict((detail or {}).get("ctx", {}))
    if kind == "value_error":
        return str(context["error"])
    expected = (detail or {}).get("msg", kind)
    for starts, text in _EXPECTED.items():
        # pydantic's type of error, or "mapping".
        if kind.startswith(starts):
            expected = text.format(**context)
            break
    if expected.startswith("missing"):
        return expected
    if kind == "union_tag_invalid":
        value = context["tag"]
    available = re.findall("'([^']*)'", expected)
    return f"{expected}, got {got(value)}{hint(value, available)}"


def hint(value: Any, available: Iterable[str]) -> str:
    """The end of an error: the known value that a value begins, or is like, if any.

    >>> hint("cosine", ["lambda", "cosine-annealing"]), hint("xyz", ["lambda"])
    (" (nearest: 'cosine-annealing')", '')
    """
    names = sorted(available)
    begun = [name for name in names if value and name.startswith(str(value))]
    candidate = begun[0] if begun else nearest(str(value), names)
    return "" if candidate is None else f" (nearest: {candidate!r})"


def nearest(value: str, available: Iterable[str]) -> str | None:
    """The known value that is most like a value in any case; None if none is."""
    names = {name.casefold(): name for name in sorted(available, reverse=True)}
    close = difflib.get_close_matches(value.casefold(), names, n=1, cutoff=0.6)
    return names[close[0]] if close else None


def got(value: Any) -> str:
    """The repr of `value` for an error message, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def printable(text: str) -> str:
    r"""A text with control characters written out, but for line breaks and tabs."""
    # Names in files of others may hold sequences that a terminal obeys.
    return "".join(x if x.isprintable() or x in "\n\t" else repr(x)[1:-1] for x in text)


def counted(number: int, noun: str) -> str:
    """A number with a noun, in the plural unless it is one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def divisors(number: int) -> str:
    """The divisors of a number as text, for errors that list the valid degrees."""
    low = [
        n
        # Those above 10^5 only with a cofactor of at most 10^5.
        for n in range(1, min(math.isqrt(max(number, 0)), 10**5) + 1)
        if number % n == 0
    ]
    return ", ".join(str(n) for n in sorted({*low, *(number // n for n in low)}))
