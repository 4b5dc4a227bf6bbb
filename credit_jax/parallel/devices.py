"""Enough devices for a mesh: real ones, or simulated ones on a CPU-only machine."""

import os
import re
from typing import Any

import jax

from credit_jax.config.trainer import TrainerConfig
from credit_jax.parallel.mesh import Parallelism, normalise_parallelism

_XLA_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def required_devices(parallelism_conf: Parallelism) -> int:
    """The fewest devices that a parallelism block can run on: tensor * domain."""
    block = normalise_parallelism(parallelism_conf)
    return block["tensor"] * block["domain"]


def job_devices(trainer: TrainerConfig, num_devices: int | None = None) -> list[Any]:
    """The devices that a job runs on, simulated ones if need be (`ensure_devices`).

    Args:
        trainer: its `num_devices` and `parallelism` say what the job is made for.
        num_devices: the number of devices, over what `trainer.num_devices` says.

    Returns:
        The devices, rank by rank: as many as are asked for, or else all there are.

    Raises:
        ValueError: as `ensure_devices`.
    """
    wanted = num_devices if num_devices is not None else trainer.num_devices
    ensure_devices(trainer.parallelism if wanted is None else wanted)
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    return devices[:wanted]


def ensure_devices(wanted: int | Parallelism) -> None:
    """Make sure that there are enough devices, before JAX is used for the first time.

    A CPU-only machine gets as many simulated devices as are wanted, and one line says
    so. A machine with accelerators must have them.

    Args:
        wanted: the number of devices, or a parallelism block (see `required_devices`).

    Raises:
        ValueError: if there are too few devices: accelerators, or CPU devices of a
            JAX that is already in use.
    """
    needs, why = _needs(wanted)
    late = not _simulate(needs)
    devices = jax.devices()
    platform = devices[0].platform
    if len(devices) >= needs:
        if platform == "cpu" and needs > 1 and not late:
            print(f"No accelerator found: running on {needs} simulated CPU devices.")
        return
    if platform == "cpu" and late:
        raise ValueError(
            f"{why}, but JAX is already in use with {len(devices)} CPU device(s); call "
            f"ensure_devices({needs}) before the first JAX operation, or start Python "
            f"with JAX_NUM_CPU_DEVICES={needs}"
        )
    fit = [n for n in range(1, len(devices) + 1) if len(devices) % n == 0]
    raise ValueError(
        f"{why}, but this machine has {len(devices)} {platform} device(s); "
        f"tensor*domain can be {', '.join(map(str, fit))} here, or set "
        "JAX_PLATFORMS=cpu to simulate the devices"
    )


def _needs(wanted: int | Parallelism) -> tuple[int, str]:
    """The number of devices and the words for it."""
    if isinstance(wanted, int):
        if wanted < 1:
            raise ValueError(f"the number of devices must be at least 1, got {wanted}")
        return wanted, f"{wanted} devices are asked for"
    block: dict[str, Any] = normalise_parallelism(wanted)
    needs = required_devices(block)
    tensor, domain = block["tensor"], block["domain"]
    return needs, f"tensor {tensor} x domain {domain} = {needs} devices are needed"


def _simulate(needs: int) -> bool:
    """Set the number of CPU devices; False if JAX is in use and it is too late."""
    flag = _XLA_FLAG.search(os.environ.get("XLA_FLAGS", ""))
    configured = jax.config.values["jax_num_cpu_devices"]
    there = max(configured, int(flag[1]) if flag else 1)
    if needs <= there:
        return True
    try:
        jax.config.update("jax_num_cpu_devices", needs)
    except RuntimeError:
        return False
    return True
