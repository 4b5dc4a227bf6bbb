"""The small data set of whole runs."""

from tests.training.conftest import world

__all__ = ["world"]
