"""The first place where a mesh differs from one device: a block, or a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.extensions.certification.measure import (
    Measured,
    build_model,
    compiled,
    placed_batch,
    samples_of_mesh,
)
from credit_jax.extensions.certification.states import Arrays, placed_weights
from credit_jax.extensions.certification.subject import Subject
from credit_jax.extensions.certification.verdict import Bounds, compare, errors_of_each
from credit_jax.models.conversion import credit_key
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import torch_model
from credit_jax.nn.context import Noise
from credit_jax.ops.compensated import relative_error
from credit_jax.parallel.placement import batch_spec
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field

BlockOutputs = tuple[list[str], list[np.ndarray]]


def first_difference(
    subject: Subject,
    devices: Sequence[Any],
    actual: Measured,
    expected: Measured,
    bounds: Bounds,
    references: BlockOutputs,
) -> str:
    """Where a mesh first differs from one device, as it computes; "" if nowhere."""
    for path, weights in expected.initial.items():
        if relative_error(actual.initial[path], weights):
            return f"initial weights: {path}"
    names, fields = block_outputs(subject, actual.mesh, devices, expected.start)
    for name, field, reference in zip(names, fields, references[1], strict=True):
        error = relative_error(field, reference)
        if error > bounds.forecast:
            return f"output of {name}, by {error:.1e}"
    for name, field in expected.forecast.items():
        error = relative_error(actual.forecast[name], field)
        if error > bounds.forecast:
            return f"{name}, after the blocks of the network, by {error:.1e}"
    errors = errors_of_each(actual.gradients, expected.gradients)
    wrong = {path: error for path, error in errors.items() if error > bounds.parameter}
    if wrong:
        path = _nearest_to_output(subject.model_def, wrong)
        return f"gradient of {path}, by {wrong[path]:.1e}"
    for check in compare(actual, expected, bounds):
        if not check.passed:
            return f"{check.quantity}: {check.where}, by {check.error:.1e}"
    return ""


def block_outputs(
    subject: Subject, mesh: str, devices: Sequence[Any], start: Arrays
) -> BlockOutputs:
    """Names and outputs (samples, rows, lon, channel) of the network's blocks."""
    model, sizes = build_model(subject, mesh, devices), list[int]()
    definition = model.model_def
    names = tuple(definition.network_inputs)
    batch = {name: subject.batches[0].get(name) for name in names}
    batch = {
        name: np.zeros(definition.network_inputs[name].shape(subject.num_samples))
        if array is None
        else array
        for name, array in batch.items()
    }

    def body(params: Any, model_state: Any, arguments: Any) -> Any:
        captured: list[Field] = []
        inputs, noise = arguments
        model.local_forward(
            params,
            model_state,
            inputs,
            noise,
            interleaved=True,
            capture_intermediates=captured,
        )
        sizes[:] = [field.layout.size for field in captured]
        return [reshard(field, field.layout.to_blocks()).data for field in captured]

    axes = model.axes
    specs = {k: s.partition_spec(axes) for k, s in definition.network_inputs.items()}
    sharded = model.shard_map(
        body,
        batch_specs=(specs, PartitionSpec()),
        out_specs=PartitionSpec(batch_spec(axes)[0], axes.domain),
    )
    run = compiled(sharded, model)
    noise = Noise(jax.random.key(subject.seed)) if definition.draws_noise else None
    order = samples_of_mesh(subject.num_samples, model, subject)
    placed = placed_batch(batch, model, subject, order)
    weights = placed_weights(model, start)
    outputs = jax.device_get(run(*weights, (placed, noise)))
    # The order of one device.
    back = np.argsort(order)
    fields = [field[back, :size] for field, size in zip(outputs, sizes, strict=True)]
    return _block_names(definition, len(fields)), fields


def _block_names(model_def: ModelDef, count: int) -> list[str]:
    names = [f"block {number}" for number in range(1, count + 1)]
    try:
        available = torch_model(model_def.config.type).block_names(model_def.config)
    except (AttributeError, ValueError):
        return names
    return [*available[:count], *names[len(available) :]]


def _nearest_to_output(model_def: ModelDef, wrong: dict[str, float]) -> str:
    """Of parameters with a wrong gradient one of the last block; else the worst."""
    worst = max(wrong, key=lambda path: wrong[path])
    try:
        blocks = torch_model(model_def.config.type).block_names(model_def.config)
        keys = {path: credit_key(path, model_def)[-1] for path in wrong}
    except (AttributeError, ValueError):
        return worst

    def rank(path: str) -> tuple[int, float]:
        inside = [i for i, b in enumerate(blocks) if keys[path].startswith(f"{b}.")]
        return (max(inside, default=-1), wrong[path])

    return max(wrong, key=rank)
