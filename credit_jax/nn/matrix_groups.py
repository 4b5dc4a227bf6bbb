"""Matrices of equal shape and sharding, stacked to be processed at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.nn.model_state import Collection
from credit_jax.parallel.params.sharding import split_axes
from credit_jax.parallel.params.spec import ParamSpec

# Matrices with more elements are processed one by one, which avoids copies.
LARGE = 2**16
# Shapes of the vectors u and v of matrices, by path and side.
Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]


@dataclass(frozen=True)
class MatrixGroup:
    """Matrices of equal shape and sharding, processed as (count, inputs, outputs).

    Attributes:
        paths: paths of the parameters.
        param_specs: specs of the parameters.
        axes_in, axes_out: mesh axes that shard the input and the output dims.
    """

    paths: tuple[str, ...]
    param_specs: tuple[ParamSpec, ...]
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
        for path, param_spec in zip(self.paths, self.param_specs, strict=True):
            weight = weights[path]
            outputs = math.prod(weight.shape[d] for d in param_spec.matrix_out or ())
            flat.append(weight.reshape(_count(param_spec), -1, outputs))
        return flat[0] if len(flat) == 1 else jnp.concatenate(flat)

    def stack(self, state: Collection, side: str) -> Float[Array, "count length"]:
        """Stacks the vectors u or v of all matrices, one per row."""
        rows = [
            state[path][side].reshape(_count(param_spec), -1)
            for path, param_spec in zip(self.paths, self.param_specs, strict=True)
        ]
        return rows[0] if len(rows) == 1 else jnp.concatenate(rows)

    def elements(
        self, weights: Mapping[str, Array], state: Collection
    ) -> Float[Array, "count elements"]:
        """Returns the terms u_o W_io v_i of sigma of each matrix."""
        u, v = (self.stack(state, side) for side in ("u", "v"))
        terms = self.matrix(weights) * v[:, :, None] * u[:, None, :]
        return terms.reshape(len(terms), -1)

    def unstack(
        self, rows: Array, side: str, shapes: Shapes, into: Collection
    ) -> Collection:
        """Returns `into` plus the rows, in shapes by path and side: inverts `stack`."""
        out = dict(into)
        for path, part in self.parts(rows):
            out[path] = {**out[path], side: part.reshape(shapes[path][side])}
        return out

    def parts(self, rows: Array) -> Iterator[tuple[str, Array]]:
        """Yields (path, rows), without leading dim for parameters not stacked."""
        counts = [_count(param_spec) for param_spec in self.param_specs]
        pieces = [rows] if len(counts) == 1 else lax.split(rows, counts)
        for path, param_spec, piece in zip(
            self.paths, self.param_specs, pieces, strict=True
        ):
            yield path, piece if param_spec.is_stacked else piece[0]


@dataclass(frozen=True)
class MatrixFamily:
    """Groups whose matrices are sharded over the same mesh axes, their vectors packed.

    Attributes:
        groups: groups, at least one; they have the same axes.
    """

    groups: tuple[MatrixGroup, ...]

    def axes(self, side: str) -> tuple[str, ...]:
        """Returns the mesh axes that shard the vectors u or v."""
        return self.groups[0].axes(side)

    def matrices(
        self, weights: Mapping[str, Array]
    ) -> tuple[Float[Array, "_ _ _"], ...]:
        """Returns the stacked matrices of each group."""
        return tuple(group.matrix(weights) for group in self.groups)

    def rows(self, state: Collection, side: str) -> list[Float[Array, "_ _"]]:
        """Returns the stacked vectors u or v of each group."""
        return [group.stack(state, side) for group in self.groups]

    def with_rows(
        self, rows: Sequence[Array], side: str, shapes: Shapes, into: Collection
    ) -> Collection:
        """Returns `into` plus the rows, in shapes by path and side: inverts `rows`."""
        for group, packed_rows in zip(self.groups, rows, strict=True):
            into = group.unstack(packed_rows, side, shapes, into)
        return into

    def paths(self) -> Iterator[tuple[str, ParamSpec]]:
        """Yields (path, spec) of every parameter, in the order of the rows."""
        for group in self.groups:
            yield from zip(group.paths, group.param_specs, strict=True)


def matrix_families(
    param_specs: Mapping[str, ParamSpec], specs: Mapping[str, PartitionSpec] | None
) -> list[MatrixFamily]:
    """Returns families of groups of matrices that are sharded over the same mesh axes.

    Args:
        param_specs, specs: as for `group_matrices`.
    """
    families: dict[tuple, list[MatrixGroup]] = {}
    for group in group_matrices(param_specs, specs):
        families.setdefault((group.axes_in, group.axes_out), []).append(group)
    return [MatrixFamily(tuple(alike)) for alike in families.values()]


def group_matrices(
    param_specs: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec] | None,
) -> list[MatrixGroup]:
    """Groups matrices by shape and sharding.

    Args:
        param_specs: specs of the parameters, by path.
        specs: PartitionSpec of each parameter; None on one device.
    """
    paths_by_key: dict[tuple, list[str]] = {}
    for path, param_spec in param_specs.items():
        spec = specs[path] if specs else None
        inputs, outputs = param_spec.matrix_in, param_spec.matrix_out or ()
        assert max(inputs) < min(outputs), f"{path}: outputs must be the last dims"
        shape = param_spec.shape
        rows = math.prod(shape[d] for d in inputs)
        columns = math.prod(shape[d] for d in outputs)
        alone = path if rows * columns > LARGE else ""
        axes = _axes(spec, inputs), _axes(spec, outputs)
        key = (*axes, rows, columns, _count(param_spec), alone)
        paths_by_key.setdefault(key, []).append(path)
    return [
        MatrixGroup(tuple(paths), tuple(param_specs[p] for p in paths), *key[:2])
        for key, paths in paths_by_key.items()
    ]


def _count(param_spec: ParamSpec) -> int:
    return param_spec.shape[0] if param_spec.is_stacked else 1


def _axes(spec: PartitionSpec | None, dims: Sequence[int]) -> tuple[str, ...]:
    """Returns the mesh axes that shard any of `dims`."""
    names = () if spec is None else tuple(spec)
    return tuple(a for d in dims if d < len(names) for a in split_axes(names[d]))
