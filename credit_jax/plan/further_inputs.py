"""Compares the inputs of a model other than x with the inputs that the data provide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from credit_jax.config.data import INPUT_TIMES, TARGET_TIME, DataConfig
from credit_jax.config.sources.source import MAIN_INPUT
from credit_jax.data import ChannelSchema
from credit_jax.data.further_inputs import FurtherInputs
from credit_jax.data.schema import num_levels
from credit_jax.models.common.array_specs import FieldSpec, VectorSpec
from credit_jax.models.common.config import ModelConfig

# A time is encoded by sine and cosine of its hour of day and of its day of year.
NUMBERS_OF_A_TIME = 4


def further_problems(
    data: DataConfig,
    model: ModelConfig,
    further: FurtherInputs | None = None,
    where: str = "data",
) -> list[str]:
    """Finds mismatches of inputs other than x, one line each.

    Args:
        data: the data section.
        model: validated config of the model.
        further: the opened inputs; None compares what is known without files.
        where: dotted path of the section.
    """
    schemas = further_schemas(data, further)
    specs = {name: spec for name, spec in model.inputs.items() if name != MAIN_INPUT}
    provided = (*data.further_inputs, *data.time_encoding)
    unused = [name for name in provided if name not in specs]
    problems = [
        f"{where} makes the input {name!r}, but model.type {model.type} takes "
        f"{', '.join(model.inputs)}"
        for name in unused
    ]
    for name, spec in specs.items():
        if isinstance(spec, VectorSpec):
            problems += _vector_problems(data, name, spec, where, model.type)
        else:
            problems += _frame_problems(data, name, spec, where, model.type)
            problems += _channel_problems(data, name, spec, schemas)
            problems += _grid_problems(name, spec, further)
    return problems


def further_schemas(
    data: DataConfig, further: FurtherInputs | None = None
) -> dict[str, ChannelSchema]:
    """Returns the channels of each input of the model other than x.

    Args:
        data: the data section.
        further: the opened inputs. With None, inputs whose levels only the files define
            are omitted.
    """
    if further is not None:
        return {**further.schemas}
    levels = num_levels(data, 0)
    return {
        name: ChannelSchema.from_config(data, levels, name)
        for name in data.further_inputs
        if all(levels[source] for source in _deep_sources(data, name))
    }


def _deep_sources(data: DataConfig, name: str) -> Iterator[str]:
    """The sources of an input that have fields with levels."""
    for source, section in data.sources_of(name).items():
        forcing = section.variables.dynamic_forcing
        if forcing is not None and forcing.vars_3D:
            yield source


def _vector_problems(
    data: DataConfig, name: str, spec: VectorSpec, where: str, model: str
) -> Iterator[str]:
    if name not in data.time_encoding:
        sources = [
            source for key in data.further_inputs for source in data.sources_of(key)
        ]
        known = ", ".join((INPUT_TIMES, TARGET_TIME, *sources))
        yield (
            f"model.type {model} takes a vector {name}: set {where}.time_encoding: "
            f"{{{name}: [...]}} to the times that it encodes, of {known}"
        )
        return
    numbers = num_encoded(data, name)
    if numbers != spec.size:
        times = numbers // NUMBERS_OF_A_TIME
        yield (
            f"{where}.time_encoding.{name} encodes {times} times, "
            f"{NUMBERS_OF_A_TIME} numbers each, but the model takes {spec.size}; "
            "change time_encode_dim, or the times"
        )


def num_encoded(data: DataConfig, name: str) -> int:
    """Size of the vector of an input that encodes times."""
    counts = (_num_times(data, which) for which in data.time_encoding[name])
    return sum(counts) * NUMBERS_OF_A_TIME


def _num_times(data: DataConfig, which: str) -> int:
    if which == INPUT_TIMES:
        return data.history_len
    if which == TARGET_TIME:
        return 1
    return data.source[which].history_len or data.history_len


def _frame_problems(
    data: DataConfig, name: str, spec: FieldSpec, where: str, model: str
) -> Iterator[str]:
    sources = data.sources_of(name)
    if not sources:
        yield (
            f"model.type {model} takes fields {name} beside x: give the source that "
            f"has them the key input: {name} ({where}.source.NAME.input)"
        )
    for source, section in sources.items():
        frames = section.history_len or data.history_len
        if frames != spec.frames:
            yield (
                f"{where}.source.{source}.history_len: {frames} differs from the "
                f"{spec.frames} frames of {name} in the model; make them equal"
            )


def _channel_problems(
    data: DataConfig,
    name: str,
    spec: FieldSpec,
    schemas: Mapping[str, ChannelSchema],
) -> Iterator[str]:
    if name not in schemas:
        return
    channels = schemas[name].num_input_channels
    if channels != spec.channels:
        yield (
            f"model: {name} has {spec.channels} channels, but its sources "
            f"{', '.join(data.sources_of(name))} have {channels}; change the model's "
            "channels, or the variables"
        )


def _grid_problems(
    name: str, spec: FieldSpec, further: FurtherInputs | None
) -> Iterator[str]:
    if further is None or name not in further.schemas:
        return
    for grid in further.grids_of(name):
        if grid.shape != (spec.height, spec.width):
            yield (
                f"{grid.where} has a grid of {' x '.join(map(str, grid.shape))}, but "
                f"{name} of the model {spec.height} x {spec.width}; take other files, "
                "or change the model's grid"
            )
