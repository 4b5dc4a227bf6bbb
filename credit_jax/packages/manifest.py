"""`package.json`: the files of a package, their digests and their provenance."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ConfigDict, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from credit_jax.config import ConfigError
from credit_jax.config.load import CONFIG_NAME, PACKAGE_NAME
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.digests import FileRecord, record_of
from credit_jax.io.metadata import refuse_links

_HDF5 = b"\x89HDF\r\n\x1a\n"
_NETCDF = (_HDF5, b"CDF\x01", b"CDF\x02", b"CDF\x05")


def kind_of(path: Path) -> str:
    """Returns the suffix that a file has in a package: .zarr, .nc, .json or .yaml."""
    if path.is_dir():
        return ".zarr"
    for suffix in (".nc", ".json", ".yaml"):
        if _is(path, suffix):
            return suffix
    raise ValueError(
        f"{path}: is neither NetCDF nor JSON nor a YAML mapping, which blocks read; a "
        "package takes no other files, since they could hold code"
    )


def _is(path: Path, suffix: str) -> bool:
    """Whether a file is of the kind of a suffix."""
    try:
        if suffix == ".nc":
            return _begin(path).startswith(_NETCDF)
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
        return file.read(8)


# Version 2 has packages of adapters; of whole weights, 1 is written on.
SCHEMA_VERSION, WITH_ADAPTERS = 1, 2
MANIFEST, CARD, CONFIG = PACKAGE_NAME, "README.md", CONFIG_NAME
WEIGHTS, CHANNELS, GRID = "weights.safetensors", "channels.json", "grid.nc"
ADAPTERS = "adapters.safetensors"
SCORES = "scores.csv"
# Key of the provenance: coordinates of the data of the run.
COORDINATES = "coordinates"
STATIC, FILES = "static", "files"
REQUIRED = (CARD, CONFIG, CHANNELS, GRID)
# Allowed names of files; those of Zarr stores include folders.
_NAMES = re.compile(
    rf"(?:{'|'.join(map(re.escape, (*REQUIRED, WEIGHTS, ADAPTERS, SCORES)))}"
    rf"|{STATIC}/[\w.+-]+\.nc|{FILES}/[\w.+-]+\.(?:nc|json|yaml)"
    rf"|{FILES}/[\w.+-]+\.zarr(?:/[\w.+-]+)+)"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONFIG = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_CONFIG)
class AdapterRecord:
    """What a package of adapters says of them, and of the weights that it lacks."""

    rank: PositiveInt
    scale: float
    targets: Sequence[str]  # paths of the matrices with adapters
    # Paths of parameters that were trained besides, which are included.
    trained: Sequence[str]
    base: str  # name of the file or folder that the training began with
    base_weights: str | None  # `trainer.finetune.weights`
    base_digest: str  # `digest_of_base` of the weights that it lacks


@dataclass(frozen=True, config=_CONFIG)
class Manifest:
    """The contents of `package.json`."""

    model_type: str  # `model.type`
    step: int  # step of the checkpoint with the weights
    average: bool  # whether the weights are the moving average
    checkpoint_digest: str  # SHA-256 of the files of these weights in the checkpoint
    # Origin of the names of weights, "CREDIT", or "credit_jax" for a model that CREDIT
    # lacks.
    names: str
    files: Mapping[str, FileRecord]  # record of every file but `package.json`, by name
    # Versions of packages, and facts of the training that are not in model.yml.
    provenance: Mapping[str, Any] = field(default_factory=dict)
    # Schema version of this file and the layout of the folder.
    schema_version: int = SCHEMA_VERSION
    # The adapters of a package that has nothing else, and their base; None for one with
    # all weights.
    adapters: AdapterRecord | None = None

    @property
    def weights_file(self) -> str:
        """Name of the file of the weights."""
        return WEIGHTS if self.adapters is None else ADAPTERS

    def __post_init__(self) -> None:
        for name, record in self.files.items():
            outside = PurePosixPath(name).is_absolute() or ".." in name.split("/")
            if outside or "\\" in name:
                raise ValueError(
                    f"the file name {name!r} leads out of the package; expected names "
                    "below its folder"
                )
            if not _NAMES.fullmatch(name):
                raise ValueError(
                    f"a package has no file {name!r}; expected {', '.join(REQUIRED)}, "
                    f"and .nc, .json, .yaml and .zarr in {FILES}/"
                )
            if not _DIGEST.fullmatch(record.sha256):
                raise ValueError(f"{name} has no SHA-256, got {record.sha256!r}")
        required = (*REQUIRED, self.weights_file)
        missing = [name for name in required if name not in self.files]
        if missing:
            raise ValueError(
                f"{', '.join(missing)} is not listed; a package needs "
                f"{', '.join(required)}"
            )

    def write(self, folder: Path) -> None:
        """Writes `package.json`."""
        content = dataclasses.asdict(self)  # type: ignore[arg-type]
        if self.adapters is None:
            del content["adapters"]
        text = json.dumps(content, indent=1)
        (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Reads `package.json`, and no other file."""
    path = folder / MANIFEST
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such folder; give a model package")
    if path.is_symlink() or not path.is_file():
        raise FileNotFoundError(
            f"{folder} is no model package: it has no file {MANIFEST}; make one with: "
            "credit-jax package --checkpoint RUN --out DIR"
        )
    content = read_json(path)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is not int or not 1 <= version <= WITH_ADAPTERS:
        raise ValueError(
            f"{path}: schema_version is {version!r}, expected one from 1 to "
            f"{WITH_ADAPTERS}; update credit_jax for a newer package"
        )
    try:
        return Manifest(**content)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(
                ": Value error, "
            )
            for e in error.errors(include_url=False)
        ]
        raise ValueError(
            f"{path}: {'; '.join(problems)}. Do not use this package, get it again"
        ) from None


def check_files(folder: Path, manifest: Manifest) -> None:
    """Checks that a folder has the files of its manifest unchanged, and no others."""
    present: set[str] = set()
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entry = Path(path, name)
            if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                raise ValueError(
                    f"{entry}: is a link or a device; a package holds plain files and "
                    "folders. Copy what it points to, or do not use this package"
                )
        present |= {Path(path, k).relative_to(folder).as_posix() for k in files}
    present -= {MANIFEST}
    missing = sorted(set(manifest.files) - present)
    if missing:
        raise ValueError(
            f"{folder}: {missing[0]} is missing ({len(missing)} of "
            f"{len(manifest.files)} files that {MANIFEST} lists); the package is "
            "incomplete, get it again"
        )
    unknown = sorted(present - set(manifest.files))
    if unknown:
        raise ValueError(
            f"{folder}: {unknown[0]} is not listed in {MANIFEST}; a package holds only "
            "files with a digest there. Remove it if you know what it is"
        )
    for name, expected in manifest.files.items():
        actual = record_of(folder / name)
        if actual != expected:
            raise ValueError(
                f"{folder / name}: SHA-256 {actual.sha256} of {actual.size} bytes, "
                f"expected {expected.sha256} of {expected.size}; the file is damaged "
                "or was changed, get the package again"
            )
        path = folder / name
        if ".zarr/" in name:  # judged as it is opened
            continue
        if not _is(path, path.suffix):
            raise ValueError(
                f"{path}: its content is not that of a {path.suffix} file, it begins "
                f"with {_begin(path)!r}; it could hold code. Do not use this package"
            )
        if _begin(path).startswith(_HDF5):  # which can lead out
            refuse_links(path)


def read_json(path: Path) -> Any:
    """Reads a JSON file without duplicate keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"the key {twice[0]!r} occurs twice")
        return dict(pairs)

    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: not the JSON that is expected ({error}); the package is damaged, "
            "get it again"
        ) from None
