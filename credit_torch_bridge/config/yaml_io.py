"""Reads YAML config files of limited size, and writes them without anchors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from credit_jax.config import ConfigError
from credit_jax.config.yaml_file import read_yaml

_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
MAX_BYTES, MAX_VALUES = 1_000_000, 100_000


def read_limited(path: str | Path) -> dict[str, Any]:
    """Reads a YAML file of limited size.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not YAML, not a mapping, or too large with expanded aliases.
    """
    path = Path(path)
    if path.is_file():
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(
                [f"{size:,} bytes; a config has at most {MAX_BYTES:,}"], str(path)
            )
        try:
            node = yaml.compose(path.read_bytes(), Loader=yaml.SafeLoader)
            count = _expanded_size(node, {}) if node is not None else 0
            # Checks that the keys of the top level are strings.
            if isinstance(node, yaml.MappingNode):
                for key, _ in node.value:
                    if key.tag not in (_TEXT, _MERGE):
                        line = key.start_mark.line + 1
                        raise ConfigError(
                            [f"line {line}: expected a name of a section"], str(path)
                        )
        except (RecursionError, yaml.YAMLError, UnicodeError) as error:
            if isinstance(error, RecursionError):
                raise ConfigError(["too deep"], str(path)) from None
            count = 0
        if count > MAX_VALUES:
            raise ConfigError(
                [f"expands to more than {MAX_VALUES:,} values by its aliases"],
                str(path),
            )
    return read_yaml(path)


def _expanded_size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Number of values with expanded aliases; recursive ones exceed the limit."""
    if id(node) in sizes:
        return sizes[id(node)]
    sizes[id(node)] = MAX_VALUES + 1
    count = 1
    children: Any = node.value if not isinstance(node, yaml.ScalarNode) else ()
    for child in children:
        for part in child if isinstance(child, tuple) else (child,):
            count += _expanded_size(part, sizes)
    sizes[id(node)] = min(count, MAX_VALUES + 1)
    return sizes[id(node)]


class _Dumper(yaml.SafeDumper):
    """A dumper that writes no anchors, and lists of scalars on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        plain = not any(isinstance(value, list | dict) for value in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain)


def dump(config: dict[str, Any]) -> str:
    """Returns a config as YAML text; the order of keys is kept."""
    return yaml.dump(
        config, Dumper=_Dumper, sort_keys=False, width=88, allow_unicode=True
    )
