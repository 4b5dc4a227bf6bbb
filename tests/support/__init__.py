"""Helpers shared by tests of all layers."""

from credit_jax.ops.compensated import relative_error as relative_error
from tests.support.errors import assert_close as assert_close
from tests.support.errors import assert_trees_close as assert_trees_close
from tests.support.meshes import dealt as dealt
from tests.support.meshes import make_mesh as make_mesh
