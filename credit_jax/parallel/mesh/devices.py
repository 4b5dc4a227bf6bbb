"""The devices of a run, which are simulated on a CPU-only machine."""

import math
import os
import re
from pathlib import Path
from typing import Any

import jax

from credit_jax.config.messages import counted, divisors
from credit_jax.parallel.mesh.credit import Parallelism, normalize_parallelism
from credit_jax.parallel.mesh.device_mesh import DOMAIN, ORDER, all_devices
from credit_jax.parallel.processes.connect import announce
from credit_jax.parallel.processes.coordinator import num_processes

_XLA_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
# Variables from which XLA takes its number of threads on CPU.
_THREADS = {"NPROC", "PJRT_NPROC"}


def required_devices(parallelism_conf: Parallelism) -> int:
    """Returns tensor * domain, times the further degrees that are given."""
    return math.prod(_configured_degrees(parallelism_conf).values())


def _configured_degrees(parallelism_conf: Parallelism) -> dict[str, int]:
    """Returns tensor, domain, and the further degrees of the mesh that are above 1."""
    section = normalize_parallelism(parallelism_conf)
    further = {axis: section.get(axis, 1) for axis in ORDER if axis != DOMAIN}
    above = {axis: degree for axis, degree in further.items() if degree > 1}
    return above | {"tensor": section["tensor"], "domain": section["domain"]}


def training_devices(
    parallelism_conf: Parallelism,
    num_devices: int | None = None,
    *,
    fewer: bool = False,
) -> list[Any]:
    """Returns the devices of a training run, simulated if necessary."""
    request = parallelism_conf if num_devices is None else num_devices
    ensure_devices(request, fewer=fewer)
    return all_devices()[:num_devices]


def forward_devices(
    parallelism_conf: Parallelism, num_devices: int | None = None
) -> list[Any]:
    """Returns the devices of forward passes; with `data: none` the required ones."""
    alone = normalize_parallelism(parallelism_conf)["data"] == "none"
    if num_devices is None and alone:
        num_devices = required_devices(parallelism_conf)
    return training_devices(parallelism_conf, num_devices)


def free_memory(num_devices: int) -> tuple[float, str] | None:
    """Bytes that a device of this machine can take, and its name; None if unknown."""
    device, meminfo = jax.local_devices()[0], Path("/proc/meminfo")
    if (stats := device.memory_stats()) and "bytes_limit" in stats:
        return stats["bytes_limit"], f"the {device.device_kind} here"
    if device.platform != "cpu" or not meminfo.exists():
        return None
    sizes = dict(line.split(":") for line in meminfo.read_text().splitlines())
    free = 1024 * int(sizes["MemAvailable"].split()[0]) / num_devices
    shared = f" for each of {num_devices} devices" if num_devices > 1 else ""
    return free, f"this machine{shared} (--device names an accelerator)"


def ensure_devices(request: int | Parallelism, *, fewer: bool = False) -> None:
    """Ensures that there are enough devices; call it before the first use of JAX.

    On a CPU-only machine the devices are simulated and a line is printed. If a run has
    several processes, each simulates an equal part of them and prints its own line.
    Accelerators are never simulated.

    Args:
        request: number of devices of all processes, or a parallelism section (see
            `required_devices`).
        fewer: whether fewer accelerators will do, and more simulated devices.

    Raises:
        ValueError: there are too few accelerators; JAX is already in use with too few
            CPU devices; or `request` is not a multiple of the number of processes.

    >>> credit_jax.ensure_devices(1)
    """
    needs, why = _needs(request)
    processes = num_processes()
    if isinstance(request, int) and needs % processes and not fewer:
        raise ValueError(
            f"{why}, which {processes} processes cannot share equally; take a multiple "
            f"of {processes}"
        )
    late = not simulate(math.ceil(needs / processes), needs)
    devices = jax.devices()
    announce()
    platform = devices[0].platform
    if len(devices) >= needs or (fewer and platform != "cpu"):
        first = jax.process_index() == 0
        if platform == "cpu" and needs > 1 and first and not late:
            print(f"No accelerator found: running on {needs} simulated CPU devices.")
        return
    available = counted(len(devices), f"{platform} device")
    if platform == "cpu" and late:
        raise ValueError(
            f"{why}, but JAX is already in use with {available}; call "
            f"ensure_devices({needs}) before the first JAX operation, or start Python "
            f"with JAX_NUM_CPU_DEVICES={needs}"
        )
    raise ValueError(
        f"{why}, but this machine has {available}; "
        f"tensor*domain can be {divisors(len(devices))} here, or set "
        "JAX_PLATFORMS=cpu to simulate the devices"
    )


def _needs(request: int | Parallelism) -> tuple[int, str]:
    """Returns the number of devices, and its explanation for error messages."""
    if isinstance(request, int):
        if request < 1:
            raise ValueError(f"the number of devices must be at least 1, got {request}")
        return request, f"{request} devices are asked for"
    degrees = _configured_degrees(request)
    needs = math.prod(degrees.values())
    terms = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
    return needs, f"{terms} = {needs} devices are needed"


def simulate(local: int, total: int) -> bool:
    """Sets the number of CPU devices and of XLA's threads of this process."""
    flag = _XLA_FLAG.search(os.environ.get("XLA_FLAGS", ""))
    configured = jax.config.values["jax_num_cpu_devices"]
    current = max(configured, int(flag[1]) if flag else 1)
    if local > current:
        try:
            jax.config.update("jax_num_cpu_devices", local)
        except RuntimeError:
            return False
    # Some sums on CPU are split among the threads, whose number thereby decides the
    # last bits. By default XLA has one for each core, and at least one for each device
    # of the process; here at least one for each device of the run, so that runs of any
    # number of processes give the same sums.
    if total > max(local, current) and not _THREADS & os.environ.keys():
        os.environ["PJRT_NPROC"] = str(max(total, os.cpu_count() or 1))
    return True
