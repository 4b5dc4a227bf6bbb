"""A hand-written backward pass under the transformations of JAX."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.ops.custom_vjp import custom_vjp
from tests.support import assert_trees_close


def definition(x, kernel, factor):
    """Returns `factor * x**2 @ kernel`, whose derivatives of all orders differ."""
    return factor * (x**2 @ kernel)


def passes(wrap):
    """Returns the definition with a backward pass by `wrap`."""

    @partial(wrap, nondiff_argnums=(2,))
    def product(x, kernel, factor):
        return definition(x, kernel, factor)

    def forward(x, kernel, factor):
        return product(x, kernel, factor), (x, kernel)

    def backward(factor, saved, cotangent):
        x, kernel = saved
        by_square = factor * (cotangent @ kernel.T)
        return 2 * x * by_square, factor * ((x**2).T @ cotangent)

    return product, forward, backward


product, _forward, _backward = passes(custom_vjp)
product.defvjp(_forward, _backward)
# As the backward pass of a kernel, this one cannot be differentiated.
opaque, _opaque_forward, _ = passes(custom_vjp)


def _by_callback(factor, saved, cotangent):
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in saved)
    return jax.pure_callback(
        lambda saved, cotangent: jax.tree.map(
            np.asarray, _backward(factor, saved, cotangent)
        ),
        shapes,
        saved,
        cotangent,
        vmap_method="sequential",
    )


def _definition_of_tangents(factor, saved, *tangents):
    return jax.jvp(partial(definition, factor=factor), saved, tangents)[1]


opaque.defvjp(_opaque_forward, _by_callback, _definition_of_tangents)
RNG = np.random.default_rng(0)
X, KERNEL, V, W = (
    jnp.asarray(RNG.normal(size=shape), jnp.float32)
    for shape in ((2, 3), (3, 4), (2, 3), (3, 4))
)
X_MANY = jnp.stack([X, V, X + V])


def precisions(function, *args):
    """Returns those of all matrix products in the lowered function."""
    text = jax.jit(function).lower(*args).as_text()
    lines = [line for line in text.splitlines() if "dot_general" in line]
    return [re.findall(r"precision = \[(\w+), (\w+)\]", line)[0] for line in lines]


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f])
@pytest.mark.parametrize("name", ["highest", "high", None])
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_derivatives_have_the_precision_of_the_call(jit, name, mode):
    @jit
    def forward(x, kernel):
        with jax.default_matmul_precision(name):
            return product(x, kernel, 2.0).sum()

    derivative = {
        "reverse": jax.value_and_grad(forward, (0, 1)),
        "forward": lambda *args: jax.jvp(jit(forward), args, args),
    }[mode]
    level = ((name or "default").upper(),) * 2
    found = precisions(derivative, X, KERNEL)
    assert len(found) == {"reverse": 3, "forward": 5}[mode]
    assert set(found) == {level}


TRANSFORMATIONS = {
    "jvp": lambda f: jax.jvp(f, (X, KERNEL), (V, W)),
    "linearize": lambda f: jax.linearize(f, X, KERNEL)[1](V, W),
    "hessian": lambda f: jax.hessian(lambda x: f(x, KERNEL).sum())(X),
    "jvp of grad": lambda f: jax.jvp(
        jax.grad(lambda x, k: (f(x, k) ** 2).sum(), (0, 1)), (X, KERNEL), (V, W)
    ),
    "third": lambda f: jax.jvp(
        jax.jacfwd(jax.grad(lambda x: (f(x, KERNEL) ** 2).sum())), (X,), (V,)
    ),
    "vmap of grad": lambda f: jax.vmap(
        jax.grad(lambda x, k: (f(x, k) ** 2).sum(), (0, 1)), (0, None)
    )(X_MANY, KERNEL),
    "jvp of vmap": lambda f: jax.jvp(
        lambda k: jax.vmap(f, (0, None))(X_MANY, k), (KERNEL,), (W,)
    ),
    "scan and checkpoint": lambda f: jax.jvp(
        jax.grad(
            lambda k: jax.lax.scan(
                jax.checkpoint(lambda x, _: (jnp.tanh(f(x, k))[:, :3], None)),
                X,
                length=3,
            )[0].sum()
        ),
        (KERNEL,),
        (W,),
    ),
}


@pytest.mark.parametrize(
    "jit", [pytest.param(False, marks=pytest.mark.slow), True], ids=["eager", "jit"]
)
@pytest.mark.parametrize("function", [product, opaque], ids=["derived", "given"])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations_are_those_of_the_definition(name, function, jit):
    def values(function):
        f = partial(jax.jit, static_argnums=2)(function) if jit else function
        found = TRANSFORMATIONS[name](lambda x, k: f(x, k, 2.0))
        return dict(enumerate(jax.tree.leaves(found)))

    assert_trees_close(values(function), values(definition), 1e-5, name)


def test_reverse_mode_is_that_of_jax():
    """It saves the same arrays, and runs the same operations, also in loops."""
    theirs, *both = passes(jax.custom_vjp)
    theirs.defvjp(*both)

    def loss(function, x, kernel):
        def turn(x, _):
            step = jax.checkpoint(lambda x: jnp.tanh(function(x, kernel, 2.0))[:, :3])
            return step(x) + function(x, kernel, 3.0)[:, 1:], None

        return jax.lax.scan(turn, x, length=3)[0].sum()

    def traced(function):
        _, pull = jax.vjp(partial(loss, function), X, KERNEL)
        saved = sorted(leaf.shape for leaf in jax.tree.leaves(pull))
        gradient = jax.grad(partial(loss, function), (0, 1))
        return saved, jax.jit(gradient).lower(X, KERNEL).compile().as_text()

    (saved, text), (expected, program) = traced(product), traced(theirs)
    assert saved == expected
    assert _without_names(text) == _without_names(program)


def _without_names(text):
    """Returns a compiled program without the places of its operations in the code."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    lines = [line.split("=", 1)[-1] for line in text.splitlines() if " = " in line]
    return sorted(re.sub(r"%[\w.-]+", "", line) for line in lines)


@pytest.mark.slow
def test_reverse_mode_of_members_runs_the_backward_pass():
    calls = []
    function, forward, backward = passes(custom_vjp)

    def counted(*args):
        calls.append(jax.typeof(args[-1]).shape)
        return backward(*args)

    function.defvjp(forward, counted)
    members = jax.vmap(lambda x: function(x, KERNEL, 2.0))
    jax.grad(lambda x: members(x).sum())(X_MANY)
    assert calls == [(2, 4)]
