"""A training step compiled for a mesh from shapes only, without weights or data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend import core
from jax.sharding import NamedSharding

from benchmarks.meshes import build_mesh
from credit_jax.config.trainer import CompilerConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.kernels import use_platform
from credit_jax.models.common.config import FieldSpec, InputSpec
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import (
    ParallelModel,
    build_parallel_model,
    shardings,
)
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.precision import Float8, default_mp_policy
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import init_state, state_specs
from credit_jax.training.step import make_train_step

# A WXFormer whose windows and strides fit 64 rows on up to 8 shards.
SMALL_MODEL: dict[str, Any] = {
    "type": "wxformer",
    "frames": 1,
    "image_height": 64,
    "image_width": 64,
    "levels": 2,
    "channels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "dim": [16, 32, 64, 128],
    "dim_head": 8,
    "depth": [1, 1, 1, 1],
    "global_window_size": [4, 2, 2, 1],
    "local_window_size": 2,
    "cross_embed_kernel_sizes": [[4, 8], [2, 4], [2, 4], [2, 4]],
    "cross_embed_strides": [2, 2, 2, 2],
    "interp": False,
}
# Windows, heads and strides that 8 shards and 8 tensor ranks divide at every stage.
MEDIUM_MODEL: dict[str, Any] = {
    **SMALL_MODEL,
    "image_height": 256,
    "image_width": 512,
    "dim": [64, 128, 256, 512],
    "depth": [2, 2, 2, 2],
}
CONFIGS = Path(__file__).parents[1] / "configs"
MODELS = ("small", "medium", "1deg", "025deg")


def model_block(name: str) -> dict[str, Any]:
    """The `model:` section of one of `MODELS`, or of a config by its path.

    The last two of `MODELS` are from configs/.
    """
    if name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name))["model"]
    if name in ("1deg", "025deg"):
        return read_yaml(CONFIGS / f"wxformer_{name}.yaml")["model"]
    return {"small": SMALL_MODEL, "medium": MEDIUM_MODEL}[name]


def compile_step(
    model: Mapping[str, Any], mesh: str, *, batch: int, remat: str = "none"
) -> tuple[ModelDef, Any]:
    """The model and the compiled step; see `trace_step`."""
    model_def, traced = trace_step(model, mesh, batch=batch, remat=remat)
    return model_def, traced.lower().compile()


def trace_step(
    model: Mapping[str, Any],
    mesh: str,
    *,
    batch: int,
    remat: str = "none",
    platform: str | None = "gpu",
    precision: str = "float32",
    float8: int | None = None,
    over_domain: bool = False,
    compiler: CompilerConfig | None = None,
    devices: Sequence[Any] | None = None,
) -> tuple[ModelDef, Any]:
    """The model and the traced training step (MSE, AdamW, clipping).

    By default operations and loops of equal blocks are those of an accelerator: a
    program to read, not to run.

    Args:
        model: the `model:` section.
        mesh: its name, see `meshes.parse_mesh`.
        batch: samples of the global batch.
        remat: activation checkpointing, "none", "full" or "selective".
        platform: platform of the operations and loops; None is that of the mesh.
        precision: precision of activations and weights in the forward.
        float8: fewest channels of the dense layers that multiply float8 values; None
            for none.
        over_domain: whether parameters are stored sharded over domain, too.
        compiler: how XLA compiles it.
        devices: devices of the mesh; None are those of the process.
    """
    parallel = build_parallel_model(
        model,
        build_mesh(mesh, devices),
        ac_mode=remat,
        mp_policy=default_mp_policy(precision),
        over_domain=over_domain,
        fp8=False if float8 is None else Float8(float8),
    )
    model_def, parallel_config = parallel.model_def, parallel.parallel_config
    optimizer = adamw(max_norm=1.0)
    train = make_train_step(
        parallel,
        optimizer,
        lambda tree, context: context.mean(jnp.square(tree["y_pred"] - tree["y"])),
        schedule=optax.constant_schedule(1e-3),
    )
    how = compiler or CompilerConfig()
    step = compile_program(
        train,
        parallel.mesh,
        donate_argnums=0,
        options=how.options,
        group_halos=how.group_halos,
    )
    specs = state_specs(parallel, optimizer)
    start = partial(init_state, parallel, optimizer)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        jax.eval_shape(start, jax.random.key(0)),
        shardings(specs, parallel_config.mesh),
    )
    shapes = _batch(parallel, batch)
    with use_platform(platform):
        return model_def, step.trace(state, shapes)  # pyright: ignore


def _batch(parallel: ParallelModel, batch: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of one micro-batch, rows padded as by `place_batch`."""
    num_domain = parallel.axes.num_domain
    specs = parallel.batch_specs(stacked=True)

    def array(name: str, spec: InputSpec) -> jax.ShapeDtypeStruct:
        shape = (1, *spec.shape(batch))
        if isinstance(spec, FieldSpec):
            rows = -(-spec.height // num_domain) * num_domain
            shape = (*shape[:-2], rows, spec.width)
        place = NamedSharding(parallel.mesh, specs[name])
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)

    arrays = {**parallel.model_def.inputs, "y": parallel.model_def.output}
    return {name: array(name, spec) for name, spec in arrays.items()}


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a program, and those of the programs within them."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def program_bytes(compiled: Any) -> dict[str, int]:
    """Bytes of arguments and temporaries, and of all memory in use at once."""
    analysis = compiled.memory_analysis()
    arguments = int(analysis.argument_size_in_bytes)
    temporary = int(analysis.temp_size_in_bytes)
    outputs = int(analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
    peak = arguments + temporary + max(outputs, 0)
    return {"arguments": arguments, "temporary": temporary, "peak": peak}
