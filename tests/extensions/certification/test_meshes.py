"""Names of meshes, and which of them a model fits."""

import pytest

from credit_jax.extensions.certification.meshes import (
    CANDIDATES,
    chosen_meshes,
    dims_of,
    reference_of,
)
from credit_jax.models.registry import build
from tests.extensions.certification.test_faults import SECTION


@pytest.fixture(scope="module")
def model_def():
    return build(SECTION)


def test_a_name_is_degrees():
    dims = dims_of("ddp2xfsdp2xtp2")
    assert (dims.dp_replicate, dims.dp_shard, dims.tp, dims.world_size) == (2, 2, 2, 8)
    assert dims_of("1").world_size == 1
    assert dims_of("domain4xulysses2").ulysses_degree == 2
    assert dims_of("domain4xulysses2").world_size == 4
    assert (dims_of("ep2xtp2xetp1").etp, dims_of("ep2xtp2xetp1").world_size) == (1, 4)


@pytest.mark.parametrize("name", ["dp2", "tp", "tp2xtp2", "tp0", "", "2tp"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="expected 1, or factors ddpN, fsdpN"):
        dims_of(name)


def test_every_candidate_is_a_mesh_of_at_most_8_devices():
    sizes = [dims_of(name).world_size for name in CANDIDATES]
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    assert min(sizes) > 1
    assert max(sizes) == 8


def test_meshes_that_fit(model_def):
    names = chosen_meshes(model_def, None, 4, num_samples=4)
    assert {"fsdp4", "domain3", "domain2xulysses2"} <= set(names)
    assert not {"ep2", "domain8", "fsdp2xtp2xdomain2"} & set(names)
    eight = chosen_meshes(model_def, None, 8, num_samples=4)
    assert len(eight) >= 12
    ranks = chosen_meshes(model_def, None, 8, num_samples=4, num_ranks=2)
    assert {"fsdp2", "ddp2"} <= set(ranks)
    assert not {"tp2", "fsdp4"} & set(ranks)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ep2", "has no experts to share"),
        ("domain8xtp2", "it has 16 devices, there are 8"),
        ("ddp3", "its 3 data-parallel ranks do not fit: expected a divisor of 8"),
    ],
)
def test_a_mesh_that_was_asked_for_and_does_not_fit(model_def, name, reason):
    with pytest.raises(ValueError, match=reason):
        chosen_meshes(model_def, ["tp2", name], 8, num_samples=8)


def test_members_that_are_ranks_have_a_reference_of_as_many():
    assert (reference_of(None), reference_of(2)) == ("1", "ddp2")
