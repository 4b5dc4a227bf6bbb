"""Resolves a config section to the degree of every axis and collects all problems.

A section may use the names of `ParallelDims` or of CREDIT; problems are reported with
the names of the section.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic import BaseModel

from credit_jax.config.base import nearest_key
from credit_jax.config.messages import divisors, got
from credit_jax.config.parallelism import DATA_MODES, data_problems, degree_problems
from credit_jax.parallel.mesh.axes import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    ORDER,
    PP,
    TP,
)
from credit_jax.parallel.mesh.model_fit import ULYSSES

ETP = "etp"
REST = -1

# Accepted keys of each degree: its name, CREDIT's names, cp for context parallelism.
NAMES = {
    DP_REPLICATE: (DP_REPLICATE,),
    DP_SHARD: (DP_SHARD, "dp"),
    EP: (EP,),
    PP: (PP,),
    TP: (TP, "tensor"),
    DOMAIN: (DOMAIN, "cp"),
    ETP: (ETP,),
    ULYSSES: (ULYSSES,),
}
KEYS = ("data", *(name for names in NAMES.values() for name in names))

Degrees = dict[str, int]


def as_section(config: object) -> dict[str, Any]:
    """Returns the items of a config section whose value is not None.

    Args:
        config: a mapping, a config object, or any object with keys as attributes, of
            which only those in `KEYS` are read.
    """
    if isinstance(config, BaseModel):
        config = config.model_dump()
    elif is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
        config = {key: config[key] for key in KEYS if key in config}
    elif not isinstance(config, Mapping):
        # Objects of other programs need not have all degrees.
        config = {key: getattr(config, key, None) for key in KEYS}
    return {key: value for key, value in config.items() if value is not None}


def whole_number(value: Any) -> int | None:
    """Returns the integer that a value such as 2, 2.0 or "2" stands for, or None."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if isinstance(value, float) and number != value else number


def resolve(section: Mapping[str, Any], world_size: Any) -> tuple[Degrees, list[str]]:
    """Resolves all degrees of a section for a number of devices.

    Args:
        section: see `ParallelDims.from_config`; dp_shard -1 takes all remaining
            devices.
        world_size: number of devices.

    Returns:
        degrees: degree of every axis, etp, ulysses_degree if given, and world_size, the
            number of devices that are used. Valid only if there are no problems.
        problems: one line each.
    """
    degrees, names, problems = _read(section)
    data = section.get("data")
    problems += data_problems(data, degrees.get(DP_REPLICATE), degrees.get(DP_SHARD))
    remainder = None  # the axis that takes all remaining devices
    if degrees.get(DP_SHARD) == REST or data == "none":
        remainder = DP_SHARD
    elif data == "ddp" and DP_REPLICATE not in degrees:
        remainder = DP_REPLICATE
    degrees = dict.fromkeys(ORDER, 1) | degrees
    degrees.setdefault(ETP, degrees[TP])
    if (pp := degrees[PP]) != 1:
        problems.append(
            f"pp is {pp}, but no model has pipeline stages: with m micro-batches they "
            f"would idle {pp - 1} / (m + {pp - 1}) of the time, {(pp - 1) / pp:.0%} at "
            "CREDIT's 1, and fsdp splits parameters without that (docs/scaling.md); "
            "use pp: 1 and data: fsdp2"
        )
    problems += degree_problems(
        tp=degrees[TP],
        domain=degrees[DOMAIN],
        etp=degrees[ETP],
        ulysses_degree=degrees.get(ULYSSES),
        names=names,
    )
    world = whole_number(world_size)
    if world is None or world < 1:
        problems.append(f"world_size must be an integer >= 1, got {got(world_size)}")
    elif remainder:
        degrees, wrong = _fill(degrees, names, remainder, world)
        problems += wrong
    else:
        problems += _product_problems(degrees, names, world)
    if data == "none":
        degrees |= {DP_REPLICATE: 1, DP_SHARD: 1}
        world = math.prod(degrees[axis] for axis in ORDER)
    return degrees | {"world_size": world or 1}, problems


def _read(section: Mapping[str, Any]) -> tuple[Degrees, dict[str, str], list[str]]:
    """Returns the degrees of a section, their names in it, and problems of its keys."""
    problems = []
    for key in sorted(set(section) - set(KEYS), key=str):
        problems.append(f"{key}: unknown key; {nearest_key(key, KEYS)}")
    if section.get("data") not in (None, *DATA_MODES):
        problems.append(
            f"data must be 'fsdp2', 'ddp', or 'none', got {got(section['data'])}"
        )
    degrees: Degrees = {}
    names: dict[str, str] = {}
    for degree, keys in NAMES.items():
        numbers: Degrees = {}
        for key in keys:
            if section.get(key) is None:
                continue
            number = whole_number(section[key])
            least = "-1 (the rest) or " if degree == DP_SHARD else ""
            if number is None or (number < 1 and not (least and number == REST)):
                problems.append(
                    f"{key} must be {least}an integer >= 1, got {got(section[key])}"
                )
            else:
                numbers[key] = number
        # A 1 is ignored as a default if another name gives a larger degree.
        said = {key: n for key, n in numbers.items() if n != 1} or numbers
        if len(set(said.values())) > 1:
            listed = " and ".join(f"{key} is {n}" for key, n in said.items())
            problems.append(f"{listed}, but they name one degree; give one of them")
        if said:
            names[degree], degrees[degree] = next(iter(said.items()))
    return degrees, names, problems


def _fill(
    degrees: Degrees, names: Mapping[str, str], remainder: str, world: int
) -> tuple[Degrees, list[str]]:
    """Returns `degrees` with all remaining devices on `remainder`, and problems."""
    displayed = [
        axis
        for axis in ORDER
        if axis != remainder and (degrees[axis] > 1 or axis in (TP, DOMAIN))
    ]
    labels = {axis: names.get(axis, axis) for axis in displayed}
    product = math.prod(degrees[axis] for axis in displayed)
    if world % product == 0:
        return degrees | {remainder: world // product}, []
    formula = "*".join(labels.values())
    terms = " x ".join(f"{labels[axis]} {degrees[axis]}" for axis in displayed)
    return degrees | {remainder: 1}, [
        f"world_size={world} not divisible by {formula}={product} ({terms}); with "
        f"{world} devices {formula} can be {divisors(world)}"
    ]


def _product_problems(
    degrees: Degrees, names: Mapping[str, str], world: int
) -> list[str]:
    """Returns the problem if given degrees do not multiply to `world`."""
    product = math.prod(degrees[axis] for axis in ORDER)
    if product == world:
        return []
    terms = " x ".join(
        f"{names.get(axis, axis)} {degrees[axis]}"
        for axis in ORDER
        if degrees[axis] > 1 or axis == DP_SHARD
    )
    others = product // degrees[DP_SHARD]
    shard = names.get(DP_SHARD, DP_SHARD)
    if world % others == 0:
        advice = f"{shard} would fit with {world // others}, or -1 (the rest)"
    else:
        advice = (
            f"the degrees beside {shard}, {others} together, must divide {world}: "
            f"{divisors(world)} would fit"
        )
    return [f"{terms} = {product} devices, but world_size is {world}; {advice}"]
