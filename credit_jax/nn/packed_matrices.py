"""Power iterations and sigma = u' W v of all normalized matrices of a model at once.

A model has hundreds of them. Those of equal shape and sharding are one array, and the
vectors of all that are sharded over the same mesh axes (a family) are packed in one, so
that operations are few, and sums over shards are one for each family.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.nn.parameters import Collection
from credit_jax.ops import packed
from credit_jax.ops.custom_vjp import varying_axes
from credit_jax.parallel.collectives import psum_each, pvary_each
from credit_jax.parallel.params.fsdp import split_axes
from credit_jax.parallel.params.spec import ParamSpec

# Matrices with more elements are processed one by one, which avoids copies.
LARGE = 2**16
# Specs of parameters, and how they are split over a mesh, by path; None for whole ones.
ParamSpecs: TypeAlias = Mapping[str, ParamSpec]
Shardings: TypeAlias = Mapping[str, PartitionSpec] | None
# Shapes of the vectors u and v of matrices, by path and side.
Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]


@dataclass(frozen=True)
class MatrixGroup:
    """Matrices of equal shape and sharding, processed as (count, inputs, outputs)."""

    specs: ParamSpecs  # specs of the parameters, by path
    # Mesh axes that shard the input and the output dims.
    axes_in: tuple[str, ...]
    axes_out: tuple[str, ...]

    def axes(self, side: str) -> tuple[str, ...]:
        """Returns the mesh axes that shard the vectors u or v."""
        return self.axes_in if side == "v" else self.axes_out

    def matrix(
        self, weights: Mapping[str, Array]
    ) -> Float[Array, "count inputs outputs"]:
        """Stacks all matrices; input dims of a parameter precede its output dims."""
        flat = []
        for path, spec in self.specs.items():
            weight = weights[path]
            outputs = math.prod(weight.shape[d] for d in spec.matrix_out or ())
            flat.append(weight.reshape(_count(spec), -1, outputs))
        return flat[0] if len(flat) == 1 else jnp.concatenate(flat)

    def stack(self, state: Collection, side: str) -> Float[Array, "count length"]:
        """Stacks the vectors u or v of all matrices, one per row."""
        rows = [state[p][side].reshape(_count(s), -1) for p, s in self.specs.items()]
        return rows[0] if len(rows) == 1 else jnp.concatenate(rows)

    def elements(
        self, weights: Mapping[str, Array], state: Collection
    ) -> Float[Array, "count elements"]:
        """Returns the terms u_o W_io v_i of sigma of each matrix."""
        u, v = (self.stack(state, side) for side in ("u", "v"))
        terms = self.matrix(weights) * v[:, :, None] * u[:, None, :]
        return terms.reshape(len(terms), -1)

    def parts(self, rows: Array) -> Iterator[tuple[str, Array]]:
        """Yields (path, rows), without leading dim for parameters not stacked."""
        counts = [_count(spec) for spec in self.specs.values()]
        pieces = [rows] if len(counts) == 1 else lax.split(rows, counts)
        for (path, spec), piece in zip(self.specs.items(), pieces, strict=True):
            yield path, piece if spec.is_stacked else piece[0]


Side = Literal["u", "v"]
# Groups that are sharded over the same mesh axes; their vectors are packed.
Family: TypeAlias = Sequence[MatrixGroup]


def matrix_families(param_specs: ParamSpecs, specs: Shardings) -> list[Family]:
    """Groups matrices by shape and sharding, and the groups by sharding."""
    groups: dict[tuple[Any, ...], dict[str, ParamSpec]] = {}
    for path, param_spec in param_specs.items():
        names = tuple(specs[path]) if specs else ()
        inputs, outputs = param_spec.matrix_in, param_spec.matrix_out or ()
        assert max(inputs) < min(outputs), f"{path}: outputs must be the last dims"
        axes = [
            tuple(a for d in dims if d < len(names) for a in split_axes(names[d]))
            for dims in (inputs, outputs)
        ]
        rows, columns = (
            math.prod(param_spec.shape[d] for d in dims) for dims in (inputs, outputs)
        )
        alone = path if rows * columns > LARGE else ""
        key = (*axes, rows, columns, _count(param_spec), alone)
        groups.setdefault(key, {})[path] = param_spec
    families: dict[tuple[Any, ...], list[MatrixGroup]] = {}
    for (axes_in, axes_out, *_), group_specs in groups.items():
        group = MatrixGroup(group_specs, axes_in, axes_out)
        families.setdefault((axes_in, axes_out), []).append(group)
    return list(families.values())


def _count(param_spec: ParamSpec) -> int:
    return param_spec.shape[0] if param_spec.is_stacked else 1


# torch.nn.utils.spectral_norm's default.
EPSILON = 1e-12
# The vectors u, or v, of each family, packed.
Vectors: TypeAlias = list[Array]


@dataclass(frozen=True)
class PackedMatrices:
    """Matrices by family."""

    # The paths of the matrices, and the mesh axes that shard them.
    families: Sequence[Family]
    # Local shards (count, inputs, outputs) of the groups of each family.
    arrays: Sequence[tuple[Array, ...]]

    @classmethod
    def of(
        cls, weights: Mapping[str, Array], param_specs: ParamSpecs, specs: Shardings
    ) -> PackedMatrices:
        """The matrices with `param_specs` among local shards; see `matrix_families`."""
        families = matrix_families(param_specs, specs)
        arrays = [tuple(group.matrix(weights) for group in f) for f in families]
        return cls(families, arrays)

    def vectors(self, state: Collection, side: Side) -> Vectors:
        """The vectors u or v of every matrix in a collection."""
        return [
            packed.pack([group.stack(state, side) for group in family])
            for family in self.families
        ]

    def with_vectors(
        self, us: Vectors, vs: Vectors, shapes: Shapes, into: Collection
    ) -> Collection:
        """Returns `into` plus these vectors, in their shapes by path and side."""
        out = dict(into)
        both: dict[Side, Vectors] = {"u": us, "v": vs}
        for side, vectors in both.items():
            for family, rows, values in zip(
                self.families, self._rows(side), vectors, strict=True
            ):
                each = packed.unpack(values, rows)
                for group, group_rows in zip(family, each, strict=True):
                    for path, part in group.parts(group_rows):
                        vector = part.reshape(shapes[path][side])
                        out[path] = {**out[path], side: vector}
        return out

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
        equation = {"v": "nio,ni->no", "u": "nio,no->ni"}[side]
        products = []
        for ws, x, rows in zip(self.arrays, vectors, self._rows(side), strict=True):
            pairs = zip(ws, packed.unpack(x, rows), strict=True)
            each = [jnp.einsum(equation, *pair, precision="highest") for pair in pairs]
            products.append(packed.pack(each))
        return psum_each(products, self._axes(side))

    def _unit(self, vectors: Vectors, side: Side) -> Vectors:
        """Returns unit vectors x / max(|x|, epsilon) of each matrix."""
        squares = self._dots(vectors, vectors, side)
        units = []
        for x, square, rows in zip(vectors, squares, self._rows(side), strict=True):
            lengths = jnp.maximum(jnp.sqrt(square), EPSILON)
            # The length of its row for each packed value.
            parts = packed.unpack(lengths, [(count, 1) for count, _ in rows])
            pairs = zip(parts, rows, strict=True)
            spread = packed.pack([jnp.broadcast_to(*pair) for pair in pairs])
            units.append(x / spread)
        return units

    def _dots(self, ones: Vectors, others: Vectors, side: Side) -> Vectors:
        """Returns the scalar products of the vectors of each matrix, over shards."""
        return psum_each(
            [
                jnp.concatenate([part.sum(1) for part in packed.unpack(a * b, rows)])
                for a, b, rows in zip(ones, others, self._rows(side), strict=True)
            ],
            self._axes(side),
        )

    def _rows(self, side: Side) -> list[tuple[tuple[int, int], ...]]:
        """Number and length of the vectors of each group of each family."""
        along = {"u": 2, "v": 1}[side]
        return [tuple((len(w), w.shape[along]) for w in ws) for ws in self.arrays]

    def _axes(self, side: Side) -> list[tuple[str, ...]]:
        """The mesh axes that shard the vectors of each family."""
        return [family[0].axes(side) for family in self.families]
