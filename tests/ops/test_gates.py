"""Gates of channel attention against the layers of torch."""

import numpy as np
import pytest
import torch

from credit_jax.ops import neighbor_gate, squeeze_gate
from credit_jax.ops.gates import neighbor_taps
from tests.support.gradients import assert_same, draw, jax_values, torch_values

functional = torch.nn.functional


@pytest.mark.parametrize("bias", [False, True])
def test_squeeze_gate_is_that_of_torch(bias):
    arrays = [draw((2, 6)), draw((6, 3), seed=1), draw((3, 6), seed=2)]
    arrays += [draw((3,), seed=3), draw((6,), seed=4)] if bias else []

    def gate(pooled, squeeze, expand, low=None, high=None):
        return squeeze_gate(pooled, squeeze, expand, squeeze_bias=low, expand_bias=high)

    def torch_gate(pooled, squeeze, expand, low=None, high=None):
        hidden = functional.linear(pooled, squeeze.T, low).relu()
        return functional.linear(hidden, expand.T, high).sigmoid()

    actual = jax_values(gate, *arrays)
    assert_same(actual, torch_values(torch_gate, *arrays), f"bias {bias}")


@pytest.mark.parametrize(("channels", "taps"), [(7, 3), (4, 5), (9, 1)])
def test_neighbor_gate_is_that_of_torch(channels, taps):
    def torch_gate(pooled, kernel):
        mixed = functional.conv1d(
            pooled[:, None], kernel[None, None], padding=taps // 2
        )
        return mixed[:, 0].sigmoid()

    arrays = draw((2, channels)), draw((taps,), seed=1)
    expected = torch_values(torch_gate, *arrays)
    assert_same(jax_values(neighbor_gate, *arrays), expected, f"{taps} taps")


def test_neighbor_taps_are_those_of_credit(credit):
    from tests.support.credit_modules import credit_attribute

    block = credit_attribute("models.unet_attention_modules", "ECABlock")
    wrong = []
    for channels in np.unique(np.geomspace(1, 5000, 300).astype(int)).tolist():
        (size,) = block(channels).conv.kernel_size
        if neighbor_taps(channels) != size:
            wrong.append((channels, size, neighbor_taps(channels)))
    assert not wrong, f"(channels, CREDIT's, ours): {wrong[:5]}"
