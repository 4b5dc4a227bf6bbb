"""An extension of griffe: arguments that share one description are told apart.

`a, b: text` below `Args:` describes two arguments. Griffe looks for one named "a, b";
with this it finds both, and still warns of a name that the function does not have.
"""

import re
from typing import Any

from griffe import Docstring, Extension, Object

ENTRY = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+): (?P<text>.*)$")


class SharedArgs(Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = split_entries(obj.docstring)


def split_entries(docstring: Docstring) -> str:
    """The text, with one entry for each argument."""
    lines, section = [], ""
    for line in docstring.value.splitlines():
        if line and not line.startswith(" "):
            section = line.rstrip(":") if line.endswith(":") else ""
        entry = ENTRY.match(line) if section == "Args" else None
        if entry is None:
            lines.append(line)
            continue
        *others, last = entry["names"].split(", ")
        lines += [f"{entry['indent']}{name}: see `{last}`." for name in others]
        lines.append(f"{entry['indent']}{last}: {entry['text']}")
    return "\n".join(lines)
