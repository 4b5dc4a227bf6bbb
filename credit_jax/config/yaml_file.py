"""Reads YAML files, with errors that name the file and the line."""

import re
from pathlib import Path
from typing import Any

import yaml

from credit_jax.config.base import ConfigError
from credit_jax.config.messages import got

_MERGE = "tag:yaml.org,2002:merge"
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?
        |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """Safe YAML: duplicate keys are errors, 1e-3 is a float, dates are strings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} occurs twice (first in line {seen[key]})",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith(":timestamp")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Reads a YAML file whose top level is a mapping.

    Args:
        path: path of the file.

    Returns:
        The mapping. Numbers such as 1e-3 are floats (strings in PyYAML), and dates are
        strings.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it is not valid YAML, has a duplicate key, or is not a mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"config file {str(path)!r} does not exist")
    try:
        mapping = parse_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError([_yaml_problem(error)], str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"is no UTF-8 text: {error}"], str(path)) from None
    if not isinstance(mapping, dict):
        kind = "nothing" if mapping is None else got(mapping)
        problem = f"expected a mapping of keys at the top level, got {kind}"
        raise ConfigError([problem], str(path))
    return mapping


def parse_yaml(text: str) -> Any:
    """Parses a YAML text by the same rules as `read_yaml`.

    Raises:
        yaml.YAMLError: the text is not valid YAML.

    >>> parse_yaml("[1e-3, 2]")
    [0.001, 2]
    """
    value = yaml.load(text, Loader=_Loader)
    _check_no_cycle(value, ())
    return value


def _check_no_cycle(value: Any, parents: tuple[int, ...]) -> None:
    """Raises a YAMLError if an alias is part of the node that it refers to."""
    if id(value) in parents:
        raise yaml.YAMLError("an alias (*) stands inside of what it names (&)")
    inner = value.values() if isinstance(value, dict) else value
    for item in inner if isinstance(value, dict | list) else ():
        if isinstance(item, dict | list):
            _check_no_cycle(item, (*parents, id(value)))


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"not valid YAML: {error}"
    what = getattr(error, "problem", None) or str(error)
    context = getattr(error, "context", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}"
    return f"{where}: {what}" + (f" ({context})" if context else "")
