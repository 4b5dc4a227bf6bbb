"""The `pbs:` and `slurm:` sections of a config, in CREDIT's keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

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
_WORDS = ("project", "job_name", "queue", "qos", "conda", "gpu_type", "mem")
# What a shell and a scheduler take for one word, and not for an option.
_WORD = re.compile(r"[\w.+@:=/,~][\w.+@:=/,~-]*")
_MEMORY = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?[bB]?")
_MOST = 100_000  # nodes of a job, and processors of a node
_WALLTIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,5}):([0-5]?\d):([0-5]?\d)")
_WORKERS = "read by CREDIT's older scripts only"


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

    project: str | None = None
    job_name: str = "credit_jax"
    walltime: str = "12:00:00"
    nodes: int = Field(1, ge=1, le=_MOST)
    ngpus: int = Field(4, ge=0, le=_MOST)
    ncpus: int = Field(8, ge=1, le=_MOST)
    mem: str | None = None
    queue: str | None = None
    gpu_type: str | None = None
    qos: str | None = None
    constraint: str | None = None
    conda: str | None = None
    modules: tuple[str, ...] = ()
    env_setup: tuple[str, ...] = ()

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

    @field_validator("modules", "env_setup", mode="before")
    @classmethod
    def _lines(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator(*_WORDS, mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """Accounts of digits and megabytes of SLURM are numbers in YAML."""
        return str(value) if type(value) is int else value

    @field_validator(*_WORDS)
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and not _WORD.fullmatch(value):
            raise ValueError(f"must be one word for the job script, got {got(value)}")
        return value

    @field_validator("mem")
    @classmethod
    def _memory(cls, value: str | None) -> str | None:
        if value is not None and not _MEMORY.fullmatch(value):
            raise ValueError(f"must be an amount such as 480GB, got {got(value)}")
        return value

    @field_validator("modules")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in (name for text in value for name in text.split()):
            if not _WORD.fullmatch(name):
                raise ValueError(f"must be names of modules, got {got(name)}")
        return value

    @field_validator("constraint")
    @classmethod
    def _no_space(cls, value: str | None) -> str | None:
        """SLURM joins constraints by & and |."""
        if value is not None and not re.fullmatch(r"[\w&|,.*!@()\[\]+-]+", value):
            raise ValueError(f"must be without spaces, got {got(value)}")
        return value

    @property
    def seconds(self) -> int:
        """The walltime in seconds."""
        hours, minutes, seconds = map(int, self.walltime.split(":"))
        return 3600 * hours + 60 * minutes + seconds


def clock(seconds: int) -> str:
    """Hours, minutes and seconds as schedulers read them.

    >>> clock(43200)
    '12:00:00'
    """
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def job_section(
    mapping: Mapping[str, Any], scheduler: Scheduler, overrides: Mapping[str, Any]
) -> JobSection:
    """Returns the section of a scheduler; SLURM takes that of PBS if it has none.

    Args:
        mapping: what the YAML file holds.
        scheduler: scheduler whose section is read.
        overrides: keys of the command line.

    Raises:
        ConfigError: there is none, or it is invalid.
    """
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
    return parse(JobSection, {**_with_main_names(section), **overrides}, name)


def _with_main_names(section: Mapping[str, Any]) -> dict[str, Any]:
    """Renames alternative keys; a key under its main name takes precedence."""
    others = {OTHER_NAMES[k]: v for k, v in section.items() if k in OTHER_NAMES}
    return others | {k: v for k, v in section.items() if k not in OTHER_NAMES}
