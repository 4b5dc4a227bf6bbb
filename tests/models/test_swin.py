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
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.mesh.model_fit import model_problems
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from credit_torch_bridge import compare_with_credit
from credit_torch_bridge.__main__ import main
from credit_torch_bridge.checkpoint.optimizer import read_moments
from credit_torch_bridge.compare import comparison
from tests.models.cases import CASES, FUXI, FUXI_BASE, SWIN, SWIN_BASE, section
from tests.models.parity import (
    FLOAT64,
    FORWARD,
    GRADIENT,
    assert_equals_credit,
    run_with_credits_weights,
)
from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close, assert_trees_close, dealt, make_mesh
from tests.support.credit_modules import credit_attribute


def _raise_scales(model: Any) -> None:
    """Sets logit scales below, above and at the clamp."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("logit_scale"):
                parameter[0], parameter[1] = 9.0, blocks.MAX_LOGIT_SCALE


@pytest.mark.slow
def test_the_mask_leaks_at_the_clamp_as_in_credit(
    credit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits reach +-100, so that tokens masked by -100 still get attention."""
    import torch

    case = credit.credit_case(
        FUXI_BASE, seed=3, dtype=torch.float64, prepare=_raise_scales
    )
    with jax.enable_x64(True):
        y, _, by_input, gradients = run_with_credits_weights(FUXI_BASE, case)
        monkeypatch.setattr(blocks, "MASKED", -1e9)
        hidden, *_ = run_with_credits_weights(FUXI_BASE, case)
    assert_close(y, case.y, FLOAT64, "at the clamp: forward")
    assert_close(by_input["x"], case.x_gradient, FLOAT64, "at the clamp: input")
    ours = {key: gradients[key] for key in case.gradients}
    assert_trees_close(ours, case.gradients, FLOAT64, "at the clamp: gradients")
    untrained = [key for key in gradients if key.endswith("qkv.weight_orig")]
    assert len(untrained) == FUXI_BASE["depth"]
    assert not any(np.any(gradients[key]) for key in untrained)
    leak = np.abs(hidden - y).max() / np.abs(y).max()
    print(f"what the leak changes: {leak:.1e}")
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
    from tests.state_dict.round_trip import assert_round_trip

    trained = {**FUXI_BASE, "train_qkv": True}
    assert_round_trip(credit, trained, FUXI_BASE)
    case = credit.credit_case(FUXI_BASE, seed=3, prepare=_train_qkv)
    plain = credit.credit_case(FUXI_BASE, seed=3)
    assert np.array_equal(case.y, plain.y)
    keys = case.gradients.keys() - plain.gradients.keys()
    assert len(keys) == FUXI_BASE["depth"]
    y, _, _, gradients = run_with_credits_weights(trained, case)
    assert_close(y, case.y, FORWARD, "train_qkv: forward")
    for key in sorted(keys):
        assert_close(gradients[key], case.gradients[key], GRADIENT, key)


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


def test_the_program_does_not_grow_with_depth() -> None:
    """Two blocks, without and with a shift, are one iteration of a loop."""

    def equations(depth: int) -> int:
        model_def = build({**FUXI_BASE, "depth": depth})
        weights = jax.eval_shape(model_def.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct(model_def.inputs["x"].shape(1), "float32")

        def forward(weights: Any, x: Any) -> Any:
            return model_def.apply(weights, {"x": x}, Context())

        return str(jax.make_jaxpr(forward)(weights, x)).count(" = ")

    assert equations(4) == equations(40)
    assert equations(41) < 2 * equations(40)


@pytest.mark.slow
def test_padding_is_what_credits_source_means(
    credit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against CREDIT's forward with the padding layer that its constructor omits."""
    padding = credit_attribute("boundary_padding", "TensorPadding")
    model = credit_attribute("models.swin", "SwinTransformerV2Cr")
    made = padding(mode="earth", pad_lat=[2, 2], pad_lon=[4, 4])
    monkeypatch.setattr(model, "padding_opt", made, raising=False)
    assert_equals_credit(credit, SWIN["padded"].block, "padded")


def test_more_channels_out_than_in_are_what_credits_parts_give(
    credit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CREDIT's forward adds zeros of the shape of the input, and fails."""
    block = {**SWIN_BASE, "depths": [1], "output_only_channels": 3}
    with pytest.raises(RuntimeError, match=r"size of tensor a \(8\) must match"):
        credit.credit_case(block)
    model = credit_attribute("models.swin", "SwinTransformerV2Cr")

    def forward(self: Any, x: Any) -> Any:
        return self.forward_head(self.forward_features(x.squeeze(2))).unsqueeze(2)

    monkeypatch.setattr(model, "forward", forward)
    case = credit.credit_case(block, seed=3)
    y, *_ = run_with_credits_weights(block, case)
    assert_close(y, case.y, FORWARD, "more channels out than in")


def test_rates_of_drop_path_grow_from_block_to_block() -> None:
    block = {**SWIN_BASE, "depths": [2, 3], "num_heads": [2, 2], "drop_path_rate": 0.4}
    config: Any = parse_model(block)
    rates = [rate for stage in (0, 1) for rate in config.drop_path(stage)]
    expected = np.linspace(0, 0.4, 5, dtype=np.float32)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize("block", [FUXI_BASE, SWIN_BASE], ids=["fuxi", "swin"])
def test_tensor_degrees_that_do_not_fit(block: dict[str, Any]) -> None:
    (problem,) = model_problems(parse_model(block), {"tp": 4})
    assert "stage 0 has 2 heads, which tensor = 4 of the parallelism" in problem


# Files of models of the Swin family: conversion, comparison, check.


@pytest.fixture(scope="module")
def files(credit, tmp_path_factory):
    """A config and a checkpoint after two updates, as CREDIT writes them."""
    folder = tmp_path_factory.mktemp("fuxi")
    model = credit.build_credit(FUXI_BASE, seed=3).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1
    )
    for _ in range(2):
        optimizer.zero_grad()
        x = build(FUXI_BASE).inputs["x"].shape(2)
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
    whole = yaml.safe_load(GEN2_CONFIG.read_text()) | {"model": FUXI_BASE}
    whole["trainer"]["use_scheduler"] = False
    (folder / "model.yml").write_text(yaml.safe_dump(whole))
    return folder


def test_parameters_without_gradient_are_the_frozen_ones(credit, files):
    """CREDIT's AdamW has no state of qkv, and ours no moments."""
    case = credit.credit_case(FUXI_BASE)
    model_def = build(FUXI_BASE)
    without = [key for key in case.parameters if key not in case.gradients]
    plan = key_map_for(model_def).parameters
    frozen = [k for k in plan.keys if k not in plan.trainable.keys]
    assert without == frozen
    assert all(key.endswith("attn.qkv.weight_orig") for key in without)
    assert len(without) == FUXI_BASE["depth"]
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
@pytest.mark.parametrize("name", ["shifted", "one row of windows", "plain"])
@pytest.mark.filterwarnings("ignore:.*does not see")
def test_every_block_compares(credit, name, tmp_path):
    block = FUXI[name].block
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


def test_blocks_compare(
    credit: Any, tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    """By the command."""
    block = SWIN["stages"].block
    arrays = credit.credit_case(block, seed=3).state
    state = {key: torch.from_numpy(array) for key, array in arrays.items()}
    torch.save({"model_state_dict": state}, tmp_path / "checkpoint.pt")
    (tmp_path / "model.yml").write_text(yaml.safe_dump({"model": block}))
    comparisons = []

    def recorded(*args: Any, **options: Any) -> Any:
        comparisons.append(compare_with_credit(*args, **options))
        return comparisons[-1]

    monkeypatch.setattr(comparison, "compare_with_credit", recorded)
    code = main(["compare", "--checkpoint", str(tmp_path / "checkpoint.pt")])
    text, error = capsys.readouterr()
    print(text, error)
    assert code == 0, error
    (found,) = comparisons
    assert all(f"output of {block}" in text for block in found.blocks)
    assert found.within_tolerance
    assert set(found.blocks) == {"patch_embed", "stages.0", "stages.1", "head"}


def test_compare_says_what_credit_does_not_run(credit: Any, tmp_path: Any) -> None:
    """It fails to build padding, and to run more channels out than in."""
    padded = {**SWIN_BASE, "img_size": [24, 48], "depths": [2], "residual": True}
    pads = {"activate": True, "mode": "earth", "pad_lat": [2, 2], "pad_lon": [4, 4]}
    given = {**padded, "img_size": [20, 40], "padding_conf": pads}
    more = {**SWIN_BASE, "depths": [1], "output_only_channels": 3}
    for built, block, what in ((padded, given, "build"), (more, more, "run")):
        state = credit.build_credit(built, seed=3).state_dict()
        torch.save({"model_state_dict": state}, tmp_path / "checkpoint.pt")
        with pytest.raises(ValueError, match=f"CREDIT fails to {what} this model"):
            compare_with_credit({"model": block}, tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("name", ["wrf", "dscale"])
def test_that_no_data_source_has_the_other_inputs_is_said_with_the_keys(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = yaml.safe_load(GEN2_CONFIG.read_text()) | {
        "model": CASES[f"region {name}"].block
    }
    (tmp_path / "model.yml").write_text(yaml.safe_dump(raw, sort_keys=False))
    assert check_main(["--config", str(tmp_path / "model.yml"), "--no-data"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "set data.time_encoding: {x_extra: [...]}" in text
    assert ("the key input: x_outside" in text) == (name == "wrf")


# Training of FuXi on meshes: FSDP, rematerialization, weight decay, frozen qkv.


BLOCK = {**FUXI_BASE, "depth": 2}
QKV = "u_transformer/blocks/attention/qkv/kernel"
STEPS, BATCH = 20, 4


def _mse(tree: Any, context: Any) -> Any:
    return context.mean((tree["y_pred"] - tree["y"]) ** 2)


@cache
def _train(mesh: str, *, train_qkv: bool = False) -> tuple[Any, Any, np.ndarray]:
    """Returns parameters and model state before and after 20 steps, and the losses."""
    degrees = {"dp": 2, "tp": 2, "domain": 2} if mesh == "2 x 2 x 2" else {}
    policy = {"ac_mode": "full", "min_shard_size": 16} if degrees else {}
    block = {**BLOCK, "train_qkv": train_qkv}
    model = build_parallel_model(block, make_mesh(**degrees), **policy)
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    state = init_state(model, optimizer, jax.random.key(0))
    step = jax.jit(
        make_train_step(model, optimizer, _mse, schedule=optax.constant_schedule(1e-3))
    )
    rng = np.random.default_rng(0)
    shapes = {"x": model.model_def.inputs["x"], "y": model.model_def.output}
    before, losses = jax.device_get((state.params, state.model_state)), []
    for _ in range(STEPS):
        batch = {k: rng.normal(size=(1, *s.shape(BATCH))) for k, s in shapes.items()}
        batch = {k: array.astype("f4") for k, array in batch.items()}
        order = dealt(BATCH, model.axes.num_data)
        batch = {k: array[:, order] for k, array in batch.items()}
        state, info = step(state, place_batch(batch, model.mesh))
        losses.append(np.asarray(info["loss"]).mean())
    after = jax.device_get((state.params, state.model_state))
    return before, after, np.asarray(losses)


@pytest.mark.slow
def test_twenty_steps_equal_one_device() -> None:
    """With FSDP, tp, domain and full rematerialization."""
    actual, expected = _train("2 x 2 x 2"), _train("one")
    assert_close(actual[2], expected[2], 1e-5, "losses of 20 steps")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", "2 x 2 x 2"])
def test_qkv_stays_as_it_is_under_decay(mesh: str) -> None:
    (before, vectors), (after, moved), losses = _train(mesh)
    assert losses[-1] < losses[0]
    assert np.array_equal(before[QKV], after[QKV])
    still = {path for path in before if np.array_equal(before[path], after[path])}
    assert still == {QKV}
    for side in ("u", "v"):
        ours = moved[SPECTRAL_NORM][QKV][side]
        assert np.array_equal(ours, vectors[SPECTRAL_NORM][QKV][side])
        proj = "u_transformer/blocks/attention/proj/kernel"
        one = vectors[SPECTRAL_NORM][proj][side]
        assert not np.array_equal(moved[SPECTRAL_NORM][proj][side], one)


@pytest.mark.slow
def test_train_qkv_trains_it() -> None:
    (before, vectors), (after, moved), _ = _train("one", train_qkv=True)
    assert np.abs(before[QKV] - after[QKV]).max() > 1e-3
    ours = moved[SPECTRAL_NORM][QKV]["u"]
    assert np.array_equal(ours, vectors[SPECTRAL_NORM][QKV]["u"]), "not divided"
