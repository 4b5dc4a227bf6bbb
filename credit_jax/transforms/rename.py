"""`rename`: changes the keys of variables, which may include the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from os.path import expandvars
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import PrivateAttr, model_validator

from credit_jax.config.components import FilePath
from credit_jax.named_fields.tree import by_key, by_source
from credit_jax.transforms.base import (
    Descriptions,
    FieldTree,
    InputBlock,
    Reach,
    StepContext,
    TreeSchema,
    preblock,
)


@preblock("rename")
class Rename(InputBlock):
    """Changes keys of variables, by either `mapping` or `mapping_file`.

    Keys are replaced simultaneously: a new key that is also an old key is not replaced
    again.

    Attributes:
        mapping: old key -> new key, such as "GFS/prognostic/3d/TMP" to
            "ERA5/prognostic/3d/T".
        mapping_file: YAML file with such a mapping.
    """

    reach: ClassVar = Reach.CHANNEL
    keeps_units: ClassVar = True

    mapping: dict[str, str] | None = None
    mapping_file: FilePath | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Rename:
        if (self.mapping is None) == (self.mapping_file is None):
            raise ValueError("give one of mapping and mapping_file")
        return self

    # Old key -> new key.
    _mapping: Mapping[str, str] = PrivateAttr()

    def open(self) -> None:
        """Reads the mapping.

        Raises:
            ValueError: the file is not a mapping of strings.
            OSError: the file cannot be read.
        """
        mapping = self.mapping
        if mapping is None:
            path = expandvars(self.mapping_file or "")
            mapping = yaml.safe_load(Path(path).read_text()) or {}
            if not isinstance(mapping, dict) or not all(
                isinstance(text, str) for pair in mapping.items() for text in pair
            ):
                raise ValueError(f"{path} must hold lines 'old key: new key'")
        self._mapping = mapping

    @property
    def renames(self) -> Mapping[str, str]:
        """The mapping."""
        return self._mapping

    def changes(self, key: str) -> bool:
        """False: no value is another one afterwards."""
        return False

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Renames the fields of input and target.

        Raises:
            ValueError: two fields would have the same key.
        """
        return self._renamed(tree, self._mapping)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Restores the old keys."""
        return self._renamed(tree, {new: old for old, new in self._mapping.items()})

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables with their new keys, grouped by source."""
        new_schema = dict(schema)
        for part in filter(schema.__contains__, self.data_types):
            groups = {group.var_key: group for group in schema[part]}
            ordered = _pairs(groups, self._mapping, part)
            new_schema[part] = [
                dataclasses.replace(groups[old], var_key=new)  # type: ignore[type-var]
                for new, old in ordered
            ]
        return new_schema

    def describe(self, units: Descriptions) -> Descriptions:
        """Returns the attributes of the old keys, by their new keys."""
        return {new: units[old] for old, new in self._mapping.items() if old in units}

    def _renamed(self, tree: FieldTree, mapping: Mapping[str, str]) -> dict[str, Any]:
        renamed = dict(tree)
        for part in self.entries_in(tree):
            fields = by_key(tree[part])
            pairs = _pairs(fields, mapping, part)
            renamed[part] = by_source({new: fields[old] for new, old in pairs})
        return renamed


def _pairs(
    keys: Iterable[str], mapping: Mapping[str, str], part: str
) -> list[tuple[str, str]]:
    """Pairs (new, old) of keys, by source; sources that are new come last."""
    keys = list(keys)
    pairs = [(mapping.get(old, old), old) for old in keys]
    new_keys = [new for new, _ in pairs]
    twice = sorted({new for new in new_keys if new_keys.count(new) > 1})
    if twice:
        raise ValueError(
            f"two variables of {part} would be called {', '.join(twice)}; "
            "rename one of them to something else"
        )
    sources = dict.fromkeys(key.split("/")[0] for key in (*keys, *new_keys))
    return [
        pair for source in sources for pair in pairs if pair[0].split("/")[0] == source
    ]
