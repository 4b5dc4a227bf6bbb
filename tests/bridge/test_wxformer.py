"""WXFormer's key table against CREDIT itself: state dicts, vectors and predictions."""

from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import yaml

from credit_jax.models.registry import build
from credit_jax.nn.spectral_norm import vector_shapes
from credit_torch_bridge import from_state_dict, to_state_dict

pytestmark = pytest.mark.reference

MODEL = yaml.safe_load(
    (Path(__file__).parents[1] / "reference" / "gen2.yml").read_text()
)["model"]

# name: what differs from MODEL
VARIANTS = {
    "spectral norm": {},
    "no spectral norm": {"use_spectral_norm": False},
    "deep": {"depth": [2, 1, 3, 1]},
    "frames": {"frames": 2, "output_frames": 2},
    "patches": {
        "patch_height": 2,
        "patch_width": 2,
        "image_height": 64,
        "image_width": 128,
    },
    "new name": {"type": "wxformer_base"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(credit, name):
    block = MODEL | VARIANTS[name]
    architecture = build(block)
    model = credit.build_credit(block, seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    params, vectors = from_state_dict(architecture, state)
    shapes = {path: array.shape for path, array in params.items()}
    assert shapes == {k: tuple(d.shape) for k, d in architecture.declarations.items()}
    assert set(vectors) == set(architecture.matrices)
    for path, declaration in architecture.matrices.items():
        found = {name: vector.shape for name, vector in vectors[path].items()}
        assert found == vector_shapes(declaration), path
    back = to_state_dict(architecture, params, vectors)
    assert set(back) == set(state)
    for key, value in state.items():
        np.testing.assert_array_equal(back[key], value, err_msg=key)
        assert back[key].dtype == value.dtype, key
    model.load_state_dict({key: torch.from_numpy(v) for key, v in back.items()})


def test_our_own_parameters_come_back_bitwise(rng):
    architecture = build(MODEL)
    params = {
        path: rng.normal(size=declaration.shape)
        for path, declaration in architecture.declarations.items()
    }
    vectors = {
        path: {k: rng.normal(size=size) for k, size in vector_shapes(matrix).items()}
        for path, matrix in architecture.matrices.items()
    }
    state = to_state_dict(architecture, params, vectors)
    back = from_state_dict(architecture, state)
    jax.tree.map(np.testing.assert_array_equal, back, (params, vectors))


def test_weights_of_another_size_are_refused_with_every_key(credit):
    state = credit.build_credit(MODEL | {"depth": [1, 1, 2, 1]}).state_dict()
    arrays = {key: value.numpy() for key, value in state.items()}
    with pytest.raises(ValueError, match="does not fit the architecture") as caught:
        from_state_dict(build(MODEL), arrays)
    lines = str(caught.value).splitlines()[1:]
    assert all("unexpected: layers.2.1.layers.1." in line for line in lines)
    assert len(lines) == sum(".2.1.layers.1." in key for key in arrays)
