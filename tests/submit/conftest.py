"""The tiny model is known."""

from tests.training.conftest import tiny_model

__all__ = ["tiny_model"]
