"""Local row gathers: regular indices compile to cheaper operations, equal results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.parallel.rows.take import MAX_PIECES, take_rows, take_static

SIZE = 24
# name: rows, primitives of the program.
FORMS = {
    "slice": (range(3, 11), ["slice"]),
    "reversed": (range(23, -1, -1), ["rev"]),
    "reversed part": (range(9, 4, -1), ["slice", "rev"]),
    "zeros around": ([-1, -1, *range(20), -1], ["pad"]),
    "zeros only": ([-1, -1], ["broadcast_in_dim"]),
    "mirror": ([2, 1, *range(SIZE), 22, 21], ["slice", "rev", "concatenate"]),
    "wrap": ([*range(20, SIZE), *range(20)], ["slice", "concatenate"]),
    "zeros between": ([0, 1, -1, 2, 3], ["slice", "concatenate"]),
    "one row often": ([5, 5, 5], ["slice", "concatenate"]),
    "there and back": ([3, 2, 3, 4], ["slice", "rev", "concatenate"]),
    "transpose": (np.arange(24).reshape(6, 4).T.reshape(-1), ["transpose"]),
    "irregular": ([(7 * i) % SIZE for i in range(20)], ["gather"]),
    "irregular with zeros": ([(7 * i) % SIZE - 1 for i in range(20)], ["gather"]),
    "irregular, rows again": ([(7 * i) % SIZE - 1 for i in range(60)], ["gather"]),
    "irregular, one row often": ([9, 2, 7, 0, 9, 3, 5, 1, 4, *[6] * 30], ["gather"]),
    "looks like a transpose": ([0, 4, *range(22)], ["slice", "concatenate"]),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", FORMS)
def test_static_index(name, dim):
    index, primitives = FORMS[name]
    index = [int(i) for i in index]
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    padded = np.concatenate([x, np.zeros_like(np.take(x, [0], dim))], dim)

    def take(x):
        return take_static(x, index, dim)

    out, pullback = jax.vjp(take, jnp.asarray(x))
    assert np.array_equal(out, np.take(padded, index, dim))
    weight = np.random.default_rng(1).integers(-8, 9, out.shape).astype(np.float32)
    expected = np.zeros_like(padded)
    where = (slice(None),) * dim + (np.asarray(index),)
    np.add.at(expected, where, weight)
    expected = np.take(expected, range(SIZE), dim)
    assert np.array_equal(pullback(jnp.asarray(weight))[0], expected)
    text = str(jax.make_jaxpr(take)(x))
    assert all(primitive in text for primitive in primitives), text
    assert ("gather" in primitives) == ("gather" in text), text


def test_a_gradient_scatters_only_where_one_row_is_taken_often():
    def gradient(index):
        loss = lambda x: jnp.square(take_static(x, index, 0)).sum()  # noqa: E731
        return str(jax.make_jaxpr(jax.grad(loss))(jnp.ones((SIZE, 2))))

    for name in ("irregular", "irregular with zeros", "irregular, rows again"):
        assert "scatter" not in gradient(FORMS[name][0]), name
    assert "scatter" in gradient(FORMS["irregular, one row often"][0])


def test_all_rows_are_the_array_itself():
    x = jnp.zeros((SIZE, 2))
    assert take_static(x, list(range(SIZE)), 0) is x


def test_many_pieces_become_a_gather():
    index = [i for k in range(MAX_PIECES + 1) for i in (2 * k, 2 * k + 1, -1)]
    used = str(jax.make_jaxpr(lambda x: take_static(x, index, 0))(jnp.zeros(24)))
    assert "gather" in used


def test_one_device_takes_the_only_list():
    x = jnp.arange(6.0).reshape(6, 1)
    assert take_rows(x, np.asarray([[4, 0]]), None, 0).tolist() == [[4.0], [0.0]]
