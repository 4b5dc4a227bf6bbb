"""CREDIT's checkpoints as the weights that a run begins with."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from credit_jax.models.conversion import key_map_for
from credit_jax.packages.package import open_artifact, restore
from credit_jax.plan.finetune import find_base
from credit_torch_bridge import Moments, from_torch, to_torch
from tests.bridge.cli.conftest import checkpoint, credit_run_folder
from tests.bridge.cli.runs import CONFIG, MODEL_DEF

__all__ = ["checkpoint", "credit_run_folder"]


@pytest.mark.parametrize("name", ["", "checkpoint.pt"])
@pytest.mark.parametrize("weights", [None, "last"])
def test_a_file_and_a_folder(
    credit_run_folder: Path, checkpoint: Any, name: str, weights: str | None
) -> None:
    base = open_artifact(find_base(credit_run_folder / name), weights=weights)
    params, model_state = base.on_host(MODEL_DEF)
    expected = checkpoint.params if weights == "last" else checkpoint.ema
    assert params.keys() == expected.keys()
    assert all(np.array_equal(params[path], expected[path]) for path in expected)
    vectors = model_state["spectral_norm"]
    for path, pair in checkpoint.model_state["spectral_norm"].items():
        assert all(np.array_equal(vectors[path][side], pair[side]) for side in "uv")


def test_a_folder_is_restored_on_a_mesh(
    credit_run_folder: Path, checkpoint: Any, make_mesh: Any
) -> None:
    _, params, _ = restore(credit_run_folder, make_mesh(), weights="last")
    assert all(np.array_equal(params[path], x) for path, x in checkpoint.params.items())


def test_a_run_with_frozen_parameters_goes_to_torch_and_back(
    checkpoint: Any, tmp_path: Path
) -> None:
    """PyTorch's optimizer lists them without state, as CREDIT's after a first step."""
    config = copy.deepcopy(CONFIG)
    config["trainer"]["finetune"] = {"from": "RUN", "freeze": ["stages/*"]}
    moments = checkpoint.moments
    first, second = (
        {path: x for path, x in values.items() if not path.startswith("stages/")}
        for values in (moments.mu, moments.nu)
    )
    trained = replace(checkpoint, moments=Moments(first, second, moments.count))
    written = to_torch(config, trained)
    keys = key_map_for(MODEL_DEF).parameters.keys
    trained_numbers = {i for i, k in enumerate(keys) if not k.startswith("layers.")}
    optimizer = written["checkpoint.pt"]["optimizer_state_dict"]
    assert set(optimizer["state"]) == trained_numbers
    assert optimizer["param_groups"][0]["params"] == [*range(len(keys))]
    torch.save(written["checkpoint.pt"], tmp_path / "checkpoint.pt")
    back = from_torch(config, tmp_path / "checkpoint.pt")
    assert back.moments is not None
    assert back.moments.mu.keys() == first.keys()
    for path, value in first.items():
        assert np.array_equal(back.moments.mu[path], value), path
