"""CREDIT's checkpoints as the weights that a run begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from credit_jax.config.base import parse
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.training.base_weights import open_base
from tests.bridge.cli.conftest import checkpoint, credit_run_folder
from tests.bridge.cli.runs import MODEL_DEF

__all__ = ["checkpoint", "credit_run_folder"]


@pytest.mark.parametrize("name", ["", "checkpoint.pt"])
@pytest.mark.parametrize("weights", [None, "last"])
def test_a_file_and_a_folder(
    credit_run_folder: Path, checkpoint: Any, name: str, weights: str | None
) -> None:
    section = {"from": str(credit_run_folder / name), "weights": weights}
    finetune = parse(FinetuneConfig, section, "trainer.finetune")
    base = open_base(finetune, "wxformer")
    params, model_state = base.read(MODEL_DEF)
    expected = checkpoint.params if weights == "last" else checkpoint.ema
    assert params.keys() == expected.keys()
    assert all(np.array_equal(params[path], expected[path]) for path in expected)
    vectors = model_state["spectral_norm"]
    for path, pair in checkpoint.model_state["spectral_norm"].items():
        assert all(np.array_equal(vectors[path][side], pair[side]) for side in "uv")
