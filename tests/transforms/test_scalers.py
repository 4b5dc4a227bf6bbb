"""bridgescaler_transform and flatten_to_tensor against CREDIT's and bridgescaler."""

import re
import warnings

import numpy as np
import pytest

from credit_jax.transforms import Phase
from tests.support import assert_close
from tests.transforms.cases import CONCAT, LSM, SP, TP, T, group, postblocks, preblocks
from tests.transforms.credit_blocks import (
    NUM_COLUMNS,
    NUM_ROWS,
    built,
    compare,
    fields,
    host_results,
    write_scalers,
)

pytestmark = pytest.mark.reference

KINDS = {
    "standard": ("standard", {}),
    "minmax": ("minmax", {}),
    "columns": ("standard", {"channels_last": True}),
    "quantile": ("quantile", {"compression": 50}),
    "normal": ("quantile", {"compression": 50, "distribution": "normal"}),
    "logistic": ("quantile", {"compression": 20, "distribution": "logistic"}),
    "fast": (
        "quantile",
        {"distribution": "normal", "fast_transform": True, "n_knots": 64},
    ),
}
# The distribution function has kinks at centroids, and near the ends `ndtri` is steep,
# so that rounding of the quantile is amplified.
TOLERANCES = dict.fromkeys(("standard", "minmax", "columns"), (1e-6, 2e-6))
QUANTILE = (1e-5, 2e-4)
SHARDS = (1, 2, 3, 4, 8)


@pytest.fixture
def exact_roots(monkeypatch):
    """Makes torch's square root exact as in IEEE 754; its own may be a bit off."""
    import torch

    def root(x):
        return torch.tensor(np.sqrt(x.detach().numpy()))

    monkeypatch.setattr(torch, "sqrt", root)


@pytest.fixture(scope="module")
def scalers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scalers")
    made = {}

    def path(name, **options):
        kind, params = KINDS[name]
        key = (name, *options)
        if key not in made:
            made[key] = write_scalers(
                folder / f"{len(made)}.json", kind, **params, **options
            )
        return made[key]

    return path


@pytest.mark.slow(but=["standard", "minmax", "columns", "fast"])
@pytest.mark.parametrize("name", KINDS)
def test_both_directions(credit, scalers, name):
    from credit.postblock.scaler import BridgeScalerTransform as Post
    from credit.preblock.scaler import BridgeScalerTransform as Pre

    values, gradients = TOLERANCES.get(name, QUANTILE)
    tolerance = {"values": values, "gradients": gradients}
    args = {"scaler_path": scalers(name), "variables": []}
    forward = built("preblocks", "bridgescaler_transform", **args)
    host, _ = compare(forward, Pre(**args), "input", fields(), **tolerance)
    back = forward.inverse({"input": {"S": host}})["input"]["S"]
    for key, x in fields().items():
        assert_close(
            back[key], x, 1e-6 if name in TOLERANCES else 1e-2, "there and back"
        )
    inverse = built("postblocks", "bridgescaler_transform", **args)
    scaled = host_results(forward, "target", fields())
    compare(inverse, Post(**args), "y_processed", scaled, **tolerance)


@pytest.mark.parametrize("name", ["standard", "minmax", "columns"])
@pytest.mark.usefixtures("exact_roots")
def test_bitwise_on_the_host(credit, scalers, name):
    import torch
    from credit.preblock.scaler import BridgeScalerTransform as Pre

    for method in ("transform", "inverse_transform"):
        args = {"scaler_path": scalers(name), "variables": [], "method": method}
        batch = {key: torch.tensor(x) for key, x in fields().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = Pre(**args)({"target": {"S": batch}})["target"]["S"]
        ours = built("preblocks", "bridgescaler_transform", **args)
        for key, x in host_results(ours, "target", fields()).items():
            assert x.tobytes() == theirs[key].numpy().tobytes(), (name, method, key)


@pytest.mark.slow(but=["standard"])
@pytest.mark.parametrize("name", ["standard", "quantile", "fast"])
def test_by_grid_point(credit, scalers, name):
    from credit.postblock.scaler import BridgeScalerTransform as Post
    from credit.preblock.scaler import BridgeScalerTransform as Pre

    values, gradients = TOLERANCES.get(name, QUANTILE)
    tolerance = {"values": values, "gradients": gradients}
    args = {"scaler_path": scalers(name, per_point=(SP,)), "variables": []}
    args["spatial_variables"] = ["S/prognostic/2d"]
    forward = built("preblocks", "bridgescaler_transform", **args)
    compare(forward, Pre(**args), "target", fields(), **tolerance, shards=SHARDS)
    inverse = built("postblocks", "bridgescaler_transform", **args)
    scaled = host_results(forward, "target", fields())
    compare(inverse, Post(**args), "y_processed", scaled, **tolerance)


def test_a_selection_and_one_entry(credit, scalers):
    args = {"scaler_path": scalers("standard"), "variables": [T]}
    block = built("preblocks", "bridgescaler_transform", **args, data_types=["target"])
    assert np.array_equal(host_results(block, "input", fields())[T], fields()[T])
    done = host_results(block, "target", fields())
    assert np.array_equal(done[SP], fields()[SP])
    assert not np.array_equal(done[T], fields()[T])


def test_flatten_to_tensor(credit, scalers):
    import torch
    from credit.postblock.reconstruct import FlattenToTensor

    slices = {SP: slice(0, 1), T: slice(1, 5)}
    shapes = {SP: (1, 1), T: (4, 1)}
    described = {k: {"slice": slices[k], "orig_shape": shapes[k]} for k in slices}
    for args in (
        {},
        {"scaler_path": scalers("minmax")},
        {"scaler_path": scalers("minmax"), "variables": [T]},
        {"scaler_path": scalers("minmax"), "variables": []},
    ):
        batch = {key: torch.tensor(x) for key, x in fields().items()}
        meta = {"target": {"_channel_map": described}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = FlattenToTensor(**args)(
                {"y_processed": {"S": batch}, "metadata": meta}
            )["y_pred"]
        ours = built("postblocks", "flatten_to_tensor", **args)
        tree = {"y_processed": {"S": fields()}, "channel_map": slices}
        done = ours(tree)
        assert done["y_pred"][:, :, 0].tobytes() == theirs.numpy().tobytes()
        assert np.array_equal(done["y_processed"]["S"][T], fields()[T])


def chain(path, **args):
    args = {"scaler_path": path, "variables": [], **args}
    return preblocks(
        scaler={"type": "bridgescaler_transform", "args": args}, concat=CONCAT
    )


@pytest.mark.parametrize(
    ("groups", "args", "text"),
    [
        (
            [(T, 4), (TP, 1)],
            {},
            f"no scaler of {TP} in the input scalers of {{path}}; there are: {SP}",
        ),
        ([(TP, 1), (LSM, 1)], {}, f"no scaler of {TP}, {LSM} in the input scalers of"),
        (
            [(T, 3)],
            {},
            f"{{path}}: {T}: the scaler has 4 channels, the data have 3 levels",
        ),
        (
            [(T, 4)],
            {"spatial_variables": [T]},
            f"{{path}}: {T}: it stands in spatial_variables and has 4 levels",
        ),
        (
            [(T, 4), (SP, 1)],
            {"variables": [T], "spatial_variables": [SP]},
            "but `variables` does not select it",
        ),
    ],
)
def test_scalers_of_other_variables(scalers, groups, args, text):
    made, path = [group(*own) for own in groups], scalers("standard")
    with pytest.raises(ValueError, match=re.escape(text.format(path=path))):
        chain(path, **args).check({"input": made, "target": made})


def test_blocks_of_one_file_have_the_same_spatial_variables(scalers):
    args = {"scaler_path": scalers("standard", per_point=(SP,)), "variables": [SP]}
    kind = "bridgescaler_transform"
    first = {"type": kind, "args": {**args, "spatial_variables": [SP]}}
    groups = {"input": [group(SP, 1)], "target": [group(SP, 1)]}
    preblocks(a=first, b=first, concat=CONCAT).check(groups)
    pipeline = preblocks(a=first, b={"type": kind, "args": args}, concat=CONCAT)
    text = rf"per_step.b: spatial_variables lacks {SP}, which that of \S+per_step.a"
    with pytest.raises(ValueError, match=text):
        pipeline.check(groups)


def test_scalers_of_another_grid(scalers):
    path = scalers("standard", per_point=(SP,))
    block = chain(path, variables=[SP], spatial_variables=[SP])
    x = {SP: np.zeros((1, 1, 1, NUM_ROWS, NUM_COLUMNS + 1), np.float32)}
    text = (
        f"preblocks.per_step.scaler: {path}: {SP}: the scaler has 42 channels, the "
        "field (1, 1, 1, 7, 7) has 49 grid points"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        block.run(Phase.BEFORE_STEP, {"input": {"S": x}})


def test_channels_last_of_levels(scalers):
    """Scalers whose channels are longitudes, of a variable with other longitudes."""
    path = scalers("columns")
    x = {T: np.zeros((1, 4, 1, NUM_ROWS, NUM_COLUMNS + 1), np.float32)}
    text = f"preblocks.per_step.scaler: {path}: {T}: the scaler has {NUM_COLUMNS} chan"
    with pytest.raises(ValueError, match=re.escape(text)):
        chain(path, variables=[T]).run(Phase.BEFORE_STEP, {"input": {"S": x}})


def test_no_file_of_scalers():
    with pytest.raises(
        FileNotFoundError, match=r"no file .nowhere\.json.; `credit-jax preprocess"
    ):
        chain("nowhere.json")
    args = {"scaler_path": "nowhere.json", "variables": []}
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        postblocks(back={"type": "bridgescaler_transform", "args": args})
