"""`build_parallel_model`: what it takes from degrees, and from a mesh."""

import jax
import pytest

from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.params.spec import DENSE_TENSOR_DIMS, TENSOR_DIMS
from tests.models.cases import CASES

BLOCK = CASES["wxformer earth"].block
EXPERTS = CASES["wxformer experts"].block


def test_degrees_carry_what_a_mesh_cannot():
    dims = ParallelDims(domain=2, ulysses_degree=2, world_size=2)
    model = build_parallel_model(BLOCK, dims)
    assert dict(model.mesh.shape) == {"domain": 2}
    assert model.axes == dims.mesh_axes, "with the exchange of heads for rows"
    for etp, split in ((None, TENSOR_DIMS), (1, DENSE_TENSOR_DIMS)):
        dims = ParallelDims(tp=2, etp=etp, world_size=2)
        assert build_parallel_model(EXPERTS, dims).parallel_config.rules.tensor == split


def test_devices_of_degrees():
    devices = jax.devices()[4:6]
    dims = ParallelDims(tp=2, world_size=2)
    mesh = build_parallel_model(BLOCK, dims, devices=devices).mesh
    assert list(mesh.devices.flat) == devices
    with pytest.raises(ValueError, match="tp 2 = 2 devices, but 8 are given"):
        build_parallel_model(BLOCK, dims, devices=jax.devices())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ulysses_degree": 2}, "ulysses_degree given beside a ParallelDims"),
        ({"ulysses_degree": 1, "etp": 1}, "ulysses_degree and etp given beside a"),
    ],
)
def test_degrees_are_given_once(options, words):
    dims = ParallelDims(domain=2, world_size=2)
    with pytest.raises(ValueError, match=words):
        build_parallel_model(BLOCK, dims, **options)


def test_a_mesh_has_its_devices():
    mesh = ParallelDims(domain=2, world_size=2).build_mesh()
    with pytest.raises(ValueError, match="devices given beside a Mesh, which has its"):
        build_parallel_model(BLOCK, mesh, devices=jax.devices()[:2])
