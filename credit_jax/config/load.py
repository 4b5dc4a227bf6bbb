"""Reads a `Config` from a YAML file, with overrides, and writes it."""

import copy
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_args

import yaml

from credit_jax.config import base, custom_objects
from credit_jax.config.base import ConfigError, StrictModel, check_problems, parse
from credit_jax.config.config import Config, section_conflicts
from credit_jax.config.credit_keys import NEVER_READ
from credit_jax.config.data import DataConfig
from credit_jax.config.messages import got
from credit_jax.config.yaml_file import parse_yaml, read_yaml
from credit_jax.io.atomic import new_file

CONFIG_NAME = "model.yml"
# The manifest of a model package, whose config has the same name.
PACKAGE_NAME = "package.json"
_WRITTEN = "# The config of this run, as credit_jax read it.\n"

# Models whose frames are those of the data, whatever `model.frames` is; CREDIT's
# default of this key is 2. By name, as this layer is below the models, and the config
# that is written with a run has the number; a test compares them with the registry.
FRAMES_OF_DATA = ("unet", "unet_downscaling")

# gen1's padding, of both sides; gen2 has `padding_conf`.
FLAT_PADDING = ("pad_lat", "pad_lon")

# Placeholders for sections of training, which forecasts do not read.
_NO_TRAINING: Mapping[str, Mapping[str, Any]] = {
    "loss": {"training_loss": "mse"},
    "trainer": {
        "type": "gen2",
        "parallelism": {"data": "none", "tensor": 1, "domain": 1},
        "learning_rate": 1.0,
        "weight_decay": 0.0,
        "amp": False,
        "train_batch_size": 1,
        "valid_batch_size": 1,
    },
}
_NO_DATE = "2000-01-01"

GEN1 = (
    "data: has flat variables, as CREDIT's generation 1; convert the file first: "
    "credit-jax config --to jax {} --out {}"
)


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    absent: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    forecasts: bool = False,
) -> Config:
    """Reads a config, applies overrides and validates it.

    Args:
        path: path of the YAML file.
        overrides: strings such as "trainer.epochs=3"; see `apply_overrides`.
        absent: section -> default values of its keys, for a command that does not
            require them.
        forecasts: whether the config is to make forecasts alone, for which it needs
            neither loss nor trainer, and no end of its dates; see `for_forecasts`.

    Returns:
        The config. Relative paths in it are relative to the working directory. That of
        a run is of the folder in which it lies, also of a copy.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the config has problems. All problems of single sections are
            listed, or, if there are none, all conflicts between sections.

    Warns:
        ConfigWarning: once, if there are keys that are accepted but have no effect.

    >>> credit_jax.load_config("RUN/model.yml", ["seed=7"]).seed
    7
    """
    return config_of(
        _at_home(read_yaml(path), Path(path)),
        overrides,
        absent=absent,
        forecasts=forecasts,
        source=str(path),
    )


def _at_home(mapping: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config of a run with its folder, and all below it, where the file lies."""
    folder = path.absolute().parent
    former = str(mapping.get("save_loc") or "").rstrip("/")
    is_run = path.name == CONFIG_NAME and (folder / "checkpoints").is_dir()
    resolved = Path(os.path.expandvars(former)).expanduser().resolve()
    if not (is_run and former) or resolved == folder.resolve():
        return mapping

    def moved(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {k: moved(inner, k) for k, inner in value.items()}
        if isinstance(value, list):
            return [moved(inner) for inner in value]
        if not isinstance(value, str) or not f"{value}/".startswith(f"{former}/"):
            return value
        new = f"{folder}{value[len(former) :]}"
        # What was not copied is where it was; what is to be written is nowhere yet.
        fixed = re.split("[%*?[]", new)[0]
        copied = Path(fixed if fixed == new else os.path.dirname(fixed)).exists()
        return new if key.startswith("save_") or copied else value

    return moved({**mapping, "save_loc": former})


def config_of(
    mapping: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    absent: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    forecasts: bool = False,
    source: str = "config",
) -> Config:
    """Builds a config from the content of a YAML file; see `load_config`."""
    written = _with_defaults(apply_overrides(mapping, overrides), absent)
    check_problems((line for text in overrides for line in _unread(text)), "overrides")
    if forecasts:
        written = for_forecasts(written)
    return build_config(written, source=source, training=not forecasts)


def _with_defaults(
    mapping: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A config with the keys of some sections that it lacks."""
    filled = dict(mapping)
    for name, keys in sections.items():
        section = filled.get(name)
        if section is None or isinstance(section, Mapping):
            filled[name] = {**keys, **(section or {})}
    return filled


def forecasts_alone(mapping: Mapping[str, Any]) -> bool:
    """Whether a config has no section to train with."""
    return all(mapping.get(name) is None for name in _NO_TRAINING)


def for_forecasts(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Fills in what forecasts do not read, and what they read by default."""
    filled = _with_defaults(mapping, _NO_TRAINING)
    data = filled.get("data")
    if not isinstance(data, Mapping):
        return filled
    data = filled["data"] = {"forecast_len": 1, **data}
    # Without dates, or with a start alone, there is no period of training. Such a start
    # is that of a forecast if `inference` names none.
    if data.get("date_ranges") is not None or data.get("end_datetime") is not None:
        return filled
    start = data.get("start_datetime")
    if start is not None:
        inference = dict(filled.get("inference") or {})
        if not any(inference.get(f"{mode}_forecast") for mode in ("batch", "single")):
            inference["run_mode"] = "single"
            inference["single_forecast"] = {"start_datetime": start}
        filled["inference"] = inference
    data["start_datetime"] = data["end_datetime"] = start or _NO_DATE
    return filled


def _unread(override: str) -> Iterator[str]:
    """Yields an error if an override sets a key that nothing reads."""
    # In a file such keys are CREDIT's and only cause a warning; on the command line
    # they are typing errors.
    section: type[StrictModel] | None = Config
    path = override.partition("=")[0].split(".")
    for index, part in enumerate(path, 1):
        if section is None:
            return
        never = section.ignored.get(part) == NEVER_READ
        if never or section.is_passed_over(part):
            yield f"--set {override}: {'.'.join(path[:index])}: unknown; leave it out"
        field = section.model_fields.get(part)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        kinds = [k for k in kinds if isinstance(k, type) and issubclass(k, StrictModel)]
        section = kinds[0] if len(kinds) == 1 else None


def build_config(
    mapping: Mapping[str, Any], *, source: str = "config", training: bool = True
) -> Config:
    """Validates a mapping of the structure of the YAML file; see `load_config`."""
    if is_gen1(mapping):
        raise ConfigError([GEN1.format("FILE", "NEW_FILE")], source)
    mapping = _with_function(mapping)
    custom_objects.register_objects(mapping, source=source)
    mapping = _as_gen2_reads(mapping, source)
    config = parse(Config, mapping, source=source)
    check_problems(section_conflicts(config, training=training), source)
    config._written = copy.deepcopy(dict(mapping))
    return config


def frames_of_data(mapping: Mapping[str, Any]) -> int | None:
    """`data.history_len`, if it is to replace another `model.frames`, else None."""
    data, model = (mapping.get(name) for name in ("data", "model"))
    if not (isinstance(data, Mapping) and isinstance(model, Mapping)):
        return None
    length, frames = data.get("history_len") or 1, model.get("frames") or 2
    return length if model.get("type") in FRAMES_OF_DATA and length != frames else None


def _with_function(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config whose `model.type` is `module:factory`, as one of a custom object."""
    # Channels and frames that its section lacks are those of the data.
    model = mapping.get("model")
    if not isinstance(model, Mapping):
        return mapping
    kind = str(model.get("type"))
    if kind.endswith(".py"):
        problem = f"model.type: {kind} names a file alone; expected {kind}:FUNCTION"
        raise ConfigError([problem], "model")
    if ":" not in kind:
        return mapping
    module, _, name = kind.rpartition(":")
    # A run is opened in other folders, too.
    module = custom_objects.absolute_module(module)
    kind = f"{module}:{name}"
    keys = {"object_type": "model", "module_path": module, "module_name": name}
    objects = {kind: keys, **(mapping.get(custom_objects.SECTION) or {})}
    if mapping.get("data"):
        data = parse(DataConfig, mapping["data"], "data")
        needs_levels = data.channel_counts(1) != data.channel_counts(2)
        if needs_levels and "levels" not in model:
            unknown = [
                f"data.source.{name} names no levels"
                for name, levels in data.num_levels(0).items()
                if not levels
            ]
            problem = f"model.levels: missing; {', '.join(unknown)}: give their number"
            raise ConfigError([problem], kind)
        counts = data.channel_counts(model.get("levels") or 1)
        model = {**counts, "frames": data.history_len, **model}
    return {
        **mapping,
        "model": {**model, "type": kind},
        custom_objects.SECTION: objects,
    }


def _as_gen2_reads(mapping: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The mapping with the model that CREDIT's gen2 builds; warns of changes."""
    model = mapping.get("model")
    if not isinstance(model, Mapping):
        return mapping
    ignored = {}
    frames = frames_of_data(mapping)
    if frames is not None:
        if model.get("frames"):
            why = f"the frames are those of data.history_len, {frames}, as in CREDIT"
            ignored["model.frames"] = f"{model['frames']}: {why}"
        model = {**model, "frames": frames}
    flat = [key for key in FLAT_PADDING if type(model.get(key)) is int]
    if flat and model.get("padding_conf") is None:
        why = "a key of generation 1: gen2 pads only with padding_conf, as in CREDIT"
        ignored |= {f"model.{key}": f"{model[key]}: {why}" for key in flat}
        model = {key: value for key, value in model.items() if key not in flat}
    if ignored:
        warnings.warn(base.ConfigWarning(source, ignored), stacklevel=3)
    return {**mapping, "model": model}


def is_gen1(mapping: Any) -> bool:
    """Whether the data section has the flat variables of CREDIT's gen1 configs."""
    data = mapping.get("data") if isinstance(mapping, Mapping) else None
    return isinstance(data, Mapping) and "source" not in data and "variables" in data


def dump_config(config: Config) -> dict[str, Any]:
    """Returns the config as written by the user, with overrides, for `build_config`."""
    return copy.deepcopy(config._written)


def write_config(config: Config, path: str | Path) -> None:
    """Writes `dump_config` as YAML, as CREDIT writes `model.yml` with a checkpoint."""
    text = yaml.safe_dump(dump_config(config), sort_keys=False, width=88)
    with new_file(path) as partial:
        partial.write_text(f"{_WRITTEN}{text}", encoding="utf-8")


def is_written_config(path: str | Path) -> bool:
    """Whether `write_config` wrote a file, which nobody else needs then."""
    with Path(path).open("rb") as file:
        return file.read(len(_WRITTEN)) == _WRITTEN.encode()


def apply_overrides(
    mapping: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """Sets values by their dotted path: "a.b.0=value", where numbers index lists.

    >>> apply_overrides({"trainer": {"epochs": 1}}, ["trainer.epochs=3"])
    {'trainer': {'epochs': 3}}
    """
    result = copy.deepcopy(dict(mapping))
    problems = []
    for text in overrides:
        try:
            # The value is YAML, and missing sections are created; parsing detects
            # unknown keys.
            _apply(result, text)
        except ValueError as error:
            problems.append(f"--set {text}: {error}")
    check_problems(problems, "overrides")
    return result


def _apply(result: dict[str, Any], text: str) -> None:
    dotted, equals, value_text = text.partition("=")
    if not equals or not all(dotted.split(".")):
        raise ValueError("expected KEY=VALUE, such as trainer.epochs=3")
    try:
        value = parse_yaml(value_text)
    except yaml.YAMLError:
        raise ValueError(f"must be valid YAML, got {value_text!r}") from None
    *parents, last = dotted.split(".")
    section: Any = result
    for index, part in enumerate([*parents, last]):
        path, key = ".".join(parents[:index]), cast(Any, part)
        if isinstance(section, list):
            if not part.isdigit() or int(part) >= len(section):
                raise ValueError(
                    f"{path} is a list of {len(section)}; expected an index from 0 to "
                    f"{len(section) - 1}, got {part!r}"
                )
            key = int(part)
        elif not isinstance(section, dict):
            raise ValueError(f"{path} must be a section of keys, got {got(section)}")
        elif index < len(parents) and section.get(part) is None:
            section[part] = {}
        if index == len(parents):
            section[key] = value
        else:
            section = section[key]


def read_with_objects(path: str | Path) -> dict[str, Any]:
    """Reads a file of some sections, and registers its `custom_objects`."""
    mapping = _with_function(read_yaml(path))
    custom_objects.register_objects(mapping, source=str(path))
    return {
        key: value for key, value in mapping.items() if key != custom_objects.SECTION
    }


def read_model_section(path: str | Path) -> Mapping[str, Any]:
    """Reads the model section of a config file, without validation."""
    section = read_with_objects(path).get("model")
    if not isinstance(section, Mapping):
        raise ConfigError(["model: missing; this section is required"], str(path))
    return section
