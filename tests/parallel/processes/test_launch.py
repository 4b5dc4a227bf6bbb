"""The rank of a process from the environment variables of launchers."""

from __future__ import annotations

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


def test_a_process_alone_has_no_launch() -> None:
    assert find_launch({}) is None
    assert find_launch({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"}) is None, "a script"
    assert (
        find_launch(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    )
    assert find_launch({"PMI_RANK": "0", "PMI_SIZE": "1", "PBS_JOBID": "1"}) is None


def test_slurm() -> None:
    launch = Launch("SLURM", 5, 8, f"gpu007:{61440 + 4242 % 4096}", 1, 4)
    assert find_launch(SLURM) == launch


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


def test_open_mpi_4() -> None:
    uri = "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"
    port = 61440 + 15315763200 % 4096
    launch = find_launch(OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": uri})
    assert launch == Launch("Open MPI", 3, 8, f"10.96.0.1:{port}", 3, 4)
    uri = "1314521088.0;tcp6://[fe80::b9b:ac5d,2620:10d::3000:2]:43370"
    launch = find_launch(OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": uri})
    assert launch is not None
    assert launch.coordinator is not None
    assert launch.coordinator.startswith("[fe80::b9b:ac5d]:")


def test_open_mpi_5() -> None:
    namespace = {"PMIX_NAMESPACE": "prterun-crhtc53-2048@1"}
    launch = find_launch(OPEN_MPI | namespace)
    assert launch is not None
    assert launch.coordinator is not None
    assert launch.coordinator.startswith("crhtc53:")
    alone = find_launch(OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"})
    assert alone is not None
    assert alone.coordinator is not None
    assert alone.coordinator.startswith("127.0.0.1:")


def test_pmi_under_pbs(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("dec0001.hsn\ndec0001.hsn\ndec0002.hsn\n")
    launch = find_launch(PMI | {"PBS_NODEFILE": str(nodes)})
    port = 61440 + 12345671 % 4096
    assert launch == Launch("PMI", 6, 8, f"dec0001.hsn:{port}", 2, 4)
    pals = {"PALS_LOCAL_RANKID": "2", "PALS_LOCAL_SIZE": "4", "MASTER_ADDR": "dec9"}
    without = {k: v for k, v in PMI.items() if "LOCAL" not in k}
    launch = find_launch(without | pals)
    assert launch == Launch("PMI", 6, 8, f"dec9:{port}", 2, 4)
    with pytest.raises(ValueError, match=r"no variable names the host.*MASTER_ADDR"):
        find_launch(PMI)


def test_torchrun() -> None:
    launch = Launch("torchrun", 1, 4, "node1:29501", 1, 2)
    assert find_launch(TORCHRUN) == launch
    assert find_launch(TORCHRUN | SLURM) == launch, "started by srun torchrun"


def test_kubernetes_and_variables_of_jax() -> None:
    index = {"JOB_COMPLETION_INDEX": "2"}
    where = {"JAX_COORDINATOR_ADDRESS": "train-0.svc:8476", "JAX_NUM_PROCESSES": "4"}
    launch = Launch("Kubernetes", 2, 4, "train-0.svc:8476")
    assert find_launch(index | where) == launch
    with pytest.raises(ValueError, match=r"not JAX_NUM_PROCESSES; set .* in the manif"):
        find_launch(index | {"JAX_COORDINATOR_ADDRESS": "train-0.svc:8476"})
    launch = Launch("JAX's variables", 3, 4, "train-0.svc:8476")
    assert find_launch(where | {"JAX_PROCESS_ID": "3"}) == launch
    alone = {**where, "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1"}
    assert find_launch(alone) is not None, "asked for"
    launch = find_launch(SLURM | TORCHRUN | {"WORLD_SIZE": "1"})
    assert launch is not None
    assert launch.launcher == "SLURM", "each process started by itself"
    with pytest.raises(ValueError, match="is set, but not JAX_NUM_PROCESSES and"):
        find_launch({"JAX_PROCESS_ID": "3"})
    assert find_launch(where) is None, "replace those of a launcher"


def test_tpu_pod() -> None:
    pod = {"TPU_WORKER_HOSTNAMES": "t0,t1,t2,t3", "TPU_WORKER_ID": "2"}
    launch = find_launch(pod)
    assert launch == Launch("TPU pod", 2, 4, None)
    assert find_launch(pod | {"JAX_PLATFORMS": "cpu"}) is None
    assert find_launch({"TPU_WORKER_HOSTNAMES": "localhost"}) is None


def test_by_hand() -> None:
    assert launch_by_hand(None, None, None) is None
    launch = launch_by_hand("host:1", 3, 8)
    assert launch == Launch("the command line", 3, 8, "host:1")
    with pytest.raises(ValueError, match=r"belong together; got host:1, None and 8"):
        launch_by_hand("host:1", None, 8)
    with pytest.raises(ValueError, match=r"process 8 of 8 processes; .* 0 to 7"):
        launch_by_hand("host:1", 8, 8)
    with pytest.raises(ValueError, match=r"must be HOST:PORT, .* got 'host'"):
        launch_by_hand("host", 0, 8)


def test_a_variable_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="SLURM_PROCID must be a number, got 'x'"):
        find_launch(SLURM | {"SLURM_PROCID": "x"})


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
