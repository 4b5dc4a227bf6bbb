"""The `pbs:` and `slurm:` sections of a config, in CREDIT's keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from credit_jax.config import ConfigError, StrictModel, parse
from credit_jax.config.messages import got

Scheduler = Literal["pbs", "slurm"]

OTHER_NAMES = {
    "conda_env": "conda",
    "account": "project",
    "gpus": "ngpus",
    "cpus": "ncpus",
    "partition": "queue",
}
_MOST = 100_000  # nodes of a job, and processors of a node
_WALLTIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,5}):([0-5]?\d):([0-5]?\d)")
_WORKERS = "read by CREDIT's older scripts only"
# What a shell and a scheduler take for one word, and not for an option.
_WORD = r"[\w.+@:=/,~][\w.+@:=/,~-]*"


def _matching(pattern: str, text: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {text}, got {got(value)}")
        return value

    return AfterValidator(check)


_Word = Annotated[
    str,
    # Accounts of digits and megabytes of SLURM are numbers in YAML.
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    _matching(_WORD, "one word for the job script"),
]
_Memory = Annotated[
    _Word,
    _matching(r"\d+(\.\d+)?[kKmMgGtT]?[bB]?", "an amount such as 480GB"),
]
# SLURM joins constraints by & and |.
_Constraint = Annotated[str, _matching(r"[\w&|,.*!@()\[\]+-]+", "without spaces")]
_Modules = Annotated[str, _matching(rf"\s*{_WORD}(\s+{_WORD})*\s*", "names of modules")]
_Lines = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)


class JobSection(StrictModel):
    """Resources that a job requests; `ngpus`, `ncpus` and `mem` are per node.

    The other names that CREDIT reads are accepted, too: `conda_env`, `account`, `gpus`,
    `cpus`, `partition`.

    Attributes:
        project: account to charge; null leaves it to the scheduler.
        job_name: name of the job.
        walltime: hours, minutes and seconds, which days may precede as SLURM has them.
        nodes: hosts of the job.
        ngpus: GPUs of a node.
        ncpus: cores of a node.
        mem: memory of a node; null leaves it to the scheduler.
        queue: queue of PBS, partition of SLURM.
        gpu_type: kind of GPU; null and "any" take any.
        qos, constraint: quality of service and constraint of SLURM.
        conda: environment to activate, by name or path; null takes the interpreter of
            the command that submits.
        modules: modules to load, one text or a list.
        env_setup: lines of shell before the run.

    Differs from CREDIT: `conda` is not required, no default names a project of NCAR,
    and `modules` and `env_setup` also count under `pbs`.
    """

    project: _Word | None = None
    job_name: _Word = "credit_jax"
    walltime: str = "12:00:00"
    nodes: int = Field(1, ge=1, le=_MOST)
    ngpus: int = Field(4, ge=0, le=_MOST)
    ncpus: int = Field(8, ge=1, le=_MOST)
    mem: _Memory | None = None
    queue: _Word | None = None
    gpu_type: _Word | None = None
    qos: _Word | None = None
    constraint: _Constraint | None = None
    conda: _Word | None = None
    modules: Annotated[tuple[_Modules, ...], _Lines] = ()
    env_setup: Annotated[tuple[str, ...], _Lines] = ()

    ignored: ClassVar = dict.fromkeys(
        ("bash", "batch", "jobs", "tasks_per_worker", "gpus_per_node", "cpu_type"),
        _WORKERS,
    )

    @field_validator("walltime", mode="before")
    @classmethod
    def _clock(cls, value: Any) -> Any:
        """YAML 1.1 reads 12:00:00 without quotes as a number of seconds."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = clock(value)
        match = _WALLTIME.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"must be hours:minutes:seconds, got {got(value)}")
        days, hours, minutes, seconds = map(int, match.groups("0"))
        total = 86400 * days + 3600 * hours + 60 * minutes + seconds
        if not total:
            raise ValueError(f"must be above zero, got {got(value)}")
        return clock(total)

    @property
    def seconds(self) -> int:
        """The walltime in seconds."""
        hours, minutes, seconds = map(int, self.walltime.split(":"))
        return 3600 * hours + 60 * minutes + seconds


def clock(seconds: int) -> str:
    """Hours, minutes and seconds as schedulers read them."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def job_section(
    mapping: Mapping[str, Any], scheduler: Scheduler, overrides: Mapping[str, Any]
) -> JobSection:
    """Returns the section of a scheduler; SLURM takes that of PBS if it has none."""
    section: Any = mapping.get(scheduler)
    name: str = scheduler
    if section is None and scheduler == "slurm" and mapping.get("pbs") is not None:
        section, name = mapping["pbs"], "pbs"
    if section is None:
        raise ConfigError(
            [
                f"{scheduler}: missing; it says what a job asks for: project, "
                "walltime, nodes, ngpus, ncpus, mem, queue, conda"
            ]
        )
    if not isinstance(section, Mapping):
        raise ConfigError([f"{name}: must be a mapping, got {got(section)}"])
    # A key under its main name takes precedence.
    others = {OTHER_NAMES[k]: v for k, v in section.items() if k in OTHER_NAMES}
    main = {k: v for k, v in section.items() if k not in OTHER_NAMES}
    return parse(JobSection, others | main | {**overrides}, name)
