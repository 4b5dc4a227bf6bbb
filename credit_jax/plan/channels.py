"""Compares channels: of a model with those of the data, of a run with its base's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from credit_jax.config import Config, ConfigError
from credit_jax.config.data import INPUT_TIMES, TARGET_TIME, DataConfig
from credit_jax.config.finetune import CopyChannels, NewChannels
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.sources.source import MAIN_INPUT
from credit_jax.data import ChannelGroup, ChannelSchema, Loader, Split
from credit_jax.data.opened_data import InputData
from credit_jax.models.channel_change import ChannelChange
from credit_jax.models.common.config import CorrectedConfig, ModelConfig, VectorSpec
from credit_jax.named_fields.coordinates import common_indices, indices_of, is_numbered
from credit_jax.named_fields.units import VariableUnits, unique_names, unit_problems
from credit_jax.transforms import Pipeline

# A time is encoded by sine and cosine of its hour of day and of its day of year.
NUMBERS_OF_A_TIME = 4


def schema_of(
    data: DataConfig, model: ModelConfig | None, pipeline: Pipeline | None = None
) -> ChannelSchema:
    """Returns the channels of a data section, without opening a file."""
    # Of sources with null levels.
    levels = getattr(model, "levels", 1)
    schema = ChannelSchema.from_config(data, data.num_levels(levels))
    return schema if pipeline is None else schema.after(pipeline)


def channel_problems(
    schema: ChannelSchema, model: ModelConfig, origin: str = "data.source"
) -> Iterator[str]:
    """Compares the channels of the data with those of a model, with both sums."""
    for direction, count, groups in (
        ("input", model.x.channels, schema.input),
        ("output", model.output.channels, schema.target),
    ):
        total = sum(group.n_levels for group in groups)
        if count != total:
            yield (
                f"model: has {count} {direction} channels, but {origin} has {total}: "
                f"model {model.channel_sum(direction)} = {count}; data "
                f"{_listed(groups, ' + ')} = {total}; change the model's channels, or "
                f"the variables of {origin}"
            )


def fit_problems(
    config: Config,
    model: ModelConfig,
    loaders: Mapping[Split, Loader] = MappingProxyType({}),
    pipeline: Pipeline | None = None,
) -> list[str]:
    """Finds mismatches between a model and the data, one line each."""

    def opened(
        split: Split, data: DataConfig
    ) -> tuple[ChannelSchema, InputData | None]:
        if loader := loaders.get(split):
            return loader.schema, loader.dataset
        # Of a split that is not opened.
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
    """Finds mismatches between a model and one data section, one line each."""
    frames = (
        f"model.frames: {model.x.frames} differs from data.history_len "
        f"{data.history_len}; make them equal"
    )
    return [
        *([frames] if model.x.frames != data.history_len else []),
        *further_problems(data, model, opened),
        *channel_problems(schema, model),
    ]


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
    """Finds mismatches of inputs other than x, one line each; see `data_problems`."""
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
    levels, schemas = data.num_levels(0), {}
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


_KEY = "trainer.finetune.new_channels"


@dataclass(frozen=True)
class ChannelMatch:
    """The channels of a run, by those of its base, and what happened to each."""

    change: ChannelChange
    report: tuple[str, ...]


def match_channels(
    base: ChannelSchema, current: ChannelSchema, new: NewChannels
) -> ChannelMatch:
    """Matches channels by the names of variables and the values of levels."""
    # A variable may come from another source, and be another field type: names of
    # several sources are compared with the source.
    inputs, outputs = (_indices(base, current, which) for which in ("input", "target"))
    copied = dict[int, int]()
    if isinstance(new, CopyChannels):
        problems, named = list[str](), _named(current, "target")
        fresh = [
            name
            for name, (_, indices) in named.items()
            if None in outputs[indices.start : indices.stop]
        ]
        for target, source in new.copied.items():
            to, origin = _channels(target, current), _channels(source, base)
            if not to or any(outputs[channel] is not None for channel in to):
                text = f"no new output; there are: {', '.join(fresh) or 'none'}"
            elif not origin:
                text = (
                    f"{source!r} is no output of the base, which has "
                    f"{', '.join(_named(base, 'target'))}; a level is 'T 500'"
                )
            elif len(origin) not in (1, len(to)):
                text = (
                    f"{len(to)} channels, {source!r} has {len(origin)}; name one of "
                    f"its levels: '{source} LEVEL'"
                )
            else:
                origin = origin * len(to) if len(origin) == 1 else origin
                copied |= dict(zip(to, origin, strict=True))
                continue
            problems.append(f"{_KEY}.copy.{target}: {text}")
        if problems:
            raise ConfigError(problems)
    change = ChannelChange(
        tuple(inputs),
        tuple(outputs),
        base.num_input_channels,
        base.num_target_channels,
        "copy" if isinstance(new, CopyChannels) else new,
        copied,
    )
    begins = "the mean of all outputs" if new == "mean" else "0"
    report = [
        *_report("input", base, current, inputs, {}, "0"),
        *_report("target", base, current, outputs, copied, begins),
    ]
    return ChannelMatch(change, tuple(report))


def num_in_common(base: ChannelSchema, current: ChannelSchema) -> int:
    """Number of channels of a run that its base has, too; -1 if that is unknown."""
    try:
        indices = [_indices(base, current, which) for which in ("input", "target")]
    except ValueError:
        return -1
    return sum(index is not None for each in indices for index in each)


def level_differences(
    base: ChannelSchema, current: ChannelSchema, *, in_order: bool = True
) -> list[str]:
    """A line for each variable whose levels have other values, or another order."""
    lines = []
    for which in ("input", "target"):
        for other, group in zip(base.groups(which), current.groups(which), strict=True):
            indices, every = _levels(other, group), range(group.n_levels)
            moved = in_order and any(indices.get(i) != i for i in every)
            if len(indices) < len(every) or moved:
                lines.append(
                    f"{group.variable} has the levels {list(group.levels or ())}, in "
                    f"the base {list(other.levels or ())}"
                )
    return [*dict.fromkeys(lines)]


def check_forecast_units(
    checkpoint: VariableUnits, data: VariableUnits, inference: InferenceConfig, at: str
) -> list[str]:
    """A line for each variable whose unit blocks of the forecast may convert."""
    others = unit_problems(checkpoint, data)
    if others and inference.preblocks is None:
        raise ConfigError(others, at)
    return others


def _named(schema: ChannelSchema, which: str) -> dict[str, tuple[ChannelGroup, range]]:
    """Name -> group and its channels; the key where a name occurs twice."""
    groups, start, named = schema.groups(which), 0, {}
    names = unique_names([(group.variable, group.var_key) for group in groups])
    for name, group in zip(names, groups, strict=True):
        named[name] = group, range(start, start + group.n_levels)
        start += group.n_levels
    return named


def _indices(
    base: ChannelSchema, current: ChannelSchema, which: str
) -> list[int | None]:
    """For each channel of a run that of the base, or None."""
    available, indices = _named(base, which), list[int | None]()
    for name, (group, channels) in _named(current, which).items():
        other, of_base = available.get(name, (None, channels))
        levels = dict[int, int]()
        if other and ("/3d/" in other.var_key) == ("/3d/" in group.var_key):
            levels = {i: of_base[k] for i, k in _levels(other, group).items()}
        indices += [levels.get(level) for level in range(group.n_levels)]
    return indices


def _levels(base: ChannelGroup, current: ChannelGroup) -> dict[int, int]:
    """Level of ours -> level of the base, by their positions."""
    in_order = {level: level for level in range(current.n_levels)}
    if base.levels is None or current.levels is None:
        if base.n_levels == current.n_levels:
            return in_order
        raise ConfigError(
            [
                f"{_KEY}: {current.variable} has {current.n_levels} levels, in the "
                f"base {base.n_levels}, and the values of these levels are unknown; "
                "give data.source levels, and a base that records its levels"
            ]
        )
    if is_numbered(current.levels, base.levels):
        names = f"data.source: {current.variable}", f"{base.variable} of the base"
        indices_of(base.levels, current.levels, "level", *names, of_run=True)
        return in_order
    return dict(common_indices(current.levels, base.levels, "level", "the base"))


def _channels(text: str, schema: ChannelSchema) -> list[int]:
    """The outputs of "T", or of "T 500"; none if there are none."""
    named = _named(schema, "target")
    if text in named:
        return [*named[text][1]]
    name, _, level = text.rpartition(" ")
    if name not in named:
        return []
    group, channels = named[name]
    try:
        indices = common_indices([float(level)], group.levels or (), "level")
    except ValueError:
        return []
    return [channels[index] for _, index in indices]


def _report(
    direction: str,
    base: ChannelSchema,
    current: ChannelSchema,
    indices: Sequence[int | None],
    copied: Mapping[int, int],
    begins: str,
) -> Iterator[str]:
    """What happened to each channel, and the channels of the base that are gone."""
    which = "input" if direction == "input" else "output"
    for channel, index in enumerate(indices):
        name = current.describe(channel, direction)
        if index is not None:
            text = f"channel {index} of the base"
        elif channel in copied:
            text = f"new, a copy of {base.describe(copied[channel], direction)}"
        else:
            text = f"new, begins with {begins}"
        yield f"{which} {channel}: {name}: {text}"
    count = sum(group.n_levels for group in base.groups(direction))
    for channel in sorted({*range(count)} - {*indices}):
        yield f"{which}: {base.describe(channel, direction)} of the base is removed"
