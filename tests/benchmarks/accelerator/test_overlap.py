"""Collectives, and what runs beside them."""

import pytest

from benchmarks.accelerator.overlap import summary, transfers
from benchmarks.accelerator.program import parse
from benchmarks.accelerator.targets import TARGETS
from benchmarks.scale.comm_volume import SUMS
from credit_jax.parallel.rows.reshard import HALO
from tests.benchmarks.accelerator.excerpt import EXCERPT

H100 = TARGETS["h100"]
SUMMED = 2 * 512 * 32


def test_kernels_between_start_and_end():
    found = transfers(parse(EXCERPT), {"domain": 2}, H100)
    halo, total = sorted(found, key=lambda t: t.collective.kind, reverse=True)
    assert (halo.purpose, halo.kernels) == (HALO, 0)
    assert (total.purpose, total.kernels, total.collective.times) == (SUMS, 1, 5)


def test_what_waits_is_what_no_kernel_hides():
    rows = summary(transfers(parse(EXCERPT), {"domain": 2}, H100), H100)
    summed, halo = (next(r for r in rows if r["purpose"] == p) for p in (SUMS, HALO))
    assert (summed["number"], summed["bytes"]) == (5, 5 * SUMMED)
    assert summed["seconds"] == pytest.approx(5 * (10e-6 + SUMMED / 450e9))
    assert 0 < summed["exposed_seconds"] < summed["seconds"]
    assert (summed["nothing_beside"], summed["median_kernels_beside"]) == (0, 1)
    assert halo["exposed_seconds"] == halo["seconds"]
    assert halo["nothing_beside"] == 1


def test_a_collective_that_blocks_hides_nothing():
    sync = 'backend_config={"collective_backend_config":{"is_sync":true}}, '
    text = EXCERPT.replace("to_apply=%add, ", "to_apply=%add, " + sync)
    rows = summary(transfers(parse(text), {"domain": 2}, H100), H100)
    assert all(row["exposed_seconds"] == row["seconds"] for row in rows)
