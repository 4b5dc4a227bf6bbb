"""What a pipeline may be given as a transform."""

import re

import pytest

from credit_jax.transforms import Transform
from credit_jax.transforms.base import as_transform


class Halved(Transform):
    """A transform that answers with the defaults."""

    def __call__(self, tree, context=None):
        return {key: value / 2 for key, value in tree.items()}


class Described:
    """Answers a question of pipelines, but is no `Transform`."""

    def __call__(self, tree, context=None):
        return dict(tree)

    def describe(self, known):
        return {"new": {"units": "m"}}


def test_functions_and_transforms():
    halved = Halved()
    assert as_transform(halved) is halved
    function = as_transform(lambda tree, context: {**tree, "context": context})
    assert function({"x": 1}, None) == {"x": 1, "context": None}
    for transform in (halved, function):
        assert transform.schema_after({"input": []}) == {"input": []}
        with pytest.raises(ValueError, match="it has no inverse"):
            transform.inverse({"x": 1})


def test_what_would_never_be_asked():
    message = "Described has describe, which only a credit_jax.transforms.Transform"
    with pytest.raises(ValueError, match=re.escape(message)):
        as_transform(Described())
    with pytest.raises(ValueError, match=r"a function .* got dict"):
        as_transform({})
