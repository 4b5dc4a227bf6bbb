"""Swin networks: blocks, files and training beside CREDIT."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
import yaml

from credit_jax.cli.check import main as check_main
from credit_jax.models.conversion import idle_keys, key_map_for
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build, parse_model
from credit_jax.models.swin import blocks
from credit_jax.models.swin.fuxi import FuxiConfig
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.training.optimizer import adamw
from credit_torch_bridge import compare_with_credit
from credit_torch_bridge.__main__ import main
from credit_torch_bridge.checkpoint.optimizer import read_moments
from tests.models import parity
from tests.models.cases import CASES, FUXI_BASE, SWIN_BASE, section
from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close, assert_trees_close
from tests.support.credit_modules import credit_attribute


def _raise_scales(model: Any) -> None:
    """Sets logit scales below, above and at the clamp."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("logit_scale"):
                parameter[0], parameter[1] = 9.0, blocks.MAX_LOGIT_SCALE


@pytest.mark.slow
def test_the_mask_leaks_at_the_clamp_as_in_credit(credit: Any, monkeypatch: Any):
    """Logits reach +-100, so that tokens masked by -100 still get attention."""
    case = credit.credit_case(
        FUXI_BASE, seed=3, dtype=torch.float64, prepare=_raise_scales
    )
    with jax.enable_x64(True):
        y, _, by_input, gradients = parity.run_with_credits_weights(FUXI_BASE, case)
        monkeypatch.setattr(blocks, "MASKED", -1e9)
        hidden, *_ = parity.run_with_credits_weights(FUXI_BASE, case)
    assert_close(y, case.y, parity.FLOAT64, "at the clamp: forward")
    assert_close(by_input["x"], case.x_gradient, parity.FLOAT64, "at the clamp: input")
    ours = {key: gradients[key] for key in case.gradients}
    assert_trees_close(ours, case.gradients, parity.FLOAT64, "at the clamp: gradients")
    untrained = [key for key in gradients if key.endswith("qkv.weight_orig")]
    assert len(untrained) == FUXI_BASE["depth"]
    assert not any(np.any(gradients[key]) for key in untrained)
    leak = np.abs(hidden - y).max() / np.abs(y).max()
    assert leak > 1e-4, "the case must have a leak to say much"


def _train_qkv(model: Any) -> None:
    """Makes CREDIT's layers use the parameter itself, so that it gets a gradient."""
    for name, module in model.named_modules():
        if name.endswith("qkv"):
            del module.weight
            module.__dict__["weight"] = module.weight_orig


@pytest.mark.slow
def test_trained_qkv(credit: Any) -> None:
    """With `train_qkv`: equal prediction, and the gradient that CREDIT omits."""
    trained = {**FUXI_BASE, "train_qkv": True}
    parity.assert_round_trip(credit, trained, FUXI_BASE)
    case = credit.credit_case(FUXI_BASE, seed=3, prepare=_train_qkv)
    plain = credit.credit_case(FUXI_BASE, seed=3)
    assert np.array_equal(case.y, plain.y)
    keys = case.gradients.keys() - plain.gradients.keys()
    assert len(keys) == FUXI_BASE["depth"]
    y, _, _, gradients = parity.run_with_credits_weights(trained, case)
    assert_close(y, case.y, parity.FORWARD, "train_qkv: forward")
    for key in sorted(keys):
        assert_close(gradients[key], case.gradients[key], parity.GRADIENT, key)


def test_patches_fit_where_credit_runs() -> None:
    """Convolutions round halves up; Python rounds them to even numbers."""
    fit = []
    for size in range(8, 40):
        block = section(FUXI_BASE, image_height=size, patch_height=4)
        config = FuxiConfig(**{k: v for k, v in block.items() if k != "padding_conf"})
        if not any(config.problems()):
            fit.append(size)
    expected = [s for s in range(8, 40) if -(-(s // 4) // 2) == round(s / 4 / 2)]
    assert fit == expected
    assert 36 not in fit, "round(4.5) is 4, and nine patches make five"
    assert 12 in fit, "round(1.5) is 2"


@pytest.mark.slow
def test_padding_is_what_credits_source_means(credit: Any, monkeypatch: Any) -> None:
    """Against CREDIT's forward with the padding layer that its constructor omits."""
    padding = credit_attribute("boundary_padding", "TensorPadding")
    model = credit_attribute("models.swin", "SwinTransformerV2Cr")
    made = padding(mode="earth", pad_lat=[2, 2], pad_lon=[4, 4])
    monkeypatch.setattr(model, "padding_opt", made, raising=False)
    parity.assert_equals_credit(credit, CASES["swin padded"].block, "padded")


MORE_OUT = {**SWIN_BASE, "depths": [1], "output_only_channels": 3}


def test_more_channels_out_than_in_are_what_credits_parts_give(
    credit: Any, monkeypatch: Any
) -> None:
    """CREDIT's forward adds zeros of the shape of the input, and fails."""
    with pytest.raises(RuntimeError, match=r"size of tensor a \(8\) must match"):
        credit.credit_case(MORE_OUT)
    model = credit_attribute("models.swin", "SwinTransformerV2Cr")

    def forward(self: Any, x: Any) -> Any:
        return self.forward_head(self.forward_features(x.squeeze(2))).unsqueeze(2)

    monkeypatch.setattr(model, "forward", forward)
    case = credit.credit_case(MORE_OUT, seed=3)
    y, *_ = parity.run_with_credits_weights(MORE_OUT, case)
    assert_close(y, case.y, parity.FORWARD, "more channels out than in")


def test_rates_of_drop_path_grow_from_block_to_block() -> None:
    block = {**SWIN_BASE, "depths": [2, 3], "num_heads": [2, 2], "drop_path_rate": 0.4}
    config: Any = parse_model(block)
    rates = [rate for stage in (0, 1) for rate in config.drop_path(stage)]
    expected = np.linspace(0, 0.4, 5, dtype=np.float32)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


# Files of models of the Swin family: conversion, comparison, check.


def write_model(folder: Path, block: Any, state: Any) -> list[str]:
    """Writes model.yml and CREDIT's checkpoint.pt; returns the flags that name them."""
    torch.save({"model_state_dict": state}, folder / "checkpoint.pt")
    raw = yaml.safe_load(GEN2_CONFIG.read_text()) | {"model": block}
    (folder / "model.yml").write_text(yaml.safe_dump(raw, sort_keys=False))
    files = ("--config", "model.yml"), ("--checkpoint", "checkpoint.pt")
    return [text for flag, name in files for text in (flag, str(folder / name))]


def test_parameters_without_gradient_are_the_frozen_ones(credit):
    """CREDIT's AdamW has no state of qkv after two updates, and ours no moments."""
    model, model_def = credit.build_credit(FUXI_BASE, seed=3).train(), build(FUXI_BASE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(model_def.inputs["x"].shape(2))) ** 2).mean().backward()
        optimizer.step()
    plan = key_map_for(model_def).parameters
    without = [key for key, p in model.named_parameters() if p.grad is None]
    assert without == [k for k in plan.keys if k not in plan.trainable.keys]
    assert all(key.endswith("attn.qkv.weight_orig") for key in without)
    assert len(without) == FUXI_BASE["depth"]
    assert idle_keys(model_def) == []
    moments, _ = read_moments(optimizer.state_dict(), plan)
    assert moments.mu.keys() == model_def.trainable.keys()
    assert moments.count == 2


# Dropout is irrelevant to the comparison, which is in evaluation mode.
@pytest.mark.slow(but=["swin stages"])
@pytest.mark.parametrize(
    "name", ["fuxi shifted", "fuxi one row of windows", "fuxi plain", "swin stages"]
)
@pytest.mark.filterwarnings("ignore:.*does not see")
def test_every_block_compares(credit, name, tmp_path, capsys):
    block = CASES[name].block
    arrays = credit.credit_case(block, seed=3).state
    state = {key: torch.from_numpy(array) for key, array in arrays.items()}
    flags = write_model(tmp_path, block, state)
    comparison = compare_with_credit(*flags[1::2])
    assert comparison.within_tolerance
    assert max(comparison.blocks.values()) < 1e-5
    assert not np.isnan(comparison.gradient)
    if name != "swin stages":
        assert len(comparison.blocks) == 5
        return
    assert {*comparison.blocks} == {"patch_embed", "stages.0", "stages.1", "head"}
    code = main(["compare", *flags[2:]])
    text, error = capsys.readouterr()
    assert code == 0, error
    assert all(f"output of {block}" in text for block in comparison.blocks)


def test_compare_says_what_credit_does_not_run(credit: Any, tmp_path: Any) -> None:
    """It fails to build padding, and to run more channels out than in."""
    padded = section(CASES["swin padded"].block, pad=("earth", [2, 2], [4, 4]))
    bare = {**padded, "img_size": [24, 48], "padding_conf": None}
    for built, block, what in ((bare, padded, "build"), (MORE_OUT, MORE_OUT, "run")):
        state = credit.build_credit(built, seed=3).state_dict()
        write_model(tmp_path, block, state)
        with pytest.raises(ValueError, match=f"CREDIT fails to {what} this model"):
            compare_with_credit({"model": block}, tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("name", ["wrf", "dscale"])
def test_that_no_data_source_has_the_other_inputs_is_said_with_the_keys(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = write_model(tmp_path, CASES[f"region {name}"].block, {})
    assert check_main([*flags[:2], "--no-data"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "set data.time_encoding: {x_extra: [...]}" in text
    assert ("the key input: x_outside" in text) == (name == "wrf")


# Training of FuXi on meshes: FSDP, rematerialization, weight decay, frozen qkv.


@cache
def _trained(mesh: str, *, train_qkv: bool = False) -> Any:
    """Returns states before and after 20 steps, and the reports."""
    policy = {"ac_mode": "full", "min_shard_size": 16} if mesh != "one" else {}
    block = {**FUXI_BASE, "depth": 2, "train_qkv": train_qkv}
    model = build_parallel_model(block, parity.mesh_of(mesh), **policy)
    schedule = optax.constant_schedule(1e-3)
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    return parity.train(model, optimizer, 20, schedule=schedule)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "2x2x2"])
def test_qkv_stays_as_it_is_under_decay(mesh: str) -> None:
    """Losses of 20 steps with FSDP, tp, domain and full rematerialization are equal."""
    qkv, proj = (f"u_transformer/blocks/attention/{n}/kernel" for n in ("qkv", "proj"))
    before, after, infos = _trained(mesh)
    losses, expected = ([i["loss"] for i in x] for x in (infos, _trained("one")[2]))
    assert_close(losses, expected, 1e-5, "losses of 20 steps")
    assert np.mean(losses[-1]) < np.mean(losses[0])
    still = {p for p, x in before.params.items() if np.array_equal(x, after.params[p])}
    assert still == {qkv}
    trained, moved, _ = _trained("one", train_qkv=True)
    assert np.abs(trained.params[qkv] - moved.params[qkv]).max() > 1e-3
    ours, new, one, other = (
        state.model_state[SPECTRAL_NORM] for state in (before, after, trained, moved)
    )
    for side in ("u", "v"):
        assert np.array_equal(ours[qkv][side], new[qkv][side])
        assert not np.array_equal(ours[proj][side], new[proj][side])
        assert np.array_equal(one[qkv][side], other[qkv][side]), "not divided"
