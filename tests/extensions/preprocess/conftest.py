"""Fixtures: the small data set of the data tests."""

from tests.data.conftest import folder as folder
from tests.data.conftest import world as world
from tests.data.sources.test_stores import native as native
