"""`channels.json`: variable and level of each channel of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.data.further_inputs import FurtherInputs
from credit_jax.packages.manifest import read_json

_INPUT, _OUTPUT = "input", "output"


def channel_groups(
    schema: ChannelSchema, further: FurtherInputs | None
) -> dict[str, Sequence[ChannelGroup]]:
    """The variables of "input", "output", and each further input of the model.

    Args:
        schema: schema of x and y.
        further: inputs beside x, by the names that the model gives them.
    """
    groups: dict[str, Sequence[ChannelGroup]]
    groups = {_INPUT: schema.input, _OUTPUT: schema.target}
    if further is not None:
        groups |= {
            name: further_schema.input
            for name, further_schema in further.schemas.items()
        }
    return groups


def write_channels(
    path: Path,
    groups: Mapping[str, Sequence[ChannelGroup]],
    levels: Mapping[str, Sequence[float] | None],
    described: Mapping[str, Mapping[str, str]],
) -> None:
    """Writes the channels, in order.

    Args:
        path: path of the file.
        groups: groups, as returned by `channel_groups`.
        levels: source -> values of its level coordinate, None if unknown.
        described: key of a variable -> its unit and names, those that are known.
    """
    content = {
        name: [
            entry for group in channels for entry in _entries(group, levels, described)
        ]
        for name, channels in groups.items()
    }
    path.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")


def _entries(
    group: ChannelGroup,
    levels: Mapping[str, Sequence[float] | None],
    described: Mapping[str, Mapping[str, str]],
) -> list[dict[str, Any]]:
    """One entry for each level of a variable; "level" is null without levels."""
    values: Sequence[float | None] = [None]
    if "/3d/" in group.var_key:
        known = levels.get(group.source) or ()
        fits = len(known) == group.n_levels
        values = list(known) if fits else list(range(group.n_levels))
    attributes = {"units": None, **described.get(group.var_key, {})}
    return [
        {
            "key": group.var_key,
            "variable": group.variable,
            "level": level,
            **attributes,
        }
        for level in values
    ]


def read_channels(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The channels of "input", "output", and each further input, in order.

    Raises:
        ValueError: the file has another format, or contains a channel twice.
    """
    content = read_json(path)
    try:
        names = dict.fromkeys((_INPUT, _OUTPUT, *content))
        channels = {name: [dict(entry) for entry in content[name]] for name in names}
        for name, entries in channels.items():
            _check_unique(
                path, name, [(entry["key"], entry["level"]) for entry in entries]
            )
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: no list of channels of {_INPUT} and {_OUTPUT} ({error!r}); the "
            "package is damaged, get it again"
        ) from None
    return channels


def _check_unique(path: Path, name: str, channels: list[tuple[Any, Any]]) -> None:
    for place, channel in enumerate(channels):
        first = channels.index(channel)
        if first != place:
            key, level = channel
            at = "" if level is None else f" at level {level}"
            raise ValueError(
                f"{path}: {name} channels {first} and {place} are both {key}{at}; "
                "expected each channel once. Do not use this package"
            )


def order_of(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """(key, number of channels) of the variables of `read_channels`, in order."""
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry["key"]] = counts.get(entry["key"], 0) + 1
    return list(counts.items())
