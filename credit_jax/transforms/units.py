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
from credit_jax.transforms.base import FieldTree, Group
from credit_jax.transforms.pipeline import Pipeline, Placed
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

    blocks: tuple[Placed, ...]
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
        tree: FieldTree = {"target": _split(array, self.data)}
        for block in self.blocks:
            tree = block.transform(tree, context)
        return _join(tree["target"], self.model.keys, array.ndim)

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
        tree: FieldTree = {"target": _split(array, self.model)}
        for block in reversed(self.blocks):
            with errors_of(block.path):
                tree = block.transform.inverse(tree, context)
        keys = [self.origins[key] for key in self.model.keys]
        return _join(tree["target"], keys, array.ndim)


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


def _split(array: Any, channels: ChannelLayout) -> dict[str, dict[str, Any]]:
    """Splits channels to {source: {key: (batch, level, time, lat, lon)}}."""
    if array.ndim == 4:
        array = array[:, :, None]
    return by_source({k: array[:, place] for k, place in channels.slices.items()})


def _join(fields: Any, keys: Sequence[str], num_dims: int) -> Any:
    """Joins fields to (batch, channel, ...), without a time dim if of four dims."""
    arrays = [fields[key.split("/")[0]][key] for key in keys]
    module = np if all(map(is_numpy, arrays)) else jnp
    joined = module.concatenate(arrays, axis=1)
    return joined if num_dims == 5 else joined[:, :, 0]
