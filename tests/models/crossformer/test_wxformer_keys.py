"""WXFormer's key table against CREDIT: state dicts, vectors and predictions."""

from pathlib import Path

import chex
import pytest
import torch
import yaml

from credit_jax import from_state_dict, to_state_dict
from credit_jax.models.registry import build
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.spectral_norm import spectral_norm_shapes

pytestmark = pytest.mark.reference

MODEL = yaml.safe_load(
    (Path(__file__).parents[2] / "reference" / "gen2.yml").read_text()
)["model"] | {"depth": [1, 1, 1, 1]}

# name: changes of MODEL
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


@pytest.mark.slow(but=["spectral norm", "frames", "new name"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(credit, name):
    block = MODEL | VARIANTS[name]
    model_def = build(block)
    model = credit.build_credit(block, seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    params, model_state = from_state_dict(model_def, state)
    shapes = {path: array.shape for path, array in params.items()}
    assert shapes == {k: tuple(d.shape) for k, d in model_def.param_specs.items()}
    assert set(model_state[SPECTRAL_NORM]) == set(model_def.matrices)
    assert model_state[BATCH_STATS] == {}
    for path, param_spec in model_def.matrices.items():
        vectors = model_state[SPECTRAL_NORM][path]
        found = {name: vector.shape for name, vector in vectors.items()}
        assert found == spectral_norm_shapes(param_spec), path
    back = to_state_dict(model_def, params, model_state)
    assert set(back) == set(state)
    chex.assert_trees_all_equal(back, state, strict=True)
    model.load_state_dict({key: torch.from_numpy(v) for key, v in back.items()})


def test_our_own_parameters_come_back_bitwise(rng):
    model_def = build(MODEL)
    params = {
        path: rng.normal(size=param_spec.shape)
        for path, param_spec in model_def.param_specs.items()
    }
    vectors = {
        path: {
            k: rng.normal(size=size) for k, size in spectral_norm_shapes(matrix).items()
        }
        for path, matrix in model_def.matrices.items()
    }
    model_state = {SPECTRAL_NORM: vectors, BATCH_STATS: {}}
    state = to_state_dict(model_def, params, model_state)
    back = from_state_dict(model_def, state)
    chex.assert_trees_all_equal(back, (params, model_state))


def test_weights_of_another_size_are_refused_with_every_key(credit):
    state = credit.build_credit(MODEL | {"depth": [1, 1, 2, 1]}).state_dict()
    arrays = {key: value.numpy() for key, value in state.items()}
    with pytest.raises(ValueError, match="does not fit the architecture") as caught:
        from_state_dict(build(MODEL), arrays)
    lines = str(caught.value).splitlines()[1:]
    assert all("unexpected: layers.2.1.layers.1." in line for line in lines)
    assert len(lines) == sum(".2.1.layers.1." in key for key in arrays)
