"""`trainer.parallelism`: how the devices are used, and the rules between its keys."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from credit_jax.config.base import StrictModel, parse
from credit_jax.config.messages import divisors, got

DATA_MODES = ("fsdp2", "ddp", "none")


class FsdpConfig(StrictModel):
    """How parameters are split: over the replicas of `data: fsdp2`, and over domain.

    Attributes:
        reshard_after_forward: whether a block's parameters are gathered again in the
            backward pass: true, false, or the number of blocks that stay gathered.
        min_shard_size: parameters with fewer elements stay whole on every device.
        keep_whole: patterns of parameter paths that stay whole ("stages/0/embed/*").
        over_domain: store parameters split over the devices of `domain`, too, which
            then share their update and its memory; gathered once a forward.

    Differs from CREDIT: it has no such section and ignores it.
    """

    reshard_after_forward: bool | Annotated[int, Field(ge=0)] = True
    min_shard_size: int = Field(default=1024, ge=0)
    keep_whole: tuple[str, ...] = ()
    over_domain: bool = False


class ParallelismConfig(StrictModel):
    """How the devices are used: CREDIT's three keys, and further ones.

    devices = dp_replicate x dp_shard x ep x pp x tensor x domain, and the data-parallel
    degrees that are not given follow from the number of devices.

    Attributes:
        data: "fsdp2" splits parameters and samples over the replicas, "ddp" the samples
            only, "none" asks for one replica.
        tensor: devices that share the heads and feed-forward units of a block.
        domain: devices that share the latitude rows of a field.
        dp_replicate: groups of devices with a whole copy of the parameters each. With
            fsdp2, parameters are split inside a group (HSDP).
        dp_shard: devices that a parameter is split over; -1 is the rest.
        ep, etp: devices that share the experts of a layer, and its samples, too; and
            those that share the units of one expert (`tensor`, the default, or 1).
        pp: pipeline stages; only 1 is accepted.
        cp: another name of `domain`.
        ulysses_degree: neighboring devices along `domain`, a divisor of it, that trade
            heads for rows around attention; without it whole windows move instead.

    Differs from CREDIT: the keys after `domain` are not CREDIT's.
    """

    data: Literal["fsdp2", "ddp", "none"] = "none"
    tensor: int = Field(1, ge=1)
    domain: int = Field(1, ge=1)
    dp_replicate: int | None = Field(None, ge=1)
    dp_shard: int | None = None
    ep: int = Field(1, ge=1)
    etp: int | None = Field(None, ge=1)
    pp: int = Field(1, ge=1)
    cp: int | None = Field(None, ge=1)
    ulysses_degree: int | None = Field(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _domain_of_cp(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "domain" in value:
            return value
        given = str(value.get("cp"))
        return {**value, "domain": int(given)} if given.isdigit() else value

    @field_validator("dp_shard")
    @classmethod
    def _shard(cls, value: int | None) -> int | None:
        if value is not None and value < 1 and value != -1:
            raise ValueError(f"must be at least 1, or -1 (the rest), got {got(value)}")
        return value

    @model_validator(mode="after")
    def _agrees(self) -> "ParallelismConfig":
        problems = data_problems(self.data, self.dp_replicate, self.dp_shard)
        if self.cp is not None and self.cp != self.domain:
            problems.append(
                f"cp is {self.cp} and domain is {self.domain}, but they name one "
                "degree; give one of them"
            )
        problems += degree_problems(
            tp=self.tensor,
            domain=self.domain,
            etp=self.etp,
            ulysses_degree=self.ulysses_degree,
            names={"tp": "tensor"},
        )
        if problems:
            raise ValueError("; and ".join(problems))
        return self


def parse_parallelism(text: str) -> ParallelismConfig:
    """The parallelism section of a command line, "data=none,tensor=2,domain=2".

    Raises:
        ValueError: an entry is no KEY=VALUE, or not understood.
    """
    entries = [entry.partition("=") for entry in text.split(",") if entry.strip()]
    wrong = ["".join(entry) for entry in entries if not (entry[1] and entry[2].strip())]
    if wrong:
        raise ValueError(
            f"--parallelism: got {', '.join(map(repr, wrong))}, expected KEY=VALUE "
            "pairs such as data=none,tensor=2,domain=2"
        )
    section = {key.strip(): _number(value.strip()) for key, _, value in entries}
    return parse(ParallelismConfig, section, "--parallelism")


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def data_problems(
    data: str | None, dp_replicate: int | None, dp_shard: int | None
) -> list[str]:
    """Checks `data` against the two data-parallel degrees, one line per conflict."""
    given = {"dp_replicate": dp_replicate, "dp_shard": dp_shard}
    asked = [f"{key} is {n}" for key, n in given.items() if n not in (None, 1)]
    if data == "none" and asked:
        return [
            f"data is 'none', which asks for one replica, but {' and '.join(asked)}; "
            "use data: fsdp2, or ddp with dp_replicate alone"
        ]
    if data == "ddp" and dp_shard not in (None, 1):
        return [
            f"data is 'ddp', which keeps every parameter whole, but dp_shard is "
            f"{dp_shard}; use data: fsdp2 (with dp_replicate it is HSDP)"
        ]
    return []


def degree_problems(
    *,
    tp: int,
    domain: int,
    etp: int | None,
    ulysses_degree: int | None,
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """Checks `etp` and `ulysses_degree` against tp and domain, one line per conflict.

    Args:
        tp, domain: degrees of the mesh axes.
        etp: must be tp or 1; None is tp.
        ulysses_degree: must be at most domain, and divide it, unless it is None.
        names: keys of tp and domain in the config, where they differ.
    """
    names = names or {}
    problems = []
    if etp not in (None, 1, tp):
        fit = "1" if tp == 1 else f"{tp} or 1"
        problems.append(
            f"etp is {etp}; expected {names.get('tp', 'tp')} or 1, that is {fit}"
        )
    if ulysses_degree is not None and domain % ulysses_degree:
        above = ulysses_degree > domain
        problems.append(
            f"ulysses_degree is {ulysses_degree}, which "
            f"{'is more than' if above else 'does not divide'} "
            f"{names.get('domain', 'domain')} {domain}; would fit: {divisors(domain)}"
        )
    return problems
