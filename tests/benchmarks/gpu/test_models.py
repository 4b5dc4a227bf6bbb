"""The committed values of CREDIT: how they are made, and what is not right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import models
from benchmarks.gpu.records import Setting
from credit_jax.models.registry import MODELS


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_the_committed_values_are_those_of_the_command(credit, tmp_path: Path) -> None:
    del credit
    from benchmarks.gpu.reference import main

    families = ("debugger", "fuxi")
    main(["models", "--families", *families, "--out", str(tmp_path)])
    for family in families:
        made = models.read_values(tmp_path / models.VALUES.name, family)
        kept = models.read_values(models.VALUES, family)
        assert made.keys() == kept.keys()
        for name, array in kept.items():
            assert made[name] == pytest.approx(array, rel=1e-3, abs=1e-5), name


def test_every_family_that_credit_has_is_among_them() -> None:
    assert set(models.FAMILIES) >= MODELS.keys() - {"wxformer_base", "wxformer_moe"}
    items = models.items(Setting(Path("out")))
    assert len(set(items)) == len(items) == 2 * len(models.FAMILIES)
    for family in models.FAMILIES:
        values = models.read_values(models.VALUES, family)
        kinds = {name.split(" ")[0] for name in values}
        assert {"forward", "gradient"} <= kinds <= {"forward", "gradient", "state"}
        assert all(np.isfinite(array).all() for array in values.values())


def test_a_wrong_prediction_or_gradient_is_not_right() -> None:
    values = models.read_values(models.VALUES, "debugger")
    found = models.distances("debugger", values, plain=True)
    assert found["forward"] <= 1e-6 > found["gradient"] / 10
    for name in models.TOLERANCES:
        key = next(key for key in values if key.startswith(name))
        wrong = {**values, key: values[key] * 1.01}
        again = models.distances("debugger", wrong, plain=True)
        assert again[name] > models.TOLERANCES[name]


def test_the_table_has_the_worst_first() -> None:
    results = {
        family: {"family": family, "way": "kernels", "right": right, **errors}
        for family, right, errors in (
            ("fuxi", True, {"forward": 1e-7, "gradient": 1e-6}),
            ("swin", False, {"forward": 1e-6, "gradient": 1e-3}),
        )
    }
    intro, table = models.tables({**results, "graph, kernels": {}})
    assert "1 of 2 are right" in intro
    assert [row[0] for row in table.rows] == ["swin, kernels", "fuxi, kernels"]
    assert table.rows[0][-1] == "**no**"
