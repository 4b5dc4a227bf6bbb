"""log, sqrt, exp, square and fill_values against CREDIT's blocks."""

import warnings

import numpy as np
import pytest

from credit_jax.config import ConfigError
from credit_jax.transforms import Phase
from tests.support import assert_close
from tests.transforms.cases import CONCAT, T, postblocks, preblocks
from tests.transforms.credit_blocks import built, compare, fields, host_results

pytestmark = pytest.mark.reference

# Whole key, prefix of a key, everything; a string, which CREDIT splits; nothing.
SELECTIONS = [[T], ["S/prognostic/2d"], [], T, ["S/prognostic/3d/TT"]]


@pytest.mark.parametrize(("base", "eps"), [("e", 1e-8), ("2", 1e-3), ("10", 0.5)])
def test_log_and_exp(credit, base, eps):
    from credit.postblock.exp import ExpTransform
    from credit.preblock.log import LogTransform

    args = {"variables": [T], "base": base, "eps": eps}
    ours = built("preblocks", "log_transform", **args)
    host, _ = compare(ours, LogTransform(**args), "target", fields())
    back = ours.inverse({"target": {"S": host}})["target"]["S"]
    assert_close(back[T], fields()[T], 1e-5, "there and back")
    ours = built("postblocks", "exp_transform", **args)
    compare(ours, ExpTransform(**args), "y_processed", fields(high=2.0))


@pytest.mark.parametrize("variables", SELECTIONS)
def test_sqrt_and_square(credit, variables):
    from credit.postblock.square import SquareTransform
    from credit.preblock.sqrt import SqrtTransform

    args = {"variables": variables}
    ours = built("preblocks", "sqrt_transform", **args)
    host, _ = compare(ours, SqrtTransform(**args), "input", fields())
    back = ours.inverse({"input": {"S": host}})["input"]["S"]
    assert_close(back[T], fields()[T], 1e-6, "there and back")
    key = "y_target_processed"
    ours = built("postblocks", "square_transform", **args, key=key)
    host, expected = compare(ours, SquareTransform(**args, key=key), key, fields())
    for name, x in expected.items():
        assert np.array_equal(host[name], x), "bitwise"


@pytest.mark.parametrize("data_types", [["input"], ["target"], None])
def test_data_types(credit, data_types):
    from credit.preblock.sqrt import SqrtTransform

    args = {"variables": [], "data_types": data_types}
    block = built("preblocks", "sqrt_transform", **args)
    for part in ("input", "target"):
        host = host_results(block, part, fields())
        changed = data_types is None or part in data_types
        assert np.array_equal(host[T], fields()[T]) != changed
    assert SqrtTransform(**args).data_types == list(block.data_types)


def test_fill_values(credit):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a backslash in its docstring
        from credit.preblock.fill_values import FillValues

    rules = [
        {"search": "nan", "fill": -1.5},
        {"search": 0.0, "fill": 1e-4},
        {"search": 0.1, "op": "<=", "fill": 7},
        {"search": 2, "op": ">", "fill": 2.0},
        {"search": 1.0, "op": "!=", "fill": 0.75},
        {"search": 0.0, "op": "<", "fill": 0.0},
    ]
    x = fields(low=-1.0, high=3.0)
    for key in x:
        x[key][0, :, :, 0, 0], x[key][1, :, :, 1, 1] = np.nan, 0.0
        x[key][1, :, :, 2, 2], x[key][0, :, :, 3, 3] = 0.1, 1.0
    for chosen in (rules[:4], rules, rules[::-1]):
        args = {"rules": chosen, "variables": [T]}
        ours = built("preblocks", "fill_values", **args)
        import torch

        theirs = {key: torch.tensor(own) for key, own in x.items()}
        theirs = FillValues(**args)({"input": {"S": theirs}})["input"]["S"]
        host = host_results(ours, "input", x)
        for key, own in theirs.items():
            assert np.array_equal(host[key], own.numpy(), equal_nan=True), "bitwise"
        clean = {key: np.nan_to_num(own) for key, own in x.items()}
        compare(ours, FillValues(**args), "input", clean)


@pytest.mark.parametrize(
    ("kind", "args", "text"),
    [
        ("log_transform", {"variables": [], "base": "3"}, "args.base"),
        ("log_transform", {}, "args.variables"),
        ("sqrt_transform", {"variables": [], "data_types": ["x"]}, "data_types"),
        ("fill_values", {"rules": [{"search": "none", "fill": 1}]}, "search"),
        ("fill_values", {"rules": [{"search": 1.0, "op": "=", "fill": 1}]}, "op"),
    ],
)
def test_bad_arguments(kind, args, text):
    with pytest.raises(ConfigError, match=text):
        preblocks(block={"type": kind, "args": args}, concat=CONCAT)


def test_a_key_without_fields():
    chain = postblocks(exp={"type": "exp_transform", "args": {"variables": []}})
    text = "key 'y_processed' names no fields of variables; there are: input"
    with pytest.raises(ValueError, match=text):
        chain.run(Phase.AFTER_STEP, {"input": {}, "y_pred": np.zeros((1, 1, 1, 2, 2))})
