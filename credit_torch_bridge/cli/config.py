"""`config`: a YAML file of either generation of CREDIT, or of credit_jax."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from credit_jax.commands import OK
from credit_jax.config.base import ConfigError
from credit_jax.config.load import apply_overrides
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.atomic import new_file
from credit_torch_bridge.config.convert import LEVEL_COORD, TARGETS, convert_config

HELP = "Convert a config file between CREDIT's two generations and credit_jax."
EXAMPLE = "model.yml --to jax --out new.yml"
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
MAX_BYTES, MAX_VALUES = 1_000_000, 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `config`."""
    add = parser.add_argument
    add("file", metavar="FILE", help="YAML file to convert; what it is, is seen in it")
    add(
        "--to",
        choices=TARGETS,
        required=True,
        help="gen2 or gen1 of CREDIT, or jax: gen2 that credit_jax trains",
    )
    add("--out", required=True, metavar="FILE", help="file to write; not there yet")
    add(
        "--level-coord",
        default=LEVEL_COORD,
        metavar="NAME",
        help="level coordinate of the files, for gen1, which does not say it "
        f"(default: {LEVEL_COORD})",
    )
    add(
        "--drop",
        action="append",
        default=[],
        metavar="KEY",
        help="leave a key out by its dotted path, such as model.post_conf; repeatable",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a value by its dotted path, before converting; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Converts a file.

    Raises:
        OSError, ValueError: what is wrong; nothing was written.
    """
    for line in _convert(args):
        print(line)
    return OK


def _convert(args: argparse.Namespace) -> Iterator[str]:
    path, out = Path(args.file), Path(args.out)
    if out.exists():
        raise FileExistsError(
            f"--out {out}: there is something already; give a new file"
        )
    given = read_limited(path)
    changed = apply_overrides(given, args.set)
    config, report = convert_config(
        changed, to=args.to, level_coord=args.level_coord, drop=tuple(args.drop)
    )
    if report.unchanged and not args.set:
        text = path.read_bytes()
        yield f"{path}: is {args.to} already; written as it is"
    else:
        text = dump(config).encode()
        yield f"{path}: {report.found} to {report.target}"
    with new_file(out) as partial:
        partial.write_bytes(text)
    yield from (f"  {line}" for line in report.lines())
    yield f"written: {out}"


def read_limited(path: str | Path) -> dict[str, Any]:
    """A YAML file that does not unfold to more than a config ever holds.

    Raises:
        FileNotFoundError, ValueError: there is none, or it is no YAML, no mapping, or
            too large, also by aliases of aliases.
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
            count = _unfolded(node, {}) if node is not None else 0
            _check_names(node, path)
        except (RecursionError, yaml.YAMLError, UnicodeError) as error:
            if isinstance(error, RecursionError):
                raise ConfigError(["too deep"], str(path)) from None
            count = 0
        if count > MAX_VALUES:
            raise ConfigError(
                [f"unfolds to more than {MAX_VALUES:,} values by its aliases"],
                str(path),
            )
    return read_yaml(path)


def _check_names(node: yaml.Node | None, path: Path) -> None:
    """Sections have names, not numbers."""
    if isinstance(node, yaml.MappingNode):
        for key, _ in node.value:
            if key.tag not in (_TEXT, _MERGE):
                line = key.start_mark.line + 1
                raise ConfigError(
                    [f"line {line}: expected a name of a section"], str(path)
                )


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """Values of a node, aliases written out; one inside itself never ends."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = MAX_VALUES + 1
    count = 1
    children: Any = node.value if not isinstance(node, yaml.ScalarNode) else ()
    for child in children:
        for part in child if isinstance(child, tuple) else (child,):
            count += _unfolded(part, known)
    known[id(node)] = min(count, MAX_VALUES + 1)
    return known[id(node)]


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, and with lists of plain values on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        plain = not any(isinstance(value, list | dict) for value in sequence)
        return super().represent_sequence(tag, sequence, flow_style=plain)


def dump(config: dict[str, Any]) -> str:
    """A config as YAML, sections in their order."""
    return yaml.dump(
        config, Dumper=_Dumper, sort_keys=False, width=88, allow_unicode=True
    )
