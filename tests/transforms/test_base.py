"""What a transform answers that has no answers of its own."""

import numpy as np
import pytest

from credit_jax.transforms import TRANSFORMS, Transform
from credit_jax.transforms.base import preblock


class Halved(Transform):
    """A transform that answers with the defaults."""

    def __call__(self, tree, context=None):
        return {key: value / 2 for key, value in tree.items()}


def test_the_defaults():
    halved = Halved()
    assert halved({"x": np.ones(1)})["x"] == 0.5
    assert halved.schema_after({"input": []}) == {"input": []}
    assert halved == halved
    assert halved != Halved()
    with pytest.raises(ValueError, match="it has no inverse"):
        halved.inverse({"x": 1})


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="there is a preblock 'concat' already"):
        preblock("concat")(Halved)
    assert TRANSFORMS["preblocks"]["concat"] is not Halved
