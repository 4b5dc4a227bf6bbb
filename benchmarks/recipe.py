"""The recipe of a number: date, commit, versions, machine and configuration."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "torch", "miles-credit")


def recipe(config: Mapping[str, Any], *, device: str | None = None) -> dict[str, Any]:
    """Date, commit, versions, machine and its speed, and the config of a run.

    Args:
        config: config of the run.
        device: description of the devices, for a process that must not use them; None
            for those of JAX.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": COMMIT,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "machine": f"{_machine(device)}, {_pace()}",
        "config": dict(config),
    }


def _commit() -> str:
    """The commit of the checkout, and whether the packages differ from it."""
    packages = ("credit_jax", "credit_torch_bridge", "benchmarks/*.py")
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", *packages)
    return (head or "unknown") + (" with local changes" if changed else "")


def _git(*arguments: str) -> str:
    try:
        run = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _machine(device: str | None) -> str:
    """Kind and number of processors, memory, and JAX's devices."""
    parts = [f"{os.cpu_count()} CPU cores ({platform.machine()})"]
    parts += [p for p in (_processor(), _memory()) if p]
    if device is not None:
        return ", ".join([*parts, device])
    devices = jax.devices()
    if devices[0].platform == "cpu":
        return ", ".join([*parts, f"JAX on {len(devices)} simulated CPU devices"])
    return ", ".join([*parts, f"JAX on {len(devices)} x {devices[0].device_kind}"])


def _pace(turns: int = 10**6) -> str:
    """Speed of one core at this moment, since the machine may be shared."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(turns):
            pass
        seconds.append(time.perf_counter() - start)
    return f"a Python loop of 10^6 empty turns in {1e3 * sorted(seconds)[1]:.0f} ms"


def _processor() -> str:
    """Model of the processor, on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1] for line in lines if line.startswith("model name")]
    return models[0].strip() if models else platform.processor()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return ""
    return f"{size / 2**30:.0f} GiB memory"


# Determined at import, so that it is the commit of the running code.
COMMIT = _commit()
