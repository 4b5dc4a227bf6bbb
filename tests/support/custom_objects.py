"""Objects of `custom_objects` in tests."""

import pytest

from credit_jax.config import custom_objects
from credit_jax.config.components import REGISTRIES


@pytest.fixture
def no_objects_left():
    """Removes what a test registers, at its end."""
    before = set(custom_objects._REGISTERED)
    yield
    for object_type, name in set(custom_objects._REGISTERED) - before:
        del custom_objects._REGISTERED[object_type, name]
        del REGISTRIES[object_type][name]
