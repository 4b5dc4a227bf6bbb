"""The input of the next step of a forecast: predicted, forcing and static fields.

The input of a later step has, in physical units, the prognostic variables that the
previous step has predicted (`y_processed`), the dynamic forcing of the new time, and
the static fields of the first input. `preblocks.per_step` are applied to it again. If
the input has several times, the oldest one is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.named_fields import FieldContext
from credit_jax.transforms.base import FieldTree, Phase, Where
from credit_jax.transforms.pipeline import Pipeline, Postprocess

PROGNOSTIC, DYNAMIC_FORCING = "prognostic", "dynamic_forcing"
# Entries of a batch with the input of later steps.
FORCING, STATIC = "forcing", "static"
# Entries of a step that the previous step computes: the carry of a loop over steps.
CARRIED = ("x", "x_physical")


def field_type_of(var_key: str) -> str:
    """Field type of the variable of a key: its second part.

    >>> field_type_of("ERA5/dynamic_forcing/2d/tsi")
    'dynamic_forcing'
    """
    return var_key.split("/")[1]


def without_input(tree: FieldTree) -> dict[str, Any]:
    """Returns a tree without its input fields."""
    return {key: value for key, value in tree.items() if key != "input"}


def static_fields(
    fields: Mapping[str, Mapping[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """Selects the fields of type static."""
    return {
        source: {
            key: x for key, x in source_fields.items() if field_type_of(key) == STATIC
        }
        for source, source_fields in fields.items()
    }


def newest(
    fields: Mapping[str, Mapping[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """Selects the last time of fields, (batch, level, 1, lat, lon)."""
    return {
        source: {key: field[:, :, -1:] for key, field in source_fields.items()}
        for source, source_fields in fields.items()
    }


def fields_of_rollout(
    first: Mapping[str, Mapping[str, np.ndarray]],
    later: Sequence[Mapping[str, Mapping[str, np.ndarray]]],
) -> dict[str, FieldTree]:
    """Collects the fields that later steps need in addition to the prediction.

    Args:
        first: input fields of the first step, after `preblocks.ic_only`.
        later: input fields of each later step, which are dynamic forcing.

    Returns:
        {"forcing": {source: {key: (batch, level, later step, lat, lon)}}, "static":
        {source: {key: (batch, level, 1, lat, lon)}}}, where "static" has every input
        that is neither prognostic nor dynamic forcing.
    """
    forcing = {
        source: {
            key: np.concatenate([step[source][key] for step in later], axis=2)
            for key in source_fields
        }
        for source, source_fields in later[0].items()
    }
    return {FORCING: forcing, STATIC: constant_fields(first)}


def constant_fields(
    first: Mapping[str, Mapping[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """Selects inputs that do not change in a forecast, (batch, level, 1, lat, lon)."""
    return {
        source: {
            key: field
            for key, field in source_fields.items()
            if field_type_of(key) not in (PROGNOSTIC, DYNAMIC_FORCING)
        }
        for source, source_fields in newest(first).items()
    }


def initial_entries(
    pipeline: Pipeline, raw: FieldTree, physical: FieldTree
) -> dict[str, FieldTree]:
    """Collects the named fields of the first step that transforms need besides x.

    Args:
        pipeline: the transforms.
        raw: input fields before any transform.
        physical: input fields before `preblocks.per_step`, but with the names, grid and
            levels after them.

    Returns:
        {"x_physical": ..., "ic_raw": ...}, each only if a transform needs it.
    """
    entries: dict[str, FieldTree] = {}
    if pipeline.needs("x_physical"):
        entries["x_physical"] = newest(pipeline.state(physical))
    if pipeline.needs("ic_raw"):
        entries["ic_raw"] = newest(static_fields(raw))
    return entries


@dataclass(frozen=True)
class Advance:
    """Computes the input of the next step: (tree, forcing, static, context) -> tree.

    Attributes:
        pipeline: the transforms, whose `preblocks.per_step` are applied to the new
            input.
        input_channels: channels of each variable in x.
        target_channels: channels of each variable in y and the model's output.

    Raises:
        ValueError: a transform of `preblocks.per_step` runs on the host only, or one
            that moves fields to another grid or levels cannot run before the others.
    """

    pipeline: Pipeline
    input_channels: Mapping[str, slice]
    target_channels: Mapping[str, slice]

    def __post_init__(self) -> None:
        # Blocks that rename and move fields have run on the host, on forcing and static
        # fields; what the model predicts has their names, grid and levels.
        steps = self.pipeline.after_aligned()
        steps.require(Phase.BEFORE_STEP, Where.TRACED)
        object.__setattr__(self, "pipeline", steps)

    def __call__(
        self,
        tree: FieldTree,
        forcing: Mapping[str, Mapping[str, Array]],
        static: Mapping[str, Mapping[str, Array]],
        context: FieldContext,
    ) -> dict[str, Any]:
        """Returns "x" and, if a transform needs it, "x_physical" of the next step.

        Args:
            tree: the tree after a step, with x and y_processed.
            forcing: dynamic forcing of the next step, fields (batch, level, 1, rows,
                lon).
            static: fields that do not change, like `forcing`.
            context: context of the step.

        Raises:
            ValueError: no transform makes named fields of the prediction, or one of
                them lacks a prognostic variable.
        """
        fields: dict[str, dict[str, Array]] = {}
        for key in self.input_channels:
            if field_type_of(key) == PROGNOSTIC:
                source = key.split("/")[0]
                fields.setdefault(source, {})[key] = _predicted(tree, source, key)
        # Forcing and static fields also have the names after the preblocks.
        for source, source_fields in (*forcing.items(), *static.items()):
            repeated = {
                key: context.repeat_members(x) for key, x in source_fields.items()
            }
            fields.setdefault(source, {}).update(repeated)
        new = self.input_of(fields, context)
        # Along time, from the oldest: the first one drops out.
        x = jnp.concatenate([tree["x"][:, :, 1:], new.astype(tree["x"].dtype)], axis=2)
        if not self.pipeline.needs("x_physical"):
            return {"x": x}
        return {"x": x, "x_physical": self.pipeline.state(fields)}

    def input_of(
        self, fields: Mapping[str, Mapping[str, Array]], context: FieldContext
    ) -> Array:
        """Returns x of fields with the names, grid and levels of the model.

        Args:
            fields: {source: {key: (batch, level, time, rows, lon)}}, physical units.
            context: context of the step.
        """
        tree = {
            "input": fields,
            "input_channel_map": dict(self.input_channels),
            "channel_map": dict(self.target_channels),
        }
        renamed = self.pipeline.named_as_before(tree, context)
        return self.pipeline.before_step(renamed, context)["x"]


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


@dataclass(frozen=True)
class Rollout:
    """A forecast of one or more steps.

    Attributes:
        num_steps: number of steps.
        backprop_on: steps whose losses are minimized, from 1; None for all.
        backprop: "truncated" or "full", see `config.trainer.TrainerConfig`.
        step_weights: factor of the loss of each step; None for 1.
        postprocess: transforms after every step; None for none.
        advance: computes the input of the next step; required for several steps.
        clamp: smallest and largest value of x and y; None does not clamp.
        num_members: ensemble members of each sample, adjacent on the batch dim.

    Raises:
        ValueError: there are several steps, and `advance` is None; or there is not one
            weight for each step.
    """

    num_steps: int = 1
    backprop_on: tuple[int, ...] | None = None
    backprop: str = "truncated"
    step_weights: tuple[float, ...] | None = None
    postprocess: Postprocess | None = None
    advance: Advance | None = None
    clamp: tuple[float, float] | None = None
    num_members: int = 1

    def __post_init__(self) -> None:
        if self.num_steps > 1 and self.advance is None:
            raise ValueError(
                f"a forecast of {self.num_steps} steps needs `advance`, which makes "
                "the input of the next step"
            )
        weights = self.step_weights
        if weights is not None and len(weights) != self.num_steps:
            raise ValueError(
                f"there are {len(weights)} weights of steps, {list(weights)}, expected "
                f"one for each of {self.num_steps} steps"
            )

    def weighted(self, loss: Array, index: Array | int) -> Array:
        """Returns the loss of a step, from 0, times the weight of the step."""
        if self.step_weights is None:
            return loss
        return loss * jnp.asarray(self.step_weights, loss.dtype)[index]

    @property
    def counts(self) -> tuple[bool, ...]:
        """Whether the loss of each step is minimized."""
        steps = range(1, self.num_steps + 1)
        return tuple(self.backprop_on is None or t in self.backprop_on for t in steps)

    def start(self, batch: FieldTree, context: FieldContext) -> dict[str, Any]:
        """Returns the carried entries of the first step, repeated for members."""
        carried = {name: batch[name] for name in CARRIED if name in batch}
        return jax.tree.map(context.repeat_members, carried)

    def inputs(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        batch: FieldTree,
        fields: FieldTree,
        index: Array | int = 0,
    ) -> dict[str, Array]:
        """Returns the inputs of the model in one step.

        Args:
            shapes: shapes of the inputs of one step, by name.
            batch: the inputs other than x, either of one step, which are used in every
                step, or of all steps (fields concatenated along time, vectors along
                their size).
            fields: has the input x.
            index: index of the step, from 0.
        """
        inputs = {
            name: _of_step(batch[name], shape, index)
            for name, shape in shapes.items()
            if name != "x"
        }
        # x has its members since `start`.
        if self.num_members > 1:
            inputs = {
                k: jnp.repeat(v, self.num_members, axis=0) for k, v in inputs.items()
            }
        return {**inputs, "x": self.clamped(fields["x"])}

    def after(
        self,
        batch: FieldTree,
        fields: FieldTree,
        target: Array | None,
        prediction: Array,
        context: FieldContext,
    ) -> FieldTree:
        """Returns the tree of a step, after its transforms.

        Args:
            batch: the batch, whose entries except forcing and static fields are
                included.
            fields: the carried entries of the step, with x.
            target: becomes "y"; None in a forecast, which has no "y".
            prediction: becomes "y_pred".
            context: context of the step.
        """
        tree = {
            **{name: batch[name] for name in batch if name not in (FORCING, STATIC)},
            **fields,
            "x": self.clamped(fields["x"]),
            "y_pred": prediction,
        }
        if target is not None:
            tree["y"] = self.clamped(target)
        return tree if self.postprocess is None else self.postprocess(tree, context)

    def next(
        self,
        batch: FieldTree,
        fields: FieldTree,
        tree: FieldTree,
        forcing: Any,
        context: Any,
    ) -> dict[str, Any]:
        """Returns the carried entries for the next step.

        Args:
            batch: the batch, with static fields.
            fields: the carried entries of this step, returned for a single step.
            tree: the result of `after`.
            forcing: dynamic forcing of the next step.
            context: context of the step.
        """
        if self.advance is None:
            return dict(fields)
        tree = {**tree, "x": fields["x"]}
        return self.advance(tree, forcing, batch[STATIC], context)

    def per_step(self, batch: FieldTree) -> tuple[Array, Any]:
        """Returns targets and the forcing of the next step, stacked over steps.

        The forcing of the last step is repeated, so that all steps have the same shape.
        """
        targets = jnp.moveaxis(batch["y"], 2, 0)[:, :, :, None]
        if self.num_steps == 1:
            return targets, {}

        def stacked(field: Array) -> Array:
            steps = jnp.moveaxis(field, 2, 0)[:, :, :, None]
            return jnp.concatenate([steps, steps[-1:]])

        return targets, jax.tree.map(stacked, batch[FORCING])

    def clamped(self, x: Array) -> Array:
        """Clamps x to `clamp`."""
        return x if self.clamp is None else jnp.clip(x, *self.clamp)


def _of_step(x: Array, shape: tuple[int, ...], index: Array | int) -> Array:
    """Selects one step of an array of all steps; returns an array of one step.

    Args:
        x: field (batch, channel, step x time, rows, lon) or vector (batch, step x
            size).
        shape: shape of one step.
        index: index of the step.
    """
    dim = 2 if x.ndim == 5 else 1
    size = shape[dim]
    if x.shape[dim] == size:
        return x
    return lax.dynamic_slice_in_dim(x, index * size, size, axis=dim)


ONE_STEP = Rollout()
