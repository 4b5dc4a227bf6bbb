"""`config`: a YAML file of either generation of CREDIT, or of credit_jax."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from credit_jax.cli.commands import OK, print_line
from credit_jax.config import apply_overrides
from credit_jax.io.atomic import new_file, refuse_existing
from credit_torch_bridge.cli.options import add_drop_option
from credit_torch_bridge.config.convert import LEVEL_COORD, TARGETS, convert_config
from credit_torch_bridge.config.yaml_io import dump, read_limited

HELP = "Convert a config file of CREDIT to credit_jax, or one for CREDIT's gen2."
EXAMPLE = "model.yml --to jax --out new.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `config`."""
    add = parser.add_argument
    add("file", metavar="FILE", help="YAML file to convert; what it is, is seen in it")
    add(
        "--to",
        choices=TARGETS,
        required=True,
        help="gen2 of CREDIT, or jax: gen2 that credit_jax trains",
    )
    add("--out", required=True, metavar="FILE", help="file to write; not there yet")
    add(
        "--level-coord",
        default=LEVEL_COORD,
        metavar="NAME",
        help="level coordinate of the files, for gen1, which does not say it "
        f"(default: {LEVEL_COORD})",
    )
    add_drop_option(parser)
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
        OSError, ValueError: the config cannot be converted; nothing is written.
    """
    for line in _convert(args):
        print_line(line)
    return OK


def _convert(args: argparse.Namespace) -> Iterator[str]:
    path, out = Path(args.file), Path(args.out)
    refuse_existing(out)
    mapping = read_limited(path)
    changed = apply_overrides(mapping, args.set)
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
