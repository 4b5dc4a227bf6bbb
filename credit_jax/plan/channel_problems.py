"""Compares the inputs and the output of a model with those that the data provide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from credit_jax.config import Config
from credit_jax.config.data import INPUT_TIMES, TARGET_TIME, DataConfig
from credit_jax.config.sources.source import MAIN_INPUT
from credit_jax.data import ChannelGroup, ChannelSchema, Loader, Split
from credit_jax.data.opened_data import InputData
from credit_jax.data.schema import num_levels
from credit_jax.models.common.config import CorrectedConfig, ModelConfig, VectorSpec
from credit_jax.transforms import Pipeline

# A time is encoded by sine and cosine of its hour of day and of its day of year.
NUMBERS_OF_A_TIME = 4


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
    levels = getattr(model, "levels", 1)
    schema = ChannelSchema.from_config(data, num_levels(data, levels))
    return schema if pipeline is None else schema.after(pipeline)


def channel_problems(
    schema: ChannelSchema, model: ModelConfig, origin: str = "data.source"
) -> list[str]:
    """Compares the channels of the data with those of a model.

    Args:
        schema: the channels of the data.
        model: the validated config of the model.
        origin: dotted path of the data's variables.

    Returns:
        One line for the input and one for the output if they differ, with the sums of
        both sides.
    """
    lines = []
    for direction, count, groups in (
        ("input", model.x.channels, schema.input),
        ("output", model.output.channels, schema.target),
    ):
        total = sum(group.n_levels for group in groups)
        if count != total:
            lines.append(
                f"model: has {count} {direction} channels, but {origin} has {total}: "
                f"model {model.channel_sum(direction)} = {count}; data "
                f"{_listed(groups, ' + ')} = {total}; change the model's channels, or "
                f"the variables of {origin}"
            )
    return lines


def fit_problems(
    config: Config,
    model: ModelConfig,
    loaders: Mapping[Split, Loader] = MappingProxyType({}),
    pipeline: Pipeline | None = None,
) -> list[str]:
    """Finds mismatches between a model and the data, one line each.

    Args:
        config: the whole config.
        model: validated config of the model.
        loaders: opened data by split; for a missing split, channels are derived from
            the config.
        pipeline: the transforms; None for the data without transforms.
    """

    def opened(
        split: Split, data: DataConfig
    ) -> tuple[ChannelSchema, InputData | None]:
        if loader := loaders.get(split):
            return loader.schema, loader.dataset
        return schema_of(data, model, pipeline), None

    train, dataset = opened("train", config.data)
    problems = data_problems(config.data, model, train, dataset)
    if config.validation_overrides.source and not config.trainer.skip_validation:
        data = config.validation_data
        valid, dataset = opened("valid", data)
        if (valid.input, valid.target) != (train.input, train.target):
            problems += channel_problems(valid, model, "validation_data.source")
        problems += further_problems(data, model, dataset, "validation_data")
    if isinstance(model, CorrectedConfig) and model.gen1_post_conf is not None:
        named = model.gen1_post_conf.data.by_variable
        predicted = {group.variable: group.n_levels for group in train.target}
        if [*named.items()] != [*predicted.items()]:
            text = ", ".join(f"{name} {count}" for name, count in named.items())
            problems.append(
                f"model.gen1_post_conf.data: its variables are {text}, those of the "
                f"target are {_listed(train.target, ', ')}; name the same in the same "
                "order"
            )
    return problems


def data_problems(
    data: DataConfig,
    model: ModelConfig,
    schema: ChannelSchema,
    opened: InputData | None,
) -> list[str]:
    """Finds mismatches between a model and one data section, one line each.

    Args:
        data: the data section.
        model: validated config of the model.
        schema: the channels of x and y.
        opened: the opened data; None compares without files.
    """
    problems = []
    if model.x.frames != data.history_len:
        problems.append(
            f"model.frames: {model.x.frames} differs from data.history_len "
            f"{data.history_len}; make them equal"
        )
    problems += further_problems(data, model, opened)
    return problems + channel_problems(schema, model)


def check_corrections(model: ModelConfig, loader: Loader) -> None:
    """Checks that the files of `model.gen1_post_conf` have the coordinates of y."""
    conf = model.gen1_post_conf if isinstance(model, CorrectedConfig) else None
    if conf is None or not conf.activate:
        return
    levels = [group.levels for group in loader.schema.target if group.levels]
    axes = loader.coordinates().grid
    conf.check_coordinates(replace(axes, levels=levels[0] if levels else None))


def further_problems(
    data: DataConfig,
    model: ModelConfig,
    opened: InputData | None = None,
    origin: str = "data",
) -> Iterator[str]:
    """Finds mismatches of inputs other than x, one line each.

    Args:
        data: the data section.
        model: validated config of the model.
        opened: the opened data; None compares what is known without files.
        origin: dotted path of the section.
    """
    schemas = further_schemas(data, opened)
    specs = {name: spec for name, spec in model.inputs.items() if name != MAIN_INPUT}
    for name in (*data.further_inputs, *data.time_encoding):
        if name not in specs:
            yield (
                f"{origin} makes the input {name!r}, but model.type {model.type} takes "
                f"{', '.join(model.inputs)}"
            )
    for name, spec in specs.items():
        sources = data.sources_of(name)
        if isinstance(spec, VectorSpec):
            if name not in data.time_encoding:
                keys = (
                    k for each in data.further_inputs for k in data.sources_of(each)
                )
                available = ", ".join((INPUT_TIMES, TARGET_TIME, *keys))
                yield (
                    f"model.type {model.type} takes a vector {name}: set "
                    f"{origin}.time_encoding: {{{name}: [...]}} to the times that it "
                    f"encodes, of {available}"
                )
            elif (numbers := num_encoded(data, name)) != spec.size:
                yield (
                    f"{origin}.time_encoding.{name} encodes "
                    f"{numbers // NUMBERS_OF_A_TIME} times, {NUMBERS_OF_A_TIME} "
                    f"numbers each, but the model takes {spec.size}; change "
                    "time_encode_dim, or the times"
                )
            continue
        if not sources:
            yield (
                f"model.type {model.type} takes fields {name} beside x: give the "
                f"source that has them the key input: {name} "
                f"({origin}.source.NAME.input)"
            )
        for source, section in sources.items():
            frames = section.history_len or data.history_len
            if frames != spec.frames:
                yield (
                    f"{origin}.source.{source}.history_len: {frames} differs from the "
                    f"{spec.frames} frames of {name} in the model; make them equal"
                )
        if name in schemas:
            channels = schemas[name].num_input_channels
            if channels != spec.channels:
                yield (
                    f"model: {name} has {spec.channels} channels, but its sources "
                    f"{', '.join(sources)} have {channels}; change the model's "
                    "channels, or the variables"
                )
        of_input = [] if opened is None else opened.only(sources).sources.values()
        for grid in (grid for source in of_input for grid in source.grids()):
            if grid.shape != (spec.height, spec.width):
                yield (
                    f"{grid.where} has a grid of {' x '.join(map(str, grid.shape))}, "
                    f"but {name} of the model {spec.height} x {spec.width}; take other "
                    "files, or change the model's grid"
                )


def further_schemas(
    data: DataConfig, opened: InputData | None = None
) -> dict[str, ChannelSchema]:
    """Returns the channels of each input of the model other than x."""
    if opened is not None:
        return {**opened.further}
    levels, schemas = num_levels(data, 0), {}
    for name in data.further_inputs:
        fields = {
            source: section.variables.dynamic_forcing
            for source, section in data.sources_of(name).items()
        }
        if all(levels[s] for s, field in fields.items() if field and field.vars_3D):
            schemas[name] = ChannelSchema.from_config(data, levels, name)
    return schemas


def num_encoded(data: DataConfig, name: str) -> int:
    """Size of the vector of an input that encodes times."""
    counts = {INPUT_TIMES: data.history_len, TARGET_TIME: 1}
    return NUMBERS_OF_A_TIME * sum(
        counts.get(which) or data.source[which].history_len or data.history_len
        for which in data.time_encoding[name]
    )


def _listed(groups: Sequence[ChannelGroup], separator: str) -> str:
    return separator.join(f"{group.variable} {group.n_levels}" for group in groups)
