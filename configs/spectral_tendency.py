"""A model of tendencies from gradients on the sphere; see assimilate_demo.yaml.

The prediction is the state plus a tendency, `scales` times what the network makes. Each
block sees, at every point, its channels, their gradients, and a mixture of all channels
for each degree of the spherical harmonics, and multiplies linear functions of these, as
the equations of motion do. The grid is a Gaussian one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from pydantic import Field as Key
from pydantic import PositiveFloat, PositiveInt

from credit_jax.kernels import dense
from credit_jax.models.common.config import MAX_DEPTH, PaddedConfig, VariableKeys
from credit_jax.models.common.resampling import enter, leave
from credit_jax.models.registry import ModelEntry
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.parameters import parameter, stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.ops.dense import add_bias
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.params.spec import Initializer, constant
from credit_jax.parallel.rows.layout import Field
from credit_jax.physics.harmonics import legendre_functions, legendre_slopes

# Of gradients per radian, so that they are as large as the fields.
_GRADIENT = 0.1
# sin, cos and 1 / cos of latitude.
_NUM_FACTORS = 3


class SpectralTendencyConfig(PaddedConfig, VariableKeys):
    """The `model:` section.

    Attributes:
        image_height, image_width: Gaussian grid of input and output, from the north.
        frames, output_frames: time steps of input and output.
        dim: channels of the blocks.
        hidden: products of each block at a point, an even number; those of two
            neighbors are x tanh(y) and y tanh(x).
        depth: number of blocks.
        truncation: largest degree of the harmonics.
        scales: standard deviation of the normalized change in a step, by channel.
    """

    type: Literal["spectral_tendency"] = "spectral_tendency"
    image_height: PositiveInt
    image_width: PositiveInt
    frames: Literal[1] = 1
    output_frames: Literal[1] = 1
    dim: PositiveInt = 48
    hidden: int = Key(160, ge=2, multiple_of=2)
    depth: int = Key(3, ge=1, le=MAX_DEPTH)
    truncation: PositiveInt = 21
    scales: tuple[PositiveFloat, ...]

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        count = self.channels * self.levels + self.surface_channels
        if len(self.scales) != count:
            yield f"model.scales has {len(self.scales)} numbers for {count} channels"


class Sphere(NamedTuple):
    """Matrices between points and real harmonics, float32.

    Attributes:
        waves: (2, order, lon), cosines and sines.
        analysis: (2, order, lon), the inverse.
        functions: (lat, order, degree), Legendre functions.
        northward: (lat, order, degree), their derivatives by latitude.
        eastward: (lat, order, degree), order / cos(latitude) times them.
        inverse: (lat, order, degree), from rows to degrees.
        factors: (lat, factor), sine, cosine and 1 / cosine of latitude.
    """

    waves: np.ndarray
    analysis: np.ndarray
    functions: np.ndarray
    northward: np.ndarray
    eastward: np.ndarray
    inverse: np.ndarray
    factors: np.ndarray


@lru_cache
def sphere(height: int, width: int, truncation: int) -> Sphere:
    """The matrices of a Gaussian grid, for degrees up to a truncation."""
    sine = -np.polynomial.legendre.leggauss(height)[0]
    cosine, count = np.sqrt(1 - sine**2), truncation + 1
    whole = legendre_functions(np.rad2deg(np.arcsin(sine)), count + 1)
    functions = whole[:count, :count]
    degree, order = np.arange(count)[:, None], np.arange(count)
    resolved = (degree >= order)[..., None]
    northward = np.where(resolved, legendre_slopes(whole) / cosine, 0.0)
    root = np.sqrt(cosine)
    inverse = np.linalg.pinv(functions.transpose(1, 2, 0) * root[:, None]) * root
    angles = order[:, None] * (2 * np.pi / width) * np.arange(width)
    waves = np.stack([np.cos(angles), np.sin(angles)])
    size = np.square(waves).sum(-1, keepdims=True)
    by_row = functions.transpose(2, 1, 0)
    arrays = (
        waves,
        waves / np.where(size > 0, size, 1.0),
        by_row,
        _GRADIENT * northward.transpose(2, 1, 0),
        _GRADIENT * order[:, None] * by_row / cosine[:, None, None],
        inverse.transpose(2, 0, 1),
        np.stack([sine, cosine, _GRADIENT / cosine], -1),
    )
    return Sphere(*(np.ascontiguousarray(x, np.float32) for x in arrays))


class Block(nnx.Module):
    """Adds a linear function of products of fields, gradients and mixtures."""

    tp_plan = (("up", "down"),)

    def __init__(self, config: SpectralTendencyConfig) -> None:
        dim, degrees = config.dim, config.truncation + 1
        self.size = config.image_height, config.image_width, config.truncation
        self.mixture = parameter(
            Initializer("normal", dim**-0.5), (degrees, dim, dim), (None,) * 3
        )
        further = config.input_only_channels + _NUM_FACTORS
        self.up = Linear(4 * dim + further, config.hidden)
        self.down = Linear(config.hidden, dim)

    def __call__(
        self, carry: tuple[Field, Field], context: Context
    ) -> tuple[Field, Field]:
        field, further = carry
        features = [field.data, self._features(field, context), further.data]
        joined = jnp.concatenate(features, -1)
        hidden = self.up(joined, context)
        pairs = hidden.reshape(*hidden.shape[:-1], -1, 2)
        products = (pairs * jnp.tanh(pairs[..., ::-1])).reshape(hidden.shape)
        return field.like(field.data + self.down(products, context)), further

    def _features(
        self, field: Field, context: Context
    ) -> Float[Array, "batch rows lon feature"]:
        """Mixtures by degree, and gradients to the north and to the east."""
        matrices, layout, data = sphere(*self.size), field.layout, field.data
        inverse, functions, northward, eastward = (
            layout.local(x).astype(data.dtype)
            for x in (
                matrices.inverse,
                matrices.functions,
                matrices.northward,
                matrices.eastward,
            )
        )
        waves = jnp.asarray(matrices.waves, data.dtype)
        analysis = jnp.asarray(matrices.analysis, data.dtype)
        rows = jnp.einsum("byxc,pmx->bypmc", data, analysis)
        wide = context.precision.wide
        part = jnp.einsum(
            "bypmc,ymn->bpmnc", rows, inverse, preferred_element_type=wide
        )
        # Each shard has summed over its own rows.
        harmonics = psum(part, layout.axis).astype(data.dtype)
        mixed = jnp.einsum("bpmnc,ncd->bpmnd", harmonics, self.mixture[...])
        mixture = jnp.einsum("bpmnc,ymn->bypmc", mixed, functions)
        north = jnp.einsum("bpmnc,ymn->bypmc", harmonics, northward)
        east = jnp.einsum("bpmnc,ymn->bypmc", harmonics, eastward)
        # The derivatives of cos and sin.
        east = jnp.stack([east[:, :, 1], -east[:, :, 0]], 2)
        joined = jnp.concatenate([mixture, north, east], -1)
        return jnp.einsum("bypmc,pmx->byxc", joined, waves)


class Entry(nnx.Module):
    """A linear function of all channels at each point."""

    def __init__(self, config: SpectralTendencyConfig) -> None:
        self.linear = Linear(config.input_channels + _NUM_FACTORS, config.dim)

    def __call__(self, field: Field, further: Field, context: Context) -> Field:
        joined = jnp.concatenate([field.data, further.data], -1)
        return field.like(self.linear(joined, context))


class Exit(nnx.Module):
    """A linear function of the channels of the blocks, 0 at first."""

    def __init__(self, config: SpectralTendencyConfig) -> None:
        count = config.output_channels
        self.kernel = parameter(constant(0.0), (config.dim, count), (None, None))
        self.bias = parameter(constant(0.0), (count,), (None,))

    def __call__(self, field: Field, context: Context) -> Field:
        product = dense(field.data, self.kernel[...])
        return field.like(add_bias(product, self.bias[...]))


class SpectralTendency(nnx.Module):
    """The whole model; see `SpectralTendencyConfig` for its keys."""

    def __init__(self, config: SpectralTendencyConfig) -> None:
        self.config = config
        self.entry = Entry(config)
        self.blocks = stack_blocks(lambda: Block(config), config.depth)
        self.exit = Exit(config)

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from the input "x"; rows are in equal blocks."""
        config, x = self.config, inputs["x"]
        whole = enter(context.precision.cast(x), config.image_height, context)
        count = len(config.scales)
        state, others = whole.data[..., :count], whole.data[..., count:]
        size = config.image_height, config.image_width, config.truncation
        factors = whole.layout.local(sphere(*size).factors).astype(others.dtype)
        shape = *others.shape[:-1], _NUM_FACTORS
        factors = jnp.broadcast_to(factors[None, :, None], shape)
        further = whole.like(jnp.concatenate([others, factors], -1))
        field = run_block(context, self.entry, whole.like(state), further)
        field, _ = scan_blocks(context, self.blocks, (field, further), config.depth)
        change = run_block(context, self.exit, field)
        diagnostic = config.output_channels - count
        scales = jnp.asarray([*config.scales, *[1.0] * diagnostic], change.data.dtype)
        before = jnp.pad(state, [(0, 0)] * 3 + [(0, diagnostic)])
        prediction = change.like(before + scales[None, None, None] * change.data)
        return leave(prediction, config, interpolate=False).astype(x.dtype)


SPECTRAL_TENDENCY = ModelEntry(SpectralTendencyConfig, SpectralTendency, None)
