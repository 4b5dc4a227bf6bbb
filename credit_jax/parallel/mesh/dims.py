"""The degrees of all kinds of parallelism: resolved from a config, and validated.

    devices = dp_replicate x dp_shard x ep x pp x tp x domain

A misconfiguration raises a single error that lists all problems, with the arithmetic
and the degrees that would fit.

A section may use the names of `ParallelDims` or of CREDIT; problems are reported with
the names of the section.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from jax.sharding import Mesh
from pydantic import BaseModel

from credit_jax.config import ConfigError
from credit_jax.config.base import nearest_key
from credit_jax.config.messages import divisors, got
from credit_jax.config.parallelism import DATA_MODES, data_problems, degree_problems
from credit_jax.parallel.mesh.device_mesh import (
    BATCH_AXES,
    DOMAIN,
    DP_AXES,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    ORDER,
    PP,
    TP,
    MeshAxes,
    all_devices,
    built_degrees,
    mesh_of_degrees,
)
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_notes, model_problems

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
    """Returns the items of a config section whose value is not None."""
    if isinstance(config, BaseModel):
        config = config.model_dump()
    elif is_dataclass(config) and not isinstance(config, type):
        names = [each.name for each in fields(config) if each.init]
        config = {name: getattr(config, name) for name in KEYS if name in names}
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
    """Returns degrees, valid without problems, and problems, of a number of devices."""
    degrees, names, problems = _read(section)
    data = section.get("data")
    problems += data_problems(data, degrees.get(DP_REPLICATE), degrees.get(DP_SHARD))
    remainder = None  # the axis that takes all remaining devices
    # A dp_shard of -1 takes all remaining devices.
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


_SOURCE = "parallelism"


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """Degrees that multiply to `world_size`; names of degrees above 1 are mesh axes.

    Attributes:
        dp_replicate: shards samples, replicates parameters.
        dp_shard: shards samples and parameters; -1 for world_size divided by the
            product of the other degrees.
        ep: shards samples and experts.
        etp: shards the units of an expert; tp or 1, None for tp.
        pp: pipeline stages; only 1 is accepted.
        tp: shards heads and feed-forward units.
        domain: shards latitude rows.
        ulysses_degree: number of neighboring domain shards that exchange heads for rows
            around attention, a divisor of domain; None moves complete windows instead.
        world_size: number of devices.
        cp: alias of domain, always equal to it.
        fsdp: axes over which parameters are sharded and gathered.
        dp: data-parallel axes.
        batch: axes over which samples are sharded.
        loss: axes over which a loss is summed: samples and rows.
        dp_size: number of data-parallel replicas: dp_replicate x dp_shard.
        batch_size: number of ranks with different samples: dp_replicate x dp_shard x
            ep.
        non_dp_size: number of devices of a replica: ep x pp x tp x domain.
        dp_enabled, fsdp_enabled: whether there is a data-parallel axis, dp_shard or
            dp_replicate.
        hsdp_enabled: whether both exist.
        ep_enabled, pp_enabled, tp_enabled, domain_enabled, cp_enabled: whether the
            degree is above 1.

    Raises:
        ValueError: listing all problems.

    >>> ParallelDims(dp_replicate=2, dp_shard=-1, tp=2, world_size=8).dp_shard
    2
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    ep: int = 1
    etp: int | None = None
    pp: int = 1
    tp: int = 1
    domain: int = 1
    ulysses_degree: int | None = None
    world_size: int = 1
    cp: int | None = field(default=None, repr=False)
    # What follows from these.
    fsdp: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    dp: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    batch: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    loss: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    dp_size: int = field(default=1, init=False, repr=False, compare=False)
    batch_size: int = field(default=1, init=False, repr=False, compare=False)
    non_dp_size: int = field(default=1, init=False, repr=False, compare=False)
    dp_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    fsdp_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    hsdp_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    ep_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    pp_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    tp_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    domain_enabled: bool = field(default=False, init=False, repr=False, compare=False)
    cp_enabled: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        resolved, problems = resolve(sizes, sizes.pop("world_size"))
        if problems:
            raise ConfigError(problems, _SOURCE)
        copies, shards = resolved[DP_REPLICATE], resolved[DP_SHARD]
        built = built_degrees({axis: resolved[axis] for axis in ORDER})
        groups = {
            "fsdp": (DP_SHARD,),
            "dp": DP_AXES,
            "batch": BATCH_AXES,
            "loss": (*BATCH_AXES, DOMAIN),
        }
        following = {
            **{
                name: tuple(a for a in axes if a in built)
                for name, axes in groups.items()
            },
            "dp_size": copies * shards,
            "batch_size": copies * shards * resolved[EP],
            "non_dp_size": math.prod(resolved[axis] for axis in (EP, PP, TP, DOMAIN)),
            "dp_enabled": copies * shards > 1,
            "fsdp_enabled": copies * shards > 1,
            "hsdp_enabled": min(copies, shards) > 1,
            **{f"{axis}_enabled": resolved[axis] > 1 for axis in (EP, PP, TP, DOMAIN)},
            "cp": resolved[DOMAIN],
            "cp_enabled": resolved[DOMAIN] > 1,
        }
        for name, value in (resolved | following).items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_config(
        cls,
        config: object,
        world_size: int,
        *,
        model: Any = None,
    ) -> ParallelDims:
        """Returns the degrees of a config section.

        Args:
            config: a mapping, or an object with such attributes. Keys are the names of
                the degrees, or CREDIT's {data, tensor, domain}; `cp` is an alias of
                domain and `dp` of dp_shard. Remaining devices go to dp_replicate with
                `data: ddp` and stay idle with `data: none`; otherwise they go to
                dp_shard unless it is given. etp is tp unless it is given.
            world_size: number of devices.
            model: a model definition, or its config; its problems are listed in the
                same error (see `validate_against_model`).

        Raises:
            ValueError: listing all problems.

        >>> ParallelDims.from_config({"data": "fsdp2", "tensor": 4}, 8).dp_shard
        2
        """
        section = as_section(config)
        if section.get("data", "fsdp2") == "fsdp2" and "dp" not in section:
            section = {DP_SHARD: REST} | section
        resolved, problems = resolve(section, world_size)
        if model is not None:
            problems += model_problems(model, resolved)
        if problems:
            raise ConfigError(problems, _SOURCE)
        return cls(**resolved)

    def validate_against_model(self, model: Any) -> list[str]:
        """Checks the degrees against a model before it is built.

        tp must divide the heads and feed-forward units of every stage, ulysses_degree
        the heads per tp device, ep the experts. Rows and windows run on any domain
        degree.

        Args:
            model: a model definition, or its config.

        Returns:
            Notes on rows and windows that are uneven over shards, one line each.

        Raises:
            ValueError: listing all sizes that do not fit.
        """
        degrees = {name: getattr(self, name) for name in (*ORDER, ULYSSES)}
        problems = model_problems(model, degrees)
        if problems:
            raise ConfigError(problems, _SOURCE)
        return model_notes(model, self.domain, self.ulysses_degree or 1)

    def build_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Builds the mesh of the degrees above 1, outermost first as in `axes.ORDER`.

        Args:
            devices: `world_size` devices in rank order; None for the first `world_size`
                devices of all processes.

        Raises:
            ValueError: the number of devices is not `world_size`; or ulysses_degree or
                etp is given, which are no axes of a mesh and would be lost.
        """
        degrees = {ULYSSES: (self.ulysses_degree or 1, 1), ETP: (self.etp, self.tp)}
        without_axis = {name: n for name, (n, plain) in degrees.items() if n != plain}
        if without_axis:
            listed = " and ".join(
                f"{name} is {value}" for name, value in without_axis.items()
            )
            raise ValueError(
                f"{listed}, which a Mesh cannot carry; pass the ParallelDims to "
                "build_parallel_model or restore, and take the mesh of the model"
            )
        if devices is None:
            devices = all_devices()[: self.world_size]
        return mesh_of_degrees(self.axis_degrees, devices)

    @property
    def axis_degrees(self) -> dict[str, int]:
        """Axes of the mesh and their degrees; dp_shard 1 if none is above 1."""
        return built_degrees({axis: getattr(self, axis) for axis in ORDER})

    @property
    def mesh_axes(self) -> MeshAxes:
        """The axes for code inside of `shard_map`; needs no devices."""
        axes = MeshAxes.from_degrees(self.axis_degrees)
        return replace(axes, ulysses=self.ulysses_degree or 1)

    def summary(self) -> str:
        """All degrees in one line."""
        names = (*ORDER, ETP)
        degrees = " ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{degrees} | dp={self.dp_size} world={self.world_size}"
