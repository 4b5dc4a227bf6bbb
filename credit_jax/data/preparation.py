"""What a step does of the preblocks, and of the checks of their result.

The host reads fields into the arrays of a batch, `x_raw` and `y_raw`, whose channels
are in the order of x and y. A step makes x and y of its shard by the preblocks that
change each field by itself (`Pipeline.divided`), as the first thing in its program. It
also finds what may be wrong with the values. A step that does is not taken, and the
host reads the samples again (`Loader.again`), to say which value it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from credit_jax import transforms
from credit_jax.data import values
from credit_jax.data.dataset import Dataset
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.tree import by_key, by_source
from credit_jax.parallel.collectives import sum_parts
from credit_jax.parallel.rows.layout import Field
from credit_jax.transforms import FieldTree, Phase, Pipeline, TreeSchema
from credit_jax.transforms.rollout import RAW

# Entry of named fields -> the array of its channels.
ARRAYS: Mapping[str, str] = {"input": "x", "target": "y"}


@dataclass(frozen=True)
class Preparation:
    """Makes x and y of a raw batch, and finds suspicious values; local shards."""

    host: Pipeline  # the preblocks that the host runs before
    step: Pipeline  # those that follow, here
    # entry -> key before `step` -> its channels.
    parts: Mapping[str, Mapping[str, slice]]
    # entry -> key of x or y -> its channels.
    channels: Mapping[str, Mapping[str, slice]]
    # Keys that a normalizer or a scaler changes, in which outliers are looked for.
    normalized: frozenset[str]
    forcing: Pipeline  # what the steps of a forecast do with their forcing
    refuses_outliers: bool  # whether a step with an outlier is not taken

    @classmethod
    def of(cls, dataset: Dataset, pipeline: Pipeline) -> Preparation | None:
        """The preparation of samples; None if the host makes x and y."""
        host, step = pipeline.divided(dataset.num_steps)
        if not any(block.type == "concat" for block in step.blocks):
            return None
        read = dataset.schema.as_read()
        schema = dataset.schema.after(pipeline)
        channels = {"input": schema.input_slices(), "target": schema.target_slices()}
        forcing = pipeline
        if dataset.num_steps > 1:
            alone = transforms.after_aligned(transforms.for_forcing(pipeline)).blocks
            forcing = Pipeline(tuple(b for b in alone if b.type != "concat"))
        return cls(
            host,
            step,
            channel_parts(step, host.schema_after(read), channels),
            channels,
            pipeline.normalized(read),
            forcing,
            dataset.data.on_outlier != "note",
        )

    def direct(self, read: TreeSchema) -> Mapping[str, Mapping[str, slice]] | None:
        """Entry -> key -> channels to read to; None if the host changes values."""
        if any(not block.transform.effects.renames for block in self.host.blocks):
            return None
        both = Pipeline((*self.host.blocks, *self.step.blocks))
        return channel_parts(both, read, self.channels)

    def __call__(
        self, batch: FieldTree, context: FieldContext
    ) -> tuple[dict[str, Any], Int[Array, ""]]:
        """Returns the batch with x and y, and how suspicious it is."""
        new = {k: v for k, v in batch.items() if k not in RAW.values()}
        tree: dict[str, Any] = {
            "input_channel_map": dict(self.channels["input"]),
            "channel_map": dict(self.channels["target"]),
        }
        for entry, name in ARRAYS.items():
            fields = self.parts[entry].items()
            raw = batch[RAW[name]]
            tree[entry] = by_source({key: raw[:, part] for key, part in fields})
        done = self.step.run(
            Phase.BEFORE_STEP, self.step.run(Phase.INITIAL, tree, context), context
        )
        suspects = []
        for entry, name in ARRAYS.items():
            new[name] = done[name].astype(batch[RAW[name]].dtype)
            scaled = [
                np.full(part.stop - part.start, key in self.normalized)
                for key, part in self.channels[entry].items()
            ]
            arrays = new[name], batch[RAW[name]], np.concatenate(scaled)
            suspects.append(_suspects(*arrays, context))
        if forcing := batch.get(transforms.FORCING):
            named = self.forcing.with_input_names({"input": forcing}, context)
            after = by_key(self.forcing.run(Phase.BEFORE_STEP, named, context)["input"])
            for key, x in after.items():
                scaled = np.full(x.shape[1], key in self.normalized)
                suspects.append(_suspects(x, None, scaled, context))
        counts = jnp.stack([sum(each) for each in zip(*suspects, strict=True)])
        bad, outliers = sum_parts(counts.astype(jnp.int32), context.reducer.axes.batch)
        if self.refuses_outliers:
            bad = bad + outliers
        # On all devices: 1 if there is an outlier to name, 2 if the host has to look at
        # the batch before an update counts.
        return new, jnp.where(bad > 0, 2, jnp.where(outliers > 0, 1, 0))


def channel_parts(
    pipeline: Pipeline,
    schema: TreeSchema,
    channels: Mapping[str, Mapping[str, slice]],
) -> dict[str, dict[str, slice]]:
    """Entry -> key before preblocks that change fields one by one -> its channels."""
    parts: dict[str, dict[str, slice]] = {entry: {} for entry in ARRAYS}
    for entry, channels_of in parts.items():
        for group in schema[entry]:
            (after,) = pipeline.schema_after({entry: [group]})[entry]
            channels_of[group.var_key] = channels[entry][after.var_key]
    return parts


def _suspects(
    x: Float[Array, "batch channel time rows lon"],
    raw: Float[Array, "batch channel time rows lon"] | None,
    scaled: Bool[np.ndarray, " channel"],
    context: FieldContext,
) -> tuple[Array, Array]:
    """Whether values are not finite or seem fill values; whether some are outliers."""
    # Fill values are looked for before the preblocks, if there are raw values.
    rows = context.reducer.rows
    space = (2, 3, 4)

    def ends(x: Array) -> tuple[Array, Array]:
        if rows.has_padding:
            x = jnp.where(Field(x, replace(rows, dim=3)).mask(), x, 0)
        return x.min(space), x.max(space)

    # A shard has a part of the points at an end, one of the shards at least its share.
    share = values.FILL_SHARE * x.shape[2] * rows.size * x.shape[4]
    share = share / context.reducer.axes.num_domain
    low, high = ends(x)
    finite = jnp.isfinite(low) & jnp.isfinite(high)
    plateau, filled = jnp.zeros((), bool), jnp.zeros((), bool)
    for end in (low, high):
        at_end = (x == end[:, :, None, None, None]).sum(space)
        plateau |= ((jnp.abs(end) > values.OUTSTANDING) & (at_end > share)).any()
    stored = x if raw is None else jnp.where(jnp.isnan(raw), 0, raw)
    for end in ends(stored):
        filled |= (jnp.abs(end) >= values.LARGEST).any()
        filled |= jnp.isin(end, jnp.asarray(values.FILL_NUMBERS, end.dtype)).any()
    size = jnp.maximum(jnp.abs(low), jnp.abs(high))
    outlier = (size > values.OUTLIER) & scaled[None]
    return ~finite.all() | (plateau & filled), outlier.any()
