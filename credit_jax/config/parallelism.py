"""`trainer.parallelism` and `trainer.fsdp`: degrees of the mesh, parameter sharding."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from credit_jax.config.base import StrictModel, parse
from credit_jax.config.messages import divisors

DATA_MODES = ("fsdp2", "ddp", "none")


class FsdpConfig(StrictModel):
    """How parameters are sharded: over the replicas of `data: fsdp2`, and over domain.

    Attributes:
        reshard_after_forward: whether a block's parameters are gathered again in the
            backward pass: true, false, or the number of blocks that stay gathered.
        min_shard_size: parameters with fewer elements are replicated.
        keep_whole: patterns of the paths of parameters to replicate
            ("stages/0/embed/*").
        over_domain: whether to shard parameters over `domain`, too, so that its devices
            share the memory and the work of the update. They are gathered once per
            forward; with `data: fsdp2` in each block, over dp_shard first, of which a
            device then moves only its share.

    Differs from CREDIT: CREDIT has no such section and ignores it.
    """

    reshard_after_forward: bool | Annotated[int, Field(ge=0)] = True
    min_shard_size: int = Field(default=1024, ge=0)
    keep_whole: tuple[str, ...] = ()
    over_domain: bool = False


class ParallelismConfig(StrictModel):
    """Degrees of parallelism: CREDIT's three keys, and further ones.

    devices = dp_replicate x dp_shard x ep x pp x tensor x domain. Data-parallel degrees
    that are null are derived from the number of devices.

    Attributes:
        data: "fsdp2" shards parameters and samples over the replicas, "ddp" only the
            samples; "none" is one replica.
        tensor: tensor-parallel degree, over which the heads and feed-forward units of a
            block are split.
        domain: domain-parallel degree, over which the latitude rows of a field are
            split.
        dp_replicate: number of groups of devices that each have a copy of all
            parameters. With fsdp2, parameters are sharded within a group (HSDP).
        dp_shard: number of devices that a parameter is sharded over; -1 is the rest.
        ep, etp: number of devices that the experts of a layer, and its samples, are
            split over; and number that the units of one expert are split over
            (`tensor`, the default, or 1).
        pp: pipeline stages; only 1 is accepted.
        cp: alias of `domain`.
        ulysses_degree: size of groups of neighboring devices along `domain` that
            exchange heads for rows around attention (all-to-all); it divides `domain`.
            null moves whole windows instead.

    Differs from CREDIT: the keys after `domain` are not CREDIT's.
    """

    data: Literal["fsdp2", "ddp", "none"] = "none"
    tensor: int = Field(1, ge=1)
    domain: int = Field(1, ge=1)
    dp_replicate: int | None = Field(None, ge=1)
    dp_shard: Annotated[int, Field(ge=1)] | Literal[-1] | None = None
    ep: int = Field(1, ge=1)
    etp: int | None = Field(None, ge=1)
    pp: int = Field(1, ge=1)
    cp: int | None = Field(None, ge=1)
    ulysses_degree: int | None = Field(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _domain_of_cp(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or value.get("domain") is not None:
            return value
        cp = str(value.get("cp"))
        return {**value, "domain": int(cp)} if cp.isdigit() else value

    def conflicts(self) -> Iterator[str]:
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
            yield "; and ".join(problems)


def parse_parallelism(text: str) -> ParallelismConfig:
    """Parses the parallelism of a command line, "data=none,tensor=2,domain=2"."""
    entries = [entry.partition("=") for entry in text.split(",") if entry.strip()]
    wrong = ["".join(entry) for entry in entries if not (entry[1] and entry[2].strip())]
    if wrong:
        raise ValueError(
            f"--parallelism: got {', '.join(map(repr, wrong))}, expected KEY=VALUE "
            "pairs such as data=none,tensor=2,domain=2"
        )
    texts = {key.strip(): value.strip() for key, _, value in entries}
    section = {k: int(x) if x.lstrip("-").isdigit() else x for k, x in texts.items()}
    return parse(ParallelismConfig, section, "--parallelism")


def data_problems(
    data: str | None, dp_replicate: int | None, dp_shard: int | None
) -> list[str]:
    """Checks `data` against the two data-parallel degrees, one line per conflict."""
    degrees = {"dp_replicate": dp_replicate, "dp_shard": dp_shard}
    asked = [f"{key} is {n}" for key, n in degrees.items() if n not in (None, 1)]
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
    """Conflicts of `etp` and `ulysses_degree` with tp and domain, one line each."""
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
