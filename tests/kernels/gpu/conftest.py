"""Fixtures of the tests of GPU kernels."""

from __future__ import annotations

from typing import Any

import pytest

from credit_jax.kernels.gpu import dense


@pytest.fixture(params=[1, 4])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of groups of every kernel gradient, which divides the rows."""

    def num_groups(*sizes: int, **settings: Any) -> int:
        del sizes, settings
        return request.param

    monkeypatch.setattr(dense, "num_groups", num_groups)
    return request.param
