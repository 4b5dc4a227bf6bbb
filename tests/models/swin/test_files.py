"""Files of models of the Swin family: conversion, comparison, check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from credit_jax.cli.check import main as check_main
from credit_jax.models.conversion import idle_keys, key_map_for
from credit_jax.models.registry import build
from credit_torch_bridge import compare_with_credit
from credit_torch_bridge.__main__ import main
from credit_torch_bridge.checkpoint.optimizer import read_moments
from credit_torch_bridge.compare import comparison
from tests.models.cases import CASES, FUXI, FUXI_BASE, SWIN, SWIN_BASE
from tests.reference.training import GEN2_CONFIG


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
