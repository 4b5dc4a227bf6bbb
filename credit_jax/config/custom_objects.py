"""Registers the objects that the `custom_objects` section of a config names.

An object is an entry of one of the registries (a loss, a metric, a block, a source of
data, a model, an observation operator) in a Python file or an installed module.
Installed packages offer theirs by entry points, too. The registries are in layers above
this one and announce themselves here by `open_registry`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from credit_jax.config.base import ConfigError, StrictModel, parse

SECTION = "custom_objects"
ObjectType = Literal[
    "dataset", "preblock", "postblock", "model", "loss", "metric", "operator"
]

# An entry point of the group "credit_jax.loss" is a loss, and so on.
GROUP = "credit_jax."

_PYTORCH = ("torch", "credit")
_PYTHON = ".py"


class CustomObject(StrictModel):
    """One entry of `custom_objects`; its key is the name of the object in the config.

    Attributes:
        object_type: what it is.
        module_path: dotted name of an installed module, as in CREDIT, or path of a
            Python file, which ends with .py.
        module_name: name of the object in the module; null is the key.
    """

    object_type: ObjectType
    module_path: str
    module_name: str | None = None


class _Protocol(NamedTuple):
    """The class of the objects of a type, for errors."""

    entry: str
    module: str
    page: str


_LOSS = "docs/adding_a_loss.md"
_PROTOCOLS: Mapping[str, _Protocol] = {
    "dataset": _Protocol(
        "SourceEntry", "credit_jax.data.sources.registry", "docs/data.md"
    ),
    "preblock": _Protocol("TransformEntry", "credit_jax.transforms", _LOSS),
    "postblock": _Protocol("TransformEntry", "credit_jax.transforms", _LOSS),
    "model": _Protocol(
        "ModelEntry", "credit_jax.models.registry", "docs/adding_a_model.md"
    ),
    "loss": _Protocol("LossEntry", "credit_jax.losses", _LOSS),
    "metric": _Protocol("MetricEntry", "credit_jax.metrics", _LOSS),
    "operator": _Protocol(
        "OperatorEntry", "credit_jax.assimilation", "docs/assimilation.md"
    ),
}


def _included(object_type: ObjectType, **values: str) -> dict[tuple[str, str], Any]:
    return {
        (object_type, name): EntryPoint(
            name, f"credit_jax.{value}", GROUP + object_type
        )
        for name, value in values.items()
    }


# Objects in sub-packages of credit_jax, which are imported when a config names them, as
# those of installed packages are, and by nothing else. Their entry points are in code,
# not in pyproject.toml: a checkout has them without an installation.
_INCLUDED: Mapping[tuple[str, str], EntryPoint] = _included(
    "dataset",
    mrms="noaa.mrms:MRMS",
    goes="noaa.goes:GOES",
    gfs="noaa.gfs:GFS",
    gefs="noaa.gefs:GEFS",
    hrrr="noaa.hrrr:HRRR",
    hrrr_nat="noaa.hrrr:HRRR",
    hrrr_subh="noaa.hrrr:HRRR",
)

# Sections of a config that name the objects of a type.
_USED_IN: Mapping[str, tuple[str, ...]] = {
    "dataset": ("data", "validation_data", "inference"),
    "preblock": ("preblocks", "inference"),
    "postblock": ("postblocks", "inference"),
    "model": ("model",),
    "loss": ("loss",),
    "metric": ("metrics",),
    "operator": ("assimilation",),
}


class _Registry(NamedTuple):
    entry: type
    names: Container[str]
    add: Callable[[str, Any], None]


class _Origin(NamedTuple):
    """Where an object comes from; `digest` is that of a file, "" of a module."""

    place: str
    attribute: str
    digest: str = ""


# Filled when the modules of the registries are imported, which every module that
# defines an entry does.
_REGISTRIES: dict[str, _Registry] = {}
_REGISTERED: dict[tuple[str, str], _Origin] = {}


def open_registry(
    object_type: ObjectType,
    entry: type,
    names: Container[str],
    add: Callable[[str, Any], None],
) -> None:
    """Announces the registry of a type of objects.

    Args:
        object_type: the type.
        entry: class of the entries of the registry.
        names: names that the registry has.
        add: adds an entry by its name.
    """
    _REGISTRIES[object_type] = _Registry(entry, names, add)


def offered_names(object_type: ObjectType) -> Iterator[str]:
    """Yields the names of a type that sub-packages and installed packages offer."""
    group = GROUP + object_type
    points = (*_INCLUDED.values(), *_entry_points())
    yield from (point.name for point in points if point.group == group)


def load_included(object_type: ObjectType, name: str) -> None:
    """Adds an object of a sub-package of credit_jax to its registry, if it is one.

    Args:
        object_type: the type of the object.
        name: its name in the config; those of other objects do nothing.
    """
    if (object_type, name) in _INCLUDED:
        entry = _INCLUDED[object_type, name].load()
        _REGISTRIES[object_type].add(name, entry)


def register_objects(
    config: Mapping[str, Any],
    *,
    source: str = "config",
    package: Path | None = None,
) -> None:
    """Registers what a config names and installed packages offer under these names.

    An object is registered once in a process; a file that has changed since is run
    again.

    Args:
        config: the whole YAML, which may lack the section.
        source: name of the config in errors.
        package: folder of the model package that the config is from, whose own code is
            never run; None for configs of the user.

    Raises:
        ConfigError: an entry has wrong keys, its module cannot be imported, the object
            is of another kind, or its name is taken; all are listed.
    """
    section = config.get(SECTION) or {}
    if not isinstance(section, Mapping):
        problem = f"{SECTION}: must be a section of names, got {section!r}"
        raise ConfigError([problem], source)
    problems: list[str] = []
    for name, keys in section.items():
        path = f"{SECTION}.{name}"
        try:
            _register_named(str(name), parse(CustomObject, keys, path), path, package)
        except ConfigError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise ConfigError(problems, source)
    for point in _offered(config):
        _register_offered(point, source)


def offered_objects(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields type and name of the objects of installed packages that a config uses.

    Args:
        config: the whole YAML.
    """
    for point in _offered(config):
        object_type = point.group.removeprefix(GROUP)
        sections = [config.get(name) for name in _USED_IN[object_type]]
        if point.name in _words(sections):
            yield object_type, point.name


def absolute_paths(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a `custom_objects` section that can be read from any working folder.

    Args:
        section: a section that was registered, not modified.
    """
    return {
        name: {**keys, "module_path": _place(keys["module_path"])}
        for name, keys in section.items()
    }


def is_registered(object_type: str, name: str) -> bool:
    """Whether a name is that of a registered object, and not one of credit_jax."""
    return (object_type, name) in _REGISTERED


def _register_named(
    name: str, custom: CustomObject, path: str, package: Path | None
) -> None:
    attribute = custom.module_name or name
    is_file = custom.module_path.endswith(_PYTHON)
    if package is not None:
        _check_reference(custom.module_path, is_file, package)
    if is_file:
        file = Path(_place(custom.module_path))
        if not file.is_file():
            raise ValueError(f"module_path: there is no file {file}")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        origin = _Origin(str(file), attribute, digest)
        load = functools.partial(_run_file, file, digest)
    else:
        origin = _Origin(custom.module_path, attribute)
        load = functools.partial(importlib.import_module, custom.module_path)
    _register(custom.object_type, name, origin, load)


def _place(module_path: str) -> str:
    """The absolute path of a file; the name of a module stays."""
    if not module_path.endswith(_PYTHON):
        return module_path
    return str(Path(module_path).expanduser().absolute())


def _check_reference(module: str, is_file: bool, package: Path) -> None:
    """Checks that a package names an installed module, and none of its own."""
    if is_file:
        raise ValueError(
            f"a package runs no code of its own: got the file {module!r}, expected the "
            "name of an installed module"
        )
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    places = (
        [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    )
    for place in places:
        if place and Path(place).resolve().is_relative_to(package.resolve()):
            raise ValueError(
                f"a package runs no code of its own: module {module!r} is in "
                f"{package}; work in another folder"
            )


def _run_file(file: Path, digest: str) -> ModuleType:
    """Runs a file as a module of its own; the same content is run once."""
    name = f"credit_jax_custom_{file.stem}_{digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    loader = None if spec is None else spec.loader
    assert spec is not None, "its name ends with .py"
    assert loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _offered(config: Mapping[str, Any]) -> Iterator[EntryPoint]:
    """The entry points whose names occur in a config and are not registered yet."""
    points = _entry_points()
    if not points:
        return
    words = _words(config)
    section = config.get(SECTION) or {}
    yield from (
        each for each in points if each.name in words and each.name not in section
    )


@functools.cache
def _entry_points() -> tuple[EntryPoint, ...]:
    every = entry_points()
    return tuple(
        point
        for object_type in get_args(ObjectType)
        for point in every.select(group=GROUP + object_type)
    )


def _register_offered(point: EntryPoint, source: str) -> None:
    object_type: Any = point.group.removeprefix(GROUP)
    origin = _Origin(point.module, point.attr or point.name)
    load = functools.partial(importlib.import_module, point.module)
    try:
        _register(object_type, point.name, origin, load)
    except ValueError as error:
        owner = point.dist.name if point.dist is not None else "an installed package"
        problem = f"{point.name}: entry point of {owner}, {point.value}: {error}"
        raise ConfigError([problem], source) from error


def _register(
    object_type: str, name: str, origin: _Origin, load: Callable[[], ModuleType]
) -> None:
    """Loads an object and adds it to its registry, if it is not there yet."""
    before = _REGISTERED.get((object_type, name))
    if before == origin:
        return
    if before is not None and before[:2] != origin[:2]:
        raise ValueError(
            f"the {object_type} {name} is already registered in this process, from "
            f"{before.place}; give one of the two another name"
        )
    entry = _attribute(object_type, origin, load)
    registry = _REGISTRIES[object_type]
    is_ours = name in registry.names or (object_type, name) in _INCLUDED
    if before is None and is_ours:
        raise ValueError(
            f"credit_jax has a {object_type} {name} itself; take another name"
        )
    registry.add(name, entry)
    _REGISTERED[object_type, name] = origin


def _attribute(
    object_type: str, origin: _Origin, load: Callable[[], ModuleType]
) -> Any:
    """The entry that a module defines.

    Raises:
        ValueError: the module cannot be imported, has no such object, or the object is
            no entry of the type.
    """
    protocol = _PROTOCOLS[object_type]
    requirement = (
        f"a {object_type} here is a {protocol.entry} of {protocol.module}, as "
        f"{protocol.page} describes"
    )
    try:
        module = load()
    except ModuleNotFoundError as error:
        root = (error.name or "").partition(".")[0]
        if root in _PYTORCH:
            text = (
                f"{origin.place} is code of PyTorch: it imports {root}; {requirement}"
            )
        elif (error.name or "").split(".") == origin.place.split(".")[: _depth(error)]:
            text = (
                f"module_path: there is no module {error.name!r}; install the package "
                "that it is in (the path of a Python file ends with .py)"
            )
        else:
            text = f"{origin.place} needs {error.name}, which is not installed"
        raise ValueError(text) from error
    except Exception as error:
        raise ValueError(
            f"{origin.place} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, origin.attribute):
        raise ValueError(
            f"module_name: {origin.place} has no {origin.attribute!r}; {requirement}"
        )
    entry = getattr(module, origin.attribute)
    base = _pytorch_base(entry)
    if base is not None:
        raise ValueError(
            f"{origin.attribute} of {origin.place} is a class of PyTorch (it derives "
            f"from {base}); {requirement}"
        )
    registry = _REGISTRIES.get(object_type)
    if registry is None or not isinstance(entry, registry.entry):
        raise ValueError(
            f"{origin.attribute} of {origin.place} is {_kind(entry)}; {requirement}"
        )
    return entry


def _depth(error: ModuleNotFoundError) -> int:
    return (error.name or "").count(".") + 1


def _pytorch_base(entry: Any) -> str | None:
    """Name of the first base class in torch or CREDIT of a class or of an instance."""
    cls = entry if isinstance(entry, type) else type(entry)
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in _PYTORCH:
            return f"{base.__module__}.{base.__qualname__}"
    return None


def _kind(entry: Any) -> str:
    if isinstance(entry, type):
        return f"the class {entry.__qualname__}"
    return f"a {type(entry).__name__}"


def _words(value: Any) -> set[str]:
    """All strings of a config, keys and values."""
    words: set[str] = set()
    seen: set[int] = set()
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            words.add(each)
        elif isinstance(each, Mapping | list) and id(each) not in seen:
            seen.add(id(each))
            rest += [*each, *each.values()] if isinstance(each, Mapping) else each
    return words
