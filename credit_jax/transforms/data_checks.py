"""Compares the transforms of a config with the variables and units of its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from credit_jax.io.errors import errors_of
from credit_jax.named_fields.units import EXPECTED, differ
from credit_jax.transforms.base import (
    PREBLOCKS,
    TRANSFORMS,
    OfVariables,
    Phase,
    TreeSchema,
    variable_of,
)
from credit_jax.transforms.forecast_pipelines import missing_inverses
from credit_jax.transforms.normalize import Normalizer
from credit_jax.transforms.pipeline import Block, Pipeline


def check_schema(pipeline: Pipeline, schema: TreeSchema) -> None:
    """Checks that the files of transforms fit the variables of the data.

    Args:
        pipeline: the transforms.
        schema: variables of "input" and "target" of the data.
    """
    for each, previous in pipeline.with_schemas(schema):
        with errors_of(each.path):
            each.transform.check(previous)


def check_units(pipeline: Pipeline, units: Mapping[str, tuple[str, str]]) -> None:
    """Checks the units of variables against statistics and formulas.

    Args:
        pipeline: the transforms.
        units: key -> unit and file, for the variables whose files have a unit.
    """
    available = {key: (*unit, variable_of(key)) for key, unit in units.items()}
    for each in pipeline.blocks:
        available = _renamed(each, available)
        for key, expected, whose in _units_of(each, available):
            unit, path, name = available[key]
            if differ(unit, expected):
                raise ValueError(
                    f"{path}: variable {name!r} has units {unit!r}, "
                    f"but {each.path}{whose} {expected!r}; bring the file to that "
                    "unit"
                )


def units_after(
    pipeline: Pipeline, units: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """The units of variables, by their keys after the preblocks.

    Args:
        pipeline: the transforms.
        units: key -> unit and file, for the variables whose files have a unit.
    """
    available = dict(units)
    for each in pipeline.blocks:
        available = _renamed(each, available)
    return available


def _renamed(each: Block, available: dict[str, Any]) -> dict[str, Any]:
    """What is known of variables, by their keys after a transform."""
    names = each.transform.effects.renames
    return {names.get(key, key): value for key, value in available.items()}


def notes_on_schema(pipeline: Pipeline, schema: TreeSchema) -> list[str]:
    """Finds variables that the data lack, which are ignored, as in CREDIT.

    Also finds predicted variables that no normalizer has in its files.

    Args:
        pipeline: the transforms.
        schema: variables of "input" and "target" of the data.

    Returns:
        One line for each finding.
    """
    notes = []
    for each, previous in pipeline.with_schemas(schema):
        if isinstance(each.transform, OfVariables):
            parts = previous if each.phase in PREBLOCKS else {"": previous["target"]}
            keys = {group.var_key: 0 for groups in parts.values() for group in groups}
            lines = each.transform.selection.unmatched(keys)
            notes += [f"{each.path}.args.variables: {line}" for line in lines]
    return notes + _not_normalized(pipeline, schema)


def _not_normalized(pipeline: Pipeline, schema: TreeSchema) -> list[str]:
    """A note on predicted variables that no normalizer has in its files."""
    scaling = [
        each.transform for each in pipeline.preblocks if each.transform.is_scaling
    ]
    if not all(isinstance(transform, Normalizer) for transform in scaling):
        return []
    missing, paths = {}, []
    for each, previous in pipeline.with_schemas(schema):
        if isinstance(each.transform, Normalizer) and each.phase in PREBLOCKS:
            names = (variable_of(group.var_key) for group in previous["target"])
            unscaled = [name for name in names if not each.transform.changes(name)]
            missing = dict.fromkeys(n for n in unscaled if not paths or n in missing)
            paths.append(f"{each.path}: {each.transform.paths}")
    if not missing:
        return []
    return [
        f"{'; '.join(paths)} do not both have {', '.join(missing)}, which "
        "the model then predicts as read, not normalized, as in CREDIT"
    ]


def notes_on_order(pipeline: Pipeline, schema: TreeSchema) -> list[str]:
    """Returns a note on the files whose values are matched with levels by count.

    Args:
        pipeline: the transforms.
        schema: variables of "input" and "target" of the data, with their levels.

    Returns:
        One line, or none if there are no such files.
    """
    notes = []
    for each, previous in pipeline.with_schemas(schema):
        for file in each.transform.level_files:
            groups = [
                group for group, numbered in file.groups(previous) if not numbered
            ]
            names = dict.fromkeys(variable_of(group.var_key) for group in groups)
            if names:
                notes.append(f"{each.path}: {file.origin} ({', '.join(names)})")
    if not notes:
        return []
    return [
        f"{'; '.join(notes)}: without values of levels, taken in the order of the "
        "levels of the data, whose number alone is compared"
    ]


def notes_on_inverses(pipeline: Pipeline, schema: TreeSchema) -> list[str]:
    """A note on preblocks that no postblock undoes, for training of several steps.

    Args:
        pipeline: the transforms of the training.
        schema: variables of "input" and "target" of the data.
    """
    keys = [group.var_key for group in pipeline.schema_after(schema)["target"]]
    undone = [f"{b.path} (type {b.type})" for b in missing_inverses(pipeline, keys)]
    if not undone:
        return []
    return [
        f"{', '.join(undone)}: no postblock undoes it; it is undone in what a step "
        "feeds back, as in forecasts (CREDIT applies it twice)"
    ]


def notes_on_initial(pipeline: Pipeline) -> list[str]:
    """Scalers and logs of the initial state alone, which nothing undoes for the output.

    A field that is fed back has the units after `ic_only`, in which it is written.
    """
    changed = [
        f"{block.path} (type {block.type})"
        for block in pipeline.of(Phase.INITIAL)
        if block.transform.undone_by is not None
    ]
    restoring = {each.undone_by for each in TRANSFORMS["preblocks"].values()}
    undone = pipeline.of(Phase.AFTER_STEP)
    if not changed or any(block.type in restoring for block in undone):
        return []
    return [
        f"{', '.join(changed)}: changes the initial state, and no block of "
        "postblocks.per_step restores its units: fields are written, fed back and "
        "scored as they are after it, not in physical units, as in CREDIT"
    ]


def _units_of(each: Block, units: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, expected unit and origin of that unit, for variables with known units."""
    if isinstance(each.transform, Normalizer):
        for key in units:
            unit = each.transform.unit_of(key)
            if unit is not None:
                yield key, unit, f" has a mean ({each.transform.paths}) in"
    for name, unit in EXPECTED.items():
        key = each.argument(name)
        if isinstance(key, str) and key in units:
            yield key, unit, f".args.{name} takes"
