"""One pass of credit_jax on a mesh, with CREDIT's names, and the import of CREDIT.

The prediction is that of `Forecaster`. The outputs of blocks and the gradients are from
a second pass, which differentiates through the spectral norm; for a model with a
process, so is the prediction.

It makes a CUDA build of torchvision importable with CPU torch. CREDIT imports timm,
which imports torchvision. The operators of the torchvision on the package index are
compiled for CUDA and do not load with CPU torch, so that registering Python rules for
them fails. No model calls them; declaring their names is enough.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import PartitionSpec

from credit_jax.forecast import Forecaster
from credit_jax.models.conversion import to_state_dict
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, place_weights
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import BATCH_STATS
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.fsdp import pvary_params
from credit_jax.parallel.params.packing import Packing
from credit_jax.parallel.placement import batch_spec, place_batch
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_map import Arrays, HostModelState


@dataclass(frozen=True)
class ModelOutputs:
    """One forward and backward pass of a model, under CREDIT's names."""

    prediction: np.ndarray  # (batch, channel, time, lat, lon)
    # Output of each block, (batch, channel, lat, lon), by its module.
    blocks: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]  # gradients of mean(prediction**2), by parameter


def compile_pass(
    model: ParallelModel,
    params: Arrays,
    model_state: HostModelState,
    blocks: Sequence[str],
) -> Callable[..., ModelOutputs]:
    """A forward and backward pass in evaluation mode: (inputs, noise) -> outputs."""
    model_def, mesh, axes = model.model_def, model.mesh, model.axes
    specs, layouts = model_def.network_inputs, list[int]()

    packing = Packing.of(model_def.param_specs)

    def loss(packed: Any, model_state: Any, inputs: Any, noise: Noise | None) -> Any:
        captured: list[Field] = []
        varying = pvary_params(packed, axes.batch, model.parallel_config.precision)
        weights = packing.unpack(varying)
        y = model.local_forward(
            weights, model_state, inputs, noise, capture_intermediates=captured
        )
        layouts[:] = [field.layout.size for field in captured]
        outputs = [reshard(field, field.layout.to_blocks()).data for field in captured]
        return model.reducer.mean(jnp.square(y)), (y, outputs)

    def body(params: Any, model_state: Any, inputs: Any) -> Any:
        # Packed, the gradients of small parameters are summed at once.
        (_, seen), grads = jax.value_and_grad(loss, has_aux=True)(
            packing.pack(params), model_state, *inputs
        )
        return seen, packing.unpack(grads)

    fields = PartitionSpec(batch_spec(axes)[0], axes.domain)
    sharded = model.shard_map(
        body,
        batch_specs=(
            {k: s.partition_spec(axes) for k, s in specs.items()},
            PartitionSpec(),
        ),
        out_specs=((model_def.output.partition_spec(axes), fields), model.specs),
    )
    step = compile_program(sharded, mesh)
    weights = place_weights(model, params, model_state)
    forecaster = Forecaster(model, *weights)

    def run(inputs: Arrays, noise: Noise | None = None) -> ModelOutputs:
        placed = place_batch(inputs, mesh), noise
        (y, seen), grads = jax.device_get(step(*weights, placed))
        named = to_state_dict(model_def, grads, model_state)
        if model_def.process is None:
            y = jax.device_get(forecaster.step(*placed))
        return ModelOutputs(
            y[..., : model_def.image_height, :],
            {
                name: np.moveaxis(field[:, :size], -1, 1)
                for name, field, size in zip(blocks, seen, layouts, strict=bool(blocks))
            },
            named,
        )

    return run


def noise_of(model_def: ModelDef, drawn: Sequence[np.ndarray]) -> Noise | None:
    """Noise of arrays (samples, lat, lon, channel) or (samples, size), in order."""
    if not drawn:
        return None
    sites = _Sites()
    noise = Noise(jax.random.key(0), sites)
    inputs = {
        name: jax.ShapeDtypeStruct(spec.shape(1), jnp.float32)
        for name, spec in model_def.network_inputs.items()
    }
    params = jax.eval_shape(model_def.init, jax.random.key(0))
    jax.eval_shape(
        lambda p, x, stats: model_def.apply(p, x, Context(noise=noise), stats),
        params,
        inputs,
        model_def.model_state_shapes[BATCH_STATS],
    )
    # Several layers may share one draw.
    names = list(dict.fromkeys(sites.names))
    if len(drawn) != len(names):
        raise ValueError(
            f"CREDIT drew noise {len(drawn)} times, credit_jax {len(names)} times"
        )
    fields = {k: jnp.asarray(array) for k, array in zip(names, drawn, strict=True)}
    return Noise(jax.random.key(0), fields)


class _Sites(dict[str, Any]):
    """An empty mapping that records the names of the call sites that look up arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __contains__(self, name: object) -> bool:
        self.names.append(str(name))
        return False


HOW_TO_INSTALL = "pip install miles-credit"

# The operators for which torchvision 0.28 registers a rule when it is imported.
_NAMES = (
    *("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"),
    *("_roi_align_backward", "_roi_pool_backward", "_ps_roi_align_backward"),
    *("_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward"),
)

# torch drops a library's operators when the library object is collected.
_LIBRARIES: list[torch.library.Library] = []


def import_credit(name: str = "") -> ModuleType:
    """Imports the module `credit.<name>`."""
    # Suppress the warnings of CREDIT and its libraries.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import_torchvision()
            return importlib.import_module(f"credit.{name}" if name else "credit")
        except ModuleNotFoundError as error:
            raise ValueError(
                f"CREDIT is needed, and cannot be imported ({error}); install it with: "
                f"{HOW_TO_INSTALL}"
            ) from None


def import_torchvision() -> None:
    """Imports torchvision, declaring its operators first where they are missing."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    else:
        return
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for name in _NAMES:
        library.define(f"{name}(Tensor x) -> Tensor")
    _LIBRARIES.append(library)
    importlib.import_module("torchvision")
