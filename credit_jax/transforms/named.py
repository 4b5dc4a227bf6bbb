"""Reads and replaces named fields of a tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from credit_jax.transforms.base import FieldTree

OUTPUT = "y_processed"  # the entry of the predicted fields


def source_of(var_key: str) -> str:
    """Name of the source of a key: its first part.

    >>> source_of("ERA5/prognostic/3d/T")
    'ERA5'
    """
    return var_key.split("/")[0]


def get_field(tree: FieldTree, part: str, key: str) -> Any:
    """Returns a field of an entry, (batch, level, time, lat, lon).

    Args:
        tree: see `credit_jax.transforms.base`.
        part: the entry, such as "y_processed".
        key: key of the variable.

    Raises:
        ValueError: there is no such entry or variable.
    """
    if part not in tree:
        raise ValueError(
            f"the batch has no {part!r}, which {key} is read from; it has: "
            f"{', '.join(sorted(tree))}. `reconstruct` makes y_processed"
        )
    fields = tree[part].get(source_of(key), {})
    if key not in fields:
        names = [
            name for source_fields in tree[part].values() for name in source_fields
        ]
        raise ValueError(
            f"{part} has no variable {key!r}; it has: {', '.join(sorted(names))}"
        )
    return fields[key]


def with_fields(
    tree: FieldTree, part: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a new tree with some fields of an entry replaced or added."""
    sources = {
        source: dict(source_fields)
        for source, source_fields in tree.get(part, {}).items()
    }
    for key, field in fields.items():
        sources.setdefault(source_of(key), {})[key] = field
    return {**tree, part: sources}
