"""Compares the channels of a model with those of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from credit_jax.config import Config
from credit_jax.config.data import DataConfig
from credit_jax.data import ChannelSchema, Loader, Split
from credit_jax.data.further_inputs import FurtherInputs
from credit_jax.data.schema import channel_problems, num_levels
from credit_jax.models.common.config import HasLevels, ModelConfig
from credit_jax.models.common.gen1_post_conf import Gen1PostConf
from credit_jax.models.common.padded_config import CorrectedConfig
from credit_jax.plan.further_inputs import further_problems
from credit_jax.transforms import Pipeline


def schema_of(
    data: DataConfig, model: ModelConfig | None, pipeline: Pipeline | None = None
) -> ChannelSchema:
    """Returns the channels of a data section, without opening a file.

    Args:
        data: the data section.
        model: validated config of the model, whose `levels` apply to sources with null
            levels; 1 if it is None or has no levels.
        pipeline: the transforms; None for the data without transforms.
    """
    levels = model.levels if isinstance(model, HasLevels) else 1
    schema = ChannelSchema.from_config(data, num_levels(data, levels))
    return schema if pipeline is None else schema.after(pipeline)


def fit_problems(
    config: Config,
    model: ModelConfig,
    schemas: Mapping[Split, ChannelSchema] | None = None,
    pipeline: Pipeline | None = None,
    further: Mapping[Split, FurtherInputs | None] | None = None,
) -> list[str]:
    """Finds mismatches between a model and the data, one line each.

    Args:
        config: the whole config.
        model: validated config of the model.
        schemas: channels of the open files by split; for a missing split, they are
            derived from the config.
        pipeline: the transforms; None for the data without transforms.
        further: opened inputs of the model other than x, by split.
    """
    schemas, problems = schemas or {}, []
    if model.x.frames != config.data.history_len:
        problems.append(
            f"model.frames: {model.x.frames} differs from data.history_len "
            f"{config.data.history_len}; make them equal"
        )
    opened = further or {}
    problems += further_problems(config.data, model, opened.get("train"))
    train = schemas.get("train") or schema_of(config.data, model, pipeline)
    problems += channel_problems(train, model)
    if config.validation_overrides.source and not config.trainer.skip_validation:
        valid = schemas.get("valid") or schema_of(
            config.validation_data, model, pipeline
        )
        if (valid.input, valid.target) != (train.input, train.target):
            problems += channel_problems(valid, model, "validation_data.source")
        problems += further_problems(
            config.validation_data, model, opened.get("valid"), "validation_data"
        )
    return problems + _corrected_problems(train, model)


def check_corrections(model: ModelConfig | None, loader: Loader | None) -> None:
    """Checks that the files of `model.gen1_post_conf` have the coordinates of y.

    Raises:
        OSError, ValueError: see `Gen1PostConf.check_coordinates`.
    """
    conf = _corrections(model)
    if conf is None or not conf.activate or loader is None:
        return
    levels = [group.levels for group in loader.schema.target if group.levels]
    axes = loader.coordinates().grid
    conf.check_coordinates(replace(axes, levels=levels[0] if levels else None))


def _corrections(model: ModelConfig | None) -> Gen1PostConf | None:
    return model.gen1_post_conf if isinstance(model, CorrectedConfig) else None


def _corrected_problems(schema: ChannelSchema, model: ModelConfig) -> list[str]:
    """Compares the variables of `model.gen1_post_conf` with those of the target."""
    conf = _corrections(model)
    predicted = {group.variable: group.n_levels for group in schema.target}
    if conf is None or list(conf.data.by_variable.items()) == list(predicted.items()):
        return []
    named, actual = (
        ", ".join(f"{name} {count}" for name, count in counts.items())
        for counts in (conf.data.by_variable, predicted)
    )
    return [
        f"model.gen1_post_conf.data: its variables are {named}, those of the target "
        f"are {actual}; name the same in the same order"
    ]
