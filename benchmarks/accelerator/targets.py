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

from credit_jax.parallel.compiler import as_flags

ROOT = Path(__file__).parents[2]
# Plugins are built for one jaxlib and one Python.
_BUILD = f"jaxlib-{version('jaxlib')}-{sys.implementation.cache_tag}"
WHEELS = ROOT / ".cache" / "accelerator" / _BUILD
# XLA's description of the device for deviceless compilation: limits of a streaming
# multiprocessor, and versions of the libraries.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448  # codespell:ignore optin
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclass(frozen=True)
class Target:
    """An accelerator.

    Attributes:
        name: on the command line.
        device: its full name.
        platform: what JAX lowers for.
        topology: of 8 devices, as PJRT names it.
        peak: FLOP/s of dense bfloat16 matmuls, from the data sheet.
        bandwidth: bytes per second of its memory, from the data sheet.
        launch: seconds of a kernel besides its work.
        link: bytes per second that a device sends to its neighbors, in each direction.
        message: seconds of a collective besides its bytes.
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
        wanted = "\n".join(self.wheels)
        if mark.exists() and mark.read_text() == wanted:
            return
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--upgrade"]
        pip += ["--no-compile", "--target", str(folder), *self.wheels]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"could not install {', '.join(self.wheels)}:\n{done.stderr}"
            )
        mark.write_text(wanted)

    def environment(self, folder: Path = WHEELS) -> dict[str, str]:
        """Environment of a process that compiles for it; to set before JAX starts."""
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
            "xla_backend_optimization_level": 0,
            "xla_gpu_ptx_compiler_extra_flags": "-O0",
        }
        return common | {
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
            "XLA_FLAGS": " ".join(as_flags(flags)),
        }

    def devices(self) -> list[Any]:
        """Eight devices to compile for; needs a process with its `environment`."""
        from jax.experimental import topologies

        if self.is_gpu:
            found = topologies.get_topology_desc(
                platform="cuda", target_config=_H100, topology=self.topology
            )
        else:
            found = topologies.get_topology_desc(self.topology, "tpu")
        return list(found.devices)


TARGETS = {
    target.name: target
    for target in (
        Target(
            "h100",
            "NVIDIA H100 SXM, 80 GB",
            "cuda",
            "1x1x8",
            peak=989e12,
            bandwidth=3.35e12,
            launch=2e-6,
            link=450e9,
            message=10e-6,
        ),
        Target(
            "v5p",
            "TPU v5p",
            "tpu",
            "v5p:2x2x2",
            peak=459e12,
            bandwidth=2.765e12,
            launch=0.0,
            link=100e9,
            message=1e-6,
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
