"""Builds the arrays of a model's inputs other than x."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float

from credit_jax.data.channel_checks import OutlierPolicy, check_channels
from credit_jax.data.further_inputs import FurtherInputs
from credit_jax.data.values import check_fields
from credit_jax.transforms import Phase, Pipeline


def further_arrays(
    further: FurtherInputs,
    starts: Sequence[np.datetime64],
    pipeline: Pipeline,
    *,
    noted: bool,
    thorough: bool = False,
) -> dict[str, np.ndarray]:
    """Returns the inputs other than x of one sample, with its steps concatenated.

    Args:
        further: the opened inputs.
        starts: last time of x in each step.
        pipeline: the transforms, whose preblocks are applied as for x.
        noted: whether outliers are notes, otherwise they are errors.
        thorough: whether to check for fill values, which is done in any case where
            fields look like it.

    Returns:
        Fields (1, channel, step x time, lat, lon) and vectors (1, step x size), by name
        of the input.

    Raises:
        ValueError: a time is missing, a value is not finite or a fill value, or an
            outlier is an error.
    """
    steps = [
        {
            name: _field(further, name, start, pipeline, noted=noted, thorough=thorough)
            for name in further.schemas
        }
        | further.vectors(start)
        for start in starts
    ]
    return {
        name: np.concatenate([arrays[name] for arrays in steps], axis=x.ndim // 4)[None]
        for name, x in steps[0].items()
    }


def _field(
    further: FurtherInputs,
    name: str,
    start: np.datetime64,
    pipeline: Pipeline,
    *,
    noted: bool,
    thorough: bool,
) -> Float[np.ndarray, "channel time lat lon"]:
    raw = further.fields(name, start)
    if thorough:
        check_fields(raw, start)
    batched = {
        source: {key: field[None] for key, field in fields.items()}
        for source, fields in raw.items()
    }
    aligned = pipeline.aligned({"input": batched}, Phase.INITIAL)
    array = np.asarray(pipeline.before_step(aligned)["x"], np.float32)
    schema = further.schemas[name].after(pipeline)
    normalized = pipeline.normalized(further.schemas[name].as_read())
    grid = pipeline.grid or further.only(raw).coordinates()
    check_channels(
        array,
        None,
        np.array([start]),
        partial(check_fields, raw, start),
        pipeline,
        (schema, normalized),
        OutlierPolicy(further, grid, noted),
    )
    return array[0]
