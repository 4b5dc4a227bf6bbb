"""Fixtures: a run of a small model."""

from tests.extensions.adjoint.conftest import *  # noqa: F403
