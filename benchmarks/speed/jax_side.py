"""The side of credit_jax in the speed benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from benchmarks.compiled_step import program_bytes
from benchmarks.meshes import build_mesh
from benchmarks.speed.cases import Case
from credit_jax.models.common.resampling import enter
from credit_jax.models.flops import flops_of
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.parallel.placement import place_batch
from credit_jax.parallel.rows.layout import Field, block_layout
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import place_state, state_of, state_specs
from credit_jax.training.step import make_train_step
from credit_jax.transforms import ONE_STEP, Rollout

Run = Callable[[], object]


class JaxSide:
    """A model with given weights on one device, and its timed functions.

    Args:
        case: model and data.
        params, model_state: host arrays.
        dtype: compute dtype.
        schedule: learning rate by update; by default 1e-3.
        options: further options of XLA for the training step.
        rollout: what the training step does before and after the model.
    """

    def __init__(
        self,
        case: Case,
        params: Mapping[str, np.ndarray],
        model_state: Mapping[str, Any],
        *,
        dtype: str = "float32",
        schedule: optax.Schedule | None = None,
        options: Mapping[str, bool | int | str] | None = None,
        rollout: Rollout = ONE_STEP,
    ) -> None:
        mesh = build_mesh("1")
        policy = default_mp_policy(dtype)
        self.model = build_parallel_model(case.model_def, mesh, mp_policy=policy)
        self.params = jax.tree.map(jnp.asarray, dict(params))
        self.model_state = jax.tree.map(jnp.asarray, dict(model_state))
        draws = case.model_def.draws_noise
        self.noise = Noise(jax.random.key(0)) if draws else None
        batch = {**case.inputs, "y": case.y}
        self.batch = place_batch({k: array[None] for k, array in batch.items()}, mesh)
        self.inputs = place_batch(case.inputs, mesh)
        self.x = self.inputs["x"]
        self._predict = self._prediction()
        optimizer = adamw(max_norm=1.0)
        params, vectors = jax.tree.map(jnp.copy, (self.params, self.model_state))
        state = state_of(self.model, params, vectors, optimizer, jax.random.key(0))
        self.state = place_state(state, state_specs(self.model, optimizer), mesh)
        train = make_train_step(
            self.model,
            optimizer,
            lambda tree, context: context.mean(jnp.square(tree["y_pred"] - tree["y"])),
            schedule=schedule or optax.constant_schedule(1e-3),
            rollout=rollout,
        )
        self.step = compile_program(train, mesh, donate_argnums=0, options=options)
        self.channels = min(case.x.shape[1], case.y.shape[1])
        self._feed = jax.jit(self._next_input)

    def infer(self) -> None:
        """One forward pass in evaluation mode."""
        self._predict(self.inputs).block_until_ready()

    def rollout(self, steps: int) -> None:
        """An autoregressive forecast: predictions replace the first input channels."""
        x = self.x
        for _ in range(steps):
            x = self._feed(x, self._predict({"x": x}))
        x.block_until_ready()

    def _prediction(self) -> Callable[[Any], jax.Array]:
        """Returns a function that predicts like `Forecaster`."""
        fuse = compile_program(self.model.fuse_spectral_norm, self.model.mesh)
        fused = fuse(self.params, self.model_state)
        apply = compile_program(self.model.apply, self.model.mesh)
        return lambda inputs: apply(*fused, inputs, self.noise)

    def _next_input(self, x: jax.Array, y: jax.Array) -> jax.Array:
        held = x[:, self.channels :, -1:]
        frame = jnp.concatenate([y[:, : self.channels, -1:], held], 1)
        return jnp.concatenate([x[:, :, 1:], frame], 2)

    def train(self) -> float:
        """One training step; the next call continues from its state."""
        self.state, info = self.step(self.state, self.batch)
        return float(info["loss"][0])

    def repeats(self) -> bool:
        """Whether a training step gives the same bits again, from the same state."""
        results = []
        for _ in range(2):
            state, _ = self.step(jax.tree.map(jnp.copy, self.state), self.batch)
            results.append(jax.tree.leaves(state.stored_params))
        same = [bool((a == b).all()) for a, b in zip(*results, strict=True)]
        return all(same)

    def floating_point_operations(self) -> float:
        """FLOPs of the matmuls and convolutions of a training step."""
        return flops_of(self.step.trace(self.state, self.batch).jaxpr)

    def peak_memory(self) -> int:
        """Bytes that a training step needs, with arguments and results."""
        compiled = self.step.lower(self.state, self.batch).compile()
        return program_bytes(compiled)["peak"]

    def operations(self) -> dict[str, tuple[Run, Run]]:
        """Forward, and forward with backward, of the parts of the model by name."""
        model_def = self.model.model_def
        normalize = jax.jit(
            lambda params, model_state: spectral_norm.normalize(
                params,
                model_state[SPECTRAL_NORM],
                model_def.matrices,
                self.model.specs,
            )
        )
        normal = normalize(self.params, self.model_state)
        module = model_def.bind(normal)
        inputs = self._inputs(module)
        return {
            name: _timed(part, inputs[name], self._context, call, self.model.mesh)
            for name, (part, call) in self._parts(module).items()
        }

    @property
    def _context(self) -> Context:
        return Context(precision=self.model.parallel_config.precision)

    def _parts(self, module: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
        """The parts, and the keywords that each is called with."""
        parts: dict[str, tuple[Any, dict[str, Any]]] = {}
        for number, stage in enumerate(module.stages):
            parts[f"stage {number} embedding"] = stage.embed, {"windows": stage.windows}
            block = _first(stage.blocks)
            parts[f"stage {number} short attention"] = block.short_attention, {}
            parts[f"stage {number} feed-forward"] = block.short_feed_forward, {}
            parts[f"stage {number} long attention"] = block.long_attention, {}
        for number, up in enumerate([*module.up_blocks, module.head], 1):
            parts[f"up block {number}"] = up, {}
        return parts

    def _inputs(self, module: Any) -> dict[str, jax.Array]:
        """Random inputs for each part."""
        capture_intermediates: list[Field] = []
        context = Context(
            precision=self.model.parallel_config.precision,
            capture_intermediates=capture_intermediates,
        )

        def forward(x: jax.Array) -> list[jax.Array]:
            module({"x": x}, context)
            return [field.data for field in capture_intermediates]

        shapes = jax.eval_shape(forward, self.x)
        height = self.model.model_def.config.image_height
        padding = self.model.model_def.config.padding
        start = enter(self.x, height, context, padding).data
        rng = np.random.default_rng(0)
        fields = [jnp.asarray(rng.normal(size=s.shape), jnp.float32) for s in shapes]
        inputs: dict[str, jax.Array] = {}
        previous: Any = start
        for number in range(4):
            inputs[f"stage {number} embedding"] = previous
            previous = fields[2 * number + 1]
            for name in ("short attention", "feed-forward", "long attention"):
                inputs[f"stage {number} {name}"] = fields[2 * number]
        joined = previous
        for number in range(1, 5):
            inputs[f"up block {number}"] = joined
            if number < 4:
                skip = fields[2 * (3 - number) + 1]
                joined = jnp.concatenate([fields[7 + number], skip], -1)
        return inputs


def _first(blocks: nnx.Module) -> Any:
    """One of the stacked blocks."""
    graph, state = nnx.split(blocks)
    return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], state))


def _timed(
    part: Any,
    x: jax.Array,
    context: Context,
    keywords: dict[str, Any],
    mesh: Mesh,
) -> tuple[Run, Run]:
    graph, state = nnx.split(part)
    state = jax.tree.map(context.precision.cast, state)
    x = context.precision.cast(x)

    def call(state: Any, x: jax.Array) -> jax.Array:
        module: Any = nnx.merge(graph, state)
        return module(Field(x, block_layout(x.shape[1])), context, **keywords).data

    def loss(state: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(call(state, x).astype(jnp.float32)))

    forward = compile_program(call, mesh)
    both = compile_program(jax.value_and_grad(loss, argnums=(0, 1)), mesh)
    return (
        lambda: jax.block_until_ready(forward(state, x)),
        lambda: jax.block_until_ready(both(state, x)),
    )
