"""Finds the process number and the coordinator from a launcher's environment variables.

`find_launch` supports JAX's own variables, torchrun, Open MPI 4 and 5, SLURM's srun,
PMI (Cray MPICH and PALS, as under PBS), indexed jobs of Kubernetes, and TPU pods. The
first process is the coordinator. Its host is that of `JAX_COORDINATOR_ADDRESS`, that of
`MASTER_ADDR`, or the first host of the job; its port is derived from the job number.
JAX's own detection knows neither torchrun, Open MPI 5 nor PMI, and gives each process
of a host one GPU, however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Environment = Mapping[str, str]

# Range of private ports, the same as in JAX's cluster detection.
_FIRST_PORT, _NUM_PORTS = 61440, 4096
_JAX = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")
_OMPI = "OMPI_COMM_WORLD"
# By launcher: the variables that tell it, of which the first two are the number of a
# process and the number of all; the index of a process on its host; the number there.
# In order of precedence: torchrun and mpirun may run within a SLURM job, and srun may
# set the variables of PMI.
_LAUNCHERS: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "JAX's variables": (_JAX, (), ()),
    "torchrun": (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        ("LOCAL_RANK",),
        ("LOCAL_WORLD_SIZE",),
    ),
    "Open MPI": (
        (f"{_OMPI}_RANK", f"{_OMPI}_SIZE"),
        (f"{_OMPI}_LOCAL_RANK",),
        (f"{_OMPI}_LOCAL_SIZE",),
    ),
    # A batch script itself has no job step and is not one of the processes.
    "SLURM": (
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        ("SLURM_LOCALID",),
        (),
    ),
    # `mpiexec` of Cray MPICH, PALS, MPICH and Intel MPI.
    "PMI": (
        ("PMI_RANK", "PMI_SIZE"),
        ("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"),
        ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    ),
    "Kubernetes": (("JOB_COMPLETION_INDEX", *_JAX[1:]), (), ()),
}


@dataclass(frozen=True)
class Launch:
    """Identity of a process in a run of several processes."""

    launcher: str
    process: int
    num_processes: int
    # HOST:PORT on which process 0 listens; None for TPU pods, where JAX finds it and
    # does not use the numbers above.
    coordinator: str | None
    # Index of the process on its host and their number there; None if unknown.
    local_process: int | None = None
    local_processes: int | None = None
    # Whether the launcher makes only its own GPUs visible to each process.
    bound: bool = False

    def check(self, names: str) -> None:
        """Checks the numbers and the coordinator, which `names` gave."""
        if not 0 <= self.process < self.num_processes:
            raise ValueError(
                f"{names}: process {self.process} of {self.num_processes} processes; "
                f"their numbers are 0 to {self.num_processes - 1}"
            )
        port = re.fullmatch(r".+:(\d{1,5})", self.coordinator or "")
        if port is None or not 0 < int(port[1]) < 65536:
            raise ValueError(
                f"{names}: the coordinator must be HOST:PORT, such as node001:61440, "
                f"with a port of 1 to 65535, got {self.coordinator!r}"
            )


def launch_by_hand(
    coordinator: str | None, process: int | None, num_processes: int | None
) -> Launch | None:
    """Returns the launch from command line options, or None if all are None."""
    if coordinator is None and process is None and num_processes is None:
        return None
    if coordinator is None or process is None or num_processes is None:
        raise ValueError(
            "--coordinator HOST:PORT, --process I and --processes N belong together; "
            f"got {coordinator}, {process} and {num_processes}"
        )
    launch = Launch("the command line", process, num_processes, coordinator)
    launch.check("--coordinator, --process, --processes")
    return launch


def find_launch(environ: Environment) -> Launch | None:
    """Returns the launch of this process; None for a run of a single process."""
    for launcher, (names, ranks, counts) in _LAUNCHERS.items():
        if names[0] not in environ:
            continue
        missing = [name for name in names if name not in environ]
        if missing and _JAX[1] in names:
            raise ValueError(
                f"{names[0]} is set, but not {' and '.join(missing)}; set "
                f"{' and '.join(names[1:])} (HOST:PORT of the first process), in the "
                "manifest of an indexed Kubernetes job"
            )
        if missing:
            continue
        process, count = (_number(environ, name) for name in names[:2])
        local, local_count = (
            next((_number(environ, name) for name in each if name in environ), None)
            for each in (ranks, counts)
        )
        if launcher == "SLURM":
            local_count = _tasks_of_node(environ)
        if count == 1 and names != _JAX:
            continue
        coordinator = _coordinator(environ, launcher, count, local_count)
        bound = launcher == "SLURM" and _is_bound(environ)
        launch = Launch(
            launcher, process, count, coordinator, local, local_count, bound
        )
        launch.check(", ".join(names))
        return launch
    workers = environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if len(workers) < 2 or environ.get("JAX_PLATFORMS", "tpu").split(",")[0] != "tpu":
        return None
    worker = _number(environ, "TPU_WORKER_ID") if "TPU_WORKER_ID" in environ else 0
    return Launch("TPU pod", worker, len(workers), None)


def local_devices(launch: Launch, environ: Environment) -> list[int] | None:
    """Returns the indices of this process's GPUs among visible ones; None for all."""
    named = environ.get("CUDA_VISIBLE_DEVICES", environ.get("ROCR_VISIBLE_DEVICES"))
    if named is not None:
        visible = len([name for name in named.split(",") if name.strip()])
    else:
        visible = len([*Path("/dev").glob("nvidia[0-9]*")])
    local, count = launch.local_process, launch.local_processes
    # Processes of a host to which the same GPUs are visible share them evenly; a bound
    # one (`srun --gpus-per-task`, `--gpu-bind`) uses all that it sees.
    if launch.bound or local is None or not count or not 1 < count <= visible:
        return None
    share = visible // count
    return list(range(local * share, (local + 1) * share))


def first_host(nodes: str) -> str:
    """Returns the first host of a SLURM node list: node007 of "node[007-015,21]"."""
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else "")


def _is_bound(environ: Environment) -> bool:
    """Whether SLURM makes only its own GPUs visible to each task."""
    # `--gpu-bind=none` undoes what `--gpus-per-task` implies, and `--cpus-per-task`
    # alone sets SLURM_TRES_PER_TASK, too, to "cpu=16".
    if bind := environ.get("SLURM_GPU_BIND"):
        return bind.lower().split(",")[-1] != "none"
    per_task = environ.get("SLURM_TRES_PER_TASK", "")
    return bool(environ.get("SLURM_GPUS_PER_TASK")) or "gpu" in per_task


def _tasks_of_node(environ: Environment) -> int | None:
    """Number of tasks of this node, from SLURM's list of all, such as "4(x2),3"."""
    tasks: list[int] = []
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        tasks += [int(count)] * int(times or 1)
    node = _number(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else 0
    return tasks[node] if node < len(tasks) else None


def _coordinator(
    environ: Environment, launcher: str, count: int, local_count: int | None
) -> str:
    """Returns host:port of the first process."""
    if "JAX_COORDINATOR_ADDRESS" in environ:
        return environ["JAX_COORDINATOR_ADDRESS"]
    if launcher == "torchrun":
        # It listens on MASTER_PORT itself.
        return f"{environ['MASTER_ADDR']}:{_number(environ, 'MASTER_PORT') + 1}"
    job = environ.get("PBS_JOBID", environ.get("SLURM_JOB_ID", ""))
    hosts = [
        environ.get("MASTER_ADDR", ""),
        "127.0.0.1" if count == local_count else "",
    ]
    if launcher == "Open MPI":
        # Version 4 gives the address of mpirun, which runs on the first host, version 5
        # a namespace prterun-HOST-PID@1.
        uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
        namespace = environ.get("PMIX_NAMESPACE", "")
        job = uri.split(".")[0] or namespace
        address = re.search(r"tcp://([^,:;]+)|tcp6://\[([^,\]]+)", uri)
        prterun = re.match(r"prterun-(.+)-\d+@", namespace)
        hosts += [m[m.lastindex or 0] for m in (address, prterun) if m]
    hosts.append(first_host(environ.get("SLURM_STEP_NODELIST", "")))
    nodes = Path(environ.get("PBS_NODEFILE", ""))
    if nodes.is_file():
        hosts.append(nodes.read_text().split("\n", 1)[0].strip())
    hosts.append(first_host(environ.get("SLURM_NODELIST", "")))
    host = next(filter(None, hosts), None)
    if host is None:
        raise ValueError(
            f"{launcher} started {count} processes on several hosts, but no variable "
            "names the host of the first one; set MASTER_ADDR to it, or give "
            "--coordinator HOST:PORT --process I --processes N"
        )
    port = _FIRST_PORT + int("".join(re.findall(r"\d", job)) or 0) % _NUM_PORTS
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _number(environ: Environment, name: str) -> int:
    value = environ.get(name)
    if value is None or not value.strip().isdigit():
        raise ValueError(
            f"the environment variable {name} must be a number, got {value!r}"
        )
    return int(value)
