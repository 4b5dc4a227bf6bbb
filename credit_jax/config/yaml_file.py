"""Reads YAML files, with errors that name the file and the line."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from credit_jax.config.base import ConfigError
from credit_jax.config.messages import got

_MERGE = "tag:yaml.org,2002:merge"
# Sizes above which a file is no config: of its text, of its nodes with every alias in
# full, and how deep they are.
_MAX_BYTES, _MAX_NODES, _MAX_DEPTH = 2**22, 100_000, 100
_TOO_DEEP = f"must be nested at most {_MAX_DEPTH} deep"
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?
        |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """Safe YAML: duplicate keys are errors, 1e-3 is a float, dates are strings."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise yaml.YAMLError(_TOO_DEEP)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(
                    problem="a key must be a text or a number; texts that begin with "
                    "a bracket or a brace need quotes",
                    problem_mark=key_node.start_mark,
                )
            line = key_node.start_mark.line + 1
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} must occur once (first in line {seen[key]})",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith(":timestamp")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class CompactDumper(yaml.SafeDumper):
    """Lists of numbers and names in one line, and no aliases."""

    split: Any = (dict,)  # lists of these take a line for each entry

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        flow = not any(isinstance(value, self.split) for value in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flow)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Reads a YAML file of a mapping; 1e-3 is a float, not text, and dates are text."""
    path = Path(path)
    if path.is_dir():
        raise FileNotFoundError(
            f"config file {str(path)!r} is a folder; expected a YAML file, such as "
            f"{path / 'model.yml'} of a run"
        )
    if not path.is_file():
        raise FileNotFoundError(f"config file {str(path)!r} does not exist")
    if (size := path.stat().st_size) > _MAX_BYTES:
        problem = f"has {size} bytes, expected at most {_MAX_BYTES} of a config"
        raise ConfigError([problem], str(path))
    try:
        mapping = parse_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        text = f"not valid YAML: {error}"
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
            context = f" ({error.context})" if error.context else ""
            text = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
            text += context
        raise ConfigError([text], str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"is no UTF-8 text: {error}"], str(path)) from None
    if not isinstance(mapping, dict):
        kind = "nothing" if mapping is None else got(mapping)
        problem = f"expected a mapping of keys at the top level, got {kind}"
        raise ConfigError([problem], str(path))
    return mapping


def parse_yaml(text: str) -> Any:
    """Parses a YAML text by the same rules as `read_yaml`."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        sizes: dict[yaml.Node, tuple[int, int]] = {}
        parents: set[yaml.Node] = set()

        def size(node: yaml.Node) -> tuple[int, int]:
            """The number of nodes of a node, and their depth."""
            if node in parents:
                raise yaml.YAMLError(
                    "an alias (*) must be outside of what it names (&)"
                )
            if node in sizes:
                return sizes[node]
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            if isinstance(node, yaml.MappingNode):
                inner = [part for pair in node.value for part in pair]
            parents.add(node)
            parts = [size(part) for part in inner]
            parents.remove(node)
            number = 1 + sum(number for number, _ in parts)
            depth = 1 + max((depth for _, depth in parts), default=0)
            if number > _MAX_NODES:
                raise yaml.YAMLError(
                    f"its aliases (*) must stand for at most {_MAX_NODES} values"
                )
            if depth > _MAX_DEPTH:
                raise yaml.YAMLError(_TOO_DEEP)
            sizes[node] = number, depth
            return sizes[node]

        size(node)
        return loader.construct_document(node)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        # Of explicit tags with other texts than they stand for: !!timestamp "abc".
        raise yaml.YAMLError(f"a value must fit its tag ({error!r})") from None
    finally:
        loader.dispose()
