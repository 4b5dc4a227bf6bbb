"""Checks what credit_jax does with a config of CREDIT, without its data."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from credit_jax.config import ConfigError, build_config
from credit_jax.config.sources.registry import source_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.noaa.sections import DownloadedConfig
from credit_jax.plan import plan_run
from credit_torch_bridge import convert_config
from credit_torch_bridge.config.convert import GEN1, kind_of

# Variables of the environment in the paths of CREDIT's configs.
ENVIRONMENT = {"USER": "user", "SCRATCH": "/scratch/user", "WORK": "/work/user"}


@dataclass(frozen=True)
class Verdict:
    """The result of the check of one config.

    Attributes:
        name: path of the file in its folder.
        kind: "gen1" or "gen2"; "" if the file is neither.
        model: `model.type`; "" without any.
        problems: reasons why it does not train, one line each.
        config: the mapping for credit_jax; None if there is none.
        condition: precondition for the user.
    """

    name: str
    kind: str
    model: str
    problems: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    condition: str = ""

    @property
    def trains(self) -> bool:
        """Whether it has no problems."""
        return not self.problems


def survey(path: Path, root: Path) -> Verdict:
    """Checks a config, one of generation 1 after its conversion.

    Args:
        path: path of the YAML.
        root: folder that the name is relative to.
    """
    name = path.relative_to(root).as_posix()
    kind, model, condition, mapping = "", "", "", None
    try:
        mapping = read_yaml(path)
        model = str((mapping.get("model") or {}).get("type", ""))
        kind = kind_of(mapping)
        with warnings.catch_warnings(), mock.patch.dict(os.environ, ENVIRONMENT):
            warnings.simplefilter("ignore")
            if kind == GEN1:
                mapping, _ = convert_config(mapping, to="jax")
            mapping, condition = _downloaded(mapping)
            plan_run(build_config(mapping), with_data=False)
    except (ValueError, OSError) as error:
        return Verdict(name, kind, model, _lines(error), mapping, condition)
    return Verdict(name, kind, model, (), mapping, condition)


def find_configs(root: Path) -> list[Path]:
    """The YAML files below a folder, in order of their names.

    Those of tools (hidden files and folders) and those inside of CREDIT's Python
    package are no configs.
    """
    files = [p for suffix in ("yml", "yaml") for p in root.rglob(f"*.{suffix}")]
    parts = {path: path.relative_to(root).parts for path in files}
    return sorted(
        path
        for path in files
        if parts[path][0] != "credit" and not any(p[0] == "." for p in parts[path])
    )


def _downloaded(mapping: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """A config that reads the files of CREDIT's downloaders, and the precondition."""
    config, fetched = copy.deepcopy(dict(mapping)), []
    for section in ("data", "validation_data"):
        for source in ((config.get(section) or {}).get("source") or {}).values():
            section_class = source_config(source.get("dataset_type"))
            if section_class is None or not issubclass(section_class, DownloadedConfig):
                continue
            if source.get("mode", "remote") == "remote":
                source["mode"] = "local"
                if "base_path" in section_class.model_fields:
                    source["base_path"] = "/downloaded"
                fetched.append(section_class.downloader)
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(fetched))
    condition = names and f"with the files of {names} and mode: local"
    return config, condition


def _lines(error: Exception) -> tuple[str, ...]:
    """The lines of an error, without the path of the file."""
    if isinstance(error, ConfigError):
        return error.problems
    first, *rest = str(error).splitlines()
    return tuple(line.strip() for line in rest) or (first,)
