"""The engine that turns a YAML mapping into documented, frozen classes.

A section is a subclass of `StrictModel`. `parse` checks a whole mapping against one
class, nested sections included, and reports every problem at once: unknown keys with
the nearest known one, missing keys, and values that do not fit.
"""

import difflib
import os
import types
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from credit_jax.config.messages import describe, got

Section = TypeVar("Section", bound="StrictModel")


class ConfigError(ValueError):
    """All that is wrong with a config, one readable line per problem.

    Attributes:
        problems: one line each, starting with the dotted path of its key.
        source: the file (or the words) that the config came from.
    """

    def __init__(self, problems: Sequence[str], source: str = "config") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        super().__init__(f"{source}: {count}\n" + "\n".join(f"  {p}" for p in problems))


@dataclass(frozen=True)
class Unavailable:
    """A key that CREDIT reads and that has no counterpart here.

    Attributes:
        instead: what there is instead, for the error.
        harmless: values that ask for nothing, and are accepted.
    """

    instead: str
    harmless: tuple[Any, ...] = ()


class StrictModel(BaseModel):
    """A section of the config: immutable, no unknown keys, CREDIT's names and defaults.

    Besides its fields, a subclass may name

    - in `ignored` the keys that CREDIT accepts and that have no meaning here, each with
      the reason; `parse` lists them all in one warning;
    - in `unavailable` the keys that CREDIT reads and that are an error here.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    ignored: ClassVar[Mapping[str, str]] = {}
    unavailable: ClassVar[Mapping[str, Unavailable]] = {}

    def without_effect(self) -> dict[str, str]:
        """Values of this section that are accepted but change nothing: key -> why."""
        return {}


def parse(
    cls: type[Section],
    mapping: Mapping[str, Any],
    path: str = "",
    *,
    source: str = "config",
) -> Section:
    """Check `mapping` against the section class `cls` and return its instance.

    Args:
        cls: the section class.
        mapping: the raw section, as the YAML file gives it. It is not changed.
        path: dotted path of this section in the file, such as "model"; "" at the top.
        source: where the mapping came from, for the first line of the error.

    Returns:
        The frozen section. `null` stands for the default of its key, and environment
        variables in strings are expanded (those that are not set are left as written).

    Raises:
        ConfigError: listing every problem of the section.

    Warns:
        UserWarning: once, naming every key that is accepted and ignored.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError([f"{path or 'the file'}: {describe('mapping', mapping)}"])
    problems: list[str] = []
    ignored: list[str] = []
    cleaned = _clean(cls, mapping, path, problems, ignored)
    section = None
    try:
        section = cls.model_validate(cleaned)
    except ValidationError as error:
        problems.extend(_explain(error, cleaned, path))
    if problems or section is None:
        raise ConfigError(problems, source)
    ignored.extend(_ineffective(section, path))
    if ignored:
        listed = "; ".join(ignored)
        warnings.warn(f"{source}: ignored here: {listed}", UserWarning, stacklevel=2)
    return section


def not_available(what: str, value: object, available: Iterable[object]) -> ValueError:
    """The error for a value that CREDIT knows and that is not available here.

    Args:
        what: what the value is, such as "preblock type".
        value: the value asked for.
        available: what there is instead.

    Returns:
        A ValueError naming what was asked for, what there is, and the nearest of them.
    """
    names = [str(name) for name in available]
    text = f"{what} {got(value)} is not available; there are: {', '.join(names)}"
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    return ValueError(text + (f" (nearest: {close[0]!r})" if close else ""))


def nearest_key(key: object, known: Iterable[str]) -> str:
    """Words that help with an unknown key: the nearest known one, or all of them.

    >>> nearest_key("epoch", ["epochs", "learning_rate"])
    "the nearest known key is 'epochs'"
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(key), names, n=1, cutoff=0.6)
    if close:
        return f"the nearest known key is {close[0]!r}"
    return "known keys here: " + ", ".join(names)


def join(path: str, key: object) -> str:
    """The dotted path of `key` inside `path`."""
    return f"{path}.{key}" if path else str(key)


def _clean(
    annotation: Any, value: Any, path: str, problems: list[str], ignored: list[str]
) -> Any:
    """`value` without ignored, unknown and null keys; fills the two lists."""
    annotation = _choose(annotation, value)
    if isinstance(value, str):
        return os.path.expandvars(value)
    if _is_section(annotation) and isinstance(value, Mapping):
        return _clean_section(annotation, value, path, problems, ignored)
    inner = typing.get_args(annotation)
    if isinstance(value, Mapping):
        kind = inner[1] if typing.get_origin(annotation) is dict else Any
        return {
            k: _clean(kind, v, join(path, k), problems, ignored)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        kind = inner[0] if typing.get_origin(annotation) in (tuple, list) else Any
        return [
            _clean(kind, v, join(path, i), problems, ignored)
            for i, v in enumerate(value)
        ]
    return value


def _clean_section(
    cls: type[StrictModel],
    mapping: Mapping[str, Any],
    path: str,
    problems: list[str],
    ignored: list[str],
) -> dict[str, Any]:
    """`_clean` for one section: sorts its keys into known, ignored and unknown."""
    cleaned = {}
    fields = {field.alias or name: field for name, field in cls.model_fields.items()}
    for key, value in mapping.items():
        where = join(path, key)
        if key in fields:
            if value is not None or _accepts_none(fields[key]):
                kind = _annotation(fields[key])
                cleaned[key] = _clean(kind, value, where, problems, ignored)
        elif key in cls.ignored:
            ignored.append(f"{where} ({cls.ignored[key]})")
        elif key in cls.unavailable:
            problems.extend(_refuse(cls.unavailable[key], value, where))
        else:
            known = [*fields, *cls.ignored, *cls.unavailable]
            problems.append(f"{where}: unknown key; {nearest_key(key, known)}")
    return cleaned


def _refuse(rule: Unavailable, value: Any, where: str) -> list[str]:
    """The problem of an unavailable key, if its value asks for anything."""
    if value is None or any(value == harmless for harmless in rule.harmless):
        return []
    return [f"{where}: {got(value)} is not available; {rule.instead}"]


def _annotation(field: FieldInfo) -> Any:
    """The annotation of a field, with its discriminator still attached."""
    if field.discriminator is None:
        return field.annotation
    return typing.Annotated[field.annotation, field.discriminator]


def _choose(annotation: Any, value: Any) -> Any:
    """The member of a union (or optional) that `value` is meant for."""
    tag = None
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, tag = typing.get_args(annotation)[:2]
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    members = [m for m in typing.get_args(annotation) if m is not type(None)]
    if len(members) == 1:
        return members[0]
    if isinstance(tag, str) and isinstance(value, Mapping):
        for member in members:
            literal = member.model_fields[tag].annotation
            if value.get(tag) in typing.get_args(literal):
                return member
    return Any


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, StrictModel)


def _accepts_none(field: FieldInfo) -> bool:
    return type(None) in typing.get_args(field.annotation)


def _explain(error: ValidationError, mapping: Any, path: str) -> Iterator[str]:
    """One line per key that pydantic rejected, in the words of `messages`."""
    lines: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "default_factory_not_called":
            continue
        where = _dotted(detail["loc"], mapping, path, detail["type"])
        text = describe(detail["type"], detail["input"], detail)
        if text not in lines.setdefault(where, []):
            lines[where].append(text)
    for where, texts in lines.items():
        yield f"{where}: " + " or ".join(texts) if where else " or ".join(texts)


def _dotted(loc: Sequence[Any], value: Any, path: str, kind: str) -> str:
    """The dotted path of an error, without the union tags that pydantic puts in."""
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(value, Mapping):
            if part not in value and not (last and kind == "missing"):
                continue
            value = value.get(part)
        elif isinstance(value, Sequence) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        else:
            continue
        path = join(path, part)
    return path


def _ineffective(value: Any, path: str) -> Iterator[str]:
    """All `without_effect` entries of a section and of those inside it."""
    if isinstance(value, StrictModel):
        for key, why in value.without_effect().items():
            yield f"{join(path, key)} ({why})"
        for key in type(value).model_fields:
            yield from _ineffective(getattr(value, key), join(path, key))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _ineffective(inner, join(path, key))
