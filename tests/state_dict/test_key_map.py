"""Keys and arrangements of CREDIT's state dicts."""

import re

import chex
import numpy as np
import pytest

from credit_jax.models.crossformer.crossformer import WXFORMER
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.key_map import make_key_map
from credit_jax.state_dict.key_table import LINEAR, SAME, Arrangement, Rule
from credit_jax.state_dict.torch_model import current_names

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


TRANSPOSED_CONV_2D = Arrangement("i o h w -> h w i o", torch_out=1)

# name: (arrangement, PyTorch's shape, our shape)
CASES = {
    "same": (SAME, (5,), (5,)),
    "linear": (LINEAR, (3, 5), (5, 3)),
    "pointwise": (Arrangement("o i 1 1 -> i o"), (3, 5, 1, 1), (5, 3)),
    "conv": (Arrangement("o i h w -> h w i o"), (3, 5, 2, 4), (2, 4, 5, 3)),
    "conv 3d": (
        Arrangement("o i t h w -> t h w i o"),
        (3, 5, 2, 4, 6),
        (2, 4, 6, 5, 3),
    ),
    "transposed conv": (TRANSPOSED_CONV_2D, (5, 3, 2, 4), (2, 4, 5, 3)),
    "norm of a field": (Arrangement("1 c 1 1 -> c"), (1, 5, 1, 1), (5,)),
    "q, k, v": (Arrangement("(n h d) i 1 1 -> i n h d"), (24, 5, 1, 1), (5, 3, 2, 4)),
    "heads out": (Arrangement("o (h d) 1 1 -> h d o"), (5, 8, 1, 1), (2, 4, 5)),
}
MATRICES = [name for name in CASES if name not in {"same", "norm of a field"}]


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_the_way_back(rng, name):
    arrangement, torch_shape, our_shape = CASES[name]
    array = rng.normal(size=torch_shape).astype(np.float32)
    ours = arrangement.to_ours(array, our_shape)
    assert ours.shape == our_shape
    assert arrangement.torch_shape(our_shape) == torch_shape
    back = arrangement.to_torch(ours)
    np.testing.assert_array_equal(back, array)
    assert back.flags.c_contiguous


def test_rows_of_q_k_v_lie_as_credit_chunks_them(torch):
    rows = np.arange(24.0).reshape(24, 1, 1, 1)
    arrangement = Arrangement("(n h d) i 1 1 -> i n h d")
    ours = arrangement.to_ours(rows, (1, 3, 2, 4))
    q, k, v = torch.tensor(rows[:, 0, 0, 0]).chunk(3)
    for i, chunk in enumerate((q, k, v)):
        np.testing.assert_array_equal(ours[0, i], chunk.reshape(2, 4))


@pytest.mark.parametrize("name", MATRICES)
def test_vectors_give_the_sigma_that_torch_gives(rng, name):
    arrangement, torch_shape, our_shape = CASES[name]
    weight = rng.normal(size=torch_shape)
    out = arrangement.torch_out
    matrix = np.moveaxis(weight, out, 0).reshape(torch_shape[out], -1)
    u, v = rng.normal(size=matrix.shape[0]), rng.normal(size=matrix.shape[1])
    sizes = dict(zip(arrangement.letters, our_shape, strict=True))
    our_u, our_v = (
        a.to_ours(vector, tuple(sizes[letter] for letter in a.letters))
        for a, vector in zip(arrangement.vectors(), (u, v), strict=True)
    )
    letters = "".join(arrangement.letters)
    u_letters, v_letters = ("".join(a.letters) for a in arrangement.vectors())
    ours = arrangement.to_ours(weight, our_shape)
    sigma = np.einsum(f"{letters},{u_letters},{v_letters}->", ours, our_u, our_v)
    assert sigma == pytest.approx(u @ matrix @ v, rel=1e-12)


@pytest.mark.parametrize(
    "pattern", ["o i -> i", "o -> o i", "o i -> (o i)", "o -> o o"]
)
def test_an_arrangement_without_an_inverse_is_refused(pattern):
    with pytest.raises(ValueError, match="name every letter of the left side once"):
        Arrangement(pattern)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (TABLE[1:], "stem/0/kernel: 0 rules match (none), expected 1"),
        (
            (*TABLE, Rule("other.{s}.weight", "stem/{s}/kernel", LINEAR)),
            "stem/0/kernel: 2 rules match (stem/{i}/kernel, stem/{s}/kernel)",
        ),
        (
            (TABLE[0], Rule("stem.{i}.weight", "stem/{i}/bias"), TABLE[2]),
            "stem.0.weight: fills 2 arrays, expected 1",
        ),
        (
            (*TABLE[:2], Rule("layers.{s}.weight", "stages/{s}/kernel", LINEAR)),
            "stages/10/kernel: layers.{s}.weight does not match the parameter spec",
        ),
    ],
    ids=["no rule", "two rules", "a key used twice", "not stacked"],
)
def test_a_table_with_a_gap_or_an_overlap_is_refused(table, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        make_key_map(table, PARAM_SPECS)


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


@pytest.mark.parametrize(("given", "wanted", "name"), NAMES)
def test_names(given, wanted, name):
    assert current_names([given], wanted, WXFORMER.renames)[0].name == name
