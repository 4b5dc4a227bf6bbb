"""Matches the channels of a run with those of its base, by variable and level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from credit_jax.config import ConfigError
from credit_jax.config.finetune import CopyChannels, NewChannels
from credit_jax.config.inference import InferenceConfig
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.models.channel_change import ChannelChange, Fill
from credit_jax.named_fields.coordinates import common_places, is_numbered
from credit_jax.named_fields.units import differ

_KEY = "trainer.finetune.new_channels"

# Key of a variable -> its unit and the file or checkpoint that says so.
VariableUnits: TypeAlias = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class ChannelMatch:
    """The channels of a run, by those of its base, and what happened to each.

    Attributes:
        change: channels of the model, by those of the base.
        report: one line for each run of channels of a variable.
    """

    change: ChannelChange
    report: tuple[str, ...]


def match_channels(
    base: ChannelSchema, ours: ChannelSchema, new: NewChannels
) -> ChannelMatch:
    """Matches channels by the names of their variables and the values of their levels.

    A variable may come from another source, and may be another field type: names of
    several sources are compared with the source.

    Args:
        base: channels of the base.
        ours: channels of the run.
        new: what new outputs begin with.

    Raises:
        ConfigError: levels that differ in number are unknown, or `copy` names what is
            not there.
    """
    inputs = _places(base.input, ours.input)
    outputs = _places(base.target, ours.target)
    fill: Fill = "copy" if isinstance(new, CopyChannels) else new
    copied = dict[int, int]()
    if isinstance(new, CopyChannels):
        copied = _copied(new.copied, base, ours, outputs)
    change = ChannelChange(
        tuple(inputs),
        tuple(outputs),
        _total(base.input),
        _total(base.target),
        fill,
        copied,
    )
    report = [
        *_report("input", base, ours, inputs, {}, "0"),
        *_report("target", base, ours, outputs, copied, _begins(fill)),
    ]
    return ChannelMatch(change, tuple(report))


def num_in_common(base: ChannelSchema, ours: ChannelSchema) -> int:
    """Number of channels of a run that its base has, too.

    Raises:
        ConfigError: levels that differ in number are unknown.
    """
    inputs, outputs = _places(base.input, ours.input), _places(base.target, ours.target)
    return sum(place is not None for place in (*inputs, *outputs))


def level_differences(
    base: ChannelSchema, ours: ChannelSchema, *, in_order: bool = True
) -> list[str]:
    """A line for each variable whose levels have other values, or another order.

    Args:
        base: channels of the base.
        ours: channels of a run, of the same variables with as many levels.
        in_order: whether the order counts.
    """
    pairs = [
        *zip(base.input, ours.input, strict=True),
        *zip(base.target, ours.target, strict=True),
    ]
    lines = []
    for theirs, group in pairs:
        places, every = _levels(theirs, group), range(group.n_levels)
        if len(places) < len(every) or (
            in_order and any(places[i] != i for i in every)
        ):
            lines.append(
                f"{group.variable} has the levels {list(group.levels or ())}, in the "
                f"base {list(theirs.levels or ())}"
            )
    return [*dict.fromkeys(lines)]


def unit_problems(base: VariableUnits, ours: VariableUnits) -> list[str]:
    """A line for each variable of a run that has another unit in its base.

    Variables are matched by their names, as in `match_channels`. Names of units that
    are not known differ from none.

    Args:
        base: units of the base.
        ours: units of the run.
    """
    theirs, problems = _by_name(base), []
    for name, (unit, path) in _by_name(ours).items():
        expected, where = theirs.get(name, (unit, path))
        if differ(unit, expected):
            problems.append(
                f"{path}: variable {name.split('/')[-1]!r} has units {unit!r}, "
                f"expected {expected!r} as in {where}; bring the file to that unit"
            )
    return problems


def check_forecast_units(
    checkpoint: VariableUnits, data: VariableUnits, inference: InferenceConfig, at: str
) -> list[str]:
    """Returns a line for each variable whose unit blocks of the forecast may convert.

    Args:
        checkpoint: units that the model was trained in.
        data: units of the data of a forecast.
        inference: section of the forecast.
        at: name of what cannot be forecast, for the error.

    Raises:
        ConfigError: units differ, and the forecast has the blocks of training.
    """
    others = unit_problems(checkpoint, data)
    if others and inference.preblocks is None:
        raise ConfigError(others, at)
    return others


def _by_name(units: VariableUnits) -> dict[str, tuple[str, str]]:
    """Units by "3d/T", or by the whole key where several variables are called so."""
    names = _unique([(key.split("/", 2)[2], key) for key in units])
    return dict(zip(names, units.values(), strict=True))


def _unique(variables: Sequence[tuple[str, str]]) -> list[str]:
    """The names of (name, key) pairs; keys where a name occurs twice."""
    names = [name for name, _ in variables]
    return [name if names.count(name) == 1 else key for name, key in variables]


def _begins(fill: Fill) -> str:
    return "the mean of all outputs" if fill == "mean" else "0"


def _total(groups: Sequence[ChannelGroup]) -> int:
    return sum(group.n_levels for group in groups)


def _starts(groups: Sequence[ChannelGroup]) -> Iterator[tuple[ChannelGroup, int]]:
    start = 0
    for group in groups:
        yield group, start
        start += group.n_levels


def _named(groups: Sequence[ChannelGroup]) -> dict[str, tuple[ChannelGroup, int]]:
    """Name -> group and its first channel; the key where a name occurs twice."""
    names = _unique([(group.variable, group.var_key) for group in groups])
    return dict(zip(names, _starts(groups), strict=True))


def _is_3d(group: ChannelGroup) -> bool:
    return group.var_key.split("/")[2] == "3d"


def _places(
    base: Sequence[ChannelGroup], ours: Sequence[ChannelGroup]
) -> list[int | None]:
    """For each channel of a run that of the base, or None."""
    known, places = _named(base), list[int | None]()
    for name, (group, _) in _named(ours).items():
        theirs = known.get(name)
        if theirs is None or _is_3d(theirs[0]) != _is_3d(group):
            places += [None] * group.n_levels
            continue
        levels = _levels(theirs[0], group)
        places += [
            None if place is None else theirs[1] + place
            for place in (levels.get(level) for level in range(group.n_levels))
        ]
    return places


def _levels(base: ChannelGroup, ours: ChannelGroup) -> dict[int, int]:
    """Level of ours -> level of the base, by their positions."""
    counts = base.n_levels, ours.n_levels
    in_order = {level: level for level in range(ours.n_levels)}
    if base.levels is None or ours.levels is None:
        if counts[0] == counts[1]:
            return in_order
        raise ConfigError(
            [
                f"{_KEY}: {ours.variable} has {counts[1]} levels, in the base "
                f"{counts[0]}, and the values of these levels are unknown; give "
                "data.source levels, and a base that records its levels"
            ]
        )
    if is_numbered(ours.levels, base.levels):
        return in_order
    return dict(common_places(ours.levels, base.levels, "level", "the base"))


def _copied(
    new: Mapping[str, str],
    base: ChannelSchema,
    ours: ChannelSchema,
    outputs: Sequence[int | None],
) -> dict[int, int]:
    """New output -> output of the base, as `copy` names them."""
    copied, problems = dict[int, int](), list[str]()
    for target, source in new.items():
        to, origin = _channels(target, ours.target), _channels(source, base.target)
        if to is None or any(outputs[channel] is not None for channel in to):
            problems.append(
                f"{_KEY}.copy.{target}: no new output; there are: "
                f"{_new_names(ours, outputs) or 'none'}"
            )
        elif origin is None:
            names = ", ".join(_named(base.target))
            problems.append(
                f"{_KEY}.copy.{target}: {source!r} is no output of the "
                f"base, which has {names}; a level is 'T 500'"
            )
        elif len(origin) not in (1, len(to)):
            problems.append(
                f"{_KEY}.copy.{target}: {len(to)} channels, {source!r} "
                f"has {len(origin)}; name one of its levels: "
                f"'{source} LEVEL'"
            )
        else:
            origin = origin * len(to) if len(origin) == 1 else origin
            copied |= dict(zip(to, origin, strict=True))
    if problems:
        raise ConfigError(problems)
    return copied


def _new_names(ours: ChannelSchema, outputs: Sequence[int | None]) -> str:
    return ", ".join(
        name
        for name, (group, start) in _named(ours.target).items()
        if None in outputs[start : start + group.n_levels]
    )


def _channels(text: str, groups: Sequence[ChannelGroup]) -> list[int] | None:
    """The channels of "T", or of "T 500"; None if there are none."""
    named = _named(groups)
    if text in named:
        group, start = named[text]
        return [*range(start, start + group.n_levels)]
    name, _, level = text.rpartition(" ")
    if name not in named:
        return None
    group, start = named[name]
    try:
        places = common_places([float(level)], group.levels or (), "level")
    except ValueError:
        return None
    return [start + place for _, place in places] or None


def _report(
    direction: str,
    base: ChannelSchema,
    ours: ChannelSchema,
    places: Sequence[int | None],
    copied: Mapping[int, int],
    begins: str,
) -> Iterator[str]:
    """What happened to each channel, and the channels of the base that are gone."""
    which = "input" if direction == "input" else "output"
    for channel, place in enumerate(places):
        name = ours.describe(channel, direction)
        if place is not None:
            text = f"channel {place} of the base"
        elif channel in copied:
            text = f"new, a copy of {base.describe(copied[channel], direction)}"
        else:
            text = f"new, begins with {begins}"
        yield f"{which} {channel}: {name}: {text}"
    groups = base.input if direction == "input" else base.target
    for channel in sorted({*range(_total(groups))} - {*places}):
        yield f"{which}: {base.describe(channel, direction)} of the base is removed"
