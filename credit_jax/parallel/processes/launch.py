"""Finds the process number and the coordinator from a launcher's environment variables.

`find_launch` supports JAX's own variables, torchrun, Open MPI 4 and 5, SLURM's srun,
PMI (Cray MPICH and PALS, as under PBS), indexed jobs of Kubernetes, and TPU pods. The
first process is the coordinator. Its host is that of `JAX_COORDINATOR_ADDRESS`, that of
`MASTER_ADDR`, or the first host of the job; its port is derived from the job number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Environment = Mapping[str, str]

# Range of private ports, the same as in JAX's cluster detection.
_FIRST_PORT, _NUM_PORTS = 61440, 4096
_LOCALHOST = "127.0.0.1"


@dataclass(frozen=True)
class Launch:
    """Identity of a process in a run of several processes.

    Attributes:
        launcher: name of the launcher, for messages.
        process: index of the process.
        num_processes: number of processes of the run.
        coordinator: host:port on which process 0 listens; None for TPU pods, where JAX
            finds the coordinator and does not use the numbers above.
        local_process: index among the processes of its host; None if unknown.
        local_processes: number of processes on its host; None if unknown.
        bound: whether the launcher makes only its own GPUs visible to each process.
    """

    launcher: str
    process: int
    num_processes: int
    coordinator: str | None
    local_process: int | None = None
    local_processes: int | None = None
    bound: bool = False


def launch_by_hand(
    coordinator: str | None, process: int | None, num_processes: int | None
) -> Launch | None:
    """Returns the launch from command line options, or None if all are None.

    Args:
        coordinator: host:port.
        process: index of this process.
        num_processes: number of processes of the run.

    Raises:
        ValueError: some of the options are missing, or they are inconsistent.
    """
    arguments = {
        "--coordinator": coordinator,
        "--process": process,
        "--processes": num_processes,
    }
    missing = [name for name, value in arguments.items() if value is None]
    if len(missing) == len(arguments):
        return None
    if coordinator is None or process is None or num_processes is None:
        raise ValueError(
            "--coordinator HOST:PORT, --process I and --processes N belong together; "
            f"missing: {', '.join(missing)}"
        )
    return _checked(
        Launch("the command line", process, num_processes, coordinator),
        "--coordinator, --process, --processes",
    )


def find_launch(environ: Environment) -> Launch | None:
    """Returns the launch of this process; None for a run of a single process.

    Args:
        environ: environment variables of this process.

    Raises:
        ValueError: the variables are inconsistent, or none gives the coordinator.
    """
    for find in _LAUNCHERS:
        launch = find(environ)
        if launch is not None:
            return launch
    return None


def local_devices(launch: Launch, environ: Environment) -> list[int] | None:
    """Returns the indices of this process's GPUs among its visible ones; None for all.

    Processes of a host to which the same GPUs are visible share them evenly. If the
    launcher makes only its own GPUs visible to each process (`srun --gpus-per-task`,
    `--gpu-bind`), each uses all of them.
    """
    local_rank, count = launch.local_process, launch.local_processes
    visible = _num_gpus(environ)
    if (
        launch.bound
        or local_rank is None
        or count is None
        or count == 1
        or visible < count
    ):
        return None
    share = visible // count
    return list(range(local_rank * share, (local_rank + 1) * share))


def _num_gpus(environ: Environment) -> int:
    """Returns the number of visible GPUs, as far as it is known without a driver."""
    named = environ.get("CUDA_VISIBLE_DEVICES", environ.get("ROCR_VISIBLE_DEVICES"))
    if named is not None:
        return len([name for name in named.split(",") if name.strip()])
    return sum(
        bool(re.fullmatch(r"nvidia\d+", p.name)) for p in Path("/dev").glob("nvidia*")
    )


# ------------------------------------------------------------------ launchers


def _jax(environ: Environment) -> Launch | None:
    """JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID and JAX_NUM_PROCESSES."""
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
    missing = [name for name in names if name not in environ]
    if missing and names[1] in environ:
        raise ValueError(
            f"JAX_PROCESS_ID is set, but not {' and '.join(missing)}; set all of "
            f"{', '.join(names)}, or none of them"
        )
    if missing:
        return None
    process, count = (_number(environ, name) for name in names[1:])
    launch = Launch("JAX's variables", process, count, environ[names[0]])
    return _checked(launch, ", ".join(names))


def _torchrun(environ: Environment) -> Launch | None:
    """`torchrun`, which listens on MASTER_PORT; the coordinator uses the next port."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if any(name not in environ for name in names):
        return None
    rank, size, local = (_number(environ, name) for name in names[:3])
    coordinator = f"{environ['MASTER_ADDR']}:{_number(environ, 'MASTER_PORT') + 1}"
    address = environ.get("JAX_COORDINATOR_ADDRESS", coordinator)
    local_size = _optional(environ, "LOCAL_WORLD_SIZE")
    return _several("torchrun", rank, size, address, local, local_size, names=names)


def _open_mpi(environ: Environment) -> Launch | None:
    """`mpirun` of Open MPI 4 and 5."""
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    names = [
        f"OMPI_COMM_WORLD_{name}"
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ]
    rank, size, local, local_size = (_number(environ, name) for name in names)
    # Version 4 gives the address of mpirun, which runs on the first host.
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    match = re.search(r"tcp://([^,:;]+)|tcp6://\[([^,\]]+)", uri)
    hosts = [next(filter(None, match.groups()))] if match else []
    job = uri.split(".")[0] or environ.get("PMIX_NAMESPACE", "")
    # Version 5: prterun-HOST-PID@1.
    namespace = re.match(r"prterun-(.+)-\d+@", environ.get("PMIX_NAMESPACE", ""))
    hosts += [namespace[1]] if namespace else []
    coordinator = _coordinator(environ, "Open MPI", size, local_size, job, hosts)
    return _several("Open MPI", rank, size, coordinator, local, local_size, names=names)


def _slurm(environ: Environment) -> Launch | None:
    """`srun`; a batch script itself has no job step and is not one of the processes."""
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    if any(name not in environ for name in names):
        return None
    rank, size, local = (_number(environ, name) for name in names)
    # Tasks of every host, such as "4(x2),3".
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    local_size = _tasks_here(counts, _optional(environ, "SLURM_NODEID") or 0)
    hosts = [first_host(environ.get("SLURM_STEP_NODELIST", ""))]
    job = environ.get("SLURM_JOB_ID", "")
    coordinator = _coordinator(environ, "SLURM", size, local_size, job, hosts)
    return _several(
        "SLURM",
        rank,
        size,
        coordinator,
        local,
        local_size,
        names=names,
        bound=_is_bound(environ),
    )


def _pmi(environ: Environment) -> Launch | None:
    """`mpiexec` of Cray MPICH, PALS, MPICH and Intel MPI."""
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    rank, size = _number(environ, "PMI_RANK"), _number(environ, "PMI_SIZE")
    local = _first_number(
        environ, "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"
    )
    local_size = _first_number(
        environ, "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS"
    )
    job = environ.get("PBS_JOBID", environ.get("SLURM_JOB_ID", ""))
    coordinator = _coordinator(environ, "PMI", size, local_size, job, [])
    names = ("PMI_RANK", "PMI_SIZE")
    return _several("PMI", rank, size, coordinator, local, local_size, names=names)


def _kubernetes(environ: Environment) -> Launch | None:
    """An indexed job, whose manifest must set the coordinator and the completions."""
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES")
    missing = [name for name in names if name not in environ]
    if missing:
        raise ValueError(
            "this pod of an indexed Kubernetes job knows its number "
            "(JOB_COMPLETION_INDEX), but not how many there are and where the first "
            f"is; set {' and '.join(missing)} in the manifest: the number of "
            "completions, and JOB-0.SERVICE:PORT"
        )
    process = _number(environ, "JOB_COMPLETION_INDEX")
    size = _number(environ, "JAX_NUM_PROCESSES")
    coordinator = environ["JAX_COORDINATOR_ADDRESS"]
    return _several("Kubernetes", process, size, coordinator, names=names)


def _tpu(environ: Environment) -> Launch | None:
    """The workers of a TPU pod, where JAX finds the coordinator."""
    workers = environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if len(workers) < 2 or environ.get("JAX_PLATFORMS", "tpu").split(",")[0] != "tpu":
        return None
    worker = _optional(environ, "TPU_WORKER_ID") or 0
    return Launch("TPU pod", worker, len(workers), None)


# In order of precedence: torchrun and mpirun may run within a SLURM job, and srun may
# set the variables of PMI.
_LAUNCHERS: Sequence[Callable[[Environment], Launch | None]] = (
    _jax,
    _torchrun,
    _open_mpi,
    _slurm,
    _pmi,
    _kubernetes,
    _tpu,
)


# -------------------------------------------------------------------- helpers


def first_host(nodes: str) -> str:
    """Returns the first host of a SLURM node list.

    >>> first_host("node[007-015,21],other3")
    'node007'
    """
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else "")


def _is_bound(environ: Environment) -> bool:
    """Whether SLURM makes only its own GPUs visible to each task.

    `--gpu-bind=none` undoes what `--gpus-per-task` implies, and `--cpus-per-task` alone
    sets SLURM_TRES_PER_TASK, too, to "cpu=16".
    """
    if bind := environ.get("SLURM_GPU_BIND"):
        return bind.lower().split(",")[-1] != "none"
    per_task = environ.get("SLURM_TRES_PER_TASK", "")
    return bool(environ.get("SLURM_GPUS_PER_TASK")) or "gpu" in per_task


def _tasks_here(counts: str, node: int) -> int | None:
    """Returns the number of tasks of a node, from a list such as SLURM's "4(x2),3"."""
    tasks: list[int] = []
    for part in filter(None, counts.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return None
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks[node] if node < len(tasks) else None


def _coordinator(
    environ: Environment,
    launcher: str,
    size: int,
    local_size: int | None,
    job: str,
    hosts: Sequence[str],
) -> str:
    """Returns host:port of the first process.

    Raises:
        ValueError: no variable gives its host.
    """
    if "JAX_COORDINATOR_ADDRESS" in environ:
        return environ["JAX_COORDINATOR_ADDRESS"]
    port = _FIRST_PORT + int("".join(re.findall(r"\d", job)) or 0) % _NUM_PORTS
    candidates = [
        environ.get("MASTER_ADDR", ""),
        _LOCALHOST if size in (1, local_size) else "",
        *hosts,
        _first_of_pbs(environ),
        first_host(environ.get("SLURM_NODELIST", "")),
    ]
    host = next(filter(None, candidates), None)
    if host is None:
        raise ValueError(
            f"{launcher} started {size} processes on several hosts, but no variable "
            "names the host of the first one; set MASTER_ADDR to it, or give "
            "--coordinator HOST:PORT --process I --processes N"
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _first_of_pbs(environ: Environment) -> str:
    """Returns the first host of a PBS job, or ""."""
    path = Path(environ.get("PBS_NODEFILE", ""))
    return path.read_text().split("\n", 1)[0].strip() if path.is_file() else ""


def _several(
    launcher: str,
    process: int,
    num_processes: int,
    coordinator: str,
    local_process: int | None = None,
    local_processes: int | None = None,
    *,
    names: Sequence[str],
    bound: bool = False,
) -> Launch | None:
    """Returns the checked launch, or None for a run of a single process."""
    launch = Launch(
        launcher,
        process,
        num_processes,
        coordinator,
        local_process,
        local_processes,
        bound,
    )
    return _checked(launch, ", ".join(names)) if num_processes > 1 else None


def _checked(launch: Launch, names: str) -> Launch:
    process, count, where = launch.process, launch.num_processes, launch.coordinator
    if not 0 <= process < count:
        raise ValueError(
            f"{names}: process {process} of {count} processes; their numbers are "
            f"0 to {count - 1}"
        )
    port = re.fullmatch(r".+:(\d{1,5})", where or "")
    if port is None or not 0 < int(port[1]) < 65536:
        raise ValueError(
            f"{names}: the coordinator must be HOST:PORT, such as node001:61440, with "
            f"a port of 1 to 65535, got {where!r}"
        )
    return launch


def _number(environ: Environment, name: str) -> int:
    value = environ.get(name)
    if value is None or not value.strip().isdigit():
        raise ValueError(
            f"the environment variable {name} must be a number, got {value!r}"
        )
    return int(value)


def _optional(environ: Environment, name: str) -> int | None:
    return _number(environ, name) if name in environ else None


def _first_number(environ: Environment, *names: str) -> int | None:
    return next((_number(environ, name) for name in names if name in environ), None)
