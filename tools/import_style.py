"""Checks where names are imported from: `python -m tools.import_style`, in `make lint`.

What a package hands on is imported from the package outside of it, and from the module
that defines it inside.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.imports import LIBRARIES, PACKAGES, ROOT

# Package -> the names that it hands on -> the module that defines each.
Exports = Mapping[str, Mapping[str, str]]


def exports(root: Path = ROOT) -> Exports:
    """Returns what the packages of the libraries hand on."""
    handed_on = {}
    for library in LIBRARIES:
        for path in sorted((root / library).rglob("__init__.py")):
            package = ".".join(path.parent.relative_to(root).parts)
            names = {
                alias.asname or alias.name: module
                for module, aliases in _imports(ast.parse(path.read_text()))
                for alias in aliases
                if module.startswith(f"{package}.")
            }
            if names:
                handed_on[package] = names
    return handed_on


def problems(source: str, place: str, handed_on: Exports) -> list[str]:
    """Imports of a module from elsewhere than they should be, one line each.

    >>> handed_on = {"a.b": {"f": "a.b.c"}}
    >>> problems("from a.b.c import f", "a/d.py", handed_on)
    ['a/d.py: import f from a.b']
    >>> problems("from a.b import f", "a/b/d.py", handed_on)
    ['a/b/d.py: import f from a.b.c']

    Args:
        source: text of the module.
        place: path of the module from the root of the repository.
        handed_on: what the packages hand on.
    """
    folder = place.rpartition("/")[0].replace("/", ".")
    lines = []
    for module, aliases in _imports(ast.parse(source)):
        for package, names in handed_on.items():
            inside = f"{folder}.".startswith(f"{package}.")
            for name in (alias.name for alias in aliases):
                right = names.get(name) if inside else package
                wrong = package if inside else names.get(name)
                if right and module == wrong:
                    lines.append(f"{place}: import {name} from {right}")
    return lines


def _imports(tree: ast.Module) -> Iterator[tuple[str, list[ast.alias]]]:
    """Module and names of each `from module import names`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.names


def main() -> int:
    """Prints the problems of all modules; returns the exit code."""
    handed_on = exports()
    lines = [
        line
        for folder in PACKAGES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py"
        for line in problems(
            path.read_text(), path.relative_to(ROOT).as_posix(), handed_on
        )
    ]
    for line in lines:
        print(line)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
