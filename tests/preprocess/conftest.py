"""The small data set of the tests of data."""

from tests.data.conftest import folder as folder
from tests.data.conftest import world as world
