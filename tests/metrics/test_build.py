"""The metrics of a section: units, defaults, and its errors."""

import jax.numpy as jnp
import pytest

from credit_jax.config.loss import MetricsConfig
from credit_jax.metrics import build_metrics, parse_metrics
from tests.metrics.cases import CHANNELS, draw, everything, named, of
from tests.support import assert_close
from tests.support.whole_fields import field_context, of_pair


def test_named_fields_are_scored_where_there_are_any(rng):
    """Metrics score the fields of the postblocks instead of the model's output."""
    lat = 4
    pred, target, climatology = draw(rng, lat)
    metrics = build_metrics(everything(), CHANNELS, climatology=of(climatology))
    expected = of_pair(metrics)(
        jnp.asarray(pred), jnp.asarray(target), field_context(lat)
    )
    tree = {"y_pred": jnp.zeros_like(pred), "y": jnp.ones_like(target)}
    tree |= {"y_processed": named(pred), "y_target_processed": named(target)}
    found = metrics(tree, field_context(lat))
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert_close(found[name], value, 1e-7, name)


def test_computed_diagnostics_come_last(rng):
    pred, target, _ = draw(rng, 4)
    both = [named(x) for x in (pred, target)]
    for fields in both:
        fields["S"]["S/computed/2d/Z"] = 2 * fields["S"]["S/prognostic/2d/SP"]
    tree = dict(zip(("y_processed", "y_target_processed"), both, strict=True))
    args = {"metrics": {"mae": {}, "bias": {"include_computed_diagnostics": False}}}
    found = build_metrics(MetricsConfig(args=args), CHANNELS)(tree, field_context(4))
    keys = [*CHANNELS, "S/computed/2d/Z"]
    assert [name for name in found if "mae" in name] == [
        "mae",
        *(f"mae/{key}" for key in keys),
    ]
    assert "bias/S/computed/2d/Z" not in found
    assert_close(
        found["mae/S/computed/2d/Z"], 2 * found["mae/S/prognostic/2d/SP"], 1e-6, "Z"
    )
    del both[1]["S"]["S/computed/2d/Z"]
    with pytest.raises(ValueError, match="y_target_processed has no S/computed/2d/Z"):
        build_metrics(MetricsConfig(args=args), CHANNELS)(tree, field_context(4))


def test_default_set(rng):
    pred, target, climatology = (x for x in draw(rng, 4))
    arrays = jnp.asarray(pred), jnp.asarray(target), field_context(4)
    names = lambda found: [name for name in found if "/" not in name]  # noqa: E731
    assert names(of_pair(build_metrics(None, CHANNELS))(*arrays)) == [
        "rmse",
        "r2score",
        "bias",
    ]
    with_acc = of_pair(build_metrics(None, CHANNELS, climatology=of(climatology)))(
        *arrays
    )
    assert names(with_acc) == ["rmse", "r2score", "bias", "acc"]


def test_one_metric_by_type(rng):
    pred, target, _ = draw(rng, 4)
    config = MetricsConfig(type="mae", args={"var_weighting": "none"})
    metrics = build_metrics(config, CHANNELS)
    found = of_pair(metrics)(jnp.asarray(pred), jnp.asarray(target), field_context(4))
    assert list(found) == ["mae", *(f"mae/{key}" for key in CHANNELS)]
    assert list(found) == metrics.names


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"metrics": {"crps": {}}}, r"'crps' is not available; there are: rmse, mse"),
        ({"metrics": {"acc": {}}}, r"acc need a climatology"),
        ({"metrics": {}}, r"expected at least one metric"),
        ({"metrics": None}, r"got nothing, expected at least one metric"),
        ({"metrics": ["rmse"]}, r"metrics\.args\.metrics: got \['rmse'\], expected"),
        ({"metrics": 3}, r"metrics\.args\.metrics: got 3, expected .*\{rmse: \{\}"),
        ({"metrics": {"rmse": {"a": 1}}}, r"metrics\.rmse\.a: unknown key"),
        ({"metrics": {"rmse": {}}, "other": 1}, r"metrics\.args\.other: unknown key"),
        ({"var_weighting": "inverse_variance"}, r"needs metrics\.args\.scaler_path"),
        ({"var_weighting": "learnable"}, r"var_weighting: .*learnable"),
        ({"variable_weights": {"Z": 1.0}}, r"\['Z'\] are no targets"),
        ({"variable_weights": [1.0]}, r"metrics\.args\.variable_weights: .*\[1\.0\]"),
        ({"use_latitude_weights": True}, r"needs metrics.args.latitude_weights"),
    ],
)
def test_wrong_settings(args, message):
    defaults = {"metrics": {"rmse": {}}, "var_weighting": "none"}
    with pytest.raises(ValueError, match=message):
        build_metrics(MetricsConfig(args=defaults | args), CHANNELS)


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        (None, False),
        (MetricsConfig(args={"metrics": {"rmse": {}, "acc": {}}}), True),
        (MetricsConfig(args={"metrics": {"rmse": {}}}), False),
        (MetricsConfig(type="activity"), True),
    ],
)
def test_who_needs_a_climatology(config, needed):
    metrics = [metric for _, metric in parse_metrics(config).values()]
    assert any(metric.needs_climatology for metric in metrics) is needed
