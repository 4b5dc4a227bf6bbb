"""Submit a run to PBS or SLURM: `python -m credit_jax.submit --config FILE`.

Writes a readable script from the `pbs:` or `slurm:` section of CREDIT's YAML and
submits it to the scheduler: once, or as a chain of jobs that resume one another.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.options import add_config_options
from credit_jax.cli.submit.script import BatchJob, script_text, stop_after
from credit_jax.cli.submit.section import JobSection, Scheduler, job_section
from credit_jax.config import Config, ConfigError, apply_overrides, load_config
from credit_jax.config.messages import counted
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.atomic import new_file
from credit_jax.plan import plan_run
from credit_jax.plan.memory import memory_problems
from credit_jax.plan.roofline import DEVICES

_PROGRAMS: dict[Scheduler, str] = {"pbs": "qsub", "slurm": "sbatch"}


def submit_chain(scheduler: Scheduler, script: Path, num_jobs: int) -> list[str]:
    """Submits a script several times, each job after the end of the one before.

    The dependency is `afterany`: the next job starts however the one before ended, even
    if it was preempted or killed, and the script decides whether work is left. CREDIT
    uses `afterok`, which cancels the rest at the first job that is killed.

    Args:
        scheduler: "pbs" or "slurm".
        script: script, as returned by `script_text`.
        num_jobs: number of jobs in the chain.

    Returns:
        The numbers of the jobs.

    Raises:
        OSError: the program is missing, or it refuses a job.
    """
    jobs: list[str] = []
    for _ in range(num_jobs):
        command = submission(scheduler, script, jobs[-1] if jobs else None)
        jobs.append(_job_of(scheduler, command, jobs))
    return jobs


def submission(scheduler: Scheduler, script: Path, after: str | None) -> list[str]:
    """The command that submits one job.

    >>> " ".join(submission("slurm", Path("job.sh"), "12"))
    'sbatch --dependency=afterany:12 job.sh'
    >>> " ".join(submission("pbs", Path("job.sh"), "12.pbs"))
    'qsub -W depend=afterany:12.pbs job.sh'
    """
    program, dependency = _PROGRAMS[scheduler], list[str]()
    if after is not None and scheduler == "pbs":
        dependency = ["-W", f"depend=afterany:{after}"]
    elif after is not None:
        dependency = [f"--dependency=afterany:{after}"]
    return [program, *dependency, str(script)]


def _job_of(scheduler: Scheduler, command: Sequence[str], before: list[str]) -> str:
    """Submits a job and returns its number."""
    queued = f"; submitted before: {', '.join(before)}" if before else ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{command[0]} is not on this machine; submit where the scheduler is, or "
            "look at the script with --dry-run"
        ) from error
    said = (done.stderr or done.stdout).strip()
    if done.returncode:
        raise OSError(f"{' '.join(command)} refuses the job: {said}{queued}")
    # "Submitted batch job 123", or 123;CLUSTER, of sbatch; "123.server" of qsub.
    pattern = r"\d+" if scheduler == "slurm" else r"\S+"
    ids = re.findall(pattern, done.stdout)
    if not ids:
        raise OSError(f"{' '.join(command)} names no job: {said!r}{queued}")
    return ids[0] if scheduler == "slurm" else ids[-1]


HELP = "Submit training or forecasts to PBS or SLURM, as a chain of jobs if asked."
EXAMPLE = "--config configs/demo.yaml --cluster slurm --chain 5 --dry-run"

# What the directives of both schedulers take as it is: they quote nothing, SLURM puts
# in values for %, and PBS takes what is before a colon for a host.
_PLAIN = r"[\w/.+=@,~-]"
# Options that replace keys of the section.
_KEYS = {
    "nodes": int,
    "ngpus": int,
    "ncpus": int,
    "mem": str,
    "walltime": str,
    "project": str,
    "queue": str,
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.submit`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.submit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `submit`."""
    add_config_options(parser)
    add = parser.add_argument
    add(
        "--cluster",
        required=True,
        choices=get_args(Scheduler),
        help="the scheduler, and the section of the config",
    )
    add(
        "--mode",
        choices=("train", "forecast"),
        default="train",
        help="the command to run (default: train)",
    )
    add("--chain", type=int, default=1, metavar="N", help="jobs, one after the other")
    add("--dry-run", action="store_true", help="print the script, submit nothing")
    add(
        "--processes-per-node",
        type=int,
        metavar="N",
        help="default: 1 on one node, else one for each GPU",
    )
    add("--cache", metavar="DIR", help="of compiled programs (default: in save_loc)")
    for name, kind in _KEYS.items():
        add(f"--{name}", type=kind, help="instead of that of the section")


def run(args: argparse.Namespace) -> int:
    """Writes the script and submits it.

    Raises:
        ValueError, OSError: the config or an option is wrong, or the scheduler refuses.
    """
    for name in ("chain", "processes_per_node"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1: {value}")
    job = _job(args)
    text = script_text(job)
    if args.dry_run:
        print(text, end="")
        for number in range(args.chain):
            after = f"JOB{number}" if number else None
            words = submission(args.cluster, job.script, after)
            print_line(f"# {shlex.join(words)}")
        return OK
    job.folder.mkdir(parents=True, exist_ok=True)
    _write(job.folder / f"{job.name}.yml", Path(args.config).read_text())
    _write(job.script, text)
    print_line(f"script {job.script}")
    for number in submit_chain(args.cluster, job.script, args.chain):
        print_line(f"job {number}")
    return OK


def _job(args: argparse.Namespace) -> BatchJob:
    overrides = {k: v for k in _KEYS if (v := getattr(args, k)) is not None}
    mapping = apply_overrides(read_yaml(args.config), args.set)
    section = job_section(mapping, args.cluster, overrides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the run prints them
        config = load_config(args.config, args.set)
    if args.mode == "train" and section.ngpus:
        _check_devices(config, section)
    run_folder = Path(os.path.expandvars(config.save_loc)).resolve()
    if strange := re.sub(_PLAIN, "", str(run_folder)):
        raise ValueError(
            f"save_loc: {run_folder} holds {strange[0]!r}, which the directives of a "
            "job script cannot quote; name a folder of letters, digits and /._+=@,~-"
        )
    folder = run_folder / "jobs"
    name = f"{args.mode}_{time.strftime('%Y%m%d_%H%M%S')}"
    # Later changes of the user's file do not affect the chain.
    command = [args.mode, "--config", str(folder / f"{name}.yml")]
    for override in args.set:
        command += ["--set", override]
    command += ["--resume", *(["if-any"] if args.mode == "train" else [])]
    command += ["--stop-after", stop_after(section.seconds)]
    command += ["--cache", args.cache or str(run_folder / "cache")]
    return BatchJob(
        args.cluster,
        section,
        command,
        folder,
        name,
        Path.cwd(),
        sys.executable,
        args.processes_per_node,
    )


def _check_devices(config: Config, section: JobSection) -> None:
    """Checks that the GPUs of a job are those of the mesh, and have enough memory.

    Raises:
        ConfigError: they are not, or the run cannot start for other reasons.
    """
    count = section.nodes * section.ngpus
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plan = plan_run(config, num_devices=count, with_data=False)
    problems, model = [*plan.problems], plan.model
    used = config.trainer.num_devices
    if used is None and model.dims is not None:
        used = model.dims.world_size
    if used not in (None, count):
        problems.append(
            f"trainer: the mesh has {counted(used, 'device')}, and {section.nodes} x "
            f"{section.ngpus} GPUs (nodes x ngpus) are asked for; make them equal"
        )
    kind = (section.gpu_type or "").lower().partition("_")[0]
    if (device := DEVICES.get(kind)) and model.model_def and model.axes:
        limit = device.memory, device.name
        problems += memory_problems(config, model.model_def, model.axes, *limit)
    if problems:
        raise ConfigError(problems, "this run cannot start")


def _write(path: Path, text: str) -> None:
    with new_file(path) as partial:
        partial.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
