"""Forecasts of several steps: the loop around the model, and what each step feeds back.

Training, validation and inference run the same loop (`training.rollout` as a
`lax.scan`, `forecast.autoregression` one compiled step at a time):

    targets, forcing = rollout.per_step(batch)
    carry = rollout.first_carry(batch, context)
    for step in range(rollout.num_steps):
        y_pred = model(rollout.inputs(shapes, batch, carry, step))
        tree = rollout.outputs(batch, carry, targets[step], y_pred, context)
        ...                                             # losses and metrics of the tree
        carry = rollout.next_carry(batch, carry, tree, forcing[step], context)

A variable of the next input comes, by its field type,

    prognostic        from the prediction, as the postblocks leave it in y_processed
    dynamic_forcing   from the data of the new time: "forcing" of the batch
    static and others from the first input: "static" of the batch

all in physical units, with the names, grid and levels of the model: what preblocks do
and no postblock undoes is undone, as in forecasts (`for_forecast`). `Advance` applies
`preblocks.per_step` to them again, which makes x. If x has several times, the oldest
one drops out.

Readers of samples and of initial states collect the entries of the batch on the host,
with the functions at the top; `Advance` and `Rollout` are traced inside `shard_map`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.tree import NamedFields, by_key, by_source
from credit_jax.transforms import forecast_pipelines
from credit_jax.transforms.base import OUTPUT, FieldTree, Phase, Where
from credit_jax.transforms.forecast_pipelines import for_forecast
from credit_jax.transforms.pipeline import Pipeline, Postprocess

# Field types, the second part of a key.
PROGNOSTIC, DYNAMIC_FORCING, STATIC = "prognostic", "dynamic_forcing", "static"
# Entries of a batch with the input of later steps. "static" has all that is neither
# predicted nor forcing.
FORCING, CONSTANT = "forcing", "static"
# Entry of the predicted fields as they are fed back, where y_processed has others.
FED_BACK = "fed_back"
# Entries of a step that the previous step computes.
CARRY = ("x", "x_physical")
# Entries of a batch whose last preblocks a step runs, by what these make of them.
RAW = {"x": "x_raw", "y": "y_raw"}
# (batch, context) -> the batch with x and y, and how suspicious its values are: 0, 1 to
# be named, or 2 to be looked at before an update counts.
Prepare = Callable[[FieldTree, FieldContext], tuple[dict[str, Any], Array]]


def field_type_of(var_key: str) -> str:
    """Field type of the variable of a key: its second part."""
    return var_key.split("/")[1]


def newest(fields: NamedFields) -> dict[str, dict[str, Any]]:
    """Selects the last time of fields, (batch, level, 1, lat, lon)."""
    return by_source({key: x[:, :, -1:] for key, x in by_key(fields).items()})


def constant_fields(first: NamedFields) -> dict[str, dict[str, Any]]:
    """Selects inputs that do not change in a forecast, (batch, level, 1, lat, lon)."""
    constant = {
        key: x
        for key, x in by_key(first).items()
        if field_type_of(key) not in (PROGNOSTIC, DYNAMIC_FORCING)
    }
    return newest(by_source(constant))


def fields_of_rollout(
    first: NamedFields, later: Sequence[NamedFields]
) -> dict[str, FieldTree]:
    """Collects the fields that later steps need in addition to the prediction."""
    # They are "forcing" (batch, level, later step, lat, lon) and "static" (batch,
    # level, 1, lat, lon), every input that is neither prognostic nor dynamic forcing.
    steps = [by_key(fields) for fields in later]
    forcing = {
        key: np.concatenate([fields[key] for fields in steps], axis=2)
        for key in steps[0]
    }
    return {FORCING: by_source(forcing), CONSTANT: constant_fields(first)}


def initial_entries(
    pipeline: Pipeline, raw: NamedFields, physical: NamedFields
) -> dict[str, FieldTree]:
    """Collects the named fields of the first step that transforms need besides x."""
    # Of raw fields static ones, and the state before `preblocks.per_step`, but with the
    # names, grid and levels after them.
    entries: dict[str, FieldTree] = {}
    if pipeline.needs("x_physical"):
        entries["x_physical"] = newest(pipeline.state(physical))
    if pipeline.needs("ic_raw"):
        static = {k: x for k, x in by_key(raw).items() if field_type_of(k) == STATIC}
        entries["ic_raw"] = newest(by_source(static))
    return entries


@dataclass(frozen=True)
class Advance:
    """The input of the next step: (tree, forcing, static, context) -> carry."""

    # Raises ValueError: a transform of `preblocks.per_step` runs on the host only, one
    # that moves fields to another grid or levels cannot run before the others, or
    # postblocks do not undo what preblocks do.

    # The transforms, whose `preblocks.per_step` are applied to the new input.
    pipeline: Pipeline
    input_channels: Mapping[str, slice]  # channels of each variable in x
    # Channels of each variable in y and the model's output.
    target_channels: Mapping[str, slice]
    # The postblocks that make "y_processed" of what is fed back, where those of the
    # pipeline do not undo all preblocks.
    restore: Postprocess | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        forecast = for_forecast(self.pipeline)
        counts = {
            key: channels.stop - channels.start
            for key, channels in self.target_channels.items()
            if field_type_of(key) == PROGNOSTIC
        }
        forecast_pipelines.check_feedback(forecast, counts)
        if forecast_pipelines.missing_inverses(self.pipeline, counts):
            channels = self.input_channels, self.target_channels
            object.__setattr__(self, "restore", forecast.postprocess(*channels))
        # Blocks that rename and move fields have run on the host, on forcing and static
        # fields; what the model predicts has their names, grid and levels.
        steps = forecast_pipelines.after_aligned(self.pipeline)
        steps.require(Phase.BEFORE_STEP, Where.TRACED)
        object.__setattr__(self, "pipeline", steps)

    def __call__(
        self,
        tree: FieldTree,
        forcing: NamedFields,
        static: NamedFields,
        context: FieldContext,
    ) -> dict[str, Any]:
        """Returns "x" and, if a transform needs it, "x_physical" of the next step."""
        # They are of the tree after a step, of dynamic forcing of the next one, (batch,
        # level, 1, rows, lon), and of fields that do not change.
        if OUTPUT not in tree:
            raise ValueError(
                "a forecast of several steps feeds named fields back in physical "
                "units: postblocks.per_step needs a block of type reconstruct"
            )
        fed_back, predicted = by_key(tree.get(FED_BACK, tree[OUTPUT])), {}
        for key in self.input_channels:
            if field_type_of(key) == PROGNOSTIC:
                if key not in fed_back:
                    raise ValueError(
                        f"the postblocks leave no {key!r} to feed back; y_processed "
                        f"has: {', '.join(sorted(fed_back)) or 'nothing'}"
                    )
                predicted[key] = fed_back[key]
        # Predictions have an entry for each member, what is read has one for a sample.
        read = by_key(forcing) | by_key(static)
        repeated = {key: context.repeat_members(x) for key, x in read.items()}
        fields = by_source(predicted | repeated)
        new = self.input_of(fields, context).astype(tree["x"].dtype)
        # Along time, from the oldest: the first one drops out.
        x = jnp.concatenate([tree["x"][:, :, 1:], new], axis=2)
        if not self.pipeline.needs("x_physical"):
            return {"x": x}
        return {"x": x, "x_physical": self.pipeline.state(fields)}

    def input_of(self, fields: NamedFields, context: FieldContext) -> Array:
        """Returns x of fields with the names, grid and levels of the model."""
        tree = {
            "input": fields,
            "input_channel_map": dict(self.input_channels),
            "channel_map": dict(self.target_channels),
        }
        # Blocks before a rename know the variables by their old names.
        renamed = self.pipeline.with_input_names(tree, context)
        return self.pipeline.run(Phase.BEFORE_STEP, renamed, context)["x"]


@dataclass(frozen=True)
class Backprop:
    """Which losses of a forecast are minimized, and how far their gradients go."""

    # "truncated", where a loss has a gradient through its step alone, as in CREDIT; or
    # "full", where it has one through all steps before it, too.
    mode: Literal["truncated", "full"] = "truncated"
    # Steps whose losses are minimized, from 1; None for all.
    steps: tuple[int, ...] | None = None
    # Factor of the loss of each step; None for 1.
    weights: tuple[float, ...] | None = None

    def counts(self, num_steps: int) -> tuple[bool, ...]:
        """Whether the loss of each step is minimized."""
        steps = range(1, num_steps + 1)
        return tuple(self.steps is None or step in self.steps for step in steps)

    def weighted(self, loss: Array, index: Array | int) -> Array:
        """Returns the loss of a step, from 0, times the weight of the step."""
        if self.weights is None:
            return loss
        return loss * jnp.asarray(self.weights, loss.dtype)[index]


@dataclass(frozen=True)
class Rollout:
    """A forecast of one or more steps: what is done before and after the model."""

    # Raises ValueError: there are several steps, and `advance` is None; or there is not
    # one weight for each step.

    num_steps: int = 1  # number of steps
    postprocess: Postprocess | None = None  # transforms after every step; None for none
    # Computes the input of the next step; required for several steps.
    advance: Advance | None = None
    # Smallest and largest value of x and y; None does not clamp.
    clamp: tuple[float, float] | None = None
    num_members: int = 1  # ensemble members of each sample, adjacent on the batch dim
    # Makes x and y of a raw batch; None takes batches with x and y.
    prepare: Prepare | None = None
    # What training minimizes; validation and inference do not read it.
    backprop: Backprop = Backprop()

    def __post_init__(self) -> None:
        if self.num_steps > 1 and self.advance is None:
            raise ValueError(
                f"a forecast of {self.num_steps} steps needs `advance`, which makes "
                "the input of the next step"
            )
        weights = self.backprop.weights
        if weights is not None and len(weights) != self.num_steps:
            raise ValueError(
                f"there are {len(weights)} weights of steps, {list(weights)}, expected "
                f"one for each of {self.num_steps} steps"
            )

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        input_channels: Mapping[str, slice],
        target_channels: Mapping[str, slice],
        num_steps: int,
    ) -> Rollout:
        """Returns the forecast with the transforms of a pipeline."""
        channels = input_channels, target_channels
        postprocess = pipeline.postprocess(*channels)
        advance = Advance(pipeline, *channels) if num_steps > 1 else None
        return cls(num_steps, postprocess, advance)

    def prepared(
        self, batch: FieldTree, context: FieldContext
    ) -> tuple[dict[str, Any], Array | None]:
        """Returns a batch with x and y, and how suspicious its values are."""
        # The latter is None if the batch has x and y already.
        if self.prepare is None or RAW["x"] not in batch:
            return dict(batch), None
        return self.prepare(batch, context)

    def per_step(self, batch: FieldTree) -> tuple[Array, NamedFields]:
        """Returns targets and the forcing of the next step, stacked over steps."""

        def stacked(field: Array) -> Array:
            return jnp.moveaxis(field, 2, 0)[:, :, :, None]

        forcing = batch[FORCING] if self.num_steps > 1 else {}
        steps = jax.tree.map(stacked, forcing)
        # The last step makes an input, too, that nothing reads: any forcing does.
        steps = jax.tree.map(lambda x: jnp.concatenate([x, x[-1:]]), steps)
        return stacked(batch["y"]), steps

    def first_carry(self, batch: FieldTree, context: FieldContext) -> dict[str, Any]:
        """Returns the carry of the first step, repeated for members."""
        carry = {name: batch[name] for name in CARRY if name in batch}
        return jax.tree.map(context.repeat_members, carry)

    def inputs(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        batch: FieldTree,
        carry: FieldTree,
        index: Array | int = 0,
    ) -> dict[str, Array]:
        """Returns the inputs of the model in the step `index`, from 0."""
        # Those other than x are of one step, which are used in every step, or of all
        # steps: fields concatenated along time, vectors along their size.
        # x has its members since `first_carry`.
        inputs = {"x": self.clamped(carry["x"])}
        for name in (name for name in shapes if name != "x"):
            x = batch[name]
            dim = 2 if x.ndim == 5 else 1
            size = shapes[name][dim]
            if x.shape[dim] != size:
                x = lax.dynamic_slice_in_dim(x, index * size, size, axis=dim)
            if self.num_members > 1:
                x = jnp.repeat(x, self.num_members, axis=0)
            inputs[name] = x
        return inputs

    def outputs(
        self,
        batch: FieldTree,
        carry: FieldTree,
        target: Array | None,
        prediction: Array,
        context: FieldContext,
    ) -> FieldTree:
        """Returns the tree of a step after its transforms; forecasts have no target."""
        tree = {
            **{name: batch[name] for name in batch if name not in (FORCING, CONSTANT)},
            **carry,
            "x": self.clamped(carry["x"]),
            "y_pred": prediction,
        }
        if target is not None:
            tree["y"] = self.clamped(target)
        fed_back = {}
        if self.advance is not None and self.advance.restore is not None:
            fed_back[FED_BACK] = self.advance.restore(tree, context)[OUTPUT]
        if self.postprocess is not None:
            tree = self.postprocess(tree, context)
        return {**tree, **fed_back}

    def next_carry(
        self,
        batch: FieldTree,
        carry: FieldTree,
        tree: FieldTree,
        forcing: NamedFields,
        context: FieldContext,
    ) -> dict[str, Any]:
        """Returns the carry of the next step, of that and the tree of this one."""
        if self.advance is None:
            return dict(carry)
        # Not clamped: earlier times of x are handed on as they were made.
        tree = {**tree, "x": carry["x"]}
        return self.advance(tree, forcing, batch[CONSTANT], context)

    def clamped(self, x: Array) -> Array:
        """Clamps x to `clamp`."""
        return x if self.clamp is None else jnp.clip(x, *self.clamp)


ONE_STEP = Rollout()
