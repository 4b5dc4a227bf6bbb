"""The observation operator of docs/assimilation.md."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.custom_objects import register_objects
from credit_jax.extensions.assimilation.operators import operators_of
from tests.extensions.assimilation.windows import GRID_OF_RUN, START, STEP, drawn
from tests.support.code_blocks import code_blocks
from tests.support.custom_objects import no_objects_left

__all__ = ["no_objects_left"]
pytestmark = pytest.mark.usefixtures("no_objects_left")

PAGE = Path(__file__).parents[2] / "docs/assimilation.md"


def test_the_operator_of_the_page(tmp_path):
    """It is found by its name, and takes the mean at the nearest point and step."""
    (code,) = code_blocks(PAGE.read_text(), "python")
    (tmp_path / "mine.py").write_text(code)
    keys = {"object_type": "operator", "module_path": str(tmp_path / "mine.py")}
    register_objects({"custom_objects": {"thickness": keys}})
    operator = operators_of({"DZ": "thickness"}, GRID_OF_RUN)["DZ"]
    table = drawn(3).assign(
        time=START + STEP * np.array([0, 2, 3]),
        latitude=[75.0, 50.0, -75.0],
        longitude=[-1.0, 37.0, 330.0],
    )
    field = np.random.default_rng(0).random((4, 2, 6, 10)).astype(np.float32)
    trajectory = {"demo/prognostic/3d/T": jnp.asarray(field)}
    actual = operator(operator.prepare(table, GRID_OF_RUN), trajectory)
    places = [(0, 0, 0), (2, 1, 1), (3, 5, 9)]
    expected = [field[t, :, row, column].mean() for t, row, column in places]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
