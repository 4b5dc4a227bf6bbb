"""Matches values of files for levels without coordinates: by number, or by count."""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.named_fields.coordinates import are_numbered_alike
from credit_jax.transforms.base import Group, LevelFile, TreeSchema


def check_numbers(file: LevelFile, schema: TreeSchema) -> None:
    """Checks that levels of variables that have the numbers of a file are in its order.

    Args:
        file: values of a file.
        schema: the variables, with their levels.

    Raises:
        ValueError: they are in another order; it names both.
    """
    for group in _groups(file, schema):
        if not are_numbered_alike(group.levels, file.numbers):
            continue
        ours, theirs = ([*map(float, x or ())] for x in (group.levels, file.numbers))
        if ours != theirs:
            raise ValueError(
                f"{file.where} is of the levels {theirs[:20]}, but the data "
                f"({group.var_key}) have them in the order {ours[:20]}; name them in "
                "that order in the arguments of the block, or in data.source.*.levels"
            )


def matched_by_count(file: LevelFile, schema: TreeSchema) -> str:
    """The variables whose levels only their number matches with a file; "" if none."""
    keys = [
        group.var_key.split("/")[-1]
        for group in _groups(file, schema)
        if not are_numbered_alike(group.levels, file.numbers)
    ]
    return f"{file.where} ({', '.join(dict.fromkeys(keys))})" if keys else ""


def _groups(file: LevelFile, schema: TreeSchema) -> Iterator[Group]:
    for groups in schema.values():
        for group in groups:
            if group.n_levels > 1 and file.selects(group.var_key):
                yield group
