"""The model of configs/assimilate_demo.yaml, in a file beside it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from credit_jax.config.custom_objects import register_objects
from credit_jax.models.registry import build
from credit_jax.parallel.params.spec import Initializer
from tests.models.parity import assert_equals_one_device

PATH = Path(__file__).parents[2] / "configs" / "spectral_tendency.py"
BLOCK = {
    "type": "spectral_tendency",
    "image_height": 12,
    "image_width": 24,
    "levels": 2,
}
BLOCK |= {"channels": 2, "surface_channels": 1, "input_only_channels": 2}
BLOCK |= {"output_only_channels": 1, "dim": 6, "hidden": 8, "depth": 2}
BLOCK |= {"truncation": 7, "scales": [0.1, 0.2, 0.3, 0.4, 0.5]}


@pytest.fixture(autouse=True)
def module():
    """The registered model's module."""
    keys = {"object_type": "model", "module_path": str(PATH)}
    keys["module_name"] = "SPECTRAL_TENDENCY"
    register_objects({"custom_objects": {"spectral_tendency": keys}})
    return sys.modules[type(build(BLOCK).config).__module__]


@pytest.mark.slow(but=["2x2x2"])
@pytest.mark.parametrize("mesh", ["domain3", "2x2x2"])
def test_equals_one_device(mesh, module, monkeypatch):
    """With a last layer that is not 0, as it is before training."""
    monkeypatch.setattr(module, "constant", lambda _: Initializer("normal", 0.3))
    assert_equals_one_device(BLOCK, mesh, "spectral tendency")


def test_gradients_are_those_of_a_known_field(module):
    """f = cos(lat) sin(lat) cos(lon), of degree 2 and order 1."""
    sphere = module.sphere(12, 24, 7)
    latitude = np.arcsin(sphere.factors[:, 0])
    sine, cosine = np.sin(latitude)[:, None], np.cos(latitude)[:, None]
    longitude = np.arange(24) * 2 * np.pi / 24
    field = cosine * sine * np.cos(longitude)
    rows = np.einsum("yx,pmx->ypm", field, sphere.analysis)
    harmonics = np.einsum("ypm,ymn->pmn", rows, sphere.inverse)

    def on_the_grid(functions, east=False):
        rows = np.einsum("pmn,ymn->ypm", harmonics, functions)
        if east:
            rows = np.stack([rows[:, 1], -rows[:, 0]], 1)
        return np.einsum("ypm,pmx->yx", rows, sphere.waves)

    north = 0.1 * (cosine**2 - sine**2) * np.cos(longitude)
    east = -0.1 * sine * np.sin(longitude)
    for actual, expected in (
        (on_the_grid(sphere.functions), field),
        (on_the_grid(sphere.northward), north),
        (on_the_grid(sphere.eastward, east=True), east),
    ):
        np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_scales_are_those_of_the_channels(module):
    config = module.SpectralTendencyConfig(**{**BLOCK, "scales": [0.1]})
    assert [*config.problems()] == ["model.scales has 1 numbers for 5 channels"]
