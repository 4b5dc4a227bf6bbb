"""Builds the transforms of a config, and compares them with its data.

Each type registers itself when its module is imported, which this one does for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce

from credit_jax.config import ConfigError
from credit_jax.config.base import check_problems
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.io.errors import errors_of
from credit_jax.named_fields.units import EXPECTED, differ
from credit_jax.transforms import (
    base,
    channels,
    conservation,
    diagnostics,
    filters,
    levels,
    normalize,
    pointwise,
    scaling,
    spectral,
)
from credit_jax.transforms.base import TreeSchema
from credit_jax.transforms.forecast_pipelines import missing_inverses
from credit_jax.transforms.normalize import Normalizer
from credit_jax.transforms.pipeline import Block, Pipeline, names_after

_MODULES = (channels, normalize, pointwise, levels, scaling)
_MODULES = (*_MODULES, conservation, diagnostics, filters, spectral)


def build_pipeline(
    preblocks: PreblocksConfig, postblocks: PostblocksConfig | None = None
) -> Pipeline:
    """Builds the transforms of a config, and reads their files."""
    # Raises a ConfigError that lists unknown types and invalid arguments, or a
    # ValueError where the preblocks do not end with concat, or a phase cannot run in
    # one place.
    pipeline = parse_pipeline(preblocks, postblocks)
    types = [block.type for block in pipeline.preblocks]
    after = types[types.index("concat") + 1 :] if "concat" in types else types
    if types.count("concat") != 1 or set(after) - {"to_device"}:
        paths = ", ".join(block.path for block in pipeline.preblocks)
        raise ValueError(
            "preblocks must end with one block of type concat, which makes x and y "
            f"(only to_device may follow); got: {paths or 'no blocks'}"
        )
    for block in pipeline.blocks:
        with errors_of(block.path):
            block.transform.open()
    for phase in base.Phase:
        blocks = pipeline.of(phase)
        host, traced = (
            [block.path for block in blocks if block.transform.where is part]
            for part in (base.Where.HOST, base.Where.TRACED)
        )
        if host and traced:
            raise ValueError(
                f"{phase.value} cannot run in one place: on the host only "
                f"{', '.join(host)}; in the traced step only {', '.join(traced)}"
            )
    return pipeline


def parse_pipeline(
    preblocks: PreblocksConfig,
    postblocks: PostblocksConfig | None = None,
    *,
    types: Collection[str] | None = None,
) -> Pipeline:
    """Validates the transforms of a config, those of some types; reads no file."""
    blocks, problems = [], []
    for phase in base.Phase:
        section = (
            preblocks if phase in base.PREBLOCKS else postblocks or PostblocksConfig()
        )
        kind, part = phase.value.split(".")
        for name, config in getattr(section, part).items():
            path = f"{phase.value}.{name}"
            if types is not None and config.type not in types:
                continue
            try:
                transform = base.TRANSFORMS[kind].parse(config.type, config.args, path)
                if phase not in transform.phases:
                    expected = " or ".join(each.value for each in transform.phases)
                    problem = f"{path}.type: {config.type} belongs into {expected}"
                    raise ConfigError([problem])
                blocks.append(Block(path, config.type, phase, transform))
            except ConfigError as error:
                problems += error.problems
    check_problems(problems)
    return Pipeline(tuple(blocks))


# Types of preblocks that bring the data to another grid, on the host.
GRID_TYPES = ("regrid", "spectral_to_grid")


def predicted_names(
    preblocks: PreblocksConfig,
) -> tuple[dict[str, str], frozenset[str]]:
    """The keys that predicted variables have in the model's output, if other ones."""
    # It builds only the blocks of these types, and reads the files of renames alone.
    # Returns: key in the data -> key after all preblocks; and the keys in the data of
    # those that are brought to other levels, or are coefficients there.
    types = ("rename", "hybrid_level_interp", "spectral_to_grid")
    blocks = parse_pipeline(preblocks, types=types).blocks
    moved: set[str] = set()
    for index, block in enumerate(blocks):
        if block.type == "rename":
            with errors_of(block.path):
                block.transform.open()
            continue
        origins = {new: old for old, new in names_after(blocks[:index]).items()}
        keys = block.argument("variables") or block.transform.effects.moves
        keys = filter(levels.is_predicted, keys)
        moved |= {origins.get(key, key) for key in keys}
    return names_after(blocks), frozenset(moved)


def check_units(pipeline: Pipeline, units: Mapping[str, tuple[str, str]]) -> None:
    """Checks units, by key with their file, against statistics and formulas."""
    available = {key: (*unit, base.variable_of(key)) for key, unit in units.items()}
    for each in pipeline.blocks:
        available = each.units_after(available)
        # Key, expected unit and origin of that unit, for variables with known units.
        expectations = [
            (key, unit, f".args.{argument} takes")
            for argument, unit in EXPECTED.items()
            if isinstance(key := each.argument(argument), str) and key in available
        ]
        if isinstance(transform := each.transform, Normalizer):
            origin = f" has a mean ({transform.paths}) in"
            means = [(key, transform.unit_of(key), origin) for key in available]
            expectations = [*means, *expectations]
        for key, expected, whose in expectations:
            unit, path, name = available[key]
            if expected is None:
                continue
            if differ(unit, expected):
                raise ValueError(
                    f"{path}: variable {name!r} has units {unit!r}, "
                    f"but {each.path}{whose} {expected!r}; bring the file to that "
                    "unit"
                )


def units_after(
    pipeline: Pipeline, units: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """The units of variables, with their file, by their keys after the preblocks."""
    return reduce(
        lambda known, each: each.units_after(known), pipeline.blocks, {**units}
    )


def notes_on_schema(pipeline: Pipeline, schema: TreeSchema) -> list[str]:
    """Notes variables that the data lack, which are ignored, as in CREDIT."""
    # Also predicted variables that no normalizer has in its files.
    notes = []
    for each, previous in pipeline.with_schemas(schema):
        if isinstance(each.transform, base.OfVariables):
            parts = (
                previous if each.phase in base.PREBLOCKS else {"": previous["target"]}
            )
            keys = {group.var_key: 0 for groups in parts.values() for group in groups}
            lines = each.transform.unmatched(keys)
            notes += [f"{each.path}.args.variables: {line}" for line in lines]
    scaling = [
        each.transform for each in pipeline.preblocks if each.transform.is_scaling
    ]
    if not all(isinstance(transform, Normalizer) for transform in scaling):
        return notes
    missing, paths = {}, []
    for each, previous in pipeline.with_schemas(schema):
        if isinstance(each.transform, Normalizer) and each.phase in base.PREBLOCKS:
            names = (group.variable for group in previous["target"])
            unscaled = [name for name in names if not each.transform.changes(name)]
            missing = dict.fromkeys(n for n in unscaled if not paths or n in missing)
            paths.append(f"{each.path}: {each.transform.paths}")
    if missing:
        notes.append(
            f"{'; '.join(paths)} do not both have {', '.join(missing)}, which "
            "the model then predicts as read, not normalized, as in CREDIT"
        )
    return notes


def notes_on_order(pipeline: Pipeline, schema: TreeSchema) -> list[str]:
    """A note on the files whose values are matched with levels by count."""
    notes = []
    for each, previous in pipeline.with_schemas(schema):
        for file in each.transform.level_files:
            groups = (
                group for group, numbered in file.groups(previous) if not numbered
            )
            if names := dict.fromkeys(group.variable for group in groups):
                notes.append(f"{each.path}: {file.origin} ({', '.join(names)})")
    if not notes:
        return []
    return [
        f"{'; '.join(notes)}: without values of levels, taken in the order of the "
        "levels of the data, whose number alone is compared"
    ]


def notes_on_inverses(pipeline: Pipeline, schema: TreeSchema) -> list[str]:
    """A note on preblocks that no postblock undoes, for training of several steps."""
    keys = [group.var_key for group in pipeline.schema_after(schema)["target"]]
    undone = [f"{b.path} (type {b.type})" for b in missing_inverses(pipeline, keys)]
    if not undone:
        return []
    return [
        f"{', '.join(undone)}: no postblock undoes it; it is undone in what a step "
        "feeds back, as in forecasts (CREDIT applies it twice)"
    ]


def notes_on_initial(pipeline: Pipeline) -> list[str]:
    """Scalers and logs of the initial state that nothing undoes for the output."""
    # A field that is fed back has the units after `ic_only`, in which it is written.
    changed = [
        f"{block.path} (type {block.type})"
        for block in pipeline.of(base.Phase.INITIAL)
        if block.transform.undone_by is not None
    ]
    restoring = {each.undone_by for each in base.TRANSFORMS["preblocks"].values()}
    undone = pipeline.of(base.Phase.AFTER_STEP)
    if not changed or any(block.type in restoring for block in undone):
        return []
    return [
        f"{', '.join(changed)}: changes the initial state, and no block of "
        "postblocks.per_step restores its units: fields are written, fed back and "
        "scored as they are after it, not in physical units, as in CREDIT"
    ]
