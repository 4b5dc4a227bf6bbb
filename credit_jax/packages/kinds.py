"""The kinds of files that a package may contain, checked by name and by content."""

from __future__ import annotations

import json
from pathlib import Path

from credit_jax.config import ConfigError
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.metadata import METADATA_FILES, check_zarr_metadata, refuse_links

_HDF5 = b"\x89HDF\r\n\x1a\n"
_NETCDF = (_HDF5, b"CDF\x01", b"CDF\x02", b"CDF\x05")
_START = 8


def kind_of(path: Path) -> str:
    """Returns the suffix that a file has in a package: .zarr, .nc, .json or .yaml.

    Args:
        path: a file, or the folder of a Zarr store.

    Raises:
        ValueError: it is of another kind, such as a pickle.
    """
    if path.is_dir():
        return ".zarr"
    for suffix in (".nc", ".json", ".yaml"):
        if _is(path, suffix):
            return suffix
    raise ValueError(
        f"{path}: is neither NetCDF nor JSON nor a YAML mapping, which blocks read; a "
        "package takes no other files, since they could hold code"
    )


def check_kind(path: Path) -> None:
    """Checks that the content of a file matches its suffix.

    Raises:
        ValueError: it does not, or leads out of the package.
    """
    if any(part.endswith(".zarr") for part in path.parts[:-1]):
        if path.name in METADATA_FILES:
            check_zarr_metadata(path)
        return
    if not _is(path, path.suffix):
        raise ValueError(
            f"{path}: its content is not that of a {path.suffix} file, "
            f"it begins with {_begin(path)!r}; it could hold code. Do not use this "
            "package"
        )
    if _begin(path).startswith(_HDF5):
        refuse_links(path)


def _is(path: Path, suffix: str) -> bool:
    """Whether a file is of the kind of a suffix."""
    if suffix == ".nc":
        return _begin(path).startswith(_NETCDF)
    try:
        if suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif suffix in (".yaml", ".yml"):
            read_yaml(path)
        elif suffix in (".md", ".csv"):
            return "\0" not in path.read_text(encoding="utf-8")
    except (ValueError, ConfigError, RecursionError):
        return False
    # The header of safetensors is checked where the weights are read.
    return suffix in (".json", ".yaml", ".yml", ".safetensors")


def _begin(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_START)
