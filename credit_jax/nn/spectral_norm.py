"""Spectral normalisation as a function of the parameter dict, once a forward.

torch.nn.utils.spectral_norm divides a weight matrix W by sigma = u' W v, where the
vectors u and v come from one power iteration a *training* forward and count as
constants of the gradient; evaluation takes the stored vectors. Here the vectors are
state beside the parameters: `iterate` gives the next ones, `normalise` the weights a
forward runs with. Layers know nothing of it, so rematerialisation cannot run a second
power iteration, and sharded matrices need only a `psum` over the axes that split them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.parallel.collectives import psum
from credit_jax.parallel.initialisers import Initialiser, initialise
from credit_jax.parallel.sharding import LAYERS, Declaration, matrix_specs

Weights = dict[str, Array]
Vectors = dict[str, dict[str, Array]]

# torch.nn.utils.spectral_norm's default.
EPSILON = 1e-12


def vector_shapes(declaration: Declaration) -> dict[str, tuple[int, ...]]:
    """Global shapes of u (output dims) and v (input dims); stacked blocks lead."""
    shape = declaration.shape
    lead = shape[:1] if declaration.is_stacked else ()
    out = declaration.matrix_out or ()
    return {
        "u": (*lead, *(shape[d] for d in out)),
        "v": (*lead, *(shape[d] for d in declaration.matrix_in)),
    }


def init_vectors(
    key: Array,
    declarations: Mapping[str, Declaration],
    specs: Mapping[str, PartitionSpec] | None = None,
    degrees: Mapping[str, int] | None = None,
) -> Vectors:
    """Random unit vectors for every matrix, as torch draws them: the local shards.

    Args:
        key: typed PRNG key.
        declarations: of the normalised matrices, by path.
        specs: PartitionSpec of each matrix; None makes the vectors whole.
        degrees: size of every mesh axis that `specs` names.
    """
    drawn: dict[str, Declaration] = {}
    drawn_specs: dict[str, PartitionSpec] = {}
    for path, declaration in declarations.items():
        spec = specs[path] if specs else PartitionSpec()
        for name, shape in vector_shapes(declaration).items():
            dims = (LAYERS,) if declaration.is_stacked else ()
            dims += (None,) * (len(shape) - len(dims))
            drawn[f"{path}:{name}"] = Declaration(shape, dims, Initialiser("normal", 1))
            drawn_specs[f"{path}:{name}"] = matrix_specs(declaration, spec)[name]
    values = initialise(drawn, key, drawn_specs if specs else None, degrees)
    vectors: Vectors = {}
    for path, declaration in declarations.items():
        matrix = _Matrix(declaration, specs[path] if specs else None)
        vectors[path] = {
            "u": matrix.unit_out(values[f"{path}:u"]),
            "v": matrix.unit_in(values[f"{path}:v"]),
        }
    return vectors


def iterate(
    weights: Weights,
    vectors: Vectors,
    declarations: Mapping[str, Declaration],
    specs: Mapping[str, PartitionSpec] | None = None,
) -> Vectors:
    """One power iteration: v = W'u / |W'u|, u = Wv / |Wv|. No gradient flows.

    Args:
        weights: local shards of all parameters.
        vectors: local shards of u and v of every normalised matrix.
        declarations: of all parameters.
        specs: PartitionSpec of each parameter; None on one device.
    """
    new = {}
    for path, pair in vectors.items():
        weight = jax.lax.stop_gradient(weights[path])
        matrix = _Matrix(declarations[path], specs[path] if specs else None)
        v = matrix.unit_in(matrix.transposed_times(weight, pair["u"]))
        new[path] = {"u": matrix.unit_out(matrix.times(weight, v)), "v": v}
    return new


def normalise(
    weights: Weights,
    vectors: Vectors,
    declarations: Mapping[str, Declaration],
    specs: Mapping[str, PartitionSpec] | None = None,
) -> Weights:
    """All weights, each matrix that has vectors divided by its sigma = u' W v.

    Args: as for `iterate`.
    """
    out = dict(weights)
    for path, pair in vectors.items():
        matrix = _Matrix(declarations[path], specs[path] if specs else None)
        out[path] = weights[path] / matrix.sigma(weights[path], pair["u"], pair["v"])
    return out


class _Matrix:
    """A parameter as a (possibly stacked, possibly sharded) matrix."""

    def __init__(self, declaration: Declaration, spec: PartitionSpec | None) -> None:
        self.ndim = len(declaration.shape)
        self.stacked = declaration.is_stacked
        self.weight = "abcdefgh"[: self.ndim]
        out, into = declaration.matrix_out or (), declaration.matrix_in
        first = self.weight[:1] if self.stacked else ""
        self.u = first + "".join(self.weight[d] for d in out)
        self.v = first + "".join(self.weight[d] for d in into)
        self.axes_out = _axes(spec, out)
        self.axes_in = _axes(spec, into)

    def times(self, weight: Array, v: Array) -> Array:
        """W v, summed over the shards of the input dims."""
        equation = f"{self.weight},{self.v}->{self.u}"
        return psum(_einsum(equation, weight, v), self.axes_in)

    def transposed_times(self, weight: Array, u: Array) -> Array:
        """W' u, summed over the shards of the output dims."""
        equation = f"{self.weight},{self.u}->{self.v}"
        return psum(_einsum(equation, weight, u), self.axes_out)

    def sigma(self, weight: Array, u: Array, v: Array) -> Array:
        """The scalar u' W v of each block, shaped to divide the weight."""
        first = self.u[:1] if self.stacked else ""
        total = _einsum(f"{self.u},{self.u}->{first}", u, self.times(weight, v))
        total = psum(total, self.axes_out)
        return total.reshape(total.shape + (1,) * (self.ndim - total.ndim))

    def unit_in(self, v: Array) -> Array:
        return _unit(v, self.stacked, self.axes_in)

    def unit_out(self, u: Array) -> Array:
        return _unit(u, self.stacked, self.axes_out)


def _axes(spec: PartitionSpec | None, dims: Sequence[int]) -> tuple[str, ...]:
    """Mesh axes that split any of `dims`."""
    names = () if spec is None else tuple(spec)
    return tuple(names[d] for d in dims if d < len(names) and names[d])


def _einsum(equation: str, *arrays: Array) -> Array:
    return jnp.einsum(equation, *arrays, precision="highest")


def _unit(x: Array, stacked: bool, axes: tuple[str, ...]) -> Array:
    """Unit vectors x / max(|x|, epsilon), per block where stacked."""
    dims = tuple(range(1 if stacked else 0, x.ndim))
    norm = jnp.sqrt(psum(jnp.sum(x * x, dims, keepdims=True), axes))
    return x / jnp.maximum(norm, EPSILON)
