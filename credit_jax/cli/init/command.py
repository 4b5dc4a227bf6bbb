"""Write a config for one's own files: `python -m credit_jax.cli.init --data FILE`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import credit_jax
from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.init.groups import FileGroup, inspect_files
from credit_jax.cli.init.sections import (
    OPTIONS,
    assign_roles,
    data_sections,
    model_section,
    other_sections,
)
from credit_jax.config import build_config
from credit_jax.config.custom_objects import (
    SECTION,
    absolute_paths,
    register_objects,
)
from credit_jax.config.messages import hint
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.atomic import new_file, refuse_existing

HELP = "Write a config for your own files, after one of the examples."
EXAMPLE = "--like wxformer_1deg --data 'era5_%Y.zarr' static.nc --out my.yaml"
_DEFAULT = "demo"
# Types of `custom_objects` that are taken from an example.
_OBJECTS = ("model", "loss", "metric")
_ORDER = ("preblocks", "postblocks", "loss", "metrics", "trainer", "inference")
_COMMANDS = ("preprocess", "check", "train")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.cli.init`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.cli.init")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `init`."""
    add = parser.add_argument
    add(
        "--like",
        default=_DEFAULT,
        metavar="NAME",
        help=f"an example, such as wxformer_1deg, or a YAML file, of which "
        f"model, loss and trainer are taken (default: {_DEFAULT})",
    )
    add(
        "--data",
        nargs="*",
        default=[],
        metavar="FILE",
        help="your NetCDF files and Zarr stores, or names with %%Y, %%m for dates",
    )
    add("--out", required=True, metavar="FILE", help="the YAML to write; not there yet")
    for option, meaning in {
        "prognostic": "are predicted and fed back",
        "forcing": "are read at every step",
        "diagnostic": "are predicted and not fed back",
    }.items():
        names = {"nargs": "*", "default": [], "metavar": "NAME"}
        add(f"--{option}", help=f"variables that {meaning}", **names)
    add("--timestep", metavar="DURATION", help="of the model (default: of the files)")


def run(args: argparse.Namespace) -> int:
    """Writes the config, and prints the two commands that come next.

    Raises:
        ValueError, OSError: the files do not make a config, or do not say something
            that no option says.
    """
    out = Path(args.out)
    refuse_existing(out)
    place = _example(args.like)
    text = place.read_text() if not args.data else _config(args, place, out)
    with new_file(out) as partial:
        partial.write_text(text, encoding="utf-8")
    print_line(f"written: {out}, after {place.stem}")
    if args.data:
        print_line(f"credit-jax preprocess --config {out}")
    else:
        print_line("Write your paths into its data section; or give --data FILE ...")
    print_line(f"credit-jax check --config {out}")
    return OK


def _example(name: str) -> Path:
    """The file of an example, or the path of a user's own.

    Raises:
        ValueError: there is neither.
    """
    if name.endswith((".yml", ".yaml")) and Path(name).is_file():
        return Path(name)
    root = Path(credit_jax.__file__).parent
    # In an installed package, and in a checkout.
    folders = (root / "configs", root.parent / "configs")
    folder = next((each for each in folders if each.is_dir()), folders[0])
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise ValueError(
            f"--like: {name!r} is no example and no YAML file; there are: "
            f"{', '.join(known)}{hint(name, known)}"
        )
    return folder / f"{name}.yaml"


def _config(args: argparse.Namespace, place: Path, out: Path) -> str:
    """The text of the config for the files of the command line."""
    example = read_yaml(place)
    # Before files are read: of models of one's own the entry is needed below.
    register_objects(example, source=str(place))
    objects = absolute_paths(example.get(SECTION) or {})
    used = {k: v for k, v in objects.items() if v["object_type"] in _OBJECTS}
    groups = inspect_files(args.data)
    chosen = {role: getattr(args, option) for role, option in OPTIONS.items()}
    roles = assign_roles(groups, example, chosen)
    frames = int(example["model"].get("frames", 1))
    data, valid = data_sections(groups, roles, args.timestep, frames)
    # The smallest files are those without times.
    by_size = sorted(groups, key=lambda group: len(group.times))
    latitudes = [each.first_path for each in by_size if each.latitude_name is not None]
    levels = max(group.num_levels for group in groups)
    others = other_sections(
        example, data, valid, out, latitudes[0] if latitudes else None
    )
    model = model_section(example["model"], data["source"], groups[0].shape, levels)
    config: dict[str, Any] = {
        "save_loc": f"runs/{out.stem}",
        "seed": 1000,
        **({SECTION: used} if used else {}),
        "data": data,
        "validation_data": valid,
        "model": model,
        **{key: others[key] for key in _ORDER},
    }
    build_config(config, source="the config for these files")
    return _text(config, groups, place, out)


def _text(
    config: Mapping[str, Any], groups: Sequence[FileGroup], place: Path, out: Path
) -> str:
    """The YAML with a header that says what was found, and comments for sections."""
    lines = [
        f"# Written by credit-jax init: {place.stem} for the files",
        *(f"#   {group}" for group in groups),
        "#",
        *(f"#   credit-jax {name} --config {out}" for name in _COMMANDS),
        "",
    ]
    comments = {
        "validation_data": "The last tenth of the times, which training does not see.",
        "model": f"That of {place.stem}; its padding fits the grid.",
        "preblocks": "preprocess writes the two files of statistics.",
        "trainer": f"That of {place.stem}; check says what a mesh needs.",
    }
    if not config["loss"].get("use_latitude_weights"):
        comments["loss"] = "Rows count alike: the files have no latitudes of rows."
    for key, value in config.items():
        if key in comments:
            lines.append(f"# {comments[key]}")
        text = yaml.dump({key: value}, Dumper=_SectionDumper, sort_keys=False, width=88)
        lines += [text.rstrip("\n"), ""]
    return "\n".join(lines)


class _SectionDumper(yaml.SafeDumper):
    """Lists of numbers and names in one line, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flow = not any(isinstance(value, dict) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flow)


_SectionDumper.add_representer(list, _represent_list)


if __name__ == "__main__":
    sys.exit(main())
