"""Groups and families of matrices."""

from jax.sharding import PartitionSpec as P

from credit_jax.nn.packed_matrices import matrix_families
from credit_jax.parallel.params.spec import ParamSpec

SQUARE = ParamSpec((8, 8), (None, None), matrix_out=(1,))
PATHS = "abcde"
SPECS = {path: P("dp") if path in "bd" else P(None, "dp") for path in PATHS}


def _families(specs):
    families = matrix_families(dict.fromkeys(PATHS, SQUARE), specs)
    return ["".join(p for group in f for p in group.specs) for f in families]


def test_families_are_sharded_alike():
    assert _families(None) == ["abcde"]
    assert _families(SPECS) == ["ace", "bd"]
