"""Spectral normalization as a function of the parameter dict, once per forward pass.

The method is algorithm 1 of Miyato et al. (2018), arXiv:1802.05957.
torch.nn.utils.spectral_norm divides a weight matrix W by sigma = u' W v. In training,
each call of the layer updates the vectors u and v by one power iteration, without
gradient; evaluation uses the stored vectors. Here u and v are the collection
"spectral_norm" of the model state: `iterate` updates them and `normalize` divides the
weights, once for each call of a layer that is called several times. Both run outside of
the layers, so rematerialization does not repeat the power iteration, and sharded
matrices need only a `psum` over the axes that shard them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.nn.matrix_groups import (
    MatrixFamily,
    Shapes,
    matrix_families,
)
from credit_jax.nn.model_state import Collection
from credit_jax.ops import packed
from credit_jax.ops.compensated import (
    compensated_sum,
    parts_to_sum,
    quotient,
    two_sum,
)
from credit_jax.ops.packed import Side
from credit_jax.ops.vma import pvary, varying_axes
from credit_jax.parallel.collectives import psum_each, pvary_each
from credit_jax.parallel.compiler import loops_hold_collectives
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.initializers import Initializer
from credit_jax.parallel.params.sharding import matrix_specs, split_axes
from credit_jax.parallel.params.spec import LAYERS, ParamSpec

Weights = dict[str, Array]

# torch.nn.utils.spectral_norm's default.
EPSILON = 1e-12
# Power iterations at the start, as in torch.nn.utils.parametrizations.spectral_norm.
ITERATIONS = 15


def spectral_norm_shapes(
    param_spec: ParamSpec, shape: tuple[int, ...] | None = None
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of u (output dims) and v (input dims) of a matrix.

    The dim of stacked blocks, if any, comes first.

    Args:
        param_spec: spec of the matrix.
        shape: shape of a shard of it; None for global shapes.
    """
    shape = shape or param_spec.shape
    lead = shape[:1] if param_spec.is_stacked else ()
    out = param_spec.matrix_out or ()
    return {
        "u": (*lead, *(shape[d] for d in out)),
        "v": (*lead, *(shape[d] for d in param_spec.matrix_in)),
    }


def init_spectral_norm(
    key: Array,
    weights: Weights,
    param_specs: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec] | None = None,
    degrees: Mapping[str, int] | None = None,
    *,
    alone: bool = False,
) -> Collection:
    """Returns local shards of u and v for every matrix, after `ITERATIONS`.

    torch.nn.utils.spectral_norm begins with random vectors, whose sigma may be near 0:
    a model that is evaluated before it is trained then gives values of 1e20.

    Args:
        key: typed PRNG key, by which the first u are drawn from N(0, 1).
        weights: local shards of the initial parameters, by path.
        param_specs: specs of the normalized matrices, by path.
        specs: PartitionSpec of each matrix; None for unsharded vectors.
        degrees: size of every mesh axis that `specs` names.
        alone: see `loops_hold_collectives`.
    """
    drawn: dict[str, ParamSpec] = {}
    drawn_specs: dict[str, PartitionSpec] = {}
    for path, param_spec in param_specs.items():
        shape = spectral_norm_shapes(param_spec)["u"]
        dims = (LAYERS,) if param_spec.is_stacked else ()
        dims += (None,) * (len(shape) - len(dims))
        drawn[path] = ParamSpec(shape, dims, Initializer("normal", 1))
        spec = specs[path] if specs else PartitionSpec()
        drawn_specs[path] = matrix_specs(param_spec, spec)["u"]
    first = initialize(drawn, key, drawn_specs if specs else None, degrees)
    families = matrix_families(param_specs, specs)
    matrices = [family.matrices(weights) for family in families]
    start = {path: {"u": u} for path, u in first.items()}
    # A power iteration returns u that vary as the matrices do, except where it sums.
    us = [
        pvary(packed.pack(family.rows(start, "u")), sorted(axes - {*family.axes("v")}))
        for family, family_matrices in zip(families, matrices, strict=True)
        for axes in [varying_axes(family_matrices[0])]
    ]

    def again(us: list[Array], _: None) -> tuple[list[Array], list[Array]]:
        return _power_iteration(families, matrices, us)

    unroll = _unroll(ITERATIONS, param_specs, specs, alone=alone)
    us, all_vs = lax.scan(again, us, length=ITERATIONS, unroll=unroll)
    shapes = {
        p: spectral_norm_shapes(d, weights[p].shape) for p, d in param_specs.items()
    }
    vectors: dict[Side, list[Array]] = {"u": us, "v": [vs[-1] for vs in all_vs]}
    return _with_vectors(families, matrices, vectors, shapes, {p: {} for p in shapes})


def iterate(
    weights: Weights,
    state: Collection,
    param_specs: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec] | None = None,
) -> Collection:
    """Returns u and v for one training forward pass: one power iteration per call.

    v = W'u / |W'u|, u = Wv / |Wv|, without gradient. If a layer is called several times
    (`ParamSpec.calls`), its u and v have a dim of calls, after the dim of stacked
    blocks; `after_calls` removes it.

    Args:
        weights: local shards of all parameters, by path.
        state: local shards of u and v of every normalized matrix.
        param_specs: specs of the normalized matrices, or of all parameters.
        specs: PartitionSpec of each parameter; None on one device.
    """
    # The first call of every layer together; most layers have no other.
    new = _iterated(weights, state, _with_calls(state, param_specs, 0), specs)
    several = _with_calls(state, param_specs, 1)
    if several:
        new |= _of_all_calls(weights, {p: new[p] for p in several}, several, specs)
    return new


def _of_all_calls(
    weights: Weights,
    first: Collection,
    matrices: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec] | None,
) -> Collection:
    """Returns the vectors of every call, in a dim of calls, given those of the first.

    A single loop iterates all matrices as often as the most called one requires.
    """
    turns = max(param_spec.calls for param_spec in matrices.values()) - 1
    unroll = _unroll(turns, matrices, specs)

    def again(last: Collection, _: None) -> tuple[Collection, Collection]:
        new = _iterated(weights, last, matrices, specs)
        return new, new

    _, later = lax.scan(again, first, length=turns, unroll=unroll)

    def joined(path: str, side: str) -> Array:
        calls = [first[path][side][None], later[path][side]]
        both = jnp.concatenate(calls)[: matrices[path].calls]
        return jnp.moveaxis(both, 0, _calls_dim(matrices[path]))

    return {path: {side: joined(path, side) for side in ("u", "v")} for path in first}


def _unroll(
    turns: int,
    matrices: Iterable[str],
    specs: Mapping[str, PartitionSpec] | None,
    *,
    alone: bool = False,
) -> int:
    """Returns how many turns of a loop of power iterations to write out: one or all."""
    # Sums over shards within a loop: XLA on CPU may run them beside later collectives.
    split = specs and any(split_axes(entry) for p in matrices for entry in specs[p])
    return turns if split and not loops_hold_collectives(alone=alone) else 1


def after_calls(state: Collection, param_specs: Mapping[str, ParamSpec]) -> Collection:
    """Returns the vectors to store after a training forward pass, those of last calls.

    Args:
        state: as returned by `iterate`.
        param_specs: as for `iterate`.
    """
    last = {
        path: {
            side: lax.index_in_dim(array, -1, _calls_dim(spec), keepdims=False)
            for side, array in state[path].items()
        }
        for path, spec in _per_call(state, param_specs).items()
    }
    return {**state, **last}


def normalize(
    weights: Weights,
    state: Collection,
    param_specs: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec] | None = None,
    *,
    compensated: bool = False,
) -> Weights:
    """Divides each matrix that has vectors by sigma = u' W v; returns all weights.

    A matrix with `ParamSpec.calls` 0 is not divided. If the vectors have a dim of
    calls, the result has it, too, as each call has its own sigma.

    Args:
        weights, param_specs, specs: as for `iterate`.
        state: as returned by `iterate`, or the stored one.
        compensated: whether the rounding errors of the sums of sigma are summed, too.
            An error of sigma scales a whole matrix; of weights that are divided once
            for many forward passes, it would add up from step to step.
    """
    several = _per_call(state, param_specs)
    called = _with_calls(state, param_specs, 0)
    once = {path: called[path] for path in called if path not in several}
    divided = _divided_exactly if compensated else _divided
    out = {**weights, **divided(weights, state, matrix_families(once, specs))}
    # `vmap` over the dim of calls, which is equally long for matrices called equally
    # often.
    for calls in sorted({param_spec.calls for param_spec in several.values()}):
        alike = {p: several[p] for p in several if several[p].calls == calls}
        out |= _divided_for_calls(divided, weights, state, alike, specs)
    return out


def _divided_for_calls(
    divided: Callable[..., Weights],
    weights: Weights,
    state: Collection,
    matrices: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec] | None,
) -> Weights:
    """These matrices, called equally often, divided for each call in a dim of calls."""
    families = matrix_families(matrices, specs)
    dims = {path: _calls_dim(param_spec) for path, param_spec in matrices.items()}
    divide = jax.vmap(
        lambda call_state: divided(weights, call_state, families),
        in_axes=({path: dict.fromkeys(("u", "v"), dim) for path, dim in dims.items()},),
        out_axes=dims,
    )
    return divide({path: state[path] for path in matrices})


def _with_calls(
    paths: Iterable[str], param_specs: Mapping[str, ParamSpec], times: int
) -> dict[str, ParamSpec]:
    """Returns specs of the matrices among `paths` with more than `times` calls."""
    specs = {path: param_specs[path] for path in paths}
    return {path: spec for path, spec in specs.items() if spec.calls > times}


def _calls_dim(param_spec: ParamSpec) -> int:
    """Returns the position of the dim of calls in a matrix or its vectors."""
    return 1 if param_spec.is_stacked else 0


def _per_call(
    state: Collection, param_specs: Mapping[str, ParamSpec]
) -> dict[str, ParamSpec]:
    """Returns specs of the matrices whose vectors have a dim of calls."""
    return {
        path: param_specs[path]
        for path, pair in state.items()
        if pair["u"].ndim > len(spectral_norm_shapes(param_specs[path])["u"])
    }


def _iterated(
    weights: Weights,
    state: Collection,
    matrices: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec] | None,
) -> Collection:
    """Returns the vectors after one power iteration of `matrices`, others unchanged."""
    families = matrix_families(matrices, specs)
    new: Collection = {p: {} if p in matrices else v for p, v in state.items()}
    # torch iterates under no_grad: of sigma = u' W v only W has a gradient.
    stacked = [jax.lax.stop_gradient(family.matrices(weights)) for family in families]
    us = [packed.pack(family.rows(state, "u")) for family in families]
    us, vs = _power_iteration(families, stacked, us)
    shapes = {
        p: {side: array.shape for side, array in state[p].items()} for p in matrices
    }
    return _with_vectors(families, stacked, {"u": us, "v": vs}, shapes, new)


def _power_iteration(
    families: Sequence[MatrixFamily],
    matrices: Sequence[Sequence[Array]],
    us: Sequence[Array],
) -> tuple[list[Array], list[Array]]:
    """Returns v = W'u / |W'u| and then u = Wv / |Wv|, as (u, v), packed by family."""
    vs = _unit(families, matrices, _products(families, matrices, us, "u"), "v")
    return _unit(families, matrices, _products(families, matrices, vs, "v"), "u"), vs


def _with_vectors(
    families: Sequence[MatrixFamily],
    matrices: Sequence[Sequence[Array]],
    vectors: Mapping[Side, Sequence[Array]],
    shapes: Shapes,
    into: Collection,
) -> Collection:
    """Returns `into` plus the packed vectors of families, in their shapes by path."""
    for side, side_vectors in vectors.items():
        for family, each, packed_rows in zip(
            families, matrices, side_vectors, strict=True
        ):
            rows = packed.unpack(packed_rows, packed.rows_of(each, side))
            into = family.with_rows(rows, side, shapes, into)
    return into


def _divided(
    weights: Weights, state: Collection, families: Sequence[MatrixFamily]
) -> Weights:
    """Returns the matrices, each divided by u' W v."""
    stacked = [family.matrices(weights) for family in families]
    u, v = (
        [packed.pack(family.rows(state, side)) for family in families]
        for side in ("u", "v")
    )
    # u' (W v): what is summed over shards is a vector, and then a number.
    mapped = _products(families, stacked, v, "v")
    sigmas = psum_each(
        [
            packed.dots(a, b, packed.rows_of(family_matrices, "u"))
            for a, b, family_matrices in zip(u, mapped, stacked, strict=True)
        ],
        [family.axes("u") for family in families],
    )
    # One sum of the gradients of all sigmas over the shards, which need not be equal.
    axes = [
        sorted(varying_axes(family_matrices[0]) - varying_axes(sigma))
        for family_matrices, sigma in zip(stacked, sigmas, strict=True)
    ]
    inverses = pvary_each([1.0 / sigma for sigma in sigmas], axes)
    out = {}
    for family, inverse in zip(families, inverses, strict=True):
        specs = dict(family.paths())
        arrays = [
            weights[p] if specs[p].is_stacked else weights[p][None] for p in specs
        ]
        for path, scaled in zip(specs, packed.scale(arrays, inverse), strict=True):
            out[path] = scaled if specs[path].is_stacked else scaled[0]
    return out


def _divided_exactly(
    weights: Weights, state: Collection, families: Sequence[MatrixFamily]
) -> Weights:
    """`_divided`, with a compensated sum of the elements u W v, and exact quotients."""
    groups = [group for family in families for group in family.groups]
    sums = [group.elements(weights, state) for group in groups]
    # Each sum and the errors of its roundings, both summed over the shards.
    parts = [parts_to_sum(*compensated_sum(terms)) for terms in sums]
    axes = [(*group.axes("u"), *group.axes("v")) for group in groups]
    tops, rests = (psum_each(part, axes) for part in zip(*parts, strict=True))
    out = {}
    for group, *pair in zip(groups, tops, rests, strict=True):
        high, low = two_sum(*pair)
        for (path, sigma), (_, rest) in zip(
            group.parts(high), group.parts(low), strict=True
        ):
            divisor = (_beside(weights[path], part) for part in (sigma, rest))
            out[path] = quotient(weights[path], *divisor)
    return out


def _beside(weight: Array, numbers: Array) -> Array:
    """The number of each matrix, with dims of length 1 for those of the matrix."""
    return numbers.reshape(numbers.shape + (1,) * (weight.ndim - numbers.ndim))


def _products(
    families: Sequence[MatrixFamily],
    matrices: Sequence[Sequence[Array]],
    vectors: Sequence[Array],
    side: Side,
) -> list[Array]:
    """Returns W v (side "v") or W' u (side "u") of families, summed over shards."""
    return psum_each(
        [
            packed.products(family_matrices, packed_vectors, side)
            for family_matrices, packed_vectors in zip(matrices, vectors, strict=True)
        ],
        [family.axes(side) for family in families],
    )


def _unit(
    families: Sequence[MatrixFamily],
    matrices: Sequence[Sequence[Array]],
    vectors: Sequence[Array],
    side: Side,
) -> list[Array]:
    """Returns unit vectors x / max(|x|, epsilon) for each row of packed u or v."""
    shapes = [packed.rows_of(family_matrices, side) for family_matrices in matrices]
    squares = psum_each(
        [packed.dots(x, x, rows) for x, rows in zip(vectors, shapes, strict=True)],
        [family.axes(side) for family in families],
    )
    return [
        x / packed.spread(_norm(square), rows)
        for x, square, rows in zip(vectors, squares, shapes, strict=True)
    ]


def _norm(squares: Array) -> Array:
    """Norms that vectors are divided by, from the sums of their squares."""
    return jnp.maximum(jnp.sqrt(squares), EPSILON)
