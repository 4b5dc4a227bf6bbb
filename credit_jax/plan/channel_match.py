"""Matches the channels of a run with those of its base, by variable and level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from credit_jax.config import ConfigError
from credit_jax.config.finetune import CopyChannels, NewChannels
from credit_jax.config.inference import InferenceConfig
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.models.channel_change import ChannelChange
from credit_jax.named_fields.coordinates import common_indices, indices_of, is_numbered
from credit_jax.named_fields.units import VariableUnits, unique_names, unit_problems

_KEY = "trainer.finetune.new_channels"


@dataclass(frozen=True)
class ChannelMatch:
    """The channels of a run, by those of its base, and what happened to each."""

    change: ChannelChange
    report: tuple[str, ...]


def match_channels(
    base: ChannelSchema, current: ChannelSchema, new: NewChannels
) -> ChannelMatch:
    """Matches channels by the names of their variables and the values of their levels.

    A variable may come from another source, and may be another field type: names of
    several sources are compared with the source.
    """
    inputs, outputs = (_indices(base, current, which) for which in ("input", "target"))
    copied = dict[int, int]()
    if isinstance(new, CopyChannels):
        copied = _copied(new.copied, base, current, outputs)
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
    """A line for each variable whose levels have other values, or another order.

    Args:
        base: channels of the base.
        current: channels of a run, of the same variables with as many levels.
        in_order: whether the order counts.
    """
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


def _copied(
    new: Mapping[str, str],
    base: ChannelSchema,
    current: ChannelSchema,
    outputs: Sequence[int | None],
) -> dict[int, int]:
    """New output -> output of the base, as `copy` names them."""
    copied, problems, named = dict[int, int](), list[str](), _named(current, "target")
    fresh = [
        name
        for name, (_, indices) in named.items()
        if None in outputs[indices.start : indices.stop]
    ]
    for target, source in new.items():
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
                f"{len(to)} channels, {source!r} has {len(origin)}; name one of its "
                f"levels: '{source} LEVEL'"
            )
        else:
            origin = origin * len(to) if len(origin) == 1 else origin
            copied |= dict(zip(to, origin, strict=True))
            continue
        problems.append(f"{_KEY}.copy.{target}: {text}")
    if problems:
        raise ConfigError(problems)
    return copied


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
