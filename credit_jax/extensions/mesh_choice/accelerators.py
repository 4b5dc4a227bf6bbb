"""Speeds of accelerators: of one as it was measured, of others by their data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Accelerator:
    """An accelerator and its links."""

    name: str
    platform: str  # that JAX lowers for
    peak: float  # FLOP/s of dense bfloat16 products
    bandwidth: float  # bytes/s of its memory
    launch: float  # seconds of a kernel besides its work
    link: float  # bytes/s to others of its node, in each direction
    network: float  # bytes/s of a device to other nodes
    message: float  # seconds of a collective besides its bytes
    memory: float  # bytes
    # Share of `peak` and `bandwidth` that the kernels of a step reached; 1 where no
    # step was timed.
    achieved: float = 1.0


ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType(
    {
        "h100": Accelerator(
            "NVIDIA H100 SXM, 80 GB",
            "cuda",
            peak=989e12,
            bandwidth=3.35e12,
            launch=2e-6,
            link=450e9,  # NVLink 4
            network=50e9,  # 400 Gb/s
            message=10e-6,
            memory=80e9,
        ),
        # One of them: copies, products, and the step of configs/wxformer_025deg.yaml
        # (docs/scaling.md), of whose 75.4 ms kernels took 68.1. Links are those of the
        # data sheet.
        "h200": Accelerator(
            "NVIDIA H200 SXM, 141 GB",
            "cuda",
            peak=735e12,
            bandwidth=4.1e12,
            launch=3.5e-6,  # 7.3 ms besides 2,100 kernels
            link=450e9,  # NVLink 4
            network=50e9,  # 400 Gb/s
            message=10e-6,
            memory=141e9,
            achieved=0.70,
        ),
        "a100": Accelerator(
            "NVIDIA A100 SXM, 40 GB",
            "cuda",
            peak=312e12,
            bandwidth=1.555e12,
            launch=2e-6,
            link=300e9,  # NVLink 3
            network=25e9,  # 200 Gb/s
            message=10e-6,
            memory=40e9,
        ),
        "v5p": Accelerator(
            "TPU v5p",
            "tpu",
            peak=459e12,
            bandwidth=2.765e12,
            launch=0.0,
            link=100e9,
            network=100e9,  # a pod has one network
            message=1e-6,
            memory=95e9,
        ),
    }
)
