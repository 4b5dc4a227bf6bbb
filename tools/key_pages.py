"""Writes docs/keys.md, all keys of the YAML, from the classes that validate them.

python -m tools.key_pages
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from credit_jax.config import Config, StrictModel
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.sources.registry import source_config, source_types
from credit_jax.data.perturbations import PERTURBATIONS
from credit_jax.extensions.submit.job_section import OTHER_NAMES, JobSection
from credit_jax.losses import LOSSES
from credit_jax.losses.build import BaseLoss
from credit_jax.metrics import METRICS
from credit_jax.models.function import FunctionConfig
from credit_jax.models.registry import MODELS
from credit_jax.transforms import TRANSFORMS
from tools.docstrings import sectioned

_HEAD = """# Every key of the YAML

Made from the classes that validate them. Keys and defaults are CREDIT's where CREDIT
has them; `null` means the default. An unknown key is an error that names the nearest
one. `credit-jax check --config FILE` prints what a config will do. Where CREDIT has
another name for a key, it is beside it; where it has none, the meaning says so.

<!-- made by: python -m tools.key_pages -->"""
PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
_PRECISION = """Parameters, statistics, softmax, losses and the optimizer are float32.

| format of products | keys | CREDIT's name |
|---|---|---|
| float32 | `amp: false` | the same |
| TF32, or passes of bfloat16 | `matmul_precision: high` or `default` | none |
| bfloat16 | `amp: true`, `fsdp2_mp_policy` or `data: fsdp2` | the same |
| float16, loss scaled | `amp: true` alone, or `param_dtype: float16` | autocast |
| float8 | `fp8: true`, `float8`, not with float16 | none; torchao's recipes |

See [trainer](#trainer) and [numerics](numerics.md)."""
# Registry -> the classes of its components, whose fields are their keys.
_REGISTRIES: Mapping[str, Mapping[str, Any]] = {
    "Models (`model.type`)": {
        **{k: MODELS[k].config for k in sorted(MODELS)},
        "module:factory": FunctionConfig,
    },
    "Sources (`data.source.NAME.dataset_type`)": {
        k: source_config(k) for k in source_types()
    },
    "Preblocks (`preblocks.PHASE.NAME.type`)": dict(
        sorted(TRANSFORMS["preblocks"].items())
    ),
    "Postblocks (`postblocks.PHASE.NAME.type`)": dict(
        sorted(TRANSFORMS["postblocks"].items())
    ),
    "Losses (`loss.training_loss`)": LOSSES,
    "Loss of single variables (`loss.type`)": {"base": BaseLoss},
    "Metrics (`metrics.TYPE`)": METRICS,
    "Perturbations (`inference.perturbation.type`)": {
        name: PERTURBATIONS.find(name) for name in PERTURBATIONS.names
    },
}


def keys_page() -> str:
    """Returns the text of the page."""
    parts, paths = [_HEAD], dict[type, str]()
    sections = (*_sections("", Config), *_sections("inference", InferenceConfig))
    for path, section in sections:
        first = paths.setdefault(section, path)
        parts.append(f"## {path or 'Top level'}")
        parts += _table(section) if first == path else [f"As `{first}`."]
    parts += ["## pbs, slurm", *_table(JobSection, OTHER_NAMES)]
    parts += ["## Precision", _PRECISION]
    for title, entries in _REGISTRIES.items():
        parts.append(f"## {title}")
        for name, section in entries.items():
            parts += [f"### {name}", *_table(section)]
    parts.append("<!-- the end of what is made -->")
    return "\n\n".join(part for part in parts if part) + "\n"


def _sections(path: str, section: type[StrictModel]) -> Iterator[tuple[str, Any]]:
    """Yields a section and those within it, each with its dotted path."""
    yield path, section
    for name, field in section.model_fields.items():
        key = ".".join(filter(None, (path, field.alias or name)))
        inherits = section.__name__ in ("ValidationDataConfig", "CurriculumStage")
        for inner, of_names in () if inherits else _models(field.annotation):
            shown = f"{key}.NAME" if of_names else key
            kind = _kind(inner)
            yield from _sections(f"{shown} ({kind})" if kind else shown, inner)


def _models(annotation: Any, of_names: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yields the sections in an annotation, and whether they are values of a dict."""
    if inspect.isclass(annotation) and issubclass(annotation, StrictModel):
        yield annotation, of_names
    for inner in typing.get_args(annotation):
        mapping = typing.get_origin(annotation) in (dict, Mapping)
        yield from _models(inner, of_names or mapping)


def _kind(section: type[StrictModel]) -> str:
    """The value of the key that chooses a section, such as a type of schedule."""
    for field in section.model_fields.values():
        if typing.get_origin(field.annotation) is typing.Literal:
            values = typing.get_args(field.annotation)
            if len(values) == 1 and isinstance(values[0], str):
                return values[0]
    return ""


def _table(
    section: type[StrictModel], others: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """The first line of a section's docstring, and a table of its keys.

    Args:
        section: the section.
        others: further names of keys, which CREDIT has -> the key.
    """
    if section is StrictModel:
        return []
    parts = [(inspect.getdoc(section) or "").partition("\n")[0]]
    meanings, names = _meanings(section), dict[str, str]()
    for other, name in others.items():
        names[name] = names.get(name, "") + f" (CREDIT also: `{other}`)"
    rows = [
        f"| `{field.alias or name}`{names.get(name, '')} | {_type(field.annotation)} | "
        f"{_default(field)} | {meanings.get(name, '')} |"
        for name, field in section.model_fields.items()
    ]
    if rows:
        head = "| key | type | default | meaning |", "|---|---|---|---|"
        parts.append("\n".join([*head, *rows]))
    return parts


def _meanings(section: type[StrictModel]) -> dict[str, str]:
    """What the docstrings of a section and its bases say of each key."""
    meanings: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        names: list[str] = []
        for heading, line in sectioned(inspect.cleandoc(cls.__doc__ or "")):
            if heading != "Attributes" or not line.strip():
                continue
            entry = re.match(r" {4}(\w+(?:, \w+)*): ?(.*)", line)
            if entry:
                names = entry[1].split(", ")
                meanings |= dict.fromkeys(names, entry[2])
            else:
                meanings |= {n: f"{meanings[n]} {line.strip()}" for n in names}
    return {name: text.replace("|", "\\|") for name, text in meanings.items()}


def _type(annotation: Any) -> str:
    """An annotation in words of YAML."""
    if inspect.isclass(annotation) and issubclass(annotation, StrictModel):
        return "section"
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_type, inner)))
    if origin in (dict, Mapping):
        return f"{_type(inner[1])} by name"
    if origin in (tuple, list, frozenset):
        kinds = dict.fromkeys(_type(part) for part in inner if part is not ...)
        return f"list of {', '.join(kinds)}"
    names = {bool: "true, false", str: "text", int: "integer", float: "number"}
    names |= {type(None): "null", Any: "any"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory_takes_validated_data:
        return "see meaning"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, StrictModel):
        return ""
    shown = {None: "null", True: "true", False: "false"}
    simple = value is None or isinstance(value, bool)
    return f"`{shown[value] if simple else value}`"


if __name__ == "__main__":
    PAGE.write_text(keys_page(), encoding="utf-8")
