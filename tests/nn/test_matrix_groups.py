"""Groups and families of matrices."""

from jax.sharding import PartitionSpec as P

from credit_jax.nn.matrix_groups import MOST_VALUES, group_matrices, matrix_families
from credit_jax.parallel.params.spec import ParamSpec

SQUARE = ParamSpec((8, 8), (None, None), matrix_out=(1,))
PATHS = "abcde"
SPECS = {path: P("dp") if path in "bd" else P(None, "dp") for path in PATHS}


def _families(specs, sizes=None):
    groups = group_matrices(dict.fromkeys(PATHS, SQUARE), specs, large=0)
    families = matrix_families(groups, sizes)
    return ["".join(path for path, _ in family.paths()) for family in families]


def test_families_are_sharded_alike():
    assert _families(None) == ["abcde"]
    assert _families(SPECS) == ["ace", "bd"]


def test_families_have_a_limited_size():
    """Sums over devices of the first families need not wait for the last."""
    third = MOST_VALUES // 3
    assert _families(None, dict.fromkeys(PATHS, third)) == ["abc", "de"]
    assert _families(None, dict.fromkeys(PATHS, 4 * third)) == list(PATHS)
    sizes = {**dict.fromkeys(PATHS, third), "c": MOST_VALUES}
    assert _families(SPECS, sizes) == ["a", "bd", "c", "e"]
