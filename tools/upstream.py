"""What a checkout of CREDIT has and credit_jax lacks: python -m tools.upstream CHECKOUT

CHECKOUT is the folder that has the package `credit`, of the repository or of an
installation. The list has registry names, arguments of what they name and their
defaults, keys of the config, and commands, for which the sources are parsed; and the
state dicts of the models of configs/, made small, which a process of its own builds,
with torch. docs/upstream.md has it. With --branches CHECKOUT is a repository or its git
directory, and the list has what each branch and pull request adds to HEAD.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from credit_jax.cli.console import all_commands
from credit_jax.config import Config, StrictModel
from credit_jax.config.data import DataConfig
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.loss import LossConfig
from credit_jax.config.sources.registry import source_types
from credit_jax.config.trainer import TrainerConfig
from credit_jax.extensions.certification.small_config import make_small, write_edges
from credit_jax.losses import LOSSES
from credit_jax.losses.build import BaseLoss
from credit_jax.metrics import METRICS
from credit_jax.models.registry import MODELS
from credit_jax.transforms import TRANSFORMS
from tools.imports import ROOT

# Module of CREDIT -> name of its registry, kind, and the classes of ours by name.
REGISTRIES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "models/__init__.py": (
        "_MODEL_REGISTRY",
        "model",
        {name: entry.config for name, entry in MODELS.items()},
    ),
    "losses/__init__.py": (
        "_LOSS_REGISTRY",
        "loss",
        {**LOSSES, "base": BaseLoss},
    ),
    "metrics/__init__.py": (
        "_METRIC_REGISTRY",
        "metric",
        dict.fromkeys([*METRICS, "combined"]),
    ),
    "preblock/__init__.py": (
        "_PREBLOCK_REGISTRY",
        "preblock",
        dict(TRANSFORMS["preblocks"]),
    ),
    "postblock/__init__.py": (
        "_POSTBLOCK_REGISTRY",
        "postblock",
        dict(TRANSFORMS["postblocks"]),
    ),
    "datasets/gen_2/multi_source.py": (
        "_SOURCE_REGISTRY",
        "dataset",
        dict.fromkeys(source_types()),
    ),
}
# Kinds whose arguments are those of the class that the registry names.
_WITH_ARGUMENTS = ("model", "preblock", "postblock")
_SECTIONS: Mapping[str, type[StrictModel]] = {
    "trainer": TrainerConfig,
    "data": DataConfig,
    "inference": InferenceConfig,
    "loss": LossConfig,
}
# Files of generation 1, whose keys the converter knows.
_GEN1 = re.compile(r"gen_?1|ERA5|LES|WRF|parser\.py|samudra|downscal|ic_opt|rollout_")
_GEN2_ROLLOUT = re.compile(r"rollout_gen2|rollout_utils")
# CREDIT's command -> ours.
COMMANDS = {
    "begin": "init",
    "convert": "config",
    "metrics": "score",
    "realtime": "forecast",
    "rollout": "forecast",
    "rollout-ensemble": "forecast",
}


def report(checkout: Path) -> list[str]:
    """Returns the lines of the list, in Markdown.

    Args:
        checkout: folder that has `credit`.

    Raises:
        ValueError: it has none.
    """
    root = checkout / "credit"
    if not (root / "registry.py").is_file():
        raise ValueError(f"{checkout} has no package credit; give a checkout of CREDIT")
    sections = {
        "Registry names": [*_names(root)],
        "Arguments": [*_arguments(root)],
        "Defaults": [*_defaults(root)],
        "Keys of the config": [*_keys(root)],
        "Commands": [*_commands(root)],
        "State-dict keys": _state_dicts(checkout),
    }
    lines = []
    for title, entries in sections.items():
        lines += [f"### {title}", "", *(entries or ["None."]), ""]
    return lines[:-1]


def branches(repository: Path) -> Iterator[str]:
    """Yields what each branch of a repository of CREDIT adds to its HEAD, by line."""

    def git(*words: str) -> bytes:
        command = ["git", "-C", str(repository), *words]
        return subprocess.run(command, capture_output=True, check=True).stdout

    def lines(ref: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            content = io.BytesIO(git("archive", ref, "credit"))
            with tarfile.open(fileobj=content) as archive:
                archive.extractall(folder, filter="data")
            return [x for x in report(Path(folder)) if x.startswith("- ")]

    head = set(lines("HEAD"))
    refs = git("for-each-ref", "--no-merged=HEAD", "--format=%(refname)").decode()
    for ref in refs.split():
        if ref.startswith("refs/tags/") or ref.endswith("/merge"):
            continue
        try:
            new = [line for line in lines(ref) if line not in head]
        except (subprocess.CalledProcessError, ValueError, OSError):
            # Of a version before the registries, or not all there.
            yield f"- {ref}: cannot be compared"
            continue
        if new:
            yield from (f"- {ref}:", *(f"  {line}" for line in new))


def _names(root: Path) -> Iterator[str]:
    for module, (registry, kind, ours) in REGISTRIES.items():
        unknown = [
            name for name in _registry(root / module, registry) if name not in ours
        ]
        if unknown:
            yield f"- {kind}: {_listed(unknown)}"


def _constructors(root: Path) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Title, our section and CREDIT's parameters of each name that both have."""
    for module, (registry, kind, ours) in REGISTRIES.items():
        if kind not in _WITH_ARGUMENTS:
            continue
        for name, entry in _registry(root / module, registry).items():
            settings = ours.get(name)
            if settings is None or not isinstance(entry, tuple):
                continue
            parameters = _parameters(root.parent, entry[0], entry[1])
            yield f"{kind} `{name}`", settings, parameters


def _arguments(root: Path) -> Iterator[str]:
    for title, settings, parameters in _constructors(root):
        unknown = [key for key in parameters if key not in _known(settings)]
        if unknown:
            yield f"- {title}: {_listed(unknown)}"


def _defaults(root: Path) -> Iterator[str]:
    """The defaults that are not ours, of arguments that both have."""
    for title, settings, parameters in _constructors(root):
        for key, node in parameters.items():
            field = settings.model_fields.get(key)
            if field is None or node is None or field.is_required():
                continue
            try:
                theirs = ast.literal_eval(node)
            except ValueError:
                continue
            default = field.get_default(call_default_factory=True)
            # None is filled by the constructor; a section has its own defaults.
            if theirs is None or isinstance(default, StrictModel):
                continue
            if not theirs and not default:
                continue
            each = (
                json.dumps([theirs] * len(default))
                if (isinstance(default, tuple) and isinstance(theirs, int))
                else json.dumps(theirs)
            )
            if each != json.dumps(default):
                yield f"- {title}: `{key}` is {theirs}, here {default}"


def _keys(root: Path) -> Iterator[str]:
    known = _constant(root / "cli/_check.py", "_KNOWN_TOP_LEVEL")
    unknown = sorted(set(known or ()) - _known(Config))
    if unknown:
        yield f"- top level: {_listed(unknown)}"
    for section, config in _SECTIONS.items():
        pattern = re.compile(
            rf"""\[\s*["']{section}["']\s*\](?:\.get\(|\[)\s*["'](\w+)["']"""
        )
        read: dict[bool, set[str]] = {True: set(), False: set()}
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(("cli/_convert", "cli/_begin", "cli/_ask")):
                keys = {match[1] for match in pattern.finditer(path.read_text())}
                read[_is_gen1(name)] |= keys
        unknown = sorted(read[False] - read[True] - _known(config))
        if unknown:
            yield f"- `{section}`: {_listed(unknown)}"


def _is_gen1(name: str) -> bool:
    return bool(_GEN1.search(name)) and not _GEN2_ROLLOUT.search(name)


def _commands(root: Path) -> Iterator[str]:
    text = (root / "cli/_parser.py").read_text()
    ours = {*all_commands()}
    # Commands of the program alone, not those below one of them.
    names = re.findall(r'\bsub\.add_parser\(\s*"([\w-]+)"', text)
    missing = [
        name for name in dict.fromkeys(names) if COMMANDS.get(name, name) not in ours
    ]
    if missing:
        yield f"- {_listed(missing)}"


def _state_dicts(checkout: Path) -> list[str]:
    """What `print_state_dicts` prints where the package of a checkout is imported."""
    path = f"{checkout.resolve()}{os.pathsep}{ROOT}"
    with tempfile.TemporaryDirectory() as folder:  # for files of edges
        done = subprocess.run(
            [sys.executable, "-c", "import tools.upstream as t; t.print_state_dicts()"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return [f"Not compared: {done.stderr.strip().splitlines()[-1]}"]
    # Models of CREDIT print lines, too.
    return [x for x in done.stdout.splitlines() if x.startswith("- model ")]


def print_state_dicts() -> None:
    """Prints which models of CREDIT have other arrays than the key tables."""
    from credit_torch_bridge.checkpoint.jax_checkpoint import read_run_config
    from credit_torch_bridge.compare.credit_side import new_credit_model

    sections = dict[str, Any]()
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        mapping = yaml.safe_load(path.read_text())
        if (name := mapping["model"]["type"]) in MODELS and MODELS[name].key_table:
            sections.setdefault(name, make_small(mapping, Path())["model"])
    for name, section in sections.items():
        if "edge_path" in section:
            write_edges(section)
        key_map = read_run_config({"model": section}).key_map
        try:
            key_map.check(new_credit_model(section).state_dict())
        except Exception as error:  # whatever a newer constructor raises
            text = " ".join(str(error).split())
            print(f"- model `{name}`: {text[:200]}")


def _registry(path: Path, name: str) -> dict[str, Any]:
    """The entries of a registry, which is a literal; classes become None."""
    node = _assigned(path, name)
    if not isinstance(node, ast.Dict):
        raise ValueError(f"{path}: {name} is no literal any more; change this tool")
    entries = {}
    for key, value in zip(node.keys, node.values, strict=True):
        assert key is not None
        try:
            entries[ast.literal_eval(key)] = ast.literal_eval(value)
        except ValueError:
            entries[ast.literal_eval(key)] = None
    return entries


def _constant(path: Path, name: str) -> Any:
    node = _assigned(path, name)
    if isinstance(node, ast.Call):
        node = node.args[0]
    return None if node is None else ast.literal_eval(node)


def _assigned(path: Path, name: str) -> ast.expr | None:
    """The value that a module assigns to a name at its top."""
    for node in _parse(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return node.value  # type: ignore[union-attr]
    return None


def _parse(path: Path) -> ast.Module:
    """A module of CREDIT, some of which warn of escape sequences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return ast.parse(path.read_text())


def _parameters(checkout: Path, module: str, cls: str) -> dict[str, ast.expr | None]:
    """Arguments of a class's constructor and their defaults, None where it has none."""
    path = checkout / (module.replace(".", "/") + ".py")
    for node in ast.walk(_parse(path)) if path.is_file() else ():
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    args = member.args
                    names = [each.arg for each in args.args[1:]]
                    lacking = [None] * (len(names) - len(args.defaults))
                    both = zip(names, [*lacking, *args.defaults], strict=True)
                    more = zip(args.kwonlyargs, args.kw_defaults, strict=True)
                    return {**dict(both), **{each.arg: x for each, x in more}}
    return {}


def _known(section: type[StrictModel]) -> set[str]:
    """Keys that a section reads, passes over with a note, or refuses by name."""
    fields = {field.alias or name for name, field in section.model_fields.items()}
    return {*fields, *section.ignored, *section.unavailable}


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    """Prints the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    parser.add_argument("--branches", action="store_true")
    options = parser.parse_args()
    try:
        compared = branches if options.branches else report
        lines = [*compared(options.checkout)]
    except (ValueError, subprocess.CalledProcessError) as error:
        parser.error(str(error))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
