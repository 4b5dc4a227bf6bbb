"""The key table of crossformer and crossformer_downscaling, bit for bit."""

import pytest
import torch
import yaml

from credit_jax import from_state_dict
from credit_jax.models.registry import build
from credit_jax.nn.field_attention import FIELD_ATTENTION
from credit_torch_bridge.__main__ import main
from tests.models.crossformer.cases import CROSSFORMER_CASES, DOWNSCALING_CASES
from tests.state_dict.round_trip import assert_round_trip

pytestmark = pytest.mark.reference

MODEL = CROSSFORMER_CASES["mirror"]

# name: changes of MODEL
VARIANTS = {
    "transposed": {},
    "interpolating": {"upsample_v_conv": True},
    "no spectral norm": {"use_spectral_norm": False},
    "frames": {"frames": 2, "output_frames": 2},
    **{kind: {"attention_type": kind} for kind in FIELD_ATTENTION},
}


@pytest.mark.slow(but=["transposed", "coordinate", "mixed"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(credit, name):
    assert_round_trip(credit, MODEL | VARIANTS[name])


@pytest.mark.parametrize("name", DOWNSCALING_CASES)
def test_the_round_trip_of_a_downscaling_model_is_bitwise(credit, name):
    assert_round_trip(credit, DOWNSCALING_CASES[name])


def test_weights_of_a_wxformer_are_refused(credit):
    state = credit.build_credit(MODEL | {"type": "wxformer"}).state_dict()
    arrays = {key: value.numpy() for key, value in state.items()}
    with pytest.raises(ValueError, match="does not fit the architecture") as caught:
        from_state_dict(build(MODEL), arrays)
    assert "unexpected: up_block1.sharp" in str(caught.value)
    assert "missing: up_block4.bias" in str(caught.value)


@pytest.mark.slow
def test_files_carry_running_statistics_there_and_back(credit, tmp_path, capsys):
    """Counters of batch norms are integers; other entries must not be."""
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
