"""Registries of components: what a config names by kind and type.

A component is one class: its fields are its arguments in the YAML, its docstring
describes them, private attributes hold what its files contain. A registry of each kind
is in the layer of its components, which register themselves there by a decorator;
`credit_jax.config.custom_objects` adds those of files and of installed packages.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import FunctionType
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, get_args

from credit_jax.config import base
from credit_jax.config.base import Section, StrictModel

Entry = TypeVar("Entry")
_EXTENSION = "credit_jax.extension."


@dataclass(frozen=True)
class FileOf:
    """Marks a field as the path of a file that is read."""

    # Whether a name without a folder may be that of a file of this package, so that it
    # need not exist.
    or_packaged: bool = False
    is_read: bool = True


# Types of fields: digests, model packages and checks for missing files list them.
FilePath: TypeAlias = Annotated[str, FileOf()]
PackagedFile: TypeAlias = Annotated[str, FileOf(or_packaged=True)]
UnreadFile: TypeAlias = Annotated[str, FileOf(is_read=False)]


def file_fields(
    section: type[StrictModel], *keys: str
) -> Iterator[tuple[tuple[str, ...], FileOf]]:
    """Yields the keys of the fields of a class that are paths of files."""
    for name, field in section.model_fields.items():
        path = (*keys, field.alias or name)
        union = [field.annotation, *get_args(field.annotation)]
        marks = [*field.metadata, *(x for part in union for x in get_args(part)[1:])]
        for mark in marks:
            if isinstance(mark, FileOf):
                yield path, mark
        for part in union:
            if isinstance(part, type) and issubclass(part, StrictModel):
                yield from file_fields(part, *path)


def files_within(
    section: type[StrictModel], written: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], str, FileOf]]:
    """Yields keys and path of each file that a section of a config names."""
    for keys, mark in file_fields(section):
        value: Any = written
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            yield keys, value, mark


@functools.cache
def extensions(kind: str) -> Mapping[str, Any]:
    """Returns the entry points of a kind, which the extensions offer, by name."""
    # From pyproject.toml, so that nothing but what runs imports them.
    return {each.name: each for each in entry_points(group=f"{_EXTENSION}{kind}")}


class Registry(dict[str, Entry], Generic[Entry]):
    """The components of a kind (`object_type` of `custom_objects`) by their names.

    >>> shapes = Registry("shape", StrictModel)
    >>> @shapes.register("circle")
    ... class Circle(StrictModel):
    ...     radius: float = 1.0
    >>> shapes.parse("circle", {"radius": 2}, "shapes.a").radius
    2.0
    """

    def __init__(self, kind: str, entry: type) -> None:
        super().__init__()
        self.kind, self.entry = kind, entry
        # Makes a component of a plain function, of kinds that have such components.
        self.of_function: Callable[[Callable[..., Any]], Entry] | None = None
        REGISTRIES.setdefault(kind, self)

    def register(self, *names: str) -> Callable[[type[Section]], type[Section]]:
        """Returns a decorator that registers a class by its names."""

        def decorate(component: type[Section]) -> type[Section]:
            for name in names:
                if name in self:
                    raise ValueError(f"there is a {self.kind} {name!r} already")
                self[name] = component  # type: ignore[assignment]
            return component

        return decorate

    @property
    def expected(self) -> str:
        """What a component is, for errors."""
        if self.entry is FunctionType:
            return "a function"
        kind = "a subclass" if issubclass(self.entry, StrictModel) else "an instance"
        text = f"{kind} of {self.entry.__module__}.{self.entry.__qualname__}"
        if self.of_function is not None:
            text += ", or a function that returns (apply, params): docs/any_model.md"
        return text

    def accepts(self, component: Any) -> bool:
        """Whether an object is a component, or describes one."""
        if self.of_function is not None and inspect.isfunction(component):
            return True
        if not issubclass(self.entry, StrictModel):
            return isinstance(component, self.entry)
        return isinstance(component, type) and issubclass(component, self.entry)

    @property
    def names(self) -> list[str]:
        """All names, those of extensions that are not imported yet included."""
        return list(dict.fromkeys([*self, *extensions(self.kind)]))

    def find(self, name: object, path: str = "") -> Entry:
        """Returns the component of a name."""
        if not isinstance(name, str) or name not in self.names:
            error = base.not_available(f"{self.kind} type", name, self.names)
            raise base.ConfigError([f"{path}: {error}"])
        if name not in self:
            # The extension that has it is imported.
            self[name] = extensions(self.kind)[name].load()
        return self[name]

    def parse(
        self: Registry[type[Section]],
        name: object,
        arguments: Mapping[str, Any],
        path: str,
    ) -> Section:
        """Validates the arguments of a component; reads no file."""
        component = self.find(name, base.join(path, "type"))
        return base.parse(component, arguments, base.join(path, "args"))


# Kind -> its registry, from the import of the module that has it on.
REGISTRIES: dict[str, Registry[Any]] = {}
