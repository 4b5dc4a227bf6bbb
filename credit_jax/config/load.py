"""From a YAML file to a `Config`, with overrides from the command line, and back."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import yaml

from credit_jax.config.base import ConfigError, StrictModel, parse
from credit_jax.config.config import Config, section_conflicts
from credit_jax.config.messages import got
from credit_jax.config.yaml_file import parse_yaml, read_yaml
from credit_jax.io.atomic import new_file

_GEN1 = (
    "data: has flat variables, as CREDIT's generation 1; convert the file first: "
    "credit-jax config --to jax FILE --out NEW_FILE"
)


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    absent: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Config:
    """Read, override and check a config.

    Args:
        path: the YAML file.
        overrides: texts such as "trainer.epochs=3" (see `apply_overrides`).
        absent: section -> keys and their values where the file has none, for a command
            that does without them.

    Returns:
        The config. Relative paths in it are relative to the current folder.

    Raises:
        FileNotFoundError: if there is no such file.
        ConfigError: listing every problem; first those of single fields, and if there
            are none, those of sections against each other.

    Warns:
        UserWarning: once, naming all keys that are accepted and ignored.
    """
    return config_of(read_yaml(path), overrides, absent=absent, source=str(path))


def config_of(
    mapping: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    absent: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    source: str = "config",
) -> Config:
    """`load_config` of what a YAML file holds.

    Args:
        mapping: it is not changed.
        overrides, absent: see `load_config`.
        source: names the mapping in errors.
    """
    written = apply_overrides(mapping, overrides)
    for name, keys in absent.items():
        section = written.get(name)
        if section is None or isinstance(section, Mapping):
            written[name] = {**keys, **(section or {})}
    problems = [line for text in overrides for line in _unread(text)]
    if problems:
        raise ConfigError(problems, "overrides")
    return build_config(written, source=source)


def _unread(override: str) -> Iterator[str]:
    """What is wrong with an override of a key that nothing reads.

    In a file such keys are CREDIT's, and a warning; on the command line they are typing
    errors.
    """
    section: Any = Config
    done: list[str] = []
    for part in override.partition("=")[0].split("."):
        if section is None:
            return
        done.append(part)
        if section.is_passed_over(part):
            yield f"--set {override}: {'.'.join(done)}: unknown key"
        kinds = _sections_of(section, part)
        section = kinds[0] if len(kinds) == 1 else None


def _sections_of(section: type[StrictModel], key: str) -> list[type[StrictModel]]:
    """The section classes that a key of a section may have."""
    field = section.model_fields.get(key)
    if field is None:
        return []
    kinds = [field.annotation, *get_args(field.annotation)]
    return [k for k in kinds if isinstance(k, type) and issubclass(k, StrictModel)]


def build_config(mapping: Mapping[str, Any], *, source: str = "config") -> Config:
    """Check a mapping that has the structure of the YAML file; see `load_config`."""
    if is_gen1(mapping):
        raise ConfigError([_GEN1], source)
    config = parse(Config, mapping, source=source)
    problems = section_conflicts(config)
    if problems:
        raise ConfigError(problems, source)
    config._written = copy.deepcopy(dict(mapping))
    return config


def is_gen1(mapping: Any) -> bool:
    """Whether the data section has the flat variables of CREDIT's generation 1."""
    data = mapping.get("data") if isinstance(mapping, Mapping) else None
    return isinstance(data, Mapping) and "source" not in data and "variables" in data


def dump_config(config: Config) -> dict[str, Any]:
    """What the user wrote, overrides included: `build_config` of it is `config`."""
    return copy.deepcopy(config._written)


def write_config(config: Config, path: str | Path) -> None:
    """Write `dump_config` as YAML, as CREDIT's `model.yml` beside a checkpoint."""
    text = yaml.safe_dump(dump_config(config), sort_keys=False, width=88)
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def apply_overrides(
    mapping: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """Set values by their dotted path.

    Args:
        mapping: the raw config; it is not changed.
        overrides: texts "a.b.0=value". Numbers index lists, the value is YAML, and a
            section that is absent is made. Whether the key exists is checked with all
            the others, when the config is parsed.

    Returns:
        A new mapping.

    Raises:
        ConfigError: listing every override that cannot be applied.

    >>> apply_overrides({"trainer": {"epochs": 1}}, ["trainer.epochs=3"])
    {'trainer': {'epochs': 3}}
    """
    result = copy.deepcopy(dict(mapping))
    problems = []
    for text in overrides:
        try:
            _apply(result, text)
        except ValueError as error:
            problems.append(f"--set {text}: {error}")
    if problems:
        raise ConfigError(problems, "overrides")
    return result


def _apply(result: dict[str, Any], text: str) -> None:
    dotted, equals, value_text = text.partition("=")
    if not equals or not all(dotted.split(".")):
        raise ValueError("expected KEY=VALUE, such as trainer.epochs=3")
    try:
        value = parse_yaml(value_text)
    except yaml.YAMLError:
        raise ValueError(f"{value_text!r} is not valid YAML") from None
    *parents, last = dotted.split(".")
    here: Any = result
    done: list[str] = []
    for part in parents:
        here = _enter(here, part, done)
        done.append(part)
    if isinstance(here, list):
        here[_index(here, last, done)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise ValueError(f"{'.'.join(done)} is {got(here)}, not a section")


def _enter(here: Any, part: str, done: Sequence[str]) -> Any:
    """The value of `part` in a section or list; an absent section is made."""
    if isinstance(here, list):
        return here[_index(here, part, done)]
    if not isinstance(here, dict):
        raise ValueError(f"{'.'.join(done)} is {got(here)}, not a section")
    if here.get(part) is None:
        here[part] = {}
    return here[part]


def _index(here: Sequence[Any], part: str, done: Sequence[str]) -> int:
    if not part.isdigit() or int(part) >= len(here):
        raise ValueError(
            f"{'.'.join(done)} is a list of {len(here)}; expected an index from 0 to "
            f"{len(here) - 1}, got {part!r}"
        )
    return int(part)


def read_model_section(path: str | Path) -> Mapping[str, Any]:
    """The model section of a config file.

    Raises:
        ConfigError: there is none.
    """
    section = read_yaml(path).get("model")
    if not isinstance(section, Mapping):
        raise ConfigError(["model: missing; this section is required"], str(path))
    return section
