"""Keys of CREDIT's state dicts; the checks of tests/models are of arrangements."""

import chex
import numpy as np
import pytest

from credit_jax.models.crossformer.crossformer import WXFORMER
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.key_map import make_key_map
from credit_jax.state_dict.key_table import LINEAR, Arrangement, Rule
from credit_jax.state_dict.torch_model import current_names
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

DEPTH = 3
TABLE = (
    Rule("stem.{i}.weight", "stem/{i}/kernel", LINEAR),
    Rule("stem.{i}.bias", "stem/{i}/bias"),
    Rule("layers.{s}.{d}.weight", "stages/{s}/kernel", LINEAR),
)
PARAM_SPECS = {
    "stem/0/kernel": ParamSpec((4, 2), (None, None), matrix_out=(1,)),
    "stem/0/bias": ParamSpec((2,), (None,)),
    "stages/10/kernel": ParamSpec((4, 2), (None, None), matrix_out=(1,)).stack(DEPTH),
}


@pytest.fixture
def state(rng):
    """A PyTorch state dict that fits the key plan."""
    shapes = {"stem.0.weight": (2, 4), "stem.0.bias": (2,)}
    shapes |= {f"layers.10.{d}.weight": (2, 4) for d in range(DEPTH)}
    return {key: rng.normal(size=shape) for key, shape in shapes.items()}


def test_blocks_are_stacked_in_order(state):
    params, model_state = make_key_map(TABLE, PARAM_SPECS).read(state)
    assert set(params) == set(PARAM_SPECS)
    assert model_state == {"spectral_norm": {}, "batch_stats": {}}
    for d in range(DEPTH):
        np.testing.assert_array_equal(
            params["stages/10/kernel"][d], state[f"layers.10.{d}.weight"].T
        )


def test_the_round_trip_is_bitwise(state, rng):
    """With spectral norm of its matrices, too."""
    matrices = [path for path in PARAM_SPECS if path.endswith("kernel")]
    for key in [key for key in state if key.endswith("weight")]:
        state[f"{key}_orig"] = state.pop(key)
        state |= {f"{key}_u": rng.normal(size=2), f"{key}_v": rng.normal(size=4)}
    plan = make_key_map(TABLE, PARAM_SPECS, matrices)
    params, model_state = plan.read(state)
    vectors = model_state["spectral_norm"]["stages/10/kernel"]
    assert vectors["u"].shape == (DEPTH, 2)
    assert vectors["v"].shape == (DEPTH, 4)
    chex.assert_trees_all_equal(plan.write(params, model_state), state)


CASES = Cases("key_map")


@CASES.case
def a_state_dict_that_does_not_fit(state):
    state["extra"] = state.pop("stem.0.bias")
    state["layers.10.1.weight"] = np.zeros((4, 2))
    state["layers.10.3.weight"] = np.zeros((2, 4))
    make_key_map(TABLE, PARAM_SPECS).read(state)


@CASES.case
def parameters_that_do_not_fit(state):
    plan = make_key_map(TABLE, PARAM_SPECS)
    params, _ = plan.read(state)
    params["stem/1/bias"] = params.pop("stem/0/bias")
    plan.write(params, {"spectral_norm": {"stem/0/kernel": {"u": np.zeros(2)}}})


CASES.rows(Arrangement, "o i -> i", "o -> o i", "o i -> (o i)", "o -> o o")


def table(name):
    """A table with a gap or an overlap."""
    tables = {
        "no rule": TABLE[1:],
        "two rules": (*TABLE, Rule("other.{s}.weight", "stem/{s}/kernel", LINEAR)),
        "a key used twice": (
            *(TABLE[0], Rule("stem.{i}.weight", "stem/{i}/bias"), TABLE[2]),
        ),
        "not stacked": (
            *(*TABLE[:2], Rule("layers.{s}.weight", "stages/{s}/kernel", LINEAR)),
        ),
    }
    make_key_map(tables[name], PARAM_SPECS)


CASES.rows(table, "no rule", "two rules", "a key used twice", "not stacked")


# (name in a file, known names, renaming)
NAMES = [
    ("up_block1.conv.conv.weight", {"up_block1.conv.weight"}, "up_block1.conv.weight"),
    ("up_block1.conv.weight", {"up_block1.conv.weight"}, "up_block1.conv.weight"),
    ("a.convs.2.conv.weight_u", {"a.convs.2.1.weight_u"}, "a.convs.2.1.weight_u"),
    ("a.convs.2.conv.bias", {"a.convs.2.bias"}, "a.convs.2.bias"),
    ("a.convs.2.bias", {"a.convs.2.1.bias"}, "a.convs.2.1.bias"),
    ("a.convs.2.bias", {"a.convs.2.bias"}, "a.convs.2.bias"),
    ("module._orig_mod.a.bias", {"a.bias"}, "a.bias"),
    ("a._checkpoint_wrapped_module.bias", {"a.bias"}, "a.bias"),
    ("module.a.bias", {"b.bias"}, "a.bias"),
    ("x.conv.bias", {"y"}, "x.conv.bias"),
]


def test_names():
    for given, wanted, name in NAMES:
        assert current_names([given], wanted, WXFORMER.renames)[0].name == name
