"""Registers the tiny model."""

from tests.training.conftest import tiny_model

__all__ = ["tiny_model"]
