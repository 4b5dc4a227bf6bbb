"""The roofline of a program: a lower bound of the time of its kernels.

A kernel takes max(bytes / bandwidth, operations / peak), and its launch; kernels run
one after another. The bound assumes perfect kernels; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.accelerator.kernels import Kernel
from benchmarks.accelerator.targets import Target

LAUNCHES = (1e-6, 2e-6, 5e-6)


@dataclass(frozen=True)
class Work:
    """Sums over kernels.

    Attributes:
        kernels: number of kernels.
        bytes: read and written.
        flops: operations.
        seconds: seconds at the roofline, without launches.
    """

    kernels: int = 0
    bytes: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def plus(self, kernel: Kernel, target: Target) -> Work:
        """Adds all runs of a kernel."""
        times = kernel.times
        return Work(
            self.kernels + times,
            self.bytes + times * kernel.bytes,
            self.flops + times * kernel.flops,
            self.seconds + times * kernel_seconds(kernel, target),
        )

    def step(self, launch: float) -> float:
        """Seconds with `launch` seconds of overhead per kernel."""
        return self.seconds + self.kernels * launch


def kernel_seconds(kernel: Kernel, target: Target) -> float:
    """Seconds of one run of a kernel at the roofline, without the launch."""
    return max(kernel.bytes / target.bandwidth, kernel.flops / target.peak)


def total(kernels: Iterable[Kernel], target: Target) -> Work:
    """The work of all kernels."""
    work = Work()
    for kernel in kernels:
        work = work.plus(kernel, target)
    return work


def work_by(
    key: Callable[[Kernel], str], kernels: Iterable[Kernel], target: Target
) -> dict[str, Work]:
    """Work of the kernels with equal keys, the longest first."""
    by_key: dict[str, Work] = {}
    for kernel in kernels:
        by_key[key(kernel)] = by_key.get(key(kernel), Work()).plus(kernel, target)
    order = sorted(by_key.items(), key=lambda item: -item[1].step(target.launch))
    return dict(order)


def as_json(works: Mapping[str, Work]) -> dict[str, Any]:
    """Converts works to JSON values."""
    return {name: asdict(work) for name, work in works.items()}
