"""The reader of scaler files against bridgescaler and CREDIT's variances."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from credit.losses.base import _load_target_variances

from credit_jax.named_fields import read_scalers, target_variances
from credit_jax.named_fields.bridgescaler import (
    DeepStandardScaler,
    MinMaxScaler,
    QuantileScaler,
    StandardScaler,
    levels_of,
    take_channels,
)
from credit_jax.transforms.scaling import scale
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.reference.bridgescaler import import_bridgescaler

CASES = Cases("bridgescaler")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file with one scaler of each class that CREDIT uses."""
    import_bridgescaler()
    from bridgescaler import save_scaler_dict
    from bridgescaler.deep import DeepStandardScaler as TheirDeep
    from bridgescaler.distributed import DQuantileScaler, DStandardScaler
    from bridgescaler.distributed_tensor import (
        DMinMaxScalerTensor,
        DQuantileScalerTensor,
        DStandardScalerTensor,
    )

    drawn = np.random.default_rng(0).normal(size=(4, 3, 1, 5, 6)) * 7 + 250
    field = torch.from_numpy(drawn.astype(np.float32))
    tensors = {
        "standard": DStandardScalerTensor(channels_last=False),
        "minmax": DMinMaxScalerTensor(channels_last=False),
        "quantile": DQuantileScalerTensor(
            channels_last=False, distribution="normal", fast_transform=True
        ),
    }
    arrays = {
        "numpy": DStandardScaler(channels_last=False),
        "numpy_quantile": DQuantileScaler(channels_last=False),
        "deep": TheirDeep(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scaler in tensors.values():
            scaler.fit(field)
        for scaler in arrays.values():
            scaler.fit(field.numpy())
    found = tmp_path_factory.mktemp("scalers") / "scaler.json"
    scalers = {"A": {f"A/{name}": own for name, own in (tensors | arrays).items()}}
    save_scaler_dict({"target": scalers, "input": scalers}, str(found))
    return found


def test_arrays_are_bitwise_those_that_bridgescaler_reads(path):
    from bridgescaler import load_scaler_dict

    theirs, ours = load_scaler_dict(path)["input"]["A"], read_scalers(path)["input"]
    assert list(ours["A"]) == list(theirs)
    standard = ours["A"]["A/standard"]
    assert isinstance(standard, StandardScaler)
    np.testing.assert_array_equal(standard.mean, theirs["A/standard"].mean_x_)
    np.testing.assert_array_equal(standard.variance, theirs["A/standard"].var_x_)
    assert standard.mean.dtype == np.float32
    assert standard.columns == (0, 1, 2)
    assert not standard.channels_last
    extremes = ours["A"]["A/minmax"]
    assert isinstance(extremes, MinMaxScaler)
    np.testing.assert_array_equal(extremes.minimum, theirs["A/minmax"].min_x_)
    np.testing.assert_array_equal(extremes.maximum, theirs["A/minmax"].max_x_)
    quantile, other = ours["A"]["A/quantile"], theirs["A/quantile"]
    assert isinstance(quantile, QuantileScaler)
    for own, means, weights in zip(
        quantile.centroids,
        other.centroids_mean_tensor,
        other.centroids_weight_tensor,
        strict=True,
    ):
        np.testing.assert_array_equal(own[:, 0], means)
        np.testing.assert_array_equal(own[:, 1], weights)
    np.testing.assert_array_equal(quantile.minimum, other.min_tensor)
    np.testing.assert_array_equal(quantile.maximum, other.max_tensor)
    assert (quantile.distribution, quantile.fast_transform) == ("normal", True)
    assert (quantile.min_val, quantile.max_val) == (other.min_val, other.max_val)
    deep = ours["A"]["A/deep"]
    assert isinstance(deep, DeepStandardScaler)
    np.testing.assert_array_equal(deep.deviation, theirs["A/deep"].sd_)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_variances_are_those_of_credits_losses(path):
    theirs = _load_target_variances(str(path))
    ours = target_variances(path)
    # CREDIT does not read the numpy quantile scaler.
    own = ours.pop("A/numpy_quantile")
    assert own == pytest.approx(ours["A/quantile"], rel=1e-6)
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=1e-6)


def file_of(content, tmp_path):
    path = tmp_path / "scaler.json"
    if not isinstance(content, str):
        content = json.dumps({"target": {"A": {"A/T": json.dumps(content)}}})
    path.write_text(content)
    return lambda: read_scalers(path)


CASES.rows(
    file_of,
    "{",
    '{"target": {"A": 1}}',
    ({"type": "RobustScaler"},),
    ({"type": "DStandardScalerTensor"},),
    ([1],),
    name="scalers",
)
CASES.rows(lambda tmp_path: read_scalers(tmp_path / "none.json"), {}, name="no file")


def test_columns_that_are_levels(path):
    """A scaler of named channels gives those of other levels, in their order."""
    whole = read_scalers(path)["target"]["A"]
    assert levels_of(whole["A/standard"]) is None, "fitted to arrays, which count"
    for name in ("standard", "minmax", "quantile"):
        scaler = replace(whole[f"A/{name}"], columns=(850.0, 500.0, 200.0))
        assert levels_of(scaler) == (850.0, 500.0, 200.0)
        part = take_channels(scaler, np.array([2, 1]))
        assert levels_of(part) == (200.0, 500.0)
        field = np.random.default_rng(1).normal(250, 7, (2, 3, 1, 5, 6))
        expected = scale(scaler, field, "transform")[:, [2, 1]]
        found = scale(part, field[:, [2, 1]], "transform")
        np.testing.assert_array_equal(found, expected)
