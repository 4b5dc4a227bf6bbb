"""Converts between channels of y and physical units of the data, for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from credit_jax.io.errors import errors_of
from credit_jax.named_fields import ChannelLayout, FieldContext
from credit_jax.named_fields.tree import by_source
from credit_jax.transforms.base import FieldTree, Group, TransformFunction
from credit_jax.transforms.named import get_field
from credit_jax.transforms.pipeline import Block, Pipeline
from credit_jax.transforms.pointwise import is_numpy


@dataclass(frozen=True)
class Units:
    """The preblocks of the target as a function of channels, and its inverse.

    Attributes:
        blocks: the preblocks in execution order, without concat.
        data: the channel layout of the data.
        model: the channel layout of y, which may have other names and another order.
        origins: key in y -> key in the data.
    """

    blocks: tuple[Block, ...]
    data: ChannelLayout
    model: ChannelLayout
    origins: dict[str, str]

    def normalize(
        self,
        array: Shaped[Any, "batch channel ..."],
        context: FieldContext | None = None,
    ) -> Shaped[Any, "batch channel_out ..."]:
        """Converts channels of the data in physical units to channels of y.

        Args:
            array: (batch, channel, lat, lon) or (batch, channel, time, lat, lon).
            context: context of a traced step; None on the host.

        Raises:
            ValueError: a block needs more than the target.
        """
        steps = [(each.path, each.transform) for each in self.blocks]
        return _applied(steps, array, self.data, self.model.keys, context)

    def denormalize(
        self,
        array: Shaped[Any, "batch channel_out ..."],
        context: FieldContext | None = None,
    ) -> Shaped[Any, "batch channel_out ..."]:
        """Converts channels of y to physical units, on the grid of y.

        Args:
            array: (batch, channel, lat, lon) or (batch, channel, time, lat, lon).
            context: context of a traced step; None on the host.

        Raises:
            ValueError: a block has no inverse.
        """
        steps = [(each.path, each.transform.inverse) for each in reversed(self.blocks)]
        keys = [self.origins[key] for key in self.model.keys]
        return _applied(steps, array, self.model, keys, context)


def channel_units(pipeline: Pipeline, groups: Sequence[Group]) -> Units:
    """Builds the conversion between channels of y and physical units.

    Args:
        pipeline: the transforms.
        groups: the variables of the target of the data, in channel order.
    """
    after = pipeline.schema_after({"target": groups})["target"]
    origins = {}
    for group in groups:
        (new,) = pipeline.schema_after({"target": [group]})["target"]
        origins[new.var_key] = group.var_key
    blocks = [block for block in pipeline.preblocks if block.type != "concat"]
    return Units(tuple(blocks), _channels(groups), _channels(after), origins)


def _channels(groups: Sequence[Group]) -> ChannelLayout:
    return ChannelLayout.of({group.var_key: group.n_levels for group in groups})


def _applied(
    steps: Sequence[tuple[str, TransformFunction]],
    array: Shaped[Any, "batch channel ..."],
    channels: ChannelLayout,
    keys: Sequence[str],
    context: FieldContext | None,
) -> Shaped[Any, "batch channel_out ..."]:
    """Applies functions of named fields to the variables of some channels.

    Args:
        steps: path of a block, for its errors, and the function.
        array: (batch, channel, lat, lon) or (batch, channel, time, lat, lon).
        channels: the channels of `array`.
        keys: keys of the variables of the result, in the order of its channels.
        context: context of a traced step; None on the host.
    """
    has_time = array.ndim == 5
    split = array if has_time else array[:, :, None]
    fields = {key: split[:, place] for key, place in channels.slices.items()}
    tree: FieldTree = {"target": by_source(fields)}
    for path, function in steps:
        with errors_of(path):
            tree = function(tree, context)
    parts = [get_field(tree, "target", key) for key in keys]
    module = np if all(map(is_numpy, parts)) else jnp
    joined = module.concatenate(parts, axis=1)
    return joined if has_time else joined[:, :, 0]
