"""Sizes of the packages and their budgets, of `make lint`: `python -m tools.house`.

Prints a table of both packages: lines by kind, functions, files, and names. With
`--check` it fails where a number is above its budget in pyproject.toml ([tool.house]),
or where a budget is above that of the last commit and its line does not say why in a
comment.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tools.words import bound_names

ROOT = Path(__file__).parents[1]
FOLDERS = ("credit_jax", "credit_torch_bridge")
# Words that only this code has in its names.
WORDS = frozenset(
    (
        "before",
        "found",
        "given",
        "known",
        "kept",
        "made",
        "ours",
        "own",
        "place",
        "places",
        "rest",
        "same",
        "settle",
        "shown",
        "theirs",
        "there",
        "what",
        "where",
        "whole",
    )
)
# Functions that judge input and word messages.
_JUDGES = re.compile("check|problem|note|refus")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Number -> what it is in the table.
TITLES = {
    "lines": "lines",
    "core": "lines of the core: credit_jax without its extensions",
    "code": "lines of code, without docstrings, blanks, imports and comments",
    "functions": "functions",
    "short_functions": "functions of at most one statement",
    "helpers": "private functions that are used once",
    "files": "files",
    "imports": "imports, % of lines",
    "validation": "validation and messages, % of lines",
    "comments": "comments of their own line, % of lines",
    "words": "words of our own in 1,000 names",
}


def counts_of(source: str) -> Counter[str]:
    """Counts lines, functions and names of a module.

    >>> counts = counts_of("import os\\n\\ndef known():\\n    return os.name\\n")
    >>> counts["lines"], counts["code"], counts["imports"], counts["words"]
    (4, 2, 1, 1)
    """
    nodes, lines = list(ast.walk(ast.parse(source))), source.splitlines()
    docs = _spans(
        node.body[0]
        for node in nodes
        if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS))
        and ast.get_docstring(node) is not None
    )
    imports = _spans(n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom))
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
    }
    blank = {n for n, line in enumerate(lines, 1) if not line.strip()} - docs
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    names = [name for node in nodes for name in bound_names(node)]
    uses = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )
    judges = [node for node in functions if _JUDGES.search(node.name)]
    raised = [n for n in nodes if isinstance(n, ast.Raise | ast.Assert)]
    return Counter(
        lines=len(lines),
        code=len(lines) - len(docs | imports | comments | blank),
        functions=len(functions),
        short_functions=sum(_num_statements(node) <= 1 for node in functions),
        helpers=sum(_is_private(n.name) and uses[n.name] == 1 for n in functions),
        files=1,
        imports=len(imports),
        validation=len(_spans([*judges, *raised])),
        comments=len(comments),
        names=len(names),
        words=sum(bool(WORDS & {*name.lower().split("_")}) for name in names),
    )


def _spans(nodes: Iterable[ast.stmt]) -> set[int]:
    """Numbers of the lines of some statements."""
    return {
        line
        for node in nodes
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _num_statements(function: ast.AST) -> int:
    """Statements of a function, docstring not counted."""
    inside = [n for n in ast.walk(function) if isinstance(n, ast.stmt)][1:]
    return len(inside) - (ast.get_docstring(function) is not None)  # pyright: ignore


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def numbers_of(root: Path) -> dict[str, float]:
    """Returns the numbers of the table for a checkout, by the keys of `TITLES`."""
    total = Counter[str]()
    for name in FOLDERS:
        for path in (root / name).rglob("*.py"):
            counts = counts_of(path.read_text(encoding="utf-8"))
            total += counts
            if name == FOLDERS[0] and "extensions" not in path.parts:
                total["core"] += counts["lines"]
    shares = dict.fromkeys(("imports", "validation", "comments"), 100 / total["lines"])
    shares["words"] = 1000 / total["names"]
    return {
        key: round(total[key] * shares[key], 1) if key in shares else total[key]
        for key in TITLES
    }


def problems(
    numbers: dict[str, float], text: str, earlier: str | None
) -> Iterator[str]:
    """Yields numbers above their budgets, and budgets raised without a reason.

    Args:
        numbers: as `numbers_of` returns them.
        text: pyproject.toml.
        earlier: pyproject.toml of the last commit, if there is one.
    """
    budgets = tomllib.loads(text)["tool"]["house"]
    last = tomllib.loads(earlier or "").get("tool", {}).get("house", {})
    for key, budget in budgets.items():
        if numbers[key] > budget:
            yield (
                f"{TITLES[key]}: {numbers[key]:,}, with a budget of {budget:,}: remove "
                "what the change replaces, or raise it in pyproject.toml (tool.house) "
                "with a comment that says why"
            )
        says_why = re.search(rf"^{key} = .*#", text, re.MULTILINE)
        if budget > last.get(key, budget) and not says_why:
            yield (
                f"[tool.house] {key}: raised from {last[key]:,} to {budget:,}; say why "
                "in a comment of its line"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, or checks it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.house")
    parser.add_argument("--check", action="store_true", help="fail above the budgets")
    options = parser.parse_args(arguments)
    numbers, text = numbers_of(ROOT), (ROOT / "pyproject.toml").read_text()
    if not options.check:
        budgets = tomllib.loads(text)["tool"]["house"]
        for key, title in TITLES.items():
            limit = f"  (budget {budgets[key]:,})" if key in budgets else ""
            print(f"{numbers[key]:>9,}  {title}{limit}")
        return 0
    command = ["git", "-C", str(ROOT), "show", "HEAD:pyproject.toml"]
    last = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = list(problems(numbers, text, last.stdout if last.returncode == 0 else None))
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
