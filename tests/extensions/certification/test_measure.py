"""What a certificate measures of a mesh, and the meshes that a model fits."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from credit_jax.extensions.certification.measure import FORECAST
from credit_jax.extensions.certification.subject import (
    CANDIDATES,
    NUM_SAMPLES,
    ONE_DEVICE,
    chosen_meshes,
    dims_of,
    reference_of,
    subject_of_model,
)
from credit_jax.models.registry import build
from credit_jax.transforms import ONE_STEP
from tests.extensions.certification.test_faults import NOISY, SECTION, measured
from tests.training.toy_runs import MODEL_DEF

MEMBERS = 3


@pytest.mark.slow(but=["fsdp2xdomain2"])
@pytest.mark.parametrize("mesh", ["ddp2", "fsdp4", "fsdp2xdomain2"])
def test_members_of_a_forecast(tmp_path, mesh):
    """Each sample's, adjacent, with noise that depends on no mesh."""
    with jax.enable_x64(True):
        forecast = replace(ONE_STEP, num_members=MEMBERS)
        subject = replace(subject_of_model(NOISY, x64=True), forecast=forecast)
        expected = measured(subject, ONE_DEVICE, tmp_path, parts=(FORECAST,))
        actual = measured(subject, mesh, tmp_path, expected, (FORECAST,))
    (name,) = expected.forecast
    whole = expected.forecast[name]
    assert len(np.unique(whole[:, 0, 0, 0, 0])) == len(whole) == NUM_SAMPLES * MEMBERS
    np.testing.assert_allclose(actual.forecast[name], whole, rtol=0, atol=1e-13)


def test_the_samples_of_a_batch_of_trees():
    """In float64 its entries are sorted by name: the first may be named fields."""
    subject = subject_of_model(MODEL_DEF)
    batch = {"forcing": {"ERA5": {}}, **subject.batches[0]}
    assert replace(subject, batches=(batch,)).num_samples == NUM_SAMPLES


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("1", {"world_size": 1}),
        ("ddp2xfsdp2xtp2", dict.fromkeys(("dp_replicate", "dp_shard", "tp"), 2)),
        ("ddp2xfsdp2xtp2", {"world_size": 8}),
        ("domain4xulysses2", {"ulysses_degree": 2, "world_size": 4}),
        ("ep2xtp2xetp1", {"etp": 1, "world_size": 4}),
    ],
)
def test_a_name_is_degrees(name, degrees):
    assert {key: getattr(dims_of(name), key) for key in degrees} == degrees


def test_meshes_that_fit():
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    assert {dims_of(name).world_size for name in CANDIDATES} <= {*range(2, 9)}

    def chosen(*arguments, **options):
        return chosen_meshes(build(SECTION), None, *arguments, num_samples=4, **options)

    names = {*chosen(4)}
    assert {"fsdp4", "domain3", "domain2xulysses2"} <= names
    assert not {"ep2", "domain8", "fsdp2xtp2xdomain2"} & names
    assert len(chosen(8)) >= 12
    ranks = {*chosen(8, num_ranks=2)}
    assert {"fsdp2", "ddp2"} <= ranks
    assert not {"tp2", "fsdp4"} & ranks
    # Members that are ranks have a reference of as many.
    assert (reference_of(None), reference_of(2)) == ("1", "ddp2")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "expected 1, or factors ddpN") for name in ("tp", "tp2xtp2", "tp0")),
        *((name, "expected 1, or factors ddpN") for name in ("dp2", "2tp")),
        ("ep2", "has no experts to share"),
        ("domain8xtp2", "it has 16 devices, there are 8"),
        ("ddp3", "its 3 data-parallel ranks do not fit: expected a divisor of 8"),
    ],
)
def test_a_mesh_that_was_asked_for_and_does_not_fit(name, reason):
    with pytest.raises(ValueError, match=reason):
        chosen_meshes(build(SECTION), ["tp2", name], 8, num_samples=8)
