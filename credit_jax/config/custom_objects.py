"""Registers the objects that the `custom_objects` section of a config names.

An object is a component of one of the registries (a loss, a metric, a block, a source
of data, a model, an observation operator, what makes a training step) in a Python file
or an installed module.
Installed packages offer theirs by entry points, too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from credit_jax.config.base import ConfigError, StrictModel, check_problems, parse
from credit_jax.config.components import REGISTRIES, extensions

SECTION = "custom_objects"
ObjectType = Literal[
    "dataset", "preblock", "postblock", "model", "loss", "metric", "operator", "trainer"
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


_LOSS = "docs/adding_a_loss.md"
# Type -> page that describes its objects, and sections of a config that name them.
_KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "dataset": ("docs/data.md", ("data", "validation_data", "inference")),
    "preblock": (_LOSS, ("preblocks", "inference")),
    "postblock": (_LOSS, ("postblocks", "inference")),
    "model": ("docs/adding_a_model.md", ("model",)),
    "loss": (_LOSS, ("loss",)),
    "metric": (_LOSS, ("metrics",)),
    "operator": ("docs/assimilation.md", ("assimilation",)),
    "trainer": (_LOSS, ("trainer",)),
}


class _Reference(NamedTuple):
    """Where an object is; `digest` is that of a file, "" of a module."""

    module: str
    attribute: str
    digest: str = ""


# What has been registered in this process; the registries hold the objects.
_REGISTERED: dict[tuple[str, str], _Reference] = {}


def offered_names(object_type: ObjectType) -> Iterator[str]:
    """Yields the names of a type that installed packages offer."""
    yield from (p.name for p in _entry_points() if p.group == GROUP + object_type)


def register_objects(
    config: Mapping[str, Any],
    *,
    source: str = "config",
    package: Path | None = None,
) -> None:
    """Registers what a config names and installed packages offer under these names."""
    section = config.get(SECTION) or {}
    if not isinstance(section, Mapping):
        problem = f"{SECTION}: must be a section of names, got {section!r}"
        raise ConfigError([problem], source)
    problems: list[str] = []
    for name, keys in section.items():
        # "FILE.py:function" of `model.type` is no name that a user gives an object.
        path = "model.type" if ":" in str(name) else f"{SECTION}.{name}"
        try:
            custom = parse(CustomObject, keys, path)
            # The code of a package, below its folder, is never run. An object is
            # registered once in a process; a file that has changed since is run again.
            reference = _reference(custom, str(name), package)
            _register(custom.object_type, str(name), reference)
        except ConfigError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(f"{path}: {error}")
    for point in [] if problems else _offered(config):
        reference = _Reference(point.module, point.attr or point.name)
        try:
            _register(point.group.removeprefix(GROUP), point.name, reference)
        except ValueError as error:
            owner = "an installed package" if point.dist is None else point.dist.name
            problems.append(
                f"{point.name}: entry point of {owner}, {point.value}: {error}"
            )
    check_problems(problems, source)


def offered_objects(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields type and name of the objects of installed packages that a config uses."""
    for point in _offered(config):
        kind = point.group.removeprefix(GROUP)
        _, sections = _KINDS[kind]
        if point.name in _words([config.get(key) for key in sections]):
            yield kind, point.name


def absolute_paths(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a `custom_objects` section that can be read from any working folder."""
    return {
        name: {**keys, "module_path": absolute_module(keys["module_path"])}
        for name, keys in section.items()
    }


def is_registered(object_type: str, name: str) -> bool:
    """Whether a name is that of a registered object, and not one of credit_jax."""
    return (object_type, name) in _REGISTERED


def _reference(custom: CustomObject, name: str, package: Path | None) -> _Reference:
    """Where an object of a config is; of a package, an installed module alone."""
    module, attribute = custom.module_path, custom.module_name or name
    is_file = module.endswith(_PYTHON)
    if package is not None:
        if is_file:
            raise ValueError(
                f"a package runs no code of its own: got the file {module!r}, "
                "expected the name of an installed module"
            )
        try:
            spec = importlib.util.find_spec(module.partition(".")[0])
        except (ImportError, ValueError):
            spec = None
        files = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        for file in filter(None, files):
            if Path(file).resolve().is_relative_to(package.resolve()):
                raise ValueError(
                    f"a package runs no code of its own: module {module!r} is in "
                    f"{package}; work in another folder"
                )
    if not is_file:
        return _Reference(module, attribute)
    file = Path(absolute_module(module))
    if not file.is_file():
        raise ValueError(f"module_path: there is no file {file}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return _Reference(str(file), attribute, digest)


def absolute_module(module_path: str) -> str:
    """The absolute path of a file; the name of a module stays."""
    if not module_path.endswith(_PYTHON):
        return module_path
    return str(Path(module_path).expanduser().absolute())


def _offered(config: Mapping[str, Any]) -> Iterator[EntryPoint]:
    """The entry points whose names occur in a config outside of `custom_objects`."""
    points = _entry_points()
    words = _words(config) if points else set()
    section = config.get(SECTION) or {}
    yield from (
        each for each in points if each.name in words and each.name not in section
    )


@functools.cache
def _entry_points() -> tuple[EntryPoint, ...]:
    every = entry_points()
    return tuple(point for kind in _KINDS for point in every.select(group=GROUP + kind))


def _register(kind: str, name: str, reference: _Reference) -> None:
    """Loads an object and adds it to its registry, if it is not there yet."""
    earlier = _REGISTERED.get((kind, name))
    if earlier == reference:
        return
    if earlier is not None and earlier[:2] != reference[:2]:
        raise ValueError(
            f"the {kind} {name} is already registered in this process, from "
            f"{earlier.module}; give one of the two another name"
        )
    component = _load(kind, reference)
    registry = REGISTRIES[kind]
    # A class of a plugin may have registered itself when its module was imported.
    is_included = getattr(component, "__module__", GROUP).startswith(GROUP)
    taken = name in registry and (is_included or registry[name] is not component)
    if earlier is None and (taken or name in extensions(kind)):
        raise ValueError(f"credit_jax has a {kind} {name} itself; take another name")
    if registry.of_function is not None and inspect.isfunction(component):
        component = registry.of_function(component)
    registry[name] = component
    _REGISTERED[kind, name] = reference


def _load(kind: str, reference: _Reference) -> Any:
    """The object of a reference."""
    module, attribute, digest = reference
    try:
        loaded = (
            _run_file(module, digest) if digest else importlib.import_module(module)
        )
    except ModuleNotFoundError as error:
        missing = error.name or ""
        root = missing.partition(".")[0]
        if root in _PYTORCH:
            text = f"{module} is code of PyTorch: it imports {root}; {_expected(kind)}"
        elif f"{module}.".startswith(f"{missing}."):
            text = (
                f"module_path: there is no module {missing!r}; install the package "
                "that it is in (the path of a Python file ends with .py)"
            )
        else:
            text = f"{module} needs {missing}, which is not installed"
        raise ValueError(text) from error
    except Exception as error:
        raise ValueError(
            f"{module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(loaded, attribute):
        names = [
            name
            for name, value in vars(loaded).items()
            if getattr(value, "__module__", "") == loaded.__name__
        ]
        raise ValueError(
            f"module_name: {module} has no {attribute!r}, it has "
            f"{', '.join(names) or 'nothing'}; {_expected(kind)}"
        )
    component = getattr(loaded, attribute)
    cls = component if isinstance(component, type) else type(component)
    is_what = f"{'the class' if cls is component else 'a'} {cls.__qualname__}"
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in _PYTORCH:
            name = f"{base.__module__}.{base.__qualname__}"
            is_what = f"a class of PyTorch (it derives from {name})"
            break
    else:
        if kind in REGISTRIES and REGISTRIES[kind].accepts(component):
            return component
    raise ValueError(f"{attribute} of {module} is {is_what}; {_expected(kind)}")


def _expected(kind: str) -> str:
    component = REGISTRIES[kind].expected if kind in REGISTRIES else "another object"
    return f"a {kind} here is {component} ({_KINDS[kind][0]})"


def _run_file(file: str, digest: str) -> ModuleType:
    """Runs a file as a module of its own; the same content is run once."""
    name = f"credit_jax_custom_{Path(file).stem}_{digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "its name ends with .py"
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _words(value: Any) -> set[str]:
    """All strings of a config, keys and values."""
    words: set[str] = set()
    seen: set[int] = set()
    queue = [value]
    while queue:
        each = queue.pop()
        if isinstance(each, str):
            words.add(each)
        elif isinstance(each, Mapping | list) and id(each) not in seen:
            seen.add(id(each))
            queue += [*each, *each.values()] if isinstance(each, Mapping) else each
    return words
