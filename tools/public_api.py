"""The public names of credit_jax: `python -m tools.public_api` writes what lists them.

The names are those of `credit_jax/__init__.pyi`. Two files follow from them: the page
docs/api.md, and tests/public_api.json, the signatures of the last release. A test
compares both; a release rewrites them. A change that old calls do not survive (a name
or a parameter that is gone, a new parameter without default) needs a major version.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import credit_jax

ROOT = Path(__file__).parents[1]
PAGE, RECORD = ROOT / "docs/api.md", ROOT / "tests/public_api.json"
_BEGIN = "<!-- written by `python -m tools.public_api` -->\n"


def signatures() -> dict[str, list[str]]:
    """Public function, class or method -> its parameters, those with a default as "x=".

    Attributes of a class have no parameters and end the list of its names.
    """
    parameters: dict[str, list[str]] = {}
    for name in sorted(credit_jax.__all__):
        thing = getattr(credit_jax, name)
        parameters[name] = _parameters(thing)
        if inspect.isclass(thing):
            for member in sorted(vars(thing)):
                if not member.startswith("_") or member == "__call__":
                    parameters[f"{name}.{member}"] = _parameters(getattr(thing, member))
    return parameters


def _parameters(thing: Any) -> list[str]:
    """The parameters of a function or a class; none of anything else."""
    if not callable(thing):
        return []
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        marks.get(parameter.kind, "")
        + parameter.name
        + ("" if parameter.default is inspect.Parameter.empty else "=")
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name != "self"
    ]


def breaks(before: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """What calls of the last release would not survive, one line each.

    >>> breaks({"f": ["x", "y="]}, {"f": ["x", "z"]})
    ['f: the parameter y is gone', 'f: the parameter z is new and has no default']
    >>> breaks({"f": ["x"]}, {"f": ["x", "z="], "g": []}), breaks({"f": []}, {})
    ([], ['f is gone'])
    """
    lines = [f"{name} is gone" for name in before if name not in now]
    for name in (name for name in before if name in now):
        old = {entry.rstrip("="): entry for entry in before[name]}
        new = {entry.rstrip("="): entry for entry in now[name]}
        lines += [f"{name}: the parameter {p} is gone" for p in old if p not in new]
        required = [
            p for p, entry in new.items() if entry == p and not p.startswith("*")
        ]
        lines += [
            f"{name}: the parameter {p} is new and has no default"
            for p in required
            if p not in old
        ]
        lines += [
            f"{name}: the parameter {p} has no default any more"
            for p in required
            if old.get(p, p) != p
        ]
    return lines


def table() -> str:
    """The part of the page that follows from the names."""
    lines, links = ["| name | what it is |", "|---|---|"], [""]
    for name in sorted(credit_jax.__all__, key=str.lower):
        thing = getattr(credit_jax, name)
        first = (inspect.getdoc(thing) or "").split("\n\n")[0]
        summary = " ".join(first.split()).replace("|", "\\|")
        lines.append(f"| [`credit_jax.{name}`] | {summary} |")
        file = Path(inspect.getfile(sys.modules[thing.__module__])).relative_to(ROOT)
        links.append(f"[`credit_jax.{name}`]: ../{file}")
    return "\n".join([*lines, *links]) + "\n"


def page(text: str) -> str:
    """The page with the table of today."""
    return text[: text.index(_BEGIN) + len(_BEGIN)] + table()


def main() -> None:
    """Writes the page and the signatures."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    record = {"version": version("credit-jax"), "names": signatures()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
