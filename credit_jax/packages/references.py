"""Paths of files in a config, and the config of a package."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from credit_jax.config.components import file_fields, files_within
from credit_jax.config.custom_objects import SECTION
from credit_jax.config.data import DataConfig
from credit_jax.config.inference import find_attributes
from credit_jax.config.sources.registry import source_config
from credit_jax.physics.files import find_file
from credit_jax.transforms import TRANSFORMS, Transform

# Keys of the model whose values are paths of files.
_MODEL_KEYS = frozenset({"edge_path", "mean_path", "std_path", "save_loc_physics"})
# Keys of sources whose values are paths of the user's data.
_PLACE_KEYS = frozenset({"base_path", "latlon2d_dir", "file_catalog_path"})
_STORE_KEYS = frozenset({"store", "model_level_store"})
_GRID_KEY, _PATH_KEY = "latlon_grid_path", "path"
_SOURCE_KEYS = _PLACE_KEYS | _STORE_KEYS | {_GRID_KEY, _PATH_KEY}
# Kinds of paths: files of model, blocks and output; latitudes and longitudes of
# computed sources; static fields; other data of the user.
FILE, GRID, STATIC, PLACE = "file", "grid", "static", "place"
_BLOCKS = ("preblocks", "postblocks")
_SECTIONS = ("seed", "model", "data", *_BLOCKS)
# Objects of `custom_objects` that forecasts need.
_OBJECTS = ("model", "dataset", "preblock", "postblock")
_INFERENCE = ("data", *_BLOCKS, "output", "members", "perturbation")


@dataclass(frozen=True)
class PathReference:
    """A path in a config."""

    keys: tuple[str, ...]  # keys of the enclosing sections, then that of the path
    path: str
    # Mapping that contains the path.
    holder: dict[str, Any] = field(repr=False, compare=False)
    kind: str = FILE

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
    """Returns only the sections of a config that determine forecasts."""
    # Keys that credit_jax ignores are dropped; default paths become explicit.
    full = copy.deepcopy(dict(written))
    config = {key: full[key] for key in _SECTIONS if full.get(key) is not None}
    every = full.get(SECTION) or {}
    objects = {k: v for k, v in every.items() if v["object_type"] in _OBJECTS}
    for name, keys in objects.items():
        if keys["module_path"].endswith(".py"):
            raise ValueError(
                f"{SECTION}.{name}.module_path: a package holds no code, and "
                f"{keys['module_path']} is a file; make it a module that those who get "
                "the package can install, and name the module here"
            )
    if objects:
        config[SECTION] = objects
    inference = full.get("inference") or {}
    config["inference"] = {
        k: inference[k] for k in _INFERENCE if inference.get(k) is not None
    }
    for section in (config, config["inference"]):
        if "data" in section:
            written_data = section["data"]
            section["data"] = {
                k: v for k, v in written_data.items() if k in DataConfig.model_fields
            }
            section["data"]["source"] = sources = {}
            for name, source in (written_data.get("source") or {}).items():
                kind = source_config(source.get("dataset_type"))
                keys = source if kind is None else kind.model_fields
                sources[name] = {k: source[k] for k in source if k in keys}
        for _, kind, block in _blocks((), section):
            args = block["args"] = block.get("args") or {}
            for (*parents, key), mark in file_fields(kind):
                holder = args
                for parent in parents:
                    holder = holder.get(parent) or {}
                default = kind.model_fields[key].default if holder is args else None
                if isinstance(default, str):
                    holder.setdefault(key, default)
                if not mark.is_read:
                    holder.pop(key, None)
    return config


def _blocks(
    keys: tuple[str, ...], section: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], type[Transform], dict[str, Any]]]:
    """Keys, class and section of the blocks of a section, those of known types."""
    for name in _BLOCKS:
        for phase, blocks in (section.get(name) or {}).items():
            for label, block in (blocks or {}).items():
                kind = TRANSFORMS[name].get(str(block.get("type")))
                if kind is not None:
                    yield (*keys, name, phase, label, "args"), kind, block


def references(config: Mapping[str, Any], *kinds: str) -> list[PathReference]:
    """The paths of some kinds in a config."""
    paths: list[PathReference] = []
    for keys in ((), ("inference",)):
        section = (config.get("inference") or {}) if keys else config
        model = section.get("model") or {}
        paths += _strings((*keys, "model"), model, _MODEL_KEYS)
        for block_keys, kind, block in _blocks(keys, section):
            args = block.get("args") or {}
            for path, _, _ in files_within(kind, args):
                holder = args
                for key in path[:-1]:
                    holder = holder[key]
                full = (*block_keys, *path)
                paths.append(PathReference(full, holder[path[-1]], holder))
        output = section.get("output") or {}
        paths += _strings((*keys, "output"), output, frozenset({"metadata"}))
        sources = (section.get("data") or {}).get("source") or {}
        for each in _strings((*keys, "data", "source"), sources, _SOURCE_KEYS):
            *_, parent, key = each.keys
            if key in _STORE_KEYS and "://" in each.path:
                continue
            of_static = key == _PATH_KEY and parent == "static"
            kind = GRID if key == _GRID_KEY else STATIC if of_static else PLACE
            paths.append(replace(each, kind=kind))
    return [reference for reference in paths if reference.kind in kinds]


def _strings(
    keys: tuple[str, ...], section: Any, names: frozenset[str]
) -> Iterator[PathReference]:
    """The paths under some names in a section and the sections within it."""
    if not isinstance(section, dict):
        return
    for key, value in list(section.items()):
        if key in names and isinstance(value, str):
            yield PathReference((*keys, key), value, section)
        else:
            yield from _strings((*keys, str(key)), value, names)


def locate(reference: PathReference) -> Path:
    """Returns the file that a path of a config refers to."""
    if reference.keys[-1] == "metadata":
        return find_attributes(reference.path)
    try:
        return Path(find_file(os.path.expandvars(reference.path)))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{reference.dotted}: {error}") from None
