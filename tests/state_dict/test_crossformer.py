"""The key table of crossformer against CREDIT's own state dicts, bit for bit."""

import chex
import pytest
import torch
import yaml

from credit_jax import from_state_dict, to_state_dict
from credit_jax.models.registry import build
from credit_jax.nn.field_attention import KINDS
from credit_jax.nn.model_state import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.spectral_norm import spectral_norm_shapes
from credit_torch_bridge.__main__ import main
from tests.models.crossformer.cases import CROSSFORMER_CASES

pytestmark = pytest.mark.reference

MODEL = CROSSFORMER_CASES["mirror"]

# name: what differs from MODEL
VARIANTS = {
    "transposed": {},
    "interpolating": {"upsample_v_conv": True},
    "no spectral norm": {"use_spectral_norm": False},
    "frames": {"frames": 2, "output_frames": 2},
    **{kind: {"attention_type": kind} for kind in KINDS},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(credit, name):
    block = MODEL | VARIANTS[name]
    model_def = build(block)
    model = credit.build_credit(block, seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    params, model_state = from_state_dict(model_def, state)
    shapes = {path: array.shape for path, array in params.items()}
    assert shapes == {k: tuple(d.shape) for k, d in model_def.param_specs.items()}
    assert sum(p.numel() for p in model.parameters()) == model_def.num_parameters
    assert set(model_state[SPECTRAL_NORM]) == set(model_def.matrices)
    assert set(model_state[BATCH_STATS]) == set(model_def.batch_stats)
    for path, param_spec in model_def.matrices.items():
        vectors = model_state[SPECTRAL_NORM][path]
        found = {name: vector.shape for name, vector in vectors.items()}
        assert found == spectral_norm_shapes(param_spec), path
    back = to_state_dict(model_def, params, model_state)
    assert list(back) == list(state), "the keys, or their order, differ"
    chex.assert_trees_all_equal(back, state, strict=True)
    model.load_state_dict({key: torch.from_numpy(v) for key, v in back.items()})


def test_weights_of_a_wxformer_are_refused(credit):
    state = credit.build_credit(MODEL | {"type": "wxformer"}).state_dict()
    arrays = {key: value.numpy() for key, value in state.items()}
    with pytest.raises(ValueError, match="does not fit the architecture") as caught:
        from_state_dict(build(MODEL), arrays)
    assert "unexpected: up_block1.sharp" in str(caught.value)
    assert "missing: up_block4.bias" in str(caught.value)


def test_files_carry_running_statistics_there_and_back(credit, tmp_path, capsys):
    """Batch norms' counters are integers, which only they may be."""
    block = MODEL | {"attention_type": "coordinate"}
    model = credit.build_credit(block, seed=2).train()
    with torch.no_grad():
        model(torch.randn(2, model.input_channels, 1, *model_grid(block)))
    state = model.state_dict()
    assert any(key.endswith("num_batches_tracked") for key in state)
    torch.save({"epoch": 0, "model_state_dict": state}, tmp_path / "checkpoint.pt")
    config = tmp_path / "model.yml"
    config.write_text(yaml.safe_dump({"model": block}))
    for way, given in (
        ("jax", tmp_path / "checkpoint.pt"),
        ("torch", tmp_path / "jax"),
    ):
        given = ["--to", way, "--config", str(config), "--checkpoint", str(given)]
        code = main(["convert", *given, "--out", str(tmp_path / way)])
        assert code == 0, capsys.readouterr().err
    back = torch.load(tmp_path / "torch" / "checkpoint.pt", weights_only=True)
    back = back.get("model_state_dict", back)
    assert list(back) == list(state)
    for key, value in state.items():
        assert back[key].dtype == value.dtype, key
        assert torch.equal(back[key], value), key


def model_grid(block):
    return block["image_height"], block["image_width"]
