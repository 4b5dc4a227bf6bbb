"""Spectral normalization as a function of the parameter dict, once per forward pass.

The method is algorithm 1 of Miyato et al. (2018), arXiv:1802.05957.
torch.nn.utils.spectral_norm divides a weight matrix W by sigma = u' W v. In training,
each call of the layer updates the vectors u and v by one power iteration, without
gradient; evaluation uses the stored vectors. Here u and v are the collection
"spectral_norm" of the model state: `iterate` updates them and `normalize` divides the
weights, once for each call of a layer that is called several times. Both run outside of
the layers, so rematerialization does not repeat the power iteration, and sharded
matrices need only a `psum` over the axes that shard them.

A layer that a forward pass calls several times has a power iteration, a sigma and a
divided matrix for each call (`ParamSpec.calls`): torch iterates in the hook of every
call. In training the vectors then have a dim of calls, after that of stacked blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.nn.packed_matrices import (
    PackedMatrices,
    ParamSpecs,
    Shardings,
    matrix_families,
)
from credit_jax.nn.parameters import Collection
from credit_jax.ops.compensated import compensated_sum, parts_to_sum, quotient, two_sum
from credit_jax.ops.custom_vjp import pvary, varying_axes
from credit_jax.parallel.collectives import psum_each
from credit_jax.parallel.compiler import loops_hold_collectives
from credit_jax.parallel.params.fsdp import matrix_specs, split_axes
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.spec import LAYERS, Initializer, ParamSpec

Weights = dict[str, Array]

# Power iterations at the start, as in torch.nn.utils.parametrizations.spectral_norm.
ITERATIONS = 15


def spectral_norm_shapes(
    param_spec: ParamSpec, shape: tuple[int, ...] | None = None
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of u (output dims) and v (input dims) of a matrix."""
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
    param_specs: ParamSpecs,
    specs: Shardings = None,
    degrees: Mapping[str, int] | None = None,
    *,
    alone: bool = False,
) -> Collection:
    """Returns local shards of u and v for every matrix, after `ITERATIONS`."""
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
    matrices = PackedMatrices.of(weights, param_specs, specs)
    start = {path: {"u": u} for path, u in first.items()}
    # They vary as the matrices do, except where W v is summed: as what an iteration
    # returns.
    drawn_us = matrices.vectors(start, "u")
    us = [
        pvary(u, sorted(varying_axes(arrays[0]) - {*family[0].axes("v")}))
        for u, family, arrays in zip(
            drawn_us, matrices.families, matrices.arrays, strict=True
        )
    ]
    unroll = _unroll(ITERATIONS, param_specs, specs, alone=alone)
    # torch.nn.utils.spectral_norm begins with random vectors, whose sigma may be near
    # 0: a model that is evaluated before it is trained then gives values of 1e20.
    us, all_vs = lax.scan(
        lambda us, _: matrices.power_iteration(us),
        us,
        length=ITERATIONS,
        unroll=unroll,
    )
    shapes = {
        p: spectral_norm_shapes(d, weights[p].shape) for p, d in param_specs.items()
    }
    last_vs = [vs[-1] for vs in all_vs]
    return matrices.with_vectors(us, last_vs, shapes, {p: {} for p in shapes})


def iterate(
    weights: Weights,
    state: Collection,
    param_specs: ParamSpecs,
    specs: Shardings = None,
) -> Collection:
    """Returns u and v for one training forward pass: one power iteration per call."""
    # The first call of every layer together; most layers have no other.
    called = {path: param_specs[path] for path in state if param_specs[path].calls}
    new = _iterated(weights, state, called, specs)
    several = {path: spec for path, spec in called.items() if spec.calls > 1}
    if several:
        # A single loop iterates all matrices as often as the most called one requires:
        # a loop for each would be compiled by itself.
        first = {p: new[p] for p in several}
        turns = max(param_spec.calls for param_spec in several.values()) - 1
        unroll = _unroll(turns, several, specs)

        def again(last: Collection, _: None) -> tuple[Collection, Collection]:
            new = _iterated(weights, last, several, specs)
            return new, new

        _, later = lax.scan(again, first, length=turns, unroll=unroll)

        for name, pair in first.items():
            # `after_calls` removes the dim of calls again.
            dim = int(several[name].is_stacked)
            calls = new[name] = dict[str, Array]()
            for side, vector in pair.items():
                both = jnp.concatenate([vector[None], later[name][side]])
                calls[side] = jnp.moveaxis(both[: several[name].calls], 0, dim)
    return new


def _unroll(
    turns: int, matrices: Iterable[str], specs: Shardings, *, alone: bool = False
) -> int:
    """Returns how many turns of a loop of power iterations to write out: one or all."""
    # Sums over shards within a loop: XLA on CPU may run them beside later collectives.
    split = specs and any(split_axes(entry) for p in matrices for entry in specs[p])
    return turns if split and not loops_hold_collectives(alone=alone) else 1


def after_calls(state: Collection, param_specs: ParamSpecs) -> Collection:
    """The vectors to store after a training forward pass, those of last calls."""
    last = {
        path: {
            side: lax.index_in_dim(array, -1, int(spec.is_stacked), keepdims=False)
            for side, array in state[path].items()
        }
        for path, spec in _per_call(state, param_specs).items()
    }
    return {**state, **last}


def normalize(
    weights: Weights,
    state: Collection,
    param_specs: ParamSpecs,
    specs: Shardings = None,
    *,
    compensated: bool = False,
) -> Weights:
    """Divides each matrix that has vectors by sigma = u' W v; returns all weights."""
    # If the vectors have a dim of calls, the result has it, too, as each call has its
    # own sigma. A matrix with `ParamSpec.calls` 0 is not divided.
    several = _per_call(state, param_specs)
    once = {
        path: param_specs[path]
        for path in state
        if param_specs[path].calls and path not in several
    }
    # An error of sigma scales a whole matrix; of weights that are divided once for many
    # forward passes, it would add up from step to step.
    divided = partial(_divided_exactly if compensated else _divided, weights)
    out = {**weights, **divided(state, once, specs)}
    # `vmap` over the dim of calls, which is equally long for matrices called equally
    # often.
    for calls in sorted({param_spec.calls for param_spec in several.values()}):
        alike = {p: several[p] for p in several if several[p].calls == calls}
        dims = {path: int(param_spec.is_stacked) for path, param_spec in alike.items()}
        sides = {path: dict.fromkeys(("u", "v"), dim) for path, dim in dims.items()}
        divide = jax.vmap(
            lambda vectors, alike=alike: divided(vectors, alike, specs),
            in_axes=(sides,),
            out_axes=dims,
        )
        out |= divide({path: state[path] for path in alike})
    return out


def _per_call(state: Collection, param_specs: ParamSpecs) -> dict[str, ParamSpec]:
    """Returns specs of the matrices whose vectors have a dim of calls."""
    return {
        path: param_specs[path]
        for path, pair in state.items()
        if pair["u"].ndim > len(spectral_norm_shapes(param_specs[path])["u"])
    }


def _iterated(
    weights: Weights, state: Collection, matrices: ParamSpecs, specs: Shardings
) -> Collection:
    """Returns the vectors after one power iteration of `matrices`, others unchanged."""
    new: Collection = {p: {} if p in matrices else v for p, v in state.items()}
    # torch iterates under no_grad: of sigma = u' W v only W has a gradient.
    constant = PackedMatrices.of(weights, matrices, specs)
    arrays = [lax.stop_gradient(stacked) for stacked in constant.arrays]
    constant = replace(constant, arrays=arrays)
    us, vs = constant.power_iteration(constant.vectors(state, "u"))
    shapes = {
        p: {side: array.shape for side, array in state[p].items()} for p in matrices
    }
    return constant.with_vectors(us, vs, shapes, new)


def _divided(
    weights: Weights, state: Collection, matrices: ParamSpecs, specs: Shardings
) -> Weights:
    """Returns the matrices, each divided by u' W v."""
    together, out = PackedMatrices.of(weights, matrices, specs), {}
    inverses = together.inverse_sigmas(
        together.vectors(state, "u"), together.vectors(state, "v")
    )
    for family, inverse in zip(together.families, inverses, strict=True):
        stacked = {p: s.is_stacked for group in family for p, s in group.specs.items()}
        arrays = [weights[p] if stacked[p] else weights[p][None] for p in stacked]
        # A factor for each row of each array.
        factors = lax.split(inverse, [len(array) for array in arrays])
        for path, array, factor in zip(stacked, arrays, factors, strict=True):
            scaled = array * factor.reshape(-1, *[1] * (array.ndim - 1))
            out[path] = scaled if stacked[path] else scaled[0]
    return out


def _divided_exactly(
    weights: Weights, state: Collection, matrices: ParamSpecs, specs: Shardings
) -> Weights:
    """`_divided`, with a compensated sum of the elements u W v, and exact quotients."""
    families = matrix_families(matrices, specs)
    groups = [group for family in families for group in family]
    sums = [group.elements(weights, state) for group in groups]
    # Each sum and the errors of its roundings, both summed over the shards.
    parts = [parts_to_sum(*compensated_sum(terms)) for terms in sums]
    axes = [(*group.axes("u"), *group.axes("v")) for group in groups]
    tops, rests = (psum_each(part, axes) for part in zip(*parts, strict=True))
    out = {}
    for group, *pair in zip(groups, tops, rests, strict=True):
        high, low = two_sum(*pair)
        for (path, sigma), (_, remainder) in zip(
            group.parts(high), group.parts(low), strict=True
        ):
            # With dims of length 1 for those of the matrix.
            ones = (1,) * (weights[path].ndim - sigma.ndim)
            divisor = (part.reshape(part.shape + ones) for part in (sigma, remainder))
            out[path] = quotient(weights[path], *divisor)
    return out
