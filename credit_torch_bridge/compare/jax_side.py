"""One forward and backward pass of credit_jax on a mesh, by CREDIT's names.

The prediction is the forecaster's; the outputs of blocks and the gradients are those of
a pass beside it, which differentiates through the spectral norm. Of a model with a
process, or with more inputs than x, the prediction is the output of that pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.inference import Forecaster
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.fsdp import pvary_params
from credit_jax.parallel.params.packing import unpack
from credit_jax.parallel.placement import batch_spec, place_batch
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import reshard
from credit_jax.state_dict.convert import to_state_dict
from credit_jax.state_dict.key_plan import Arrays, HostModelState
from credit_jax.training.restore import place_weights
from credit_torch_bridge.compare.outputs import ModelOutputs


def compile_pass(
    model: ParallelModel,
    params: Arrays,
    model_state: HostModelState,
    blocks: Sequence[str],
) -> Callable[[Arrays], ModelOutputs]:
    """Compiles a forward and backward pass in evaluation mode.

    Args:
        model: with its mesh.
        params, model_state: host arrays.
        blocks: CREDIT's names of the blocks, in the order of their outputs.

    Returns:
        A function of the inputs of the network.
    """
    model_def, mesh, axes = model.model_def, model.mesh, model.axes
    specs, layouts = model_def.network_inputs, list[int]()

    def loss(params: Any, model_state: Any, inputs: Any) -> Any:
        captured: list[Field] = []
        weights = pvary_params(params, axes.batch, model.parallel_config.precision)
        y = model.local_forward(
            weights, model_state, inputs, capture_intermediates=captured
        )
        layouts[:] = [field.layout.size for field in captured]
        outputs = [reshard(field, field.layout.to_blocks()).data for field in captured]
        return model.reducer.mean(jnp.square(y)), (y, outputs)

    def body(params: Any, model_state: Any, inputs: Any) -> Any:
        (_, seen), grads = jax.value_and_grad(loss, has_aux=True)(
            params, model_state, inputs
        )
        return seen, grads

    fields = PartitionSpec(batch_spec(axes)[0], axes.domain)
    sharded = model.shard_map(
        body,
        batch_specs={k: s.partition_spec(axes) for k, s in specs.items()},
        out_specs=((model_def.output.partition_spec(axes), fields), model.packed_specs),
    )
    step = compile_program(sharded, mesh)
    weights = place_weights(model, params, model_state)
    forecaster = Forecaster(model, *weights)

    def run(inputs: Arrays) -> ModelOutputs:
        (y, seen), grads = jax.device_get(step(*weights, place_batch(inputs, mesh)))
        arrays = jax.tree.map(jnp.asarray, grads)
        whole = jax.device_get(unpack(arrays, model_def.param_specs))
        named = to_state_dict(model_def, whole, model_state)
        return ModelOutputs(
            y[..., : model_def.image_height, :]
            if len(specs) > 1
            else forecaster(inputs["x"]),
            {
                name: np.moveaxis(field[:, :size], -1, 1)
                for name, field, size in zip(blocks, seen, layouts, strict=True)
            },
            named,
        )

    return run
