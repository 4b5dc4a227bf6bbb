"""The key table of crossformer against CREDIT's own state dicts, bit for bit."""

import numpy as np
import pytest
import torch

from credit_jax.models.registry import build
from credit_jax.nn.field_attention import KINDS
from credit_jax.nn.spectral_norm import vector_shapes
from credit_torch_bridge import from_state_dict, to_state_dict
from tests.models.cases import CROSSFORMER_CASES

pytestmark = pytest.mark.reference

MODEL = CROSSFORMER_CASES["mirror"]

# name: what differs from MODEL
VARIANTS = {
    "transposed": {},
    "interpolating": {"upsample_v_conv": True},
    "no spectral norm": {"use_spectral_norm": False},
    "frames": {"frames": 2, "output_frames": 2},
    **{kind: {"attention_type": kind} for kind in ("coordinate", *KINDS)},
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
    assert sum(p.numel() for p in model.parameters()) == architecture.num_parameters
    assert set(vectors) == {*architecture.matrices, *architecture.norms}
    for path, declaration in architecture.matrices.items():
        found = {name: vector.shape for name, vector in vectors[path].items()}
        assert found == vector_shapes(declaration), path
    back = to_state_dict(architecture, params, vectors)
    assert list(back) == list(state), "the keys, or their order, differ"
    for key, value in state.items():
        np.testing.assert_array_equal(back[key], value, err_msg=key)
        assert back[key].dtype == value.dtype, key
    model.load_state_dict({key: torch.from_numpy(v) for key, v in back.items()})


def test_weights_of_a_wxformer_are_refused(credit):
    state = credit.build_credit(MODEL | {"type": "wxformer"}).state_dict()
    arrays = {key: value.numpy() for key, value in state.items()}
    with pytest.raises(ValueError, match="does not fit the architecture") as caught:
        from_state_dict(build(MODEL), arrays)
    assert "unexpected: up_block1.sharp" in str(caught.value)
    assert "missing: up_block4.bias" in str(caught.value)
