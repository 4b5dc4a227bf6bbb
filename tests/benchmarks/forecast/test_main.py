"""The tables of the forecast benchmark; no forecast is run."""

import numpy as np

from benchmarks.forecast import __main__ as benchmark


def test_distances_are_relative_to_deviations_from_the_mean():
    waves = np.sin(np.arange(24.0)).reshape(1, 4, 6)
    base = dict.fromkeys(benchmark.VARIABLES, 280 + waves)
    other = dict(base, U=280 + 1.01 * waves + 0.01 * (waves.mean() - waves))
    (distance,) = benchmark._distances(other, base)
    expected = 0.01 * np.abs(waves.mean()) * np.sqrt(24)
    spread = np.linalg.norm(waves - waves.mean())
    assert np.isclose(distance, expected / spread)
    assert benchmark._distances(base, base) == [0.0]


def test_the_verdict_compares_the_worst_mesh_with_credits_own_distance():
    errors = {name: [1e-6, 2e-6 + i * 1e-6] for i, name in enumerate(benchmark.MESHES)}
    errors |= {benchmark.SERIAL: [0.0, 0.0], benchmark.THREADED: [1e-6, 8e-6]}
    text = benchmark._verdict("CREDIT", errors)
    assert "After 2 steps credit_jax is 4.0e-06 from CREDIT" in text
    assert "0.50 times as far" in text
    rows = benchmark._table("distances", errors).rows
    assert [row[0] for row in rows] == [*benchmark.MESHES, benchmark.THREADED]
