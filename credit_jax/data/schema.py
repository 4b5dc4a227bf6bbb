"""The variables of channels, in CREDIT's order.

Channels are sorted by source, in the order of the config; then by field type:
prognostic, static, dynamic_forcing for the input, prognostic, diagnostic for the
target; then 3-D before 2-D variables; then in the order of the config. A 3-D variable
has one channel per level.
"""

import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
import yaml
from jaxtyping import Array

from credit_jax.config.data import DataConfig
from credit_jax.config.sources.source import INPUT_TYPES, MAIN_INPUT, OUTPUT_TYPES
from credit_jax.io.atomic import new_file
from credit_jax.named_fields.coordinates import GridCoordinates
from credit_jax.named_fields.tree import ChannelGroup
from credit_jax.transforms import Pipeline, TreeSchema

# Field types of the input in the order of CREDIT's samples.
READ_ORDER = ("dynamic_forcing", "static", "prognostic")
SCHEMA_FILE = "channel_schema.yaml"
SCHEMA_VERSION = 1
# Attributes of groups in that file.
_SAVED = ("var_key", "n_levels", "n_time")


@dataclasses.dataclass(frozen=True)
class ChannelSchema:
    """The channels of x (batch, C, T, lat, lon) and y (batch, C_out, T_out, lat, lon).

    Attributes:
        input: the variables of x, in channel order.
        target: the variables of y, in channel order.

    >>> plan = credit_jax.plan_run(credit_jax.load_config("RUN/model.yml"))
    >>> [group.variable for group in plan.schema.target]
    ['U', 'T', 'SP', 'TP']
    """

    input: tuple[ChannelGroup, ...]
    target: tuple[ChannelGroup, ...]

    @classmethod
    def from_config(
        cls,
        data: DataConfig,
        num_levels: Mapping[str, int],
        input_name: str = MAIN_INPUT,
        axes: Mapping[str, GridCoordinates] = MappingProxyType({}),
    ) -> "ChannelSchema":
        """Builds the schema of the samples of a data section.

        Args:
            data: the data section.
            num_levels: source -> number of levels of its 3-D variables.
            input_name: input of the model whose sources are included.
            axes: source -> its coordinates, those that are known.
        """
        inputs: list[ChannelGroup] = []
        targets: list[ChannelGroup] = []
        for name, source in data.sources_of(input_name).items():
            history = source.history_len or data.history_len
            levels = axes[name].levels if name in axes else None
            levels = None if len(levels or ()) != num_levels[name] else levels
            for groups, kinds, times in (
                (inputs, INPUT_TYPES, history),
                (targets, OUTPUT_TYPES, 1),
            ):
                for kind in kinds:
                    if (field := getattr(source.variables, kind)) is None:
                        continue
                    key, count = f"{name}/{kind}", num_levels[name]
                    groups += [
                        ChannelGroup(f"{key}/3d/{v}", count, times, levels)
                        for v in field.vars_3D
                    ]
                    groups += [
                        ChannelGroup(f"{key}/2d/{v}", 1, times) for v in field.vars_2D
                    ]
        return cls(tuple(inputs), tuple(targets))

    def after(self, pipeline: Pipeline) -> "ChannelSchema":
        """The schema of x and y that preblocks make from data with this schema."""
        schema = pipeline.schema_after(self.as_read())
        return ChannelSchema(tuple(schema["input"]), tuple(schema["target"]))  # type: ignore[arg-type]

    def as_read(self) -> TreeSchema:
        """The variables in the order of a sample before preblocks."""
        sources = dict.fromkeys(group.source for group in self.input)
        inputs = [
            group
            for source in sources
            for kind in READ_ORDER
            for group in self.input
            if (group.source, group.field_type) == (source, kind)
        ]
        return {"input": inputs, "target": list(self.target)}

    @property
    def target_counts(self) -> dict[str, int]:
        """var_key -> number of channels, in the order of y."""
        return {group.var_key: group.n_levels for group in self.target}

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Names of the variables of "input" and "target", in channel order.

        A name is that of the variable with its levels, "T (8 levels)", or the whole key
        if the variable's name is not unique.
        """
        names = {}
        for which in ("input", "target"):
            groups = self.groups(which)
            variables = [group.variable for group in groups]
            names[which] = tuple(
                (g.variable if variables.count(g.variable) == 1 else g.var_key)
                + (f" ({g.n_levels} levels)" if g.n_levels > 1 else "")
                for g in groups
            )
        return names

    def groups(self, which: str) -> tuple[ChannelGroup, ...]:
        """The variables of "input", or else of the target."""
        return self.input if which == "input" else self.target

    @property
    def num_input_channels(self) -> int:
        """Channels of x."""
        return sum(group.n_levels for group in self.input)

    @property
    def num_target_channels(self) -> int:
        """Channels of y."""
        return sum(group.n_levels for group in self.target)

    def input_slices(self) -> dict[str, slice]:
        """var_key -> its channels in x."""
        return _slices(self.input)

    def target_slices(self) -> dict[str, slice]:
        """var_key -> its channels in y and in the model's output."""
        return _slices(self.target)

    def key_of(self, channel: int, which: str = "target") -> str:
        """The var_key of a channel of "input" or "target".

        Raises:
            IndexError: there is no such channel.
        """
        group, _ = self._channels_of(channel, which)
        return group.var_key

    def describe(self, channel: int, which: str = "target") -> str:
        """Name of a channel of "input" or "target": "T 500" or "SP".

        Levels without values are counted: "T (level 3 of 8)".

        Raises:
            IndexError: there is no such channel.
        """
        group, index = self._channels_of(channel, which)
        if group.levels is not None:
            return f"{group.variable} {group.levels[index]:g}"
        if group.n_levels == 1:
            return group.variable
        return f"{group.variable} (level {index + 1} of {group.n_levels})"

    def _channels_of(self, channel: int, which: str) -> tuple[ChannelGroup, int]:
        """The group of a channel, and its index within the group."""
        slices = _slices(self.groups(which))
        for group in self.groups(which):
            part = slices[group.var_key]
            if part.start <= channel < part.stop:
                return group, channel - part.start
        raise IndexError(f"channel {channel} of {[*slices.values()][-1].stop}")

    def advance(self, x: Array | np.ndarray, y: Array | np.ndarray) -> Array:
        """Returns x of the next step, with what y predicts of it.

        All else, forcing and static fields, stays as it was at the newest time of x;
        set new forcing by `input_slices`.

        Args:
            x: input (batch, channel, time, lat, lon), normalized.
            y: prediction for it, (batch, channel, 1, lat, lon), normalized as x is.

        Raises:
            ValueError: x has a prognostic variable that y lacks.

        >>> schema = credit_jax.plan_run(credit_jax.load_config("RUN/model.yml")).schema
        >>> schema.advance(x, y).shape
        (2, 7, 1, 6, 10)
        """
        newest, targets = jnp.asarray(x[:, :, -1:]), self.target_slices()
        for group in self.input:
            if group.field_type != "prognostic":
                continue
            if group.var_key not in targets:
                raise ValueError(
                    f"x has {group.var_key}, which y lacks, so that y is no next x; y "
                    f"has: {', '.join(targets)}"
                )
            part = self.input_slices()[group.var_key]
            newest = newest.at[:, part].set(y[:, targets[group.var_key]])
        return jnp.concatenate([x[:, :, 1:], newest], axis=2)

    def save(self, path: str | os.PathLike) -> None:
        """Writes CREDIT's channel_schema.yaml atomically."""
        content: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        for which in ("input", "target"):
            groups = self.groups(which)
            content[which] = [{k: getattr(g, k) for k in _SAVED} for g in groups]
        with new_file(path) as partial, partial.open("w") as file:
            yaml.safe_dump(content, file, sort_keys=False)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ChannelSchema":
        """Reads a channel_schema.yaml of CREDIT or credit_jax.

        Raises:
            ValueError: the file has another version or another content.
        """
        with open(path) as file:
            content = yaml.safe_load(file)
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"{os.fspath(path)}: schema_version {version!r} cannot be read, "
                f"expected {SCHEMA_VERSION}"
            )
        try:
            parts = [
                tuple(ChannelGroup(*(each[k] for k in _SAVED)) for each in content[key])
                for key in ("input", "target")
            ]
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{os.fspath(path)}: not a channel schema ({error!r}); expected lists "
                "input and target of var_key, n_levels, n_time"
            ) from error
        return cls(*parts)


def _slices(groups: tuple[ChannelGroup, ...]) -> dict[str, slice]:
    slices, start = {}, 0
    for group in groups:
        slices[group.var_key] = slice(start, start + group.n_levels)
        start += group.n_levels
    return slices
