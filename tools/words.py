"""Checks the words of the code: `python -m tools.words`, a part of `make lint`.

- What the code binds (variable, parameter, attribute, function, class) has a noun that
  says what the value is for a name. Words that say how one came by it, `BANNED`, are no
  part of a name.
- A description below `Args:` or `Attributes:` is a whole phrase: "number of rows of the
  mesh", not "of the mesh".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.docstrings import ENTRY, sectioned

ROOT = Path(__file__).parents[1]
FOLDERS = ("credit_jax", "credit_torch_bridge", "benchmarks", "tools")
BANNED = frozenset(("found", "given", "kept", "lost", "made", "own", "there", "wanted"))
# Attributes of public classes, which a minor version does not rename.
PUBLIC = {"credit_torch_bridge/config/editor.py": {"found", "kept"}}
# A description that begins with one of these lacks the noun before it.
_FRAGMENT = re.compile(
    r"(above|after|at|before|below|between|by|for|from|in|of|on|over|that|to|until|when"
    r"|where|which|whose|with|without)\b"
)


def problems(source: str, place: str) -> list[str]:
    """Names and descriptions of a module that break the rules, one line each.

    >>> problems("found = 1", "a.py")
    ['a.py:1: the name found has the word found; name what the value is']

    Args:
        source: text of the module.
        place: path of the module from the root of the repository.
    """
    lines = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        for name in bound_names(node):
            words = BANNED.intersection(name.lower().split("_"))
            if words and name not in PUBLIC.get(place, ()):
                lines.append(
                    f"{place}:{line}: the name {name} has the word "
                    f"{', '.join(sorted(words))}; name what the value is"
                )
        lines += [
            f"{place}:{line}: {text!r} is not a whole phrase; name what is described"
            for line, text in _fragments(node)
        ]
    return lines


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a node binds."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store())
            | ast.Attribute(attr=name, ctx=ast.Store())
        ):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def _fragments(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of the descriptions in a node's docstring that lack a noun."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    docstring = ast.get_docstring(node)
    for number, (section, line) in enumerate(sectioned(docstring or "")):
        entry = ENTRY.match(line) if section in ("Args", "Attributes") else None
        if entry and _FRAGMENT.match(entry["text"]):
            yield node.body[0].lineno + number, line.strip()


def main() -> int:
    """Prints the problems of all modules; returns the exit code."""
    lines = [
        line
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in problems(path.read_text(), path.relative_to(ROOT).as_posix())
    ]
    print(*lines, sep="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
