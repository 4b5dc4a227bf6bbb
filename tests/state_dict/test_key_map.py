"""State dicts read and written by a key plan."""

import chex
import numpy as np
import pytest

from credit_jax.state_dict.key_map import make_key_map
from tests.state_dict.tables import DEPTH, PARAM_SPECS, TABLE


@pytest.fixture
def state(rng):
    """A PyTorch state dict that fits the key plan."""
    shapes = {"stem.0.weight": (2, 4), "stem.0.bias": (2,)}
    shapes |= {f"layers.10.{d}.weight": (2, 4) for d in range(DEPTH)}
    return {key: rng.normal(size=shape) for key, shape in shapes.items()}


@pytest.fixture
def normalized_state(state, rng):
    """The same state dict with spectral norm of its matrices."""
    out = {}
    for key, value in state.items():
        if key.endswith("bias"):
            out[key] = value
            continue
        out[f"{key}_orig"] = value
        out |= {f"{key}_u": rng.normal(size=2), f"{key}_v": rng.normal(size=4)}
    return out


def test_blocks_are_stacked_in_order(state):
    params, model_state = make_key_map(TABLE, PARAM_SPECS).read(state)
    assert set(params) == set(PARAM_SPECS)
    assert model_state == {"spectral_norm": {}, "batch_stats": {}}
    for d in range(DEPTH):
        np.testing.assert_array_equal(
            params["stages/10/kernel"][d], state[f"layers.10.{d}.weight"].T
        )


def test_the_round_trip_is_bitwise(normalized_state):
    matrices = [path for path in PARAM_SPECS if path.endswith("kernel")]
    plan = make_key_map(TABLE, PARAM_SPECS, matrices)
    params, model_state = plan.read(normalized_state)
    vectors = model_state["spectral_norm"]["stages/10/kernel"]
    assert vectors["u"].shape == (DEPTH, 2)
    assert vectors["v"].shape == (DEPTH, 4)
    back = plan.write(params, model_state)
    chex.assert_trees_all_equal(back, normalized_state)


def test_one_report_lists_all_that_is_wrong_with_a_state_dict(state):
    state["extra"] = state.pop("stem.0.bias")
    state["layers.10.1.weight"] = np.zeros((4, 2))
    state["layers.10.3.weight"] = np.zeros((2, 4))
    with pytest.raises(ValueError, match="does not fit") as caught:
        make_key_map(TABLE, PARAM_SPECS).read(state)
    print(caught.value)
    assert str(caught.value).splitlines() == [
        "the PyTorch state dict does not fit the architecture, 4 problems:",
        "  missing: stem.0.bias (2,)",
        "  unexpected: extra (2,)",
        "  unexpected: layers.10.3.weight (2, 4)",
        "  shape: layers.10.1.weight is (4, 2), expected (2, 4)",
    ]


def test_one_report_lists_all_that_is_wrong_with_our_parameters(state):
    plan = make_key_map(TABLE, PARAM_SPECS)
    params, _ = plan.read(state)
    params["stem/1/bias"] = params.pop("stem/0/bias")
    with pytest.raises(ValueError, match="do not fit") as caught:
        plan.write(params, {"spectral_norm": {"stem/0/kernel": {"u": np.zeros(2)}}})
    assert str(caught.value).splitlines()[1:] == [
        "  missing: stem/0/bias (2,)",
        "  unexpected: stem/1/bias (2,)",
        "  unexpected: stem/0/kernel [u] (2,)",
    ]
