"""Power iterations and sigma = u' W v of all normalized matrices of a model at once.

A model has hundreds of them. Those of equal shape and sharding are one array, and the
vectors of all that are sharded over the same mesh axes (a family) are packed in one, so
that operations are few, and sums over shards are one for each family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.nn.matrix_groups import MatrixFamily, Shapes, matrix_families
from credit_jax.nn.model_state import Collection
from credit_jax.ops import packed
from credit_jax.ops.packed import Side
from credit_jax.ops.vma import pvary, varying_axes
from credit_jax.parallel.collectives import psum_each, pvary_each
from credit_jax.parallel.params.spec import ParamSpec

# torch.nn.utils.spectral_norm's default.
EPSILON = 1e-12
# The vectors u, or v, of each family, packed.
Vectors: TypeAlias = list[Array]


@dataclass(frozen=True)
class PackedMatrices:
    """Matrices by family.

    Attributes:
        families: the paths of the matrices, and the mesh axes that shard them.
        arrays: local shards (count, inputs, outputs) of the groups of each family.
    """

    families: Sequence[MatrixFamily]
    arrays: Sequence[tuple[Array, ...]]

    @classmethod
    def of(
        cls,
        weights: Mapping[str, Array],
        param_specs: Mapping[str, ParamSpec],
        specs: Mapping[str, PartitionSpec] | None,
    ) -> PackedMatrices:
        """The matrices among some weights.

        Args:
            weights: local shards of the parameters, by path.
            param_specs: specs of the matrices, by path.
            specs: PartitionSpec of each parameter; None on one device.
        """
        families = matrix_families(param_specs, specs)
        return cls(families, [family.matrices(weights) for family in families])

    def without_gradient(self) -> PackedMatrices:
        """The same values as constants."""
        return replace(self, arrays=[lax.stop_gradient(ws) for ws in self.arrays])

    def vectors(self, state: Collection, side: Side) -> Vectors:
        """The vectors u or v in a collection.

        Args:
            state: u and v of every matrix, by path.
            side: "u" or "v".
        """
        return [packed.pack(family.rows(state, side)) for family in self.families]

    def with_vectors(
        self, us: Vectors, vs: Vectors, shapes: Shapes, into: Collection
    ) -> Collection:
        """Returns `into` plus these vectors, in their shapes by path and side."""
        both: dict[Side, Vectors] = {"u": us, "v": vs}
        for side, vectors in both.items():
            for family, rows, values in zip(
                self.families, self._rows(side), vectors, strict=True
            ):
                each = packed.unpack(values, rows)
                into = family.with_rows(each, side, shapes, into)
        return into

    def varying_as_matrices(self, us: Vectors) -> Vectors:
        """Marks u as varying over the axes over which a power iteration returns it.

        It varies as the matrices do, except where W v is summed.
        """
        return [
            pvary(u, sorted(varying_axes(ws[0]) - {*family.axes("v")}))
            for family, ws, u in zip(self.families, self.arrays, us, strict=True)
        ]

    def power_iteration(self, us: Vectors) -> tuple[Vectors, Vectors]:
        """Returns u and v after v = W'u / |W'u| and then u = Wv / |Wv|."""
        vs = self._unit(self._products(us, "u"), "v")
        return self._unit(self._products(vs, "v"), "u"), vs

    def inverse_sigmas(self, us: Vectors, vs: Vectors) -> Vectors:
        """Returns 1 / u' W v of each matrix, a number for each in each family."""
        # u' (W v): what is summed over shards is a vector, and then a number.
        sigmas = self._dots(us, self._products(vs, "v"), "u")
        # One sum of the gradients of all sigmas over the shards, which need not be
        # equal.
        axes = [
            sorted(varying_axes(ws[0]) - varying_axes(sigma))
            for ws, sigma in zip(self.arrays, sigmas, strict=True)
        ]
        return pvary_each([1.0 / sigma for sigma in sigmas], axes)

    def _products(self, vectors: Vectors, side: Side) -> Vectors:
        """Returns W v (side "v") or W' u (side "u"), summed over shards."""
        return psum_each(
            [
                packed.products(ws, x, side)
                for ws, x in zip(self.arrays, vectors, strict=True)
            ],
            [family.axes(side) for family in self.families],
        )

    def _unit(self, vectors: Vectors, side: Side) -> Vectors:
        """Returns unit vectors x / max(|x|, epsilon) of each matrix."""
        squares = self._dots(vectors, vectors, side)
        return [
            x / packed.spread(jnp.maximum(jnp.sqrt(square), EPSILON), rows)
            for x, square, rows in zip(vectors, squares, self._rows(side), strict=True)
        ]

    def _dots(self, ones: Vectors, others: Vectors, side: Side) -> Vectors:
        """Returns the scalar products of the vectors of each matrix, over shards."""
        return psum_each(
            [
                packed.dots(a, b, rows)
                for a, b, rows in zip(ones, others, self._rows(side), strict=True)
            ],
            [family.axes(side) for family in self.families],
        )

    def _rows(self, side: Side) -> list[packed.Rows]:
        """Number and length of the vectors of each group of each family."""
        return [packed.rows_of(ws, side) for ws in self.arrays]
