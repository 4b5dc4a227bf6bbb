"""Downloads the wheels that a machine without a network lacks.

    python -m benchmarks.gpu.wheels FOLDER

They are those of CPython 3.12 on x86-64 Linux, for an environment that has JAX with its
usual companions (flax, optax, orbax, tensorstore, xarray), torch for CUDA, and the
scientific packages. `benchmarks/gpu/README.md` says how they are used.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

PYTHON = "3.12"
# glibc versions of the platforms that a wheel may name.
_GLIBC = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
# To train, forecast and score.
OURS = (
    "annotated-types",
    "array-record",
    "beartype",
    "cftime",
    "donfig",
    "google-crc32c",
    "grain",
    "h5netcdf",
    "msgspec",
    "numcodecs",
    "portpicker",
    "pydantic",
    "pydantic-core",
    "shtab",
    "tensorboardX",
    "typing-extensions",
    "typing-inspection",
    "zarr",
)
# CREDIT itself, and what its models and its rollout import.
CREDIT = (
    "dask",
    "miles-credit",
    "segmentation-models-pytorch",
)
# CREDIT imports torch_harmonics for parts that no model here has; its wheel is compiled
# for one version of torch.
STUB = "torch_harmonics"
_ANYTHING = "def __getattr__(name):\n    return type(name, (), {})\n"
_MOST = 40e6  # bytes, with room for the checkout below 64 MB


def main(arguments: Sequence[str] | None = None) -> int:
    """Downloads; returns 1 if the wheels are too large to travel with the checkout."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.wheels")
    parser.add_argument("folder", type=Path, help="of the wheels")
    folder = parser.parse_args(arguments).folder
    subprocess.run([sys.executable, *command(folder)], check=True)
    write_stub(folder)
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}")
    total = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{total / 1e6:6.2f} MB of at most {_MOST / 1e6:.0f}")
    return int(total > _MOST)


def command(folder: Path) -> list[str]:
    """Arguments of the interpreter that downloads the wheels."""
    names = {"manylinux2014", "manylinux1", *(f"manylinux_{v}" for v in _GLIBC)}
    platforms = [f"--platform={name}_x86_64" for name in sorted(names)]
    return [
        *("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
        *(f"--python-version={PYTHON}", "--implementation=cp", *platforms),
        *(f"--dest={folder}", *OURS, *CREDIT),
    ]


def write_stub(folder: Path) -> Path:
    """Writes a wheel of torch_harmonics with empty classes; returns its path."""
    info = f"{STUB}-0.8.0.dist-info"
    files = {
        f"{STUB}/__init__.py": _ANYTHING,
        f"{STUB}/quadrature.py": _ANYTHING,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {STUB}\nVersion: 0.8.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: benchmarks\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(
        f"{name},,\n" for name in [*files, f"{info}/RECORD"]
    )
    path = folder / f"{STUB}-0.8.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


if __name__ == "__main__":
    sys.exit(main())
