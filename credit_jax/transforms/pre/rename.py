"""`rename`: changes the keys of variables, which may include the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os.path import expandvars
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import model_validator

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.tree import by_key
from credit_jax.transforms.base import Descriptions, FieldTree, Transform, TreeSchema
from credit_jax.transforms.selection import DataType


class RenameArgs(StrictModel):
    """Changes keys of variables, by either `mapping` or `mapping_file`.

    Attributes:
        mapping: old key -> new key, such as "GFS/prognostic/3d/TMP" to
            "ERA5/prognostic/3d/T".
        mapping_file: YAML file with such a mapping.
        data_types: entries to change.
    """

    mapping: dict[str, str] | None = None
    mapping_file: str | None = None
    data_types: tuple[DataType, ...] = ("input", "target")

    @model_validator(mode="after")
    def _one_of_both(self) -> RenameArgs:
        if (self.mapping is None) == (self.mapping_file is None):
            raise ValueError("give one of mapping and mapping_file")
        return self


@dataclass(frozen=True)
class Rename(Transform):
    """Changes the keys of variables.

    Keys are replaced simultaneously: a new key that is also an old key is not replaced
    again.

    Attributes:
        mapping: old key -> new key; other keys are not changed.
        data_types: entries to change.
    """

    mapping: Mapping[str, str]
    data_types: tuple[DataType, ...]
    by_field: ClassVar = True
    keeps_units: ClassVar = True

    @property
    def renames(self) -> Mapping[str, str]:
        """The mapping."""
        return self.mapping

    def changes(self, key: str) -> bool:
        """False: no value is another one afterwards."""
        return False

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Renames the fields of input and target.

        Raises:
            ValueError: two fields would have the same key.
        """
        return self._renamed(tree, self.mapping)

    def inverse(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Restores the old keys."""
        return self._renamed(tree, {new: old for old, new in self.mapping.items()})

    def origins(self, names: Mapping[str, str]) -> dict[str, str]:
        """See `Transform`."""
        if "target" not in self.data_types:
            return dict(names)
        return _followed(names, {new: old for old, new in self.mapping.items()})

    def predicted_names(self, names: Mapping[str, str]) -> dict[str, str]:
        """See `Transform`."""
        if "target" not in self.data_types:
            return dict(names)
        return _followed(names, self.mapping)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables with their new keys, grouped by source."""
        new_schema = dict(schema)
        for part in filter(schema.__contains__, self.data_types):
            groups = {group.var_key: group for group in schema[part]}
            ordered = _by_source(groups, self.mapping, part)
            new_schema[part] = [
                dataclasses.replace(groups[old], var_key=new)  # type: ignore[type-var]
                for new, old in ordered
            ]
        return new_schema

    def describe(self, known: Descriptions) -> Descriptions:
        """Returns the attributes of the old keys, by their new keys."""
        pairs = self.mapping.items()
        return {new: known[old] for old, new in pairs if old in known}

    def _renamed(self, tree: FieldTree, mapping: Mapping[str, str]) -> dict[str, Any]:
        renamed = dict(tree)
        for part in filter(tree.__contains__, self.data_types):
            fields = by_key(tree[part])
            renamed[part] = {}
            for new, old in _by_source(fields, mapping, part):
                renamed[part].setdefault(new.split("/")[0], {})[new] = fields[old]
        return renamed


def build_rename(args: RenameArgs) -> Rename:
    """Builds the block; reads the mapping.

    Raises:
        ValueError: the file is not a mapping of strings.
        OSError: the file cannot be read.
    """
    mapping = args.mapping
    if mapping is None:
        path = expandvars(args.mapping_file or "")
        mapping = yaml.safe_load(Path(path).read_text()) or {}
        if not isinstance(mapping, dict) or not all(
            isinstance(text, str) for pair in mapping.items() for text in pair
        ):
            raise ValueError(f"rename: {path} must hold lines 'old key: new key'")
    return Rename(mapping, args.data_types)


def _followed(names: Mapping[str, str], step: Mapping[str, str]) -> dict[str, str]:
    """Composes two changes of keys; keys that neither has are unchanged."""
    known = {key: key for key in step} | dict(names)
    return {key: step.get(name, name) for key, name in known.items()}


def _by_source(
    keys: Iterable[str], mapping: Mapping[str, str], part: str
) -> list[tuple[str, str]]:
    """Pairs (new, old) of keys, by source; sources that are new come last."""
    keys = list(keys)
    pairs = [(mapping.get(old, old), old) for old in keys]
    new_keys = [new for new, _ in pairs]
    twice = sorted({new for new in new_keys if new_keys.count(new) > 1})
    if twice:
        raise ValueError(
            f"rename: two variables of {part} would be called {', '.join(twice)}; "
            "rename one of them to something else"
        )
    sources = dict.fromkeys(key.split("/")[0] for key in (*keys, *new_keys))
    return [
        pair for source in sources for pair in pairs if pair[0].split("/")[0] == source
    ]
