"""Edits a config and records every change, so that no key is lost silently."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

UNCHANGED, MOVED, COMPUTED = "kept", "moved", "computed"
DROPPED, NOTE = "dropped", "note"

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """One change of a config."""

    kind: str  # UNCHANGED, MOVED, COMPUTED, DROPPED or NOTE
    path: Path  # the key, from the top of the file
    text: str = ""  # the new key, the new value, or the reason

    def __str__(self) -> str:
        text = f"{self.kind}: {dotted(self.path)}"
        return f"{text}: {self.text}" if self.text else text


@dataclass(frozen=True)
class ConfigReport:
    """The changes that converted a config.

    Attributes:
        found: kind of the input, "gen1" or "gen2".
        target: kind of the output, "gen2" or "jax".
        changes: changes in the order in which they were made.
        kept: paths of the unchanged values.
    """

    found: str
    target: str
    changes: tuple[Change, ...]
    kept: tuple[Path, ...]

    @property
    def unchanged(self) -> bool:
        """Whether nothing was changed, except for notes."""
        return all(change.kind == NOTE for change in self.changes)

    def lines(self) -> Iterator[str]:
        """Changes, notes, and the unchanged keys of each section, one line each."""
        for kind in (MOVED, COMPUTED, DROPPED, NOTE):
            yield from (str(c) for c in self.changes if c.kind == kind)
        sections: dict[str, list[str]] = {}
        for path in self.kept:
            names = sections.setdefault(str(path[0]), [])
            name = dotted(path[1:2])
            if name and name not in names:
                names.append(name)
        for section, names in sections.items():
            yield f"{UNCHANGED}: {section}" + (f": {', '.join(names)}" if names else "")


@dataclass
class ConfigEditor:
    """A copy of a config with operations that record what they change."""

    config: dict[str, Any]  # the edited copy
    changes: list[Change] = field(default_factory=list)  # the changes made so far
    # Reasons why the config cannot be converted, one line each, key first.
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = copy.deepcopy(dict(self.config))

    def has(self, key: str | Path) -> bool:
        """Whether a key exists."""
        parent, name = self._parent(key)
        return parent is not None and name in parent

    def get(self, key: str | Path, default: Any = None) -> Any:
        """The value of a key; the default if it is absent or null."""
        parent, name = self._parent(key)
        value = None if parent is None else parent.get(name)
        return default if value is None else value

    def keys(self, section: str | Path) -> list[Any]:
        """The keys of a section in order; empty if there is no such section."""
        value = self.get(section)
        return list(value) if isinstance(value, Mapping) else []

    def pop(self, key: str | Path) -> Any:
        """Removes a value and returns it; records nothing."""
        parent, name = self._parent(key)
        return None if parent is None else parent.pop(name, None)

    def put(self, key: str | Path, value: Any) -> None:
        """Sets a value, and creates its section if needed; records nothing."""
        *parents, name = as_path(key)
        here = self.config
        for part in parents:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        here[name] = value

    def drop(self, key: str | Path, why: str) -> None:
        """Removes a key if it exists, and records the reason."""
        if self.has(key):
            text = f"{shown(self.get(key))} ({why})"
            self.pop(key)
            self.changes.append(Change(DROPPED, as_path(key), text))

    def move(self, key: str | Path, to: str | Path, value: Any) -> None:
        """Removes a key, sets the value of its new key, and records both."""
        self.moved(key, f"{dotted(as_path(to))} = {shown(value)}")
        self.put(to, value)

    def moved(self, key: str | Path, words: str, why: str = "") -> None:
        """Removes a key if it exists, and records where its value is now."""
        if self.has(key):
            self.pop(key)
            text = f"to {words}" + (f" ({why})" if why else "")
            self.changes.append(Change(MOVED, as_path(key), text))

    def compute(self, key: str | Path, value: Any, why: str) -> None:
        """Sets and records a computed value, if it was absent or different."""
        old = self.get(key)
        if self.has(key) and old == value and type(old) is type(value):
            return
        self.put(key, value)
        self.changes.append(Change(COMPUTED, as_path(key), f"{shown(value)} ({why})"))

    def default(self, key: str | Path, value: Any, why: str) -> None:
        """Sets a value if the config has none."""
        if self.get(key) is None:
            self.compute(key, value, why)

    def note(self, key: str | Path, text: str) -> None:
        """Records a note for the user."""
        self.changes.append(Change(NOTE, as_path(key), text))

    def note_if(self, notes: Mapping[str, Any]) -> None:
        """Records the notes, key first, whose values are true."""
        for line in (line for line, applies in notes.items() if applies):
            self.note(*line.split(": ", 1))

    def refuse_if(self, problems: Mapping[str, Any]) -> None:
        """Records the problems, key first, whose values are true."""
        self.problems += [line for line, applies in problems.items() if applies]

    def problem(self, key: str | Path, text: str) -> None:
        """Records why the config cannot be converted."""
        self.problems.append(f"{dotted(as_path(key))}: {text}")

    def _parent(self, key: str | Path) -> tuple[dict[Any, Any] | None, Any]:
        *parents, name = as_path(key)
        here: Any = self.config
        for part in parents:
            here = here.get(part) if isinstance(here, dict) else None
        return (here if isinstance(here, dict) else None), name


def as_path(key: str | Path) -> Path:
    """A dotted path as a tuple."""
    return tuple(key.split(".")) if isinstance(key, str) else key


def dotted(path: Sequence[Any]) -> str:
    """A path as text."""
    return ".".join(str(part) for part in path)


def shown(value: Any) -> str:
    """A value as text for the report, shortened to one line."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields all values by path; an empty section counts as a value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def settle(
    previous: Mapping[str, Any], editor: ConfigEditor
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Paths of the unchanged values, and of those that changed without a record."""
    after = dict(leaves(editor.config))
    filled = {path[:length] for path in after for length in range(1, len(path) + 1)}
    named = {c.path for c in editor.changes if c.kind in (MOVED, COMPUTED, DROPPED)}
    unchanged, unaccounted = [], []
    for path, value in leaves(previous):
        # Their texts differ where types do, at all levels: 1 is not true.
        if path in after and repr(after[path]) == repr(value):
            unchanged.append(path)
        elif value in (None, {}) and path in filled:
            continue
        elif not any(path[:length] in named for length in range(1, len(path) + 1)):
            unaccounted.append(path)
    return tuple(unchanged), tuple(unaccounted)
