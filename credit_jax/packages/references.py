"""Paths of files in a config, and the config of a package."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from credit_jax.config import StrictModel
from credit_jax.config.custom_objects import SECTION
from credit_jax.config.data import DataConfig
from credit_jax.config.sources.registry import source_config
from credit_jax.forecast.outputs import find_attributes
from credit_jax.physics.files import find_file
from credit_jax.transforms import TRANSFORMS

# Keys of the model, of blocks and of the output whose values are paths of files.
FILE_KEYS = frozenset(
    {
        "mean_path",
        "std_path",
        "scaler_path",
        "save_loc_physics",
        "data_path",
        "mapping_file",
        "weight_file",
        "level_info_file",
        "model_level_file",
        "grid_info_file",
        "source_level_info_file",
        "dest_level_info_file",
        "edge_path",
        "surface_geopotential_file",
        "metadata",
    }
)
# Keys of sources whose values are paths of the user's data.
PLACE_KEYS = frozenset({"base_path", "latlon2d_dir", "file_catalog_path"})
STORE_KEYS = frozenset({"store", "model_level_store"})
GRID_KEY, PATH_KEY = "latlon_grid_path", "path"
# Paths that CREDIT requires but does not read.
_UNREAD = {"wet_mask_samudra": ("mean_path", "std_path")}
_BLOCKS = ("preblocks", "postblocks")
_SECTIONS = ("seed", "model", "data", *_BLOCKS)
# Objects of `custom_objects` that forecasts need.
_OBJECTS = ("model", "dataset", "preblock", "postblock")
_INFERENCE = ("data", *_BLOCKS, "output", "members", "perturbation")


@dataclass(frozen=True)
class PathReference:
    """A path in a config.

    Attributes:
        keys: keys of the enclosing sections, then that of the path.
        path: the value.
        holder: mapping that contains the path.
    """

    keys: tuple[str, ...]
    path: str
    holder: dict[str, Any] = field(repr=False, compare=False)

    @property
    def dotted(self) -> str:
        """The keys in the form of `--set`."""
        return ".".join(self.keys)

    def set(self, path: str | None) -> None:
        """Replaces the value; None removes the key."""
        if path is None:
            del self.holder[self.keys[-1]]
        else:
            self.holder[self.keys[-1]] = path


def normalized(written: Mapping[str, Any]) -> dict[str, Any]:
    """Returns only the sections of a config that determine forecasts.

    Keys that credit_jax ignores are dropped; default paths of blocks are made explicit.

    Args:
        written: contents of the YAML file, not modified.
    """
    whole = copy.deepcopy(dict(written))
    config = {key: whole[key] for key in _SECTIONS if whole.get(key) is not None}
    objects = _needed_objects(whole)
    if objects:
        config[SECTION] = objects
    inference = whole.get("inference") or {}
    config["inference"] = {
        k: inference[k] for k in _INFERENCE if inference.get(k) is not None
    }
    for section in (config, config["inference"]):
        if "data" in section:
            section["data"] = _known(section["data"])
        for block in _blocks(section):
            _write_defaults(*block)
    return config


def _needed_objects(config: Mapping[str, Any]) -> dict[str, Any]:
    """The references to custom objects that forecasts need.

    Raises:
        ValueError: one is in a file, which a package cannot hold.
    """
    section = config.get(SECTION) or {}
    needed = {k: v for k, v in section.items() if v["object_type"] in _OBJECTS}
    for name, keys in needed.items():
        if keys["module_path"].endswith(".py"):
            raise ValueError(
                f"{SECTION}.{name}.module_path: a package holds no code, and "
                f"{keys['module_path']} is a file; make it a module that those who get "
                "the package can install, and name the module here"
            )
    return needed


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    """A data section with only the keys that are read."""
    section = {key: data[key] for key in data if key in DataConfig.model_fields}
    sources = section.get("source") or {}
    section["source"] = {
        name: _known_source(source) for name, source in sources.items()
    }
    return section


def _known_source(source: Mapping[str, Any]) -> dict[str, Any]:
    kind = source_config(source.get("dataset_type"))
    if kind is None:
        return dict(source)
    return {key: source[key] for key in source if key in kind.model_fields}


def _blocks(
    section: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(section, block) of all blocks of a section."""
    for name in _BLOCKS:
        for phase in (section.get(name) or {}).values():
            yield from ((name, block) for block in (phase or {}).values())


def _write_defaults(section: str, block: dict[str, Any]) -> None:
    """Writes the default paths of a block, removes paths that nothing reads."""
    entry = TRANSFORMS[section].get(str(block.get("type")))
    if entry is None:
        return
    args = block.setdefault("args", {}) or {}
    block["args"] = args
    for name, one in entry.args.model_fields.items():
        if name in _file_keys() and name not in args and isinstance(one.default, str):
            args[name] = one.default
    for reference in list(_below((), args)):
        if reference.keys[-1] in _UNREAD.get(block["type"], ()):
            reference.set(None)


def file_references(config: Mapping[str, Any]) -> list[PathReference]:
    """The paths of files in the model, blocks and output sections of a config."""
    references: list[PathReference] = []
    for keys, section in _sections(config):
        for name in ("model", *_BLOCKS, "output"):
            references += _below((*keys, name), section.get(name) or {})
    return references


def _file_keys() -> frozenset[str]:
    """`FILE_KEYS`, and the arguments of custom blocks that are paths of files."""
    entries = chain.from_iterable(blocks.values() for blocks in TRANSFORMS.values())
    return FILE_KEYS.union(*(entry.files for entry in entries))


def _below(keys: tuple[str, ...], section: Any) -> Iterator[PathReference]:
    if not isinstance(section, dict):
        return
    for key, value in section.items():
        if key in _file_keys() and isinstance(value, str):
            yield PathReference((*keys, key), value, section)
        else:
            yield from _below((*keys, str(key)), value)


def grid_references(config: Mapping[str, Any]) -> list[PathReference]:
    """The paths of files of latitudes and longitudes of computed sources."""
    return [r for r in _source_references(config) if r.keys[-1] == GRID_KEY]


def static_references(config: Mapping[str, Any]) -> dict[str, list[PathReference]]:
    """Source -> the paths of its static fields, in each data section."""
    by_source: dict[str, list[PathReference]] = {}
    for reference in _source_references(config):
        if reference.keys[-2:] == ("static", PATH_KEY):
            source = reference.keys[reference.keys.index("source") + 1]
            by_source.setdefault(source, []).append(reference)
    return by_source


def place_references(config: Mapping[str, Any]) -> list[PathReference]:
    """The paths of the user's data in the sources of a config.

    Paths of static fields and of grids are excluded.
    """
    return [
        reference
        for reference in _source_references(config)
        if reference.keys[-1] in PLACE_KEYS
        or (reference.keys[-1] == PATH_KEY and reference.keys[-2] != "static")
        or (reference.keys[-1] in STORE_KEYS and "://" not in reference.path)
    ]


def _source_references(config: Mapping[str, Any]) -> Iterator[PathReference]:
    for keys, section in _sections(config):
        data = section.get("data") or {}
        for name, source in (data.get("source") or {}).items():
            yield from _strings((*keys, "data", "source", name), source)


def _strings(keys: tuple[str, ...], section: Any) -> Iterator[PathReference]:
    if not isinstance(section, dict):
        return
    names = PLACE_KEYS | STORE_KEYS | {GRID_KEY, PATH_KEY}
    for key, value in list(section.items()):
        if key in names and isinstance(value, str):
            yield PathReference((*keys, key), value, section)
        else:
            yield from _strings((*keys, str(key)), value)


def _sections(
    config: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    yield (), config
    yield ("inference",), config.get("inference") or {}


def locate(reference: PathReference) -> Path:
    """Returns the file that a path of a config refers to.

    Raises:
        FileNotFoundError, ValueError: it does not exist.
    """
    if reference.keys[-1] == "metadata":
        return find_attributes(reference.path)
    try:
        return Path(find_file(os.path.expandvars(reference.path)))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{reference.dotted}: {error}") from None


def path_fields(args: type[StrictModel]) -> set[str]:
    """Names of the arguments of a class and nested classes that look like paths."""
    names = set()
    for name, one in args.model_fields.items():
        if name.endswith(("_path", "_file", "_dir")) or name == "save_loc_physics":
            names.add(name)
        inner = one.annotation
        if isinstance(inner, type) and issubclass(inner, StrictModel):
            names |= path_fields(inner)
    return names
