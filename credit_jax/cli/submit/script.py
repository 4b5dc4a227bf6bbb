"""The script of a job: directives, environment, one command, its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from credit_jax.cli.submit.section import JobSection, Scheduler
from credit_jax.parallel.processes.exit_code import RESUME

# A run stops itself before the end of the walltime: by _MARGIN seconds, or by 1 / _PART
# of the walltime if that is less.
_MARGIN, _PART = 600, 10


@dataclass(frozen=True)
class BatchJob:
    """A command in a job.

    Attributes:
        scheduler: "pbs" or "slurm".
        section: resources that it requests.
        command: arguments of `python -m credit_jax`.
        folder: folder of the job's files: script, config, logs.
        name: name of these files.
        work: folder in which the command runs.
        python: interpreter, used if the section has no `conda`.
        processes_per_node: None is one process for a job of one node, otherwise one for
            each GPU.
    """

    scheduler: Scheduler
    section: JobSection
    command: Sequence[str]
    folder: Path
    name: str
    work: Path
    python: str
    processes_per_node: int | None = None

    @property
    def num_per_node(self) -> int:
        """Number of processes per node."""
        if self.processes_per_node is not None:
            return self.processes_per_node
        return 1 if self.section.nodes == 1 else max(1, self.section.ngpus)

    @property
    def script(self) -> Path:
        """Path of the script."""
        return self.folder / f"{self.name}.sh"

    @property
    def ended(self) -> Path:
        """The file that tells later jobs of a chain that there is nothing to do."""
        return self.folder / f"{self.name}.ended"


def stop_after(seconds: int) -> str:
    """`--stop-after` for a walltime, which leaves time to save.

    >>> stop_after(12 * 3600)
    '11h50m0s'
    """
    rest = seconds - min(_MARGIN, seconds // _PART)
    return f"{rest // 3600}h{rest // 60 % 60}m{rest % 60}s"


def script_text(job: BatchJob) -> str:
    """The script of a job, the same for every job of a chain."""
    directives = _pbs(job) if job.scheduler == "pbs" else _slurm(job)
    ended = shlex.quote(str(job.ended))
    parts = [
        ["#!/bin/bash -l", *directives],
        [f"cd {shlex.quote(str(job.work))} || exit 2", *_environment(job.section)],
        [
            "# An earlier job of the chain came to an end.",
            f"ended={ended}",
            'if [ -e "$ended" ]; then',
            '    echo "nothing left to do: an earlier job ended with exit code '
            '$(cat "$ended")"',
            "    exit 0",
            "fi",
        ],
        [_launched(job), "code=$?"],
        [
            f"# {RESUME}: to be resumed by the next job, as after a kill. Done, or an "
            "error",
            "# that the next job would have, too: the rest of the chain has nothing to "
            "do.",
            'case $code in 0 | 2 | 3) echo $code > "$ended" ;; esac',
            "exit $code",
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _pbs(job: BatchJob) -> list[str]:
    section = job.section
    select = f"select={section.nodes}:ncpus={section.ncpus}"
    if job.num_per_node > 1:
        select += f":mpiprocs={job.num_per_node}"
    select += f":ngpus={section.ngpus}" if section.ngpus else ""
    select += f":mem={section.mem}" if section.mem else ""
    if section.gpu_type and section.gpu_type.lower() not in ("any", "none"):
        select += f":gpu_type={section.gpu_type}"
    return [
        f"#PBS -N {section.job_name}",
        *([f"#PBS -A {section.project}"] if section.project else []),
        *([f"#PBS -q {section.queue}"] if section.queue else []),
        f"#PBS -l {select}",
        f"#PBS -l walltime={section.walltime}",
        "#PBS -j oe",
        "#PBS -k eod",
        f"#PBS -o {job.folder}/",
        # A job that PBS reruns would run in addition to the chain.
        "#PBS -r n",
    ]


def _slurm(job: BatchJob) -> list[str]:
    section = job.section
    options = {
        "job-name": section.job_name,
        "account": section.project,
        "partition": section.queue,
        "qos": section.qos,
        "constraint": section.constraint,
        "nodes": section.nodes,
        "ntasks-per-node": job.num_per_node,
        "cpus-per-task": max(1, section.ncpus // job.num_per_node),
        **_slurm_gpus(section),
        "mem": section.mem,
        "time": section.walltime,
        "output": f"{job.folder}/{job.name}-%j.out",
    }
    lines = [f"#SBATCH --{k}={v}" for k, v in options.items() if v is not None]
    return [*lines, "#SBATCH --no-requeue"]


def _slurm_gpus(section: JobSection) -> dict[str, str]:
    """Sites with constraints (Perlmutter) refuse --gres; others accept only that."""
    if not section.ngpus:
        return {}
    if section.constraint:
        return {"gpus-per-node": str(section.ngpus)}
    kind = (
        f"{section.gpu_type}:" if section.gpu_type not in (None, "any", "none") else ""
    )
    return {"gres": f"gpu:{kind}{section.ngpus}"}


def _environment(section: JobSection) -> list[str]:
    lines = [f"module load {' '.join(section.modules)}"] if section.modules else []
    if section.conda:
        lines += [
            "command -v conda > /dev/null || module load conda",
            f"conda activate {shlex.quote(section.conda)}",
        ]
    return [*lines, *section.env_setup]


def _launched(job: BatchJob) -> str:
    """The command under its launcher, one option a line."""
    section, each = job.section, job.num_per_node
    python = "python" if section.conda else shlex.quote(job.python)
    launcher = ""
    if section.nodes * each > 1 and job.scheduler == "slurm":
        launcher = f"srun --cpus-per-task={max(1, section.ncpus // each)} "
    elif section.nodes * each > 1:
        launcher = f"mpiexec -n {section.nodes * each} --ppn {each} --cpu-bind none "
    lines = [f"{launcher}{python} -m credit_jax {job.command[0]}"]
    for word in job.command[1:]:
        # A value follows its option on the same line.
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n    ".join(lines)
