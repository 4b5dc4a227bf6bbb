"""The small data set and the small model of the training tests."""

from tests.training.conftest import compiled_once as compiled_once
from tests.training.conftest import tiny_model as tiny_model
from tests.training.conftest import world as world
