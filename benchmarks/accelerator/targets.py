"""Accelerators that programs are compiled for without a device: compilers and speeds.

XLA's compiler for a GPU or a TPU comes in wheels and runs on any machine. The wheels
are installed in a separate folder, which is on the path of the process that compiles.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from credit_jax.extensions.mesh_choice.accelerators import ACCELERATORS
from credit_jax.parallel.compiler import as_flags

ROOT = Path(__file__).parents[2]
# Plugins are built for one jaxlib and one Python.
_BUILD = f"jaxlib-{version('jaxlib')}-{sys.implementation.cache_tag}"
WHEELS = ROOT / ".cache" / "accelerator" / _BUILD
# XLA's description of a GPU for deviceless compilation: limits of a multiprocessor, and
# versions of the libraries.
_DESCRIPTION = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared_memory} threads_per_core_limit: {chip.threads}
  core_count: {chip.count} fpus_per_core: {chip.lanes}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {chip.cache}
  clock_rate_ghz: {chip.boost} device_memory_size: {chip.memory}
  shared_memory_per_block_optin: {chip.most_shared}  # codespell:ignore optin
  cuda_compute_capability {{ major: {chip.capability[0]} minor: {chip.capability[1]} }}
  registers_per_core_limit: {chip.registers}
  registers_per_block_limit: {chip.registers}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{chip.name}"
"""


@dataclass(frozen=True)
class Chip:
    """The multiprocessors of a GPU, from the CUDA programming guide and data sheets.

    Attributes:
        name: as the driver names the device.
        capability: CUDA compute capability.
        architecture: architecture that ptxas assembles for.
        count: number of multiprocessors.
        clock: Hz at which the peak of the data sheet holds.
        boost: highest clock, GHz.
        lanes: float32 operations of a multiprocessor at once; a warp of each of its
            four schedulers issues one instruction a clock.
        special: special functions of a multiprocessor at once.
        registers, threads, programs: most of a multiprocessor.
        shared_memory: bytes of a multiprocessor.
        most_shared: bytes that one program can have.
        cache: bytes of the L2 cache.
        cache_bandwidth: bytes a second that the L2 cache gives, as microbenchmarks of
            others measured it; no data sheet has it.
        memory: bytes of the device.
    """

    name: str
    capability: tuple[int, int]
    architecture: str
    count: int
    clock: float
    boost: float
    cache: int
    cache_bandwidth: float
    memory: int
    shared_memory: int
    most_shared: int
    lanes: int
    special: int = 16
    registers: int = 65_536
    threads: int = 2048
    programs: int = 32


@dataclass(frozen=True)
class Target:
    """An accelerator.

    Attributes:
        name: name on the command line.
        device: its full name.
        platform: what JAX lowers for.
        topology: topology of 8 devices, as PJRT names it.
        peak: FLOP/s of dense bfloat16 matmuls, from the data sheet.
        bandwidth: bytes per second of its memory, from the data sheet.
        launch: seconds of a kernel besides its work.
        link: bytes per second that a device sends to its neighbors, in each direction.
        message: seconds of a collective besides its bytes.
        chip: chip of a GPU.
    """

    name: str
    device: str
    platform: str
    topology: str
    peak: float
    bandwidth: float
    launch: float
    link: float
    message: float
    chip: Chip | None = None

    @property
    def is_gpu(self) -> bool:
        return self.platform == "cuda"

    @property
    def wheels(self) -> tuple[str, ...]:
        """Requirements of the compiler that belongs to the installed jaxlib."""
        if self.is_gpu:
            plugins = ("jax-cuda12-plugin", "jax-cuda12-pjrt")
            pinned = (f"{name}=={version('jaxlib')}" for name in plugins)
            return (*pinned, "nvidia-cuda-nvcc-cu12==12.9.86")
        needs = (requirement.partition(";")[0] for requirement in requires("jax") or ())
        return tuple(need.strip() for need in needs if need.startswith("libtpu"))

    def install(self, folder: Path = WHEELS) -> None:
        """Installs the wheels into a folder, unless they are installed.

        Raises:
            RuntimeError: pip could not install them.
        """
        mark = folder / f".{self.platform}"
        wheels = "\n".join(self.wheels)
        if mark.exists() and mark.read_text() == wheels:
            return
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--upgrade"]
        pip += ["--no-compile", "--target", str(folder), *self.wheels]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"could not install {', '.join(self.wheels)}:\n{done.stderr}"
            )
        mark.write_text(wheels)

    def environment(
        self, folder: Path = WHEELS, *, optimize: bool = False
    ) -> dict[str, str]:
        """Environment of a process that compiles for it; to set before JAX starts.

        Args:
            folder: folder of the wheels.
            optimize: whether LLVM optimizes machine code, as for a device.
        """
        path = os.pathsep.join([str(folder), str(ROOT)])
        common = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"}
        if not self.is_gpu:
            return common | {
                "JAX_PLATFORMS": "cpu",
                "TPU_SKIP_MDS_QUERY": "1",
                "TPU_ACCELERATOR_TYPE": f"{self.name}-16",
                "TPU_WORKER_HOSTNAMES": "localhost",
                "TPU_WORKER_ID": "0",
                "TPU_LIBRARY_PATH": str(folder / "libtpu" / "libtpu.so"),
            }
        flags = {
            "xla_gpu_cuda_data_dir": str(folder / "nvidia" / "cuda_nvcc"),
            # Autotuning needs a device.
            "xla_gpu_autotune_level": 0,
            # The program is only read, so machine code is not optimized.
            "xla_gpu_ptx_compiler_extra_flags": "-O0",
        }
        if not optimize:
            flags["xla_backend_optimization_level"] = 0
        return common | {
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
            "XLA_FLAGS": " ".join(as_flags(flags)),
        }

    @property
    def _description(self) -> str:
        return _DESCRIPTION.format(chip=self.chip, bandwidth=int(self.bandwidth))

    def devices(self) -> list[Any]:
        """Eight devices to compile for; needs a process with its `environment`."""
        from jax.experimental import topologies

        if self.chip is not None:
            topology = topologies.get_topology_desc(
                platform="cuda", target_config=self._description, topology=self.topology
            )
        else:
            topology = topologies.get_topology_desc(self.topology, "tpu")
        return list(topology.devices)


def _speeds(name: str) -> dict[str, Any]:
    """The arguments of a target of `ACCELERATORS`."""
    speeds = ACCELERATORS[name]
    keys = ("platform", "peak", "bandwidth", "launch", "link", "message")
    return {"device": speeds.name} | {key: getattr(speeds, key) for key in keys}


TARGETS = {
    target.name: target
    for target in (
        Target(
            "h100",
            topology="1x1x8",
            **_speeds("h100"),
            chip=Chip(
                "NVIDIA H100 80GB HBM3",
                (9, 0),
                "sm_90a",
                count=132,
                clock=1.83e9,
                boost=1.98,
                cache=52_428_800,
                cache_bandwidth=5.5e12,
                memory=84_929_347_584,
                shared_memory=233_472,
                most_shared=232_448,
                lanes=128,
            ),
        ),
        Target(
            "a100",
            topology="1x1x8",
            **_speeds("a100"),
            chip=Chip(
                "NVIDIA A100-SXM4-40GB",
                (8, 0),
                "sm_80",
                count=108,
                clock=1.41e9,
                boost=1.41,
                cache=41_943_040,
                cache_bandwidth=4.0e12,
                memory=42_505_273_344,
                shared_memory=167_936,
                most_shared=166_912,
                lanes=64,
            ),
        ),
        Target(
            "v5p",
            topology="v5p:2x2x2",
            **_speeds("v5p"),
        ),
        Target(
            "v6e",
            "TPU v6e",
            "tpu",
            "v6e:2x4",
            peak=918e12,
            bandwidth=1.64e12,
            launch=0.0,
            link=100e9,
            message=1e-6,
        ),
    )
}
