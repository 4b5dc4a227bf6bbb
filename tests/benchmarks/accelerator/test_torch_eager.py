"""CREDIT's eager step, counted on meta tensors."""

import pytest

from benchmarks.compiled_step import SMALL_MODEL, trace_step
from credit_jax.models.flops import flops_of


@pytest.fixture(scope="module")
def kernels(credit):
    from benchmarks.accelerator.torch_eager import eager_step

    return eager_step(SMALL_MODEL)


@pytest.mark.slow
def test_operations_are_those_of_our_step(kernels):
    _, traced = trace_step(SMALL_MODEL, "1", batch=1)
    ours = flops_of(traced.jaxpr)
    theirs = sum(kernel.flops for kernel in kernels)
    print(f"CREDIT {theirs:.4g}, ours {ours:.4g}")
    assert theirs == pytest.approx(ours, rel=0.03)


def test_autocast_halves_products_and_keeps_sums(credit):
    import torch

    from benchmarks.accelerator.torch_eager import _Autocast

    weight = torch.ones(3, 3, requires_grad=True)
    with _Autocast():
        product = torch.ones(2, 3) @ weight
        assert product.dtype == torch.bfloat16
        assert torch.softmax(product, -1).dtype == torch.float32
        assert (product * product).dtype == torch.bfloat16
        assert product.pow(2).dtype == torch.float32
        assert torch.dot(torch.ones(2), product[:, 0]).dtype == torch.float32


@pytest.mark.slow
def test_views_move_nothing(kernels):
    names = {kernel.kind for kernel in kernels}
    assert not names & {"view", "permute", "expand", "empty"}
    (update,) = (k for k in kernels if k.kind == "update")
    assert update.bytes == 10 * 4 * _num_parameters()


def _num_parameters():
    from credit_jax.models.registry import build

    return build(SMALL_MODEL).num_parameters
