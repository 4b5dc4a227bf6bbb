"""Twenty training steps against CREDIT's trainer: same YAML, weights and batches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.reference.training import GEN2_CONFIG
from tests.training.credit_trajectory import MESHES, assert_follows, train_as_credit


@pytest.mark.slow(but=["dp2_tensor2_domain2"])
@pytest.mark.parametrize("mesh", [*MESHES])
def test_losses_follow_credit(
    credit_run: Any, monkeypatch: pytest.MonkeyPatch, mesh: str
) -> None:
    folder, run = credit_run
    monkeypatch.chdir(folder)
    ours = train_as_credit(GEN2_CONFIG, mesh, run)
    assert_follows(ours, run, GEN2_CONFIG, mesh)
