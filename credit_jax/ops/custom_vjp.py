"""`jax.custom_vjp` under all transformations of JAX, and casts of varying mesh axes.

`jax.custom_vjp` has a rule for reverse mode alone. Here the derivative of a function is
a primitive that is linear in the tangents. Its transpose is the hand-written backward
pass, and its value is the transpose of that, which JAX derives: `jvp`, `linearize`,
`grad` and their compositions need no second rule, and reverse mode saves and computes
the same as with `jax.custom_vjp`.

JAX tracks them under `shard_map(check_vma=True)`. Outside of `shard_map` nothing varies
and the casts are the identity, so the same definitions run on one device and on many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend import core
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array


def varying_axes(x: Array) -> frozenset[str]:
    """Returns the mesh axes over which `x` varies; empty outside of `shard_map`."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def pvary(x: Array, axes: Sequence[str]) -> Array:
    """Casts `x` to varying over `axes`; the transpose sums the gradient over them."""
    missing = tuple(axis for axis in axes if axis not in varying_axes(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def match_vma(*arrays: Array) -> tuple[Array, ...]:
    """Casts all arrays to varying over the union of their varying axes."""
    axes = sorted(set().union(*(varying_axes(x) for x in arrays)))
    return tuple(pvary(x, axes) for x in arrays)


# Arrays, or numbers of a program.
Leaves = Sequence[Any]


class custom_vjp:
    """A function with a hand-written backward pass, and derivatives of all orders."""

    def __init__(
        self, function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()
    ) -> None:
        # Positions of the precision and of the hashable arguments. The others are
        # pytrees of arrays.
        self._static = (0, *(position + 1 for position in nondiff_argnums))
        self._function = jax.custom_jvp(
            _in_context(function), nondiff_argnums=self._static
        )

    def __call__(self, *args: Any) -> Any:
        config: Any = jax.config
        # All passes are traced with the matmul precision as at the call: JAX traces
        # derivatives where they are taken, which may be outside of its context.
        return self._function(config.jax_default_matmul_precision, *args)

    def defvjp(
        self,
        # (arguments...) -> result, saved; None saves all arguments with a derivative.
        forward: Callable[..., Any] | None,
        # (hashable arguments..., saved, cotangent) -> cotangents of the others.
        backward: Callable[..., Any],
        # (hashable arguments..., saved, tangents...) -> tangent; only for a backward
        # pass that JAX cannot differentiate: it rounds, or consists of kernels.
        tangent: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """Defines the derivative, and returns `backward`, which it may decorate."""
        # `_static` counts from the precision, which is no argument.
        forward = forward or (
            lambda *args: (
                self(*args),
                tuple(x for i, x in enumerate(args, 1) if i not in self._static),
            )
        )
        forward, traced = _in_context(forward), _in_context(backward)
        tangent = _in_context(tangent) if tangent else None

        def rule(*args: Any) -> tuple[Any, Any]:
            *static, primals, tangents = args
            merged = list(primals)
            for position, value in zip(self._static, static, strict=True):
                merged.insert(position, value)
            result, saved = forward(*merged)
            pull = partial(traced, *static)
            push = partial(tangent, *static) if tangent else None
            return result, _apply_derivative(result, saved, tangents, pull, push)

        self._function.defjvp(rule, symbolic_zeros=True)
        return backward


def linear(
    function: Callable[[Array], Array],
    transpose: Callable[[Array], Array],
    x: Array,
    axis: str | None = None,  # mesh axis over which the result varies, too
) -> Array:
    """Applies a linear function whose transpose is written by hand."""
    apply = custom_vjp(function)
    apply.defvjp(
        lambda x: (apply(x), None),
        lambda _, cotangent: (transpose(cotangent),),
    )
    return apply(pvary(x, (axis,) if axis else ()))


def _apply_derivative(
    result: Any,
    saved: Any,
    tangents: tuple[Any, ...],
    backward: Callable[..., Any],
    tangent: Callable[..., Any] | None,
) -> Any:
    """The tangent of the result, as a function whose transpose is `backward`."""
    leaves, tree = jax.tree.flatten(tangents)
    # Tangents that are known to be zero are no operands: nothing is saved for them.
    zero_avals = {
        k: t.aval for k, t in enumerate(leaves) if isinstance(t, SymbolicZero)
    }
    number = len(leaves)  # the functions below outlive the tracers
    varied = [k for k in range(number) if k not in zero_avals]
    results, result_tree = jax.tree.flatten(result)
    types = tuple(jax.typeof(leaf).strip_weak_type() for leaf in results)
    residuals, residual_tree = jax.tree.flatten(saved)

    def pull(residuals: Leaves, cotangents: Leaves) -> list[Any]:
        arguments = (
            residual_tree.unflatten(residuals),
            result_tree.unflatten(cotangents),
        )
        gradients = jax.tree.leaves(backward(*arguments))
        assert len(gradients) == number, "one cotangent for each argument"
        return [gradients[k] for k in varied]

    def push_by_transpose(residuals: Leaves, tangents: Leaves) -> Leaves:
        zeros = [_zeros(aval) for aval in types]
        _, transposed = jax.vjp(partial(pull, residuals), zeros)
        return transposed(tangents)[0]

    def push_by_definition(residuals: Leaves, tangents: Leaves) -> Leaves:
        assert tangent is not None
        every = {k: _zeros(aval) for k, aval in zero_avals.items()}
        every |= zip(varied, tangents, strict=True)
        full_tangents = tree.unflatten([every[k] for k in range(number)])
        return jax.tree.leaves(
            tangent(residual_tree.unflatten(residuals), *full_tangents)
        )

    if tangent:
        push: Any = push_by_definition
        pull = _differentiable(pull, push, [jax.typeof(leaves[k]) for k in varied])
    else:
        push = push_by_transpose
    out = _derivative_p.bind(
        *residuals,
        *(leaves[k] for k in varied),
        num_saved=len(residuals),
        push=push,
        pull=pull,
        types=types,
    )
    return result_tree.unflatten(out)


def _differentiable(
    pull: Callable[..., Any], push: Callable[..., Any], types: Sequence[Any]
) -> Callable[..., Any]:
    """Returns `pull` with the derivative of the transpose of `push`."""

    def transposed(residuals: Leaves, cotangents: Leaves) -> Any:
        _, by_tangents = jax.vjp(
            partial(push, residuals), [_zeros(aval) for aval in types]
        )
        return by_tangents(cotangents)[0]

    pulled = jax.custom_jvp(pull)

    @pulled.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return pulled(*primals), jax.jvp(transposed, primals, tangents)[1]

    return pulled


def _zeros(aval: Any) -> Array:
    """Returns zeros of a type, which vary over the same mesh axes."""
    return pvary(
        jnp.zeros(aval.shape, aval.dtype), sorted(aval.manual_axis_type.varying)
    )


# The derivative of a function at some point: (saved..., tangents...) -> tangents of the
# results. Of its parameters, `push` is its definition and `pull` its transpose, both
# functions of two lists; `types` are those of the results.
_derivative_p = core.Primitive("derivative")
_derivative_p.multiple_results = True


def _push(*args: Any, num_saved: int, push: Callable[..., Any], **_: Any) -> Any:
    return list(push(list(args[:num_saved]), list(args[num_saved:])))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    result = _derivative_p.bind(*primals, **params)
    varied = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    if all(k >= params["num_saved"] for k in varied):  # it is linear in these
        every = list(primals[: params["num_saved"]])
        every += [ad.instantiate_zeros(t) for t in tangents[params["num_saved"] :]]
        return result, _derivative_p.bind(*every, **params)

    def of_varied(*some: Any) -> Any:
        every = list(primals)
        for k, value in zip(varied, some, strict=True):
            every[k] = value
        return _push(*every, **params)

    point, along = ([which[k] for k in varied] for which in (primals, tangents))
    return result, jax.jvp(of_varied, point, along)[1]


def _transpose(
    cotangents: Sequence[Any],
    *args: Any,
    num_saved: int,
    pull: Callable[..., Any],
    **_: Any,
) -> list[Any]:
    full_cotangents = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    pulled = pull(list(args[:num_saved]), full_cotangents)
    return [None] * num_saved + [
        gradient if ad.is_undefined_primal(arg) else None
        for gradient, arg in zip(pulled, args[num_saved:], strict=True)
    ]


def _batch(
    args: Leaves,
    dims: Sequence[int | None],
    *,
    num_saved: int,
    push: Callable[..., Any],
    pull: Callable[..., Any],
    types: Sequence[Any],
) -> tuple[Any, list[int]]:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    # Tangents get the dim even if they lack it, as their cotangents have it.
    moved = [
        a if k < num_saved and d is None else batching.bdim_at_front(a, d, size)
        for k, (a, d) in enumerate(zip(args, dims, strict=True))
    ]
    mapped = [None if d is None else 0 for d in dims[:num_saved]]
    out = _derivative_p.bind(
        *moved,
        num_saved=num_saved,
        push=jax.vmap(push, in_axes=(mapped, 0)),
        pull=jax.vmap(pull, in_axes=(mapped, 0)),
        types=tuple(core.unmapped_aval(size, 0, aval) for aval in types),
    )
    return out, [0] * len(out)


_derivative_p.def_impl(_push)
_derivative_p.def_abstract_eval(lambda *args, types, **_: list(types))
mlir.register_lowering(_derivative_p, mlir.lower_fun(_push, multiple_results=True))
ad.primitive_jvps[_derivative_p] = _jvp
ad.primitive_transposes[_derivative_p] = _transpose
batching.primitive_batchers[_derivative_p] = _batch


def _in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with a matmul precision as another first argument."""

    @wraps(function, assigned=("__name__", "__qualname__", "__doc__"))
    def traced(precision: str | None, *args: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*args)

    del traced.__wrapped__  # whose signature lacks the precision
    return traced
