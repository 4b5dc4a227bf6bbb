"""Submit a run to PBS or SLURM: `python -m credit_jax.submit --config FILE`.

Writes a readable script from the `pbs:` or `slurm:` section of CREDIT's YAML and
submits it to the scheduler: once, as a chain of jobs that resume one another, or as an
array of parts of forecasts, scores or statistics.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from credit_jax.cli.commands import OK, ConfigOptions, option, print_line
from credit_jax.config import Config, ConfigError, apply_overrides, load_config
from credit_jax.config.messages import counted
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.submit.job_section import JobSection, Scheduler, job_section
from credit_jax.io.atomic import new_file
from credit_jax.io.mirror import is_address
from credit_jax.parallel.processes.watch import RESUME
from credit_jax.plan import plan_run
from credit_jax.plan.estimates import DEVICES, memory_problems

_PROGRAMS: dict[Scheduler, str] = {"pbs": "qsub", "slurm": "sbatch"}
# The number of a job in an array.
_PARTS: dict[Scheduler, str] = {
    "pbs": "$PBS_ARRAY_INDEX",
    "slurm": "$SLURM_ARRAY_TASK_ID",
}
# What the directives of both schedulers take as it is: they quote nothing, SLURM puts
# in values for %, and PBS takes what is before a colon for a host.
_PLAIN = r"[\w/.+=@,~-]"
# Options that replace keys of the section.
_KEYS = ("nodes", "ngpus", "ncpus", "mem", "walltime", "project", "queue")
_INSTEAD = "instead of that of the section"
# A run stops itself before the end of the walltime: by _MARGIN seconds, or by 1 / _PART
# of the walltime if that is less.
_MARGIN, _PART = 600, 10


class Submit(ConfigOptions):
    """Submit a command to PBS or SLURM, as a chain or an array of jobs if asked."""

    example = "--config configs/demo.yaml --cluster slurm --chain 5 --dry-run"

    cluster: Scheduler = option("the scheduler, and the section of the config")
    mode: Literal["train", "forecast", "preprocess", "score"] = option(
        "the command to run", "train"
    )
    options: tuple[str, ...] = option(
        "further options of the command, such as '--members 8'; repeatable", (), "TEXT"
    )
    chain: int = option("jobs, one after the other", 1, "N", ge=1)
    array: int | None = option(
        "jobs beside each other, each with one of N parts (--shard) of the forecasts, "
        "scores or statistics; these are merged by one more job",
        None,
        "N",
        ge=2,
    )
    dry_run: bool = option("print the script, submit nothing", False)
    processes_per_node: int | None = option(
        "default: 1 on one node, else one for each GPU", None, "N", ge=1
    )
    cache: str | None = option(
        "of compiled programs (default: in save_loc)", None, "DIR"
    )
    nodes: int | None = option(_INSTEAD, None)
    ngpus: int | None = option(_INSTEAD, None)
    ncpus: int | None = option(_INSTEAD, None)
    mem: str | None = option(_INSTEAD, None)
    walltime: str | None = option(_INSTEAD, None)
    project: str | None = option(_INSTEAD, None)
    queue: str | None = option(_INSTEAD, None)

    def run(self) -> int:
        """Writes the script and submits it."""
        overrides = {k: v for k in _KEYS if (v := getattr(self, k)) is not None}
        mapping = apply_overrides(read_yaml(self.config), self.set)
        section = job_section(mapping, self.cluster, overrides)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the run prints them
            config = load_config(self.config, self.set)
        if self.mode == "train" and section.ngpus:
            _check_devices(config, section)
        # The scripts and logs of a run at an address are here.
        here = "." if is_address(config.save_loc) else config.save_loc
        run_folder = Path(os.path.expandvars(here)).resolve()
        if strange := re.sub(_PLAIN, "", str(run_folder)):
            raise ValueError(
                f"save_loc: {run_folder} holds {strange[0]!r}, which the directives of "
                "a job script cannot quote; take letters, digits and /._+=@,~-"
            )
        folder = run_folder / "jobs"
        name = f"{self.mode}_{time.strftime('%Y%m%d_%H%M%S')}"
        if self.array and self.mode == "train":
            raise ValueError(
                "--array is of forecasts, scores and statistics, whose parts do not "
                "depend on each other; training goes on by --chain"
            )
        command = [self.mode]
        if self.mode != "score":
            # Later changes of the user's file do not affect the chain.
            command += ["--config", str(folder / f"{name}.yml")]
            for override in self.set:
                command += ["--set", override]
        for text in self.options:
            command += shlex.split(text)
        if self.mode in ("train", "forecast"):
            command += ["--resume", *(["if-any"] if self.mode == "train" else [])]
            command += ["--stop-after", stop_after(section.seconds)]
        if self.mode != "preprocess":
            command += ["--cache", self.cache or str(run_folder / "cache")]
        job = BatchJob(
            self.cluster,
            section,
            command,
            folder,
            name,
            Path.cwd(),
            sys.executable,
            self.processes_per_node,
            self.array,
        )
        jobs = [job] * self.chain
        if self.array and self.mode == "preprocess":
            words = [*command, "--merge"]
            jobs.append(replace(job, command=words, name=f"{name}_merge", array=None))
        scripts = {each.script: each for each in jobs}
        if self.dry_run:
            for each in scripts.values():
                print(script_text(each), end="")
            for number, each in enumerate(jobs):
                after = f"JOB{number}" if number else None
                words = submission(self.cluster, each.script, after)
                print_line(f"# {shlex.join(words)}")
            return OK
        job.folder.mkdir(parents=True, exist_ok=True)
        for path, content in (
            (job.folder / f"{job.name}.yml", Path(self.config).read_text()),
            *((path, script_text(each)) for path, each in scripts.items()),
        ):
            with new_file(path) as partial:
                partial.write_text(content)
        print_line(f"script {job.script}")
        for number in submit_chain(self.cluster, [each.script for each in jobs]):
            print_line(f"job {number}")
        return OK


main = Submit.main


def _check_devices(config: Config, section: JobSection) -> None:
    """Checks that the GPUs of a job are those of the mesh, and have enough memory."""
    count = section.nodes * section.ngpus
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plan = plan_run(config, num_devices=count, with_data=False)
    problems, model = list[str](), plan.model
    used = config.trainer.num_devices or model.dims.world_size
    if used != count:
        problems.append(
            f"trainer: the mesh has {counted(used, 'device')}, and {section.nodes} x "
            f"{section.ngpus} GPUs (nodes x ngpus) are asked for; make them equal"
        )
    kind = (section.gpu_type or "").lower().partition("_")[0]
    if device := DEVICES.get(kind):
        limit = device.memory, device.name
        problems += memory_problems(config, model.model_def, model.axes, *limit)
    if problems:
        raise ConfigError(problems, "this run cannot start")


def submit_chain(scheduler: Scheduler, scripts: Sequence[Path]) -> list[str]:
    """Submits scripts, each after the end of the one before; gives their numbers."""
    jobs: list[str] = []
    for script in scripts:
        command = submission(scheduler, script, jobs[-1] if jobs else None)
        queued = f"; submitted before: {', '.join(jobs)}" if jobs else ""
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{command[0]} is not on this machine; submit where the scheduler is, "
                "or look at the script with --dry-run"
            ) from error
        said = (done.stderr or done.stdout).strip()
        if done.returncode:
            raise OSError(f"{' '.join(command)} refuses the job: {said}{queued}")
        # "Submitted batch job 123", or 123;CLUSTER, of sbatch; "123.server" of qsub.
        pattern = r"\d+" if scheduler == "slurm" else r"\S+"
        ids = re.findall(pattern, done.stdout)
        if not ids:
            raise OSError(f"{' '.join(command)} names no job: {said!r}{queued}")
        jobs.append(ids[0] if scheduler == "slurm" else ids[-1])
    return jobs


def submission(scheduler: Scheduler, script: Path, after: str | None) -> list[str]:
    """The command that submits one job."""
    program, dependency = _PROGRAMS[scheduler], list[str]()
    # The next job starts however the one before ended, even if it was preempted or
    # killed, and the script decides whether work is left. CREDIT uses `afterok`, which
    # cancels the others at the first job that is killed.
    if after is not None and scheduler == "pbs":
        dependency = ["-W", f"depend=afterany:{after}"]
    elif after is not None:
        dependency = [f"--dependency=afterany:{after}"]
    return [program, *dependency, str(script)]


@dataclass(frozen=True)
class BatchJob:
    """A command in a job."""

    scheduler: Scheduler
    section: JobSection
    command: Sequence[str]  # arguments of `python -m credit_jax`
    folder: Path  # of script, config, logs
    name: str  # of these files
    work: Path  # where the command runs
    python: str  # without `conda` in the section
    # None is one for a job of one node, otherwise one for each GPU.
    processes_per_node: int | None = None
    array: int | None = None  # jobs of an array, each of which has a part

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
    """`--stop-after` for a walltime, which leaves time to save."""
    seconds -= min(_MARGIN, seconds // _PART)
    return f"{seconds // 3600}h{seconds // 60 % 60}m{seconds % 60}s"


_SCRIPT = f"""\
#!/bin/bash -l
{{directives}}

{{environment}}

# An earlier job of the chain came to an end.
ended={{ended}}
if [ -e "$ended" ]; then
    echo "nothing left to do: an earlier job ended with exit code $(cat "$ended")"
    exit 0
fi

{{command}}
code=$?

# {RESUME}: to be resumed by the next job, as after a kill. Done, or an error
# that the next job would have, too: the rest of the chain has nothing to do.
case $code in 0 | 2 | 3) echo $code > "$ended" ;; esac
exit $code
"""


def script_text(job: BatchJob) -> str:
    """The script of a job, the same for every job of a chain."""
    section = job.section
    lines = [f"cd {shlex.quote(str(job.work))} || exit 2"]
    if section.modules:
        lines.append(f"module load {' '.join(section.modules)}")
    if section.conda:
        lines.append("command -v conda > /dev/null || module load conda")
        lines.append(f"conda activate {shlex.quote(section.conda)}")
    return _SCRIPT.format(
        directives="\n".join(_pbs(job) if job.scheduler == "pbs" else _slurm(job)),
        environment="\n".join([*lines, *section.env_setup]),
        ended=shlex.quote(str(job.ended))
        + (f"-{_PARTS[job.scheduler]}" if job.array else ""),
        command=_launched(job),
    )


def _pbs(job: BatchJob) -> list[str]:
    section = job.section
    chunk = {
        "select": section.nodes,
        "ncpus": section.ncpus,
        "mpiprocs": job.num_per_node if job.num_per_node > 1 else None,
        "ngpus": section.ngpus or None,
        "mem": section.mem,
        "gpu_type": _gpu_type(section),
    }
    options = {
        "N": section.job_name,
        "A": section.project,
        "q": section.queue,
        "l": ":".join(f"{k}={v}" for k, v in chunk.items() if v is not None),
    }
    return [
        *(f"#PBS -{k} {v}" for k, v in options.items() if v is not None),
        f"#PBS -l walltime={section.walltime}",
        *([f"#PBS -J 1-{job.array}"] if job.array else []),
        "#PBS -j oe",
        "#PBS -k eod",
        f"#PBS -o {job.folder}/",
        # A job that PBS reruns would run in addition to the chain. It takes no array
        # that it may not rerun.
        f"#PBS -r {'y' if job.array else 'n'}",
    ]


def _gpu_type(section: JobSection) -> str | None:
    kind = section.gpu_type
    return None if kind is None or kind.lower() in ("any", "none") else kind


def _slurm(job: BatchJob) -> list[str]:
    section = job.section
    gpus = str(section.ngpus) if section.ngpus else None
    if gpus and (kind := _gpu_type(section)) and not section.constraint:
        gpus = f"{kind}:{gpus}"
    options = {
        "job-name": section.job_name,
        "account": section.project,
        "partition": section.queue,
        "qos": section.qos,
        "constraint": section.constraint,
        "nodes": section.nodes,
        "ntasks-per-node": job.num_per_node,
        "cpus-per-task": max(1, section.ncpus // job.num_per_node),
        # Sites with constraints (Perlmutter) refuse --gres; others accept only that.
        "gpus-per-node": gpus if section.constraint else None,
        "gres": None if section.constraint or not gpus else f"gpu:{gpus}",
        "mem": section.mem,
        "time": section.walltime,
        "array": f"1-{job.array}" if job.array else None,
        "output": f"{job.folder}/{job.name}-{'%A_%a' if job.array else '%j'}.out",
    }
    lines = [f"#SBATCH --{k}={v}" for k, v in options.items() if v is not None]
    return [*lines, "#SBATCH --no-requeue"]


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
    if job.array:
        lines.append(f'--shard "{_PARTS[job.scheduler]}/{job.array}"')
    return " \\\n    ".join(lines)
