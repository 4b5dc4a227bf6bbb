"""From one step of a forecast to the next: what is fed back, forced and kept.

The input of a later step holds, in physical units, the prognostic variables that the
step before has predicted (`y_processed`), the dynamic forcing of the new time, and the
static fields of the first input. It goes through the preblocks of every step again. Of
an input of several times the oldest is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax.fields import FieldContext
from credit_jax.transforms.base import FieldTree, Phase, Where
from credit_jax.transforms.pipeline import Pipeline

PROGNOSTIC, FORCING = "prognostic", "dynamic_forcing"


def field_type_of(var_key: str) -> str:
    """Field type of the variable of a key: its second part.

    >>> field_type_of("ERA5/dynamic_forcing/2d/tsi")
    'dynamic_forcing'
    """
    return var_key.split("/")[1]


def without_input(tree: FieldTree) -> dict[str, Any]:
    """A tree that has no input fields: that of a target alone."""
    return {key: value for key, value in tree.items() if key != "input"}


def fields_of_rollout(
    first: Mapping[str, Mapping[str, np.ndarray]],
    later: Sequence[Mapping[str, Mapping[str, np.ndarray]]],
) -> dict[str, FieldTree]:
    """What the steps after the first one are given.

    Args:
        first: input fields of the first step, after `preblocks.ic_only`.
        later: those of each later step: the dynamic forcing.

    Returns:
        {"forcing": {source: {key: (batch, level, later step, lat, lon)}}, "static":
        {source: {key: (batch, level, 1, lat, lon)}}}, the latter with every input that
        is neither predicted nor forced.
    """
    forcing = {
        source: {
            key: np.concatenate([step[source][key] for step in later], axis=2)
            for key in own
        }
        for source, own in later[0].items()
    }
    static = {
        source: {
            key: field[:, :, -1:]
            for key, field in own.items()
            if field_type_of(key) not in (PROGNOSTIC, FORCING)
        }
        for source, own in first.items()
    }
    return {"forcing": forcing, "static": static}


@dataclass(frozen=True)
class Advance:
    """The input of the next step, traced: (tree, forcing, static, context) -> tree.

    Attributes:
        pipeline: its preblocks of every step run on the new input.
        input_channels: the channels of x of each variable.
        target_channels: those of y and of the model's output.

    Raises:
        ValueError: a preblock of every step runs on the host only.
    """

    pipeline: Pipeline
    input_channels: Mapping[str, slice]
    target_channels: Mapping[str, slice]

    def __post_init__(self) -> None:
        self.pipeline.require(Phase.BEFORE_STEP, Where.TRACED)

    def __call__(
        self,
        tree: FieldTree,
        forcing: Mapping[str, Mapping[str, Array]],
        static: Mapping[str, Mapping[str, Array]],
        context: FieldContext,
    ) -> dict[str, Any]:
        """The entries "x" and, if a transform needs it, "x_physical" of the next step.

        Args:
            tree: after a step: x and y_processed.
            forcing: dynamic forcing of the next step, fields (batch, level, 1, rows,
                lon).
            static: the other fields.
            context: of the step; its members are side by side.

        Raises:
            ValueError: no transform makes named fields of the prediction, or one of
                them lacks a prognostic variable.
        """
        fields: dict[str, dict[str, Array]] = {}
        for key in self.input_channels:
            source, own = key.split("/")[0], fields.setdefault(key.split("/")[0], {})
            if field_type_of(key) == PROGNOSTIC:
                own[key] = _predicted(tree, source, key)
            else:
                part = forcing if field_type_of(key) == FORCING else static
                own[key] = context.repeat_members(part[source][key])
        maps = {
            "input_channel_map": dict(self.input_channels),
            "channel_map": dict(self.target_channels),
        }
        new = self.pipeline.before_step({"input": fields, **maps}, context)["x"]
        x = jnp.concatenate([tree["x"][:, :, 1:], new.astype(tree["x"].dtype)], axis=2)
        if not self.pipeline.needs("x_physical"):
            return {"x": x}
        return {"x": x, "x_physical": fields}


def _predicted(tree: FieldTree, source: str, key: str) -> Array:
    if "y_processed" not in tree:
        raise ValueError(
            "a forecast of several steps feeds named fields back in physical units: "
            "postblocks.per_step needs a block of type reconstruct, and the inverse of "
            "what preblocks normalize"
        )
    predicted = tree["y_processed"].get(source, {})
    if key not in predicted:
        raise ValueError(
            f"the postblocks leave no {key!r} to feed back; y_processed has: "
            f"{', '.join(sorted(predicted)) or 'nothing'}"
        )
    return predicted[key]
