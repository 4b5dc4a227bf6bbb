"""An extension of griffe that checks the names that docstrings describe.

- `a, b: text` below `Args:` describes two arguments. Griffe would look for one named
"a, b"; the extension splits them, so that it warns of each name that the function does
not have.
- An example, `>>> f(1)` and what it prints, is shown as code.
- A name below `Attributes:` that the class does not have is a warning, too.
"""

import re
from collections.abc import Iterator
from typing import Any

from griffe import Class, Extension, Module, Object, get_logger

ENTRY = re.compile(r"^(?P<indent> {4})(?P<names>\w+(?:, \w+)*): ?(?P<text>.*)$")
EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)
_logger = get_logger("griffe")


class Docstrings(Extension):
    """Rewrites docstrings before they are parsed, and checks those of classes."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            text = split_arguments(obj.docstring.value)
            obj.docstring.value = fence_examples(text)

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Called when all modules of a package are loaded."""
        for cls in _classes(pkg):
            if cls.docstring is None:
                continue
            for name in described(cls.docstring.value, "Attributes"):
                if name not in cls.all_members:
                    place = f"{cls.relative_filepath}:{cls.lineno}"
                    _logger.warning(f"{place}: {cls.name} has no attribute {name!r}")


def split_arguments(text: str) -> str:
    """The text of a docstring, with one entry for each argument."""
    lines = []
    for section, line in sectioned(text):
        entry = ENTRY.match(line) if section == "Args" else None
        names = entry["names"].split(", ") if entry else []
        lines += [f"    {name}: see `{names[-1]}`." for name in names[:-1]]
        lines.append(f"    {names[-1]}: {entry['text']}" if entry else line)
    return "\n".join(lines)


def fence_examples(text: str) -> str:
    """The text of a docstring, with its examples as blocks of code."""
    return EXAMPLE.sub(r"```pycon\n\1\n```", text)


def described(text: str, section: str) -> list[str]:
    """The names that a section of a docstring describes."""
    entries = [
        ENTRY.match(line) for heading, line in sectioned(text) if heading == section
    ]
    return [name for entry in entries if entry for name in entry["names"].split(", ")]


def sectioned(text: str) -> Iterator[tuple[str, str]]:
    """Each line with the section that contains it; "" for none."""
    section = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            section = line[:-1] if line.endswith(":") else ""
        yield section, line


def _classes(parent: Module | Class) -> Iterator[Class]:
    for member in parent.members.values():
        if member.is_alias:
            continue
        if isinstance(member, Class):
            yield member
        if isinstance(member, Module | Class):
            yield from _classes(member)
