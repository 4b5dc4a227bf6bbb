"""A config under conversion, and the account of what becomes of each of its keys."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEPT, MOVED, COMPUTED, DROPPED, NOTE = "kept", "moved", "computed", "dropped", "note"

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """What becomes of a key.

    Attributes:
        kind: one of the five words above.
        path: the key, from the top of the file.
        text: where it goes, what it becomes, or why it goes.
    """

    kind: str
    path: Path
    text: str = ""

    @property
    def key(self) -> str:
        """The dotted path."""
        return dotted(self.path)

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}" + (f": {self.text}" if self.text else "")


@dataclass(frozen=True)
class ConfigReport:
    """What was done to a config.

    Attributes:
        found: what the file was: "gen1" or "gen2".
        target: what it was converted to: "gen1", "gen2" or "jax".
        changes: one for each key that is not simply kept, in the order of the work.
        kept: paths of the values that are as they were.
    """

    found: str
    target: str
    changes: tuple[Change, ...]
    kept: tuple[Path, ...]

    @property
    def unchanged(self) -> bool:
        """Whether the file was of the target kind already."""
        return all(change.kind == NOTE for change in self.changes)

    def lines(self) -> Iterator[str]:
        """The report: changes, notes, and what was kept, section by section."""
        order = (MOVED, COMPUTED, DROPPED, NOTE)
        for kind in order:
            yield from (str(c) for c in self.changes if c.kind == kind)
        sections: dict[str, list[str]] = {}
        for path in self.kept:
            names = sections.setdefault(str(path[0]), [])
            name = dotted(path[1:2])
            if name and name not in names:
                names.append(name)
        for section, names in sections.items():
            yield f"{KEPT}: {section}" + (f": {', '.join(names)}" if names else "")


@dataclass
class ConfigEditor:
    """A config that is being changed; every change is written down.

    Keys are dotted paths, or tuples where a name may hold a dot.

    Attributes:
        config: what it has become so far; a copy of what was given.
        changes: what was done.
        problems: what cannot be done, one line each, starting with the key.
    """

    config: dict[str, Any]
    changes: list[Change] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = copy.deepcopy(dict(self.config))

    def has(self, key: str | Path) -> bool:
        """Whether a key is there, whatever its value."""
        parent, name = self._parent(key)
        return parent is not None and name in parent

    def get(self, key: str | Path, default: Any = None) -> Any:
        """The value of a key; the default where it is absent or null."""
        parent, name = self._parent(key)
        value = None if parent is None else parent.get(name)
        return default if value is None else value

    def keys(self, section: str | Path) -> list[Any]:
        """The keys of a section, in their order; none where it is not there."""
        value = self.get(section)
        return list(value) if isinstance(value, Mapping) else []

    def pop(self, key: str | Path, default: Any = None) -> Any:
        """Takes a value out, without a word: the caller writes it down."""
        value = self.get(key, default)
        parent, name = self._parent(key)
        if parent is not None:
            parent.pop(name, None)
        return value

    def put(self, key: str | Path, value: Any) -> None:
        """Sets a value, without a word; sections that are absent are made."""
        *parents, name = as_path(key)
        here = self.config
        for part in parents:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        here[name] = value

    def drop(self, key: str | Path, why: str) -> None:
        """Takes a key out, if it is there."""
        if self.has(key):
            text = f"{shown(self.get(key))} ({why})"
            self.pop(key)
            self.changes.append(Change(DROPPED, as_path(key), text))

    def move(self, key: str | Path, to: str | Path, value: Any, why: str = "") -> None:
        """Sets the value that a key becomes somewhere else, and takes the key out."""
        self.moved(key, f"{dotted(as_path(to))} = {shown(value)}", why)
        self.put(to, value)

    def moved(self, key: str | Path, words: str, why: str = "") -> None:
        """Takes a key out that is now elsewhere, if it is there."""
        if self.has(key):
            self.pop(key)
            text = f"to {words}" + (f" ({why})" if why else "")
            self.changes.append(Change(MOVED, as_path(key), text))

    def compute(self, key: str | Path, value: Any, why: str) -> None:
        """Sets a value that the file did not have, or had otherwise."""
        if (
            self.has(key)
            and self.get(key) == value
            and type(self.get(key)) is type(value)
        ):
            return
        self.put(key, value)
        self.changes.append(Change(COMPUTED, as_path(key), f"{shown(value)} ({why})"))

    def default(self, key: str | Path, value: Any, why: str) -> None:
        """Sets a value where the file has none."""
        if self.get(key) is None:
            self.compute(key, value, why)

    def note(self, key: str | Path, text: str) -> None:
        """Says something that the user must know."""
        self.changes.append(Change(NOTE, as_path(key), text))

    def problem(self, key: str | Path, text: str) -> None:
        """Writes down why the file cannot be converted."""
        self.problems.append(f"{dotted(as_path(key))}: {text}")

    def _parent(self, key: str | Path) -> tuple[dict[Any, Any] | None, Any]:
        *parents, name = as_path(key)
        here: Any = self.config
        for part in parents:
            here = here.get(part) if isinstance(here, dict) else None
        return (here if isinstance(here, dict) else None), name


def as_path(key: str | Path) -> Path:
    """A dotted path as a tuple.

    >>> as_path("data.source")
    ('data', 'source')
    """
    return tuple(key.split(".")) if isinstance(key, str) else key


def dotted(path: Sequence[Any]) -> str:
    """A path as it is shown."""
    return ".".join(str(part) for part in path)


def shown(value: Any) -> str:
    """A value in a report, on one short line.

    >>> shown([1, 2])
    '[1, 2]'
    """
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All values that are no sections, by their path; an empty section is a value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def settle(
    before: Mapping[str, Any], editor: ConfigEditor
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The account of a conversion.

    Args:
        before: the file as it was.
        editor: what was done to it.

    Returns:
        Paths of the values that are as they were, and of those that nobody accounts
        for: they are gone or changed, and no change says so. An empty value that now
        has one needs no word.
    """
    after = dict(leaves(editor.config))
    filled = {path[:length] for path in after for length in range(1, len(path) + 1)}
    named = {c.path for c in editor.changes if c.kind in (MOVED, COMPUTED, DROPPED)}
    kept, lost = [], []
    for path, value in leaves(before):
        if path in after and same(after[path], value):
            kept.append(path)
        elif value in (None, {}) and path in filled:
            continue
        elif not any(path[:length] in named for length in range(1, len(path) + 1)):
            lost.append(path)
    return tuple(kept), tuple(lost)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all through: 1 is not true."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return list(left) == list(right) and all(
            same(left[key], right[key]) for key in left
        )
    if isinstance(left, list) and isinstance(right, list):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(same(a, b) for a, b in pairs)
    if isinstance(left, float) and isinstance(right, float) and left != left:
        return right != right
    return type(left) is type(right) and left == right
