"""Validates a YAML mapping and converts it to documented, frozen classes.

A section is a subclass of `StrictModel`. `parse` checks a whole mapping against one
class, nested sections included, and reports all problems at once: unknown keys with the
nearest known one, missing keys, and invalid values.
"""

import os
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ValidationError,
    model_validator,
)

from credit_jax.config.credit_keys import NEVER_READ
from credit_jax.config.messages import describe, got, hint, nearest
from credit_jax.io.mirror import is_address

Section = TypeVar("Section", bound="StrictModel")


def checked_by(check: Callable[[Any], Any]) -> AfterValidator:
    """Marks a value that stays as it is where a function raises no error for it."""
    return AfterValidator(lambda value: (check(value), value)[1])


# A file or folder that is written or read as a whole, here or at an address.
FolderPath: TypeAlias = Annotated[str, checked_by(is_address)]


# Of the integers of arrays, and of seeds; YAML has any.
_BITS = 63

# Reason why an unknown key is accepted.
UNREAD = "unknown key; CREDIT passes over it, too"


class ConfigError(ValueError):
    """An error that lists all problems of a config.

    Attributes:
        problems: one line each, which starts with the dotted path of the key.
        source: path of the file, or another description of the origin of the config.

    >>> try:
    ...     credit_jax.ParallelDims(tp=3, world_size=8)
    ... except credit_jax.ConfigError as error:
    ...     len(error.problems)
    1
    """

    def __init__(self, problems: Sequence[str], source: str = "config") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        super().__init__(f"{source}: {count}\n" + "\n".join(f"  {p}" for p in problems))


@contextmanager
def as_problems(title: str = "config", key: str = "") -> Iterator[None]:
    """Raises errors of the user as a `ConfigError`, whose problems begin with `key`."""
    try:
        yield
    except (OSError, ValueError) as error:
        # A `ConfigError` has several.
        lines = getattr(error, "problems", [str(error)])
        lines = [f"{key}: {line}" if key else line for line in lines]
        raise ConfigError(lines, title) from error


def check_problems(lines: Iterable[str], source: str = "config") -> None:
    """Raises a `ConfigError` of all lines, without duplicates, if there are any."""
    if problems := dict.fromkeys(lines):
        raise ConfigError([*problems], source)


def together(*parts: Callable[[], Any]) -> list[Any]:
    """Calls functions that do not depend on each other, and returns their results."""
    problems, results = list[str](), []
    for part in parts:
        try:
            with as_problems():
                results.append(part())
        except ConfigError as error:
            problems += error.problems
    check_problems(problems)
    return results


class ConfigWarning(UserWarning):
    """A warning about keys of a config that are accepted but have no effect."""

    def __init__(self, source: str, ignored: Mapping[str, str]) -> None:
        # Dotted key -> reason why it has no effect.
        self.ignored = dict(ignored)
        listed = "; ".join(f"{key} ({why})" for key, why in self.ignored.items())
        super().__init__(f"{source}: ignored here: {listed}")


@dataclass(frozen=True)
class Unavailable:
    """A key that CREDIT reads, but credit_jax does not implement."""

    instead: str  # for the error
    harmless: tuple[Any, ...] = ()  # values without effect in CREDIT: accepted


@dataclass(frozen=True)
class Refused:
    """The value of a key that is no field, which pydantic refuses, and why."""

    text: str


class StrictModel(BaseModel):
    """Base class of config sections: immutable, with CREDIT's names and defaults.

    `null` means the default of its key. Besides its fields, a subclass may define

    - `ignored`: keys that CREDIT accepts and that have no effect in credit_jax, each
      with the reason; `parse` lists them all in one warning;
    - `unavailable`: keys that CREDIT reads and that are an error in credit_jax;
    - `conflicts`: what is wrong with its keys together.

    Unknown keys are errors. If `passes_over` is true, because CREDIT ignores unknown
    keys in that section, those that resemble no known key are ignored with a warning.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    ignored: ClassVar[Mapping[str, str]] = {}
    unavailable: ClassVar[Mapping[str, Unavailable]] = {}
    passes_over: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _sort_keys(cls, value: Any) -> Any:
        """Leaves out keys without effect, and says of those that are errors why."""
        if not isinstance(value, Mapping):
            return value
        fields = {f.alias or name: f for name, f in cls.model_fields.items()}
        read: dict[str, Any] = {}
        for key, entry in value.items():
            if key in fields:
                takes_none = NoneType in typing.get_args(fields[key].annotation)
                if entry is not None or takes_none:
                    read[key] = entry
            elif key in cls.unavailable:
                refusal = cls.unavailable[key]
                if entry is not None and entry not in refusal.harmless:
                    text = f"{got(entry)} is not available; {refusal.instead}"
                    read[key] = Refused(text)
            elif key not in cls.ignored and not cls.is_passed_over(key):
                read[str(key)] = Refused(cls.unknown_key(key, cls._read_keys()))
        return read

    @classmethod
    def unknown_key(cls, key: object, known: Iterable[str]) -> str:
        """The error message for an unknown key."""
        return f"unknown key; {nearest_key(key, known)}"

    @classmethod
    def is_passed_over(cls, key: object) -> bool:
        """Whether a key is unknown and ignored: it is no typing error."""
        if not cls.passes_over or not isinstance(key, str) or key in cls.ignored:
            return False
        return nearest(key, cls._read_keys()) is None

    @classmethod
    def _read_keys(cls) -> list[str]:
        """The known keys that somebody reads, of which others may be misspelt."""
        fields = [field.alias or name for name, field in cls.model_fields.items()]
        names = [*fields, *cls.ignored, *cls.unavailable]
        return [key for key in names if cls.ignored.get(key) != NEVER_READ]

    def conflicts(self) -> Iterator[str]:
        """Yields why its keys do not go together, the first of which is the error."""
        yield from ()

    @model_validator(mode="after")
    def _agree(self) -> "StrictModel":
        for line in self.conflicts():
            raise ValueError(line)
        return self

    def without_effect(self) -> dict[str, str]:
        """Keys of this section whose values have no effect, each with the reason."""
        return {}


def parse(
    cls: type[Section],
    mapping: Mapping[str, Any],
    path: str = "",
    *,
    source: str = "config",
) -> Section:
    """Validates a mapping as a section class, and returns its frozen instance."""
    if not isinstance(mapping, Mapping):
        raise ConfigError([f"{path or 'the file'}: {describe('mapping', mapping)}"])
    problems: list[str] = []
    # `null` becomes the default of its key; set environment variables are expanded.
    mapping = _expanded(mapping, path, problems)
    check_problems(problems, source)
    try:
        section = cls.model_validate(mapping)
    except ValidationError as error:
        raise ConfigError([*_lines(error, mapping, path)], source) from None
    ignored = dict(_ineffective(section, mapping, path))
    if ignored:
        warnings.warn(ConfigWarning(source, ignored), stacklevel=2)
    return section


def not_available(
    subject: str, value: object, available: Iterable[object]
) -> ValueError:
    """Makes the error for a value that is not available."""
    names = [str(name) for name in available]
    text = f"{subject} {got(value)} is not available; there are: {', '.join(names)}"
    return ValueError(text + hint(value, names))


def nearest_key(key: object, names: Iterable[str]) -> str:
    """Returns a hint for an unknown key: the nearest known key, or all known keys."""
    if close := nearest(str(key), names := sorted(names)):
        return f"the nearest known key is {close!r}"
    return "known keys here: " + ", ".join(names)


def join(path: str, key: object) -> str:
    """The dotted path of `key` inside `path`."""
    return f"{path}.{key}" if path else str(key)


def _expanded(value: Any, path: str, problems: list[str]) -> Any:
    """A value with environment variables and a first `~/` in its texts expanded."""
    # Values that no key can have are problems: NUL in texts, huge integers.
    if isinstance(value, str):
        if "\0" in value:
            problems.append(f"{path}: must have no character NUL, got {got(value)}")
        value = os.path.expandvars(value)
        return os.path.expanduser(value) if value.startswith("~/") else value
    if isinstance(value, int) and value.bit_length() > _BITS:
        problems.append(f"{path}: must be an integer of {_BITS} bits, got {got(value)}")
    if isinstance(value, Mapping):
        items = value.items()
        return {k: _expanded(inner, join(path, k), problems) for k, inner in items}
    if isinstance(value, list | tuple):
        items = enumerate(value)
        return [_expanded(inner, join(path, i), problems) for i, inner in items]
    return value


def _lines(error: ValidationError, mapping: Any, path: str) -> Iterator[str]:
    """One line per key that pydantic rejected, with the texts of `messages`."""
    lines: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "default_factory_not_called":
            continue
        origin = _dotted(detail["loc"], mapping, path, detail["type"])
        if detail["type"].startswith("union_tag"):
            origin = join(origin, detail.get("ctx", {})["discriminator"].strip("'"))
        refused = detail["input"]
        if isinstance(refused, Refused):
            text = refused.text
        else:
            text = describe(detail["type"], refused, detail)
        if text not in lines.setdefault(origin, []):
            lines[origin].append(text)
    for origin, texts in lines.items():
        # Members of a union reject one value, which is told once.
        end = "".join(texts[-1].partition(", got ")[1:])
        text = " or ".join(text.removesuffix(end) for text in texts) + end
        yield f"{origin}: {text}" if origin else text


def _dotted(loc: Sequence[Any], value: Any, path: str, kind: str) -> str:
    """The dotted path of an error, without the names of union members in `loc`."""
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(value, Mapping):
            if part not in value and not (
                last and kind in ("missing", "extra_forbidden")
            ):
                continue
            value = value.get(part)
        elif isinstance(value, Sequence) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        else:
            continue
        path = join(path, part)
    return path


def _ineffective(section: Any, mapping: Any, path: str) -> Iterator[tuple[str, str]]:
    """Finds keys without effect in a section and in its nested sections."""
    if isinstance(section, StrictModel):
        for key in mapping if isinstance(mapping, Mapping) else ():
            if key in section.ignored:
                yield join(path, key), section.ignored[key]
            elif section.is_passed_over(key):
                yield join(path, key), UNREAD
        for key, why in section.without_effect().items():
            yield join(path, key), why
        for name, field in type(section).model_fields.items():
            key = field.alias or name
            inner = mapping.get(key) if isinstance(mapping, Mapping) else None
            yield from _ineffective(getattr(section, name), inner, join(path, key))
    elif isinstance(section, Mapping):
        for key, inner in section.items():
            yield from _ineffective(inner, mapping[key], join(path, key))
    elif isinstance(section, tuple):
        for index, inner in enumerate(section):
            raw = mapping[index] if isinstance(mapping, list) else None
            yield from _ineffective(inner, raw, join(path, index))
