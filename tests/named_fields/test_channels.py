"""The channel ranges of variables."""

import jax.numpy as jnp

from credit_jax.named_fields import ChannelLayout

LAYOUT = ChannelLayout.of({"T": 3, "SP": 1, "U": 2})


def test_slices_follow_each_other():
    assert LAYOUT.num_channels == 6
    places = {key: (s.start, s.stop) for key, s in LAYOUT.slices.items()}
    assert places == {"T": (0, 3), "SP": (3, 4), "U": (4, 6)}


def test_means_over_the_channels_of_a_variable():
    values = jnp.asarray([1.0, 2.0, 6.0, 5.0, 1.0, 3.0])
    means = LAYOUT.per_variable(values)
    assert means.tolist() == [3.0, 5.0, 2.0]
    back = LAYOUT.per_channel(means)
    assert back.shape == (1, 6, 1, 1, 1)
    assert back.ravel().tolist() == [3.0, 3.0, 3.0, 5.0, 2.0, 2.0]
