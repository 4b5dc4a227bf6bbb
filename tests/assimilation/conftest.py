"""Fixtures: a run of a small model."""

from tests.adjoint.conftest import *  # noqa: F403
