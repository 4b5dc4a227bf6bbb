"""`laplace_filter` on whole and split fields, the other one without strong winds."""

import jax
import numpy as np
import pytest

from credit_jax.physics.laplace_filter import filter_scalar, filter_wind
from tests.physics import world
from tests.physics.runs import build, run_blocks, run_credit
from tests.support import assert_close, make_mesh

U, V, T, Q = (f"S/prognostic/3d/{name}" for name in "UVTQ")
ARGS = {
    "winds": [{"u": U, "v": V, "steps": 3}],
    "scalars": [{"variables": [T]}, {"variables": [Q], "steps": 8, "strength": 5e7}],
}


def tree(rows: int, columns: int = 150) -> dict:
    rng = np.random.default_rng(1)
    fields = {key: rng.normal(size=(2, 2, 1, rows, columns)) for key in (U, V, T, Q)}
    empty = {"S": {}}
    return {"y_processed": {"S": fields}, "x_physical": empty, "ic_raw": empty}


def test_each_variable_has_its_filter():
    before = tree(23)["y_processed"]["S"]
    after = build("laplace_filter", ARGS)(tree(23), None)["y_processed"]["S"]
    wind = filter_wind(before[U], before[V], 3)
    assert_close(after[U], wind[0], 1e-12, "U")
    assert_close(after[V], wind[1], 1e-12, "V")
    assert_close(after[T], filter_scalar(before[T], 5, 1e8), 1e-12, "T")
    assert_close(after[Q], filter_scalar(before[Q], 8, 5e7), 1e-12, "Q")


def test_the_same_on_a_mesh():
    specs = {"filter": ("laplace_filter", ARGS)}
    with jax.enable_x64(True):
        whole = run_blocks(specs, tree(23))["filter"]
        split = run_blocks(specs, tree(23), make_mesh(dp=2, domain=3))["filter"]
    for what, ours, theirs in zip(("value", "gradient"), split, whole, strict=True):
        for key in theirs:
            assert_close(ours[key], theirs[key], 1e-12, f"{what} {key}")


def test_a_grid_without_rows_between_the_poles():
    with pytest.raises(ValueError, match=r"20 x 150 points; .* needs 21 rows"):
        build("laplace_filter", ARGS)(tree(20), None)


@pytest.mark.reference
def test_no_strong_wind(credit):
    """CREDIT's gradient is NaN: sqrt(num / (den + 1e-12)) of wind_filter.py, at 0 / 0.

    The mask is 0 everywhere then, and with it both sums. Values are not changed.
    """
    paths = {"physics": "", "levels": ""}
    kind, args = world.blocks(paths)["wind, anisotropic"]
    spec = kind, {**args, "speed_threshold": 1e4}
    fields = world.tree(5)
    expected, theirs = run_credit(spec, fields)
    assert np.isnan(theirs[world.U]).any()
    values, gradients = run_blocks({"wind": spec}, fields)["wind"]
    for key, field in expected.items():
        assert_close(values[key], field, 1e-6, key)
        assert_close(field, fields["y_processed"]["S"][key], 1e-6, f"{key}, unchanged")
        assert np.isfinite(gradients[key]).all(), key
        assert gradients[key].any(), key
