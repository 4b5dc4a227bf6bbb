"""The rank of a process from the environment variables of launchers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from credit_jax.parallel.processes.launch import (
    Launch,
    find_launch,
    first_host,
    launch_by_hand,
    local_devices,
)

SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_NODELIST": "gpu[007-008]",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
PMI = {
    "PMI_RANK": "6",
    "PMI_SIZE": "8",
    "PMI_LOCAL_RANK": "2",
    "PMI_LOCAL_SIZE": "4",
    "PBS_JOBID": "1234567.desched1",
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}


def port(job: int) -> int:
    return 61440 + job % 4096


OPEN_MPI_4 = "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"
OPEN_MPI_6 = "1314521088.0;tcp6://[fe80::b9b:ac5d,2620:10d::3000:2]:43370"
OPEN_MPI_5 = {"PMIX_NAMESPACE": "prterun-crhtc53-2048@1"}
ADDRESS = "train-0.svc:8476"
JAXS = {"JAX_COORDINATOR_ADDRESS": ADDRESS, "JAX_NUM_PROCESSES": "4"}
POD = {"TPU_WORKER_HOSTNAMES": "t0,t1,t2,t3", "TPU_WORKER_ID": "2"}
PALS = {"PALS_LOCAL_RANKID": "2", "PALS_LOCAL_SIZE": "4", "MASTER_ADDR": "dec9"}
ALONE: dict[str, dict[str, str]] = {
    "nothing": {},
    "a script": {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"},
    "one task": SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    "PMI of one": {"PMI_RANK": "0", "PMI_SIZE": "1", "PBS_JOBID": "1"},
    "they replace those of a launcher": JAXS,
    "a pod on CPU": POD | {"JAX_PLATFORMS": "cpu"},
    "a TPU": {"TPU_WORKER_HOSTNAMES": "localhost"},
}
SLURM_5 = Launch("SLURM", 5, 8, f"gpu007:{port(4242)}", 1, 4)
TORCHRUN_1 = Launch("torchrun", 1, 4, "node1:29501", 1, 2)
# name: variables, and the launch or the beginning of the coordinator.
LAUNCHES: dict[str, tuple[dict[str, str], Launch | str]] = {
    "SLURM": (SLURM, SLURM_5),
    "Open MPI 4": (
        OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": OPEN_MPI_4},
        Launch("Open MPI", 3, 8, f"10.96.0.1:{port(15315763200)}", 3, 4),
    ),
    "Open MPI 4, IPv6": (
        OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": OPEN_MPI_6},
        "[fe80::b9b:ac5d]:",
    ),
    "Open MPI 5": (OPEN_MPI | OPEN_MPI_5, "crhtc53:"),
    "Open MPI, one host": (
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        "127.0.0.1:",
    ),
    "PMI of PBS": (
        PMI | {"PBS_NODEFILE": "NODES"},
        Launch("PMI", 6, 8, f"dec0001.hsn:{port(12345671)}", 2, 4),
    ),
    "PALS": (
        {k: v for k, v in PMI.items() if "LOCAL" not in k} | PALS,
        Launch("PMI", 6, 8, f"dec9:{port(12345671)}", 2, 4),
    ),
    "torchrun": (TORCHRUN, TORCHRUN_1),
    "srun torchrun": (TORCHRUN | SLURM, TORCHRUN_1),
    "each torchrun started by itself": (
        SLURM | TORCHRUN | {"WORLD_SIZE": "1"},
        replace(SLURM_5, coordinator=f"node1:{port(4242)}"),
    ),
    "Kubernetes": (
        JAXS | {"JOB_COMPLETION_INDEX": "2"},
        Launch("Kubernetes", 2, 4, ADDRESS),
    ),
    "JAX": (JAXS | {"JAX_PROCESS_ID": "3"}, Launch("JAX's variables", 3, 4, ADDRESS)),
    "JAX, one process, asked for": (
        JAXS | {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1"},
        Launch("JAX's variables", 0, 1, ADDRESS),
    ),
    "TPU pod": (POD, Launch("TPU pod", 2, 4, None)),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_process_alone_has_no_launch(name: str) -> None:
    assert find_launch(ALONE[name]) is None


@pytest.mark.parametrize("name", LAUNCHES)
def test_variables_of_launchers(name: str, tmp_path: Path) -> None:
    variables, expected = LAUNCHES[name]
    nodes = tmp_path / "nodes"
    nodes.write_text("dec0001.hsn\ndec0001.hsn\ndec0002.hsn\n")
    launch = find_launch(
        {k: str(nodes) if v == "NODES" else v for k, v in variables.items()}
    )
    if isinstance(expected, str):
        assert launch is not None
        assert str(launch.coordinator).startswith(expected)
    else:
        assert launch == expected


def test_by_hand() -> None:
    assert launch_by_hand(None, None, None) is None
    launch = launch_by_hand("host:1", 3, 8)
    assert launch == Launch("the command line", 3, 8, "host:1")


@pytest.mark.parametrize(
    ("variables", "bound"),
    [
        ({}, False),
        ({"SLURM_GPUS_PER_TASK": "2"}, True),
        ({"SLURM_TRES_PER_TASK": "cpu=16,gres/gpu=1"}, True),
        ({"SLURM_TRES_PER_TASK": "cpu=16"}, False),
        ({"SLURM_GPU_BIND": "map_gpu:3,2,1,0"}, True),
        ({"SLURM_GPU_BIND": "none"}, False),
        ({"SLURM_GPU_BIND": "verbose,none", "SLURM_GPUS_PER_TASK": "1"}, False),
    ],
)
def test_gpus_of_slurm(variables: dict[str, str], bound: bool) -> None:
    launch = find_launch(SLURM | variables)
    assert launch is not None
    assert launch.bound == bound
    own = local_devices(launch, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert own == (None if bound else [1])


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node7,other2", "node7"),
        ("node[001-004,9],x", "node001"),
        ("a[3,5-7]", "a3"),
        ("a[12]", "a12"),
        ("r[1-2]n[03-04],a1", "r1n03"),
        ("gpu[01-04]-ib,x[1-2]", "gpu01-ib"),
        ("", ""),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("visible", "bound", "expected"),
    [
        ("0,1,2,3", False, [1]),
        ("0,1,2,3,4,5,6,7", False, [2, 3]),
        ("4", False, None),  # its own: fewer than processes
        ("0,1,2,3", True, None),  # srun --gpus-per-task
        ("", False, None),
    ],
)
def test_gpus_of_a_process(
    visible: str, *, bound: bool, expected: list[int] | None
) -> None:
    launch = Launch("SLURM", 5, 8, "gpu007:1", 1, 4, bound)
    assert local_devices(launch, {"CUDA_VISIBLE_DEVICES": visible}) == expected
