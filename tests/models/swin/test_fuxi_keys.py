"""The key table of fuxi against CREDIT's own state dicts and optimizer, bit for bit."""

import chex
import numpy as np
import pytest
import torch
import yaml

from credit_jax import from_state_dict, to_state_dict
from credit_jax.models.conversion import idle_keys, key_map_for
from credit_jax.models.registry import build
from credit_jax.nn.model_state import SPECTRAL_NORM
from credit_jax.nn.spectral_norm import spectral_norm_shapes
from credit_torch_bridge import compare_with_credit
from credit_torch_bridge.__main__ import main
from credit_torch_bridge.checkpoint.optimizer import read_moments
from tests.models.swin.cases import BASE, FUXI_CASES
from tests.reference.training import GEN2_CONFIG

pytestmark = pytest.mark.reference

# name: changes of BASE
VARIANTS = {
    "two directions": {"num_groups": [4, 2]},
    "no spectral norm": {"use_spectral_norm": False},
    "trained qkv": {"train_qkv": True},
    "one block": {"depth": 1},
    "no block": {"depth": 0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(credit, name):
    block = BASE | VARIANTS[name]
    model_def = build(block)
    block = {key: value for key, value in block.items() if key != "train_qkv"}
    model = credit.build_credit(block, seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    params, model_state = from_state_dict(model_def, state)
    shapes = {path: array.shape for path, array in params.items()}
    assert shapes == {k: tuple(d.shape) for k, d in model_def.param_specs.items()}
    assert sum(p.numel() for p in model.parameters()) == model_def.num_parameters
    assert set(model_state[SPECTRAL_NORM]) == set(model_def.matrices)
    for path, param_spec in model_def.matrices.items():
        vectors = model_state[SPECTRAL_NORM][path]
        found = {name: vector.shape for name, vector in vectors.items()}
        assert found == spectral_norm_shapes(param_spec), path
    back = to_state_dict(model_def, params, model_state)
    assert list(back) == list(state), "the keys, or their order, differ"
    chex.assert_trees_all_equal(back, state, strict=True)
    names = [name for name, _ in model.named_parameters()]
    assert key_map_for(model_def).parameters.keys == names


@pytest.fixture(scope="module")
def files(credit, tmp_path_factory):
    """A config and a checkpoint after two updates, as CREDIT writes them."""
    folder = tmp_path_factory.mktemp("fuxi")
    model = credit.build_credit(BASE, seed=3).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1
    )
    for _ in range(2):
        optimizer.zero_grad()
        x = build(BASE).inputs["x"].shape(2)
        (model(torch.randn(x)) ** 2).mean().backward()
        optimizer.step()
    torch.save(
        {
            "epoch": 0,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
        },
        folder / "checkpoint.pt",
    )
    whole = yaml.safe_load(GEN2_CONFIG.read_text()) | {"model": BASE}
    whole["trainer"]["use_scheduler"] = False
    (folder / "model.yml").write_text(yaml.safe_dump(whole))
    return folder


def test_parameters_without_gradient_are_the_frozen_ones(credit, files):
    """CREDIT's AdamW has no state of qkv, and ours no moments."""
    case = credit.credit_case(BASE)
    model_def = build(BASE)
    without = [key for key in case.parameters if key not in case.gradients]
    plan = key_map_for(model_def).parameters
    frozen = [k for k in plan.keys if k not in plan.trainable.keys]
    assert without == frozen
    assert all(key.endswith("attn.qkv.weight_orig") for key in without)
    assert len(without) == BASE["depth"]
    assert idle_keys(model_def) == []
    checkpoint = torch.load(files / "checkpoint.pt", weights_only=True)
    moments, _ = read_moments(checkpoint["optimizer_state_dict"], plan)
    assert moments.mu.keys() == model_def.trainable.keys()
    assert moments.count == 2


def test_files_there_and_back(files, tmp_path, capsys):
    given = files / "checkpoint.pt"
    for way in ("jax", "torch"):
        flags = ["--config", str(files / "model.yml"), "--checkpoint", str(given)]
        out = tmp_path / way
        code = main(["convert", "--to", way, *flags, "--out", str(out)])
        assert code == 0, capsys.readouterr().err
        given = out
    before = torch.load(files / "checkpoint.pt", weights_only=True)["model_state_dict"]
    after = torch.load(tmp_path / "torch" / "checkpoint.pt", weights_only=True)
    after = after.get("model_state_dict", after)
    assert list(after) == list(before)
    for key, value in before.items():
        assert torch.equal(after[key], value), key


# Dropout is irrelevant to the comparison, which is in evaluation mode.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FUXI_CASES if name != "dropout"])
@pytest.mark.filterwarnings("ignore:.*does not see")
def test_every_block_compares(credit, name, tmp_path):
    block = FUXI_CASES[name]
    arrays = credit.credit_case(block, seed=3).state
    state = {key: torch.from_numpy(array) for key, array in arrays.items()}
    torch.save({"model_state_dict": state}, tmp_path / "checkpoint.pt")
    (tmp_path / "model.yml").write_text(yaml.safe_dump({"model": block}))
    found = compare_with_credit(tmp_path / "model.yml", tmp_path / "checkpoint.pt")
    print("\n".join(found.lines()))
    assert found.within_tolerance
    assert len(found.blocks) == 5
    assert max(found.blocks.values()) < 1e-5
    assert not np.isnan(found.gradient)
