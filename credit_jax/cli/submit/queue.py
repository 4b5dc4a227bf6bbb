"""Submits jobs by qsub or sbatch, each dependent on the one before."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from credit_jax.cli.submit.section import Scheduler

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
