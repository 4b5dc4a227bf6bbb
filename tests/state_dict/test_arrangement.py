"""Arrangements in both directions, also of the vectors of spectral norm."""

import numpy as np
import pytest

from credit_jax.state_dict.arrangement import LINEAR, SAME, Arrangement

TRANSPOSED_CONV_2D = Arrangement("i o h w -> h w i o", torch_out=1)

# name: (arrangement, PyTorch's shape, our shape)
CASES = {
    "same": (SAME, (5,), (5,)),
    "linear": (LINEAR, (3, 5), (5, 3)),
    "pointwise": (Arrangement("o i 1 1 -> i o"), (3, 5, 1, 1), (5, 3)),
    "conv": (Arrangement("o i h w -> h w i o"), (3, 5, 2, 4), (2, 4, 5, 3)),
    "conv 3d": (
        Arrangement("o i t h w -> t h w i o"),
        (3, 5, 2, 4, 6),
        (2, 4, 6, 5, 3),
    ),
    "transposed conv": (TRANSPOSED_CONV_2D, (5, 3, 2, 4), (2, 4, 5, 3)),
    "norm of a field": (Arrangement("1 c 1 1 -> c"), (1, 5, 1, 1), (5,)),
    "q, k, v": (Arrangement("(n h d) i 1 1 -> i n h d"), (24, 5, 1, 1), (5, 3, 2, 4)),
    "heads out": (Arrangement("o (h d) 1 1 -> h d o"), (5, 8, 1, 1), (2, 4, 5)),
}
MATRICES = [name for name in CASES if name not in {"same", "norm of a field"}]


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_the_way_back(rng, name):
    arrangement, torch_shape, our_shape = CASES[name]
    array = rng.normal(size=torch_shape).astype(np.float32)
    ours = arrangement.to_ours(array, our_shape)
    assert ours.shape == our_shape
    assert arrangement.torch_shape(our_shape) == torch_shape
    back = arrangement.to_torch(ours)
    np.testing.assert_array_equal(back, array)
    assert back.flags.c_contiguous


def test_rows_of_q_k_v_lie_as_credit_chunks_them(torch):
    rows = np.arange(24.0).reshape(24, 1, 1, 1)
    arrangement = Arrangement("(n h d) i 1 1 -> i n h d")
    ours = arrangement.to_ours(rows, (1, 3, 2, 4))
    q, k, v = torch.tensor(rows[:, 0, 0, 0]).chunk(3)
    for i, chunk in enumerate((q, k, v)):
        np.testing.assert_array_equal(ours[0, i], chunk.reshape(2, 4))


@pytest.mark.parametrize("name", MATRICES)
def test_vectors_give_the_sigma_that_torch_gives(rng, name):
    arrangement, torch_shape, our_shape = CASES[name]
    weight = rng.normal(size=torch_shape)
    out = arrangement.torch_out
    matrix = np.moveaxis(weight, out, 0).reshape(torch_shape[out], -1)
    u, v = rng.normal(size=matrix.shape[0]), rng.normal(size=matrix.shape[1])
    sizes = dict(zip(arrangement.letters, our_shape, strict=True))
    our_u, our_v = (
        a.to_ours(vector, tuple(sizes[letter] for letter in a.letters))
        for a, vector in zip(arrangement.vectors(), (u, v), strict=True)
    )
    letters = "".join(arrangement.letters)
    u_letters, v_letters = ("".join(a.letters) for a in arrangement.vectors())
    ours = arrangement.to_ours(weight, our_shape)
    sigma = np.einsum(f"{letters},{u_letters},{v_letters}->", ours, our_u, our_v)
    assert sigma == pytest.approx(u @ matrix @ v, rel=1e-12)


@pytest.mark.parametrize(
    "pattern", ["o i -> i", "o -> o i", "o i -> (o i)", "o -> o o"]
)
def test_an_arrangement_without_an_inverse_is_refused(pattern):
    with pytest.raises(ValueError, match="name every letter of the left side once"):
        Arrangement(pattern)
