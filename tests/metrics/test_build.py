"""The metrics of a section: units, defaults, and its errors."""

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.metrics import MetricsConfig
from credit_jax.metrics import build_metrics, metric_names, needs_climatology
from tests.metrics.cases import CHANNELS, NUM, draw, everything
from tests.support import assert_close
from tests.support.whole_fields import field_context


def test_scores_in_physical_units(rng):
    lat = 4
    pred, target, climatology = draw(rng, lat)
    scale = rng.uniform(1, 5, NUM).astype(np.float32)
    offset = rng.normal(size=NUM).astype(np.float32)
    units = lambda x: x * scale[:, None, None, None] + offset[:, None, None, None]  # noqa: E731
    own = build_metrics(
        everything(),
        CHANNELS,
        climatology=lambda: climatology,
        scale=scale,
        offset=offset,
    )
    plain = build_metrics(
        everything(), CHANNELS, climatology=lambda: units(climatology[:, None])[:, 0]
    )
    found = own(jnp.asarray(pred), jnp.asarray(target), field_context(lat))
    expected = plain(
        jnp.asarray(units(pred)), jnp.asarray(units(target)), field_context(lat)
    )
    for name, value in expected.items():
        assert_close(found[name], value, 1e-5, name)


def test_default_set(rng):
    pred, target, climatology = (x for x in draw(rng, 4))
    arrays = jnp.asarray(pred), jnp.asarray(target), field_context(4)
    names = lambda found: [name for name in found if "/" not in name]  # noqa: E731
    assert names(build_metrics(None, CHANNELS)(*arrays)) == ["rmse", "r2score", "bias"]
    with_acc = build_metrics(None, CHANNELS, climatology=lambda: climatology)(*arrays)
    assert names(with_acc) == ["rmse", "r2score", "bias", "acc"]


def test_one_metric_by_type(rng):
    pred, target, _ = draw(rng, 4)
    config = MetricsConfig(type="mae", args={"var_weighting": "none"})
    found = build_metrics(config, CHANNELS)(
        jnp.asarray(pred), jnp.asarray(target), field_context(4)
    )
    assert list(found) == ["mae", *(f"mae/{key}" for key in CHANNELS)]
    assert list(found) == metric_names(config, CHANNELS, has_climatology=False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"metrics": {"crps": {}}}, r"'crps' not implemented; there are rmse, mse"),
        ({"metrics": {"acc": {}}}, r"acc need a climatology"),
        ({"metrics": {}}, r"expected at least one metric"),
        ({"metrics": None}, r"got nothing, expected at least one metric"),
        ({"metrics": ["rmse"]}, r"metrics\.args\.metrics: got \['rmse'\], expected"),
        ({"metrics": 3}, r"metrics\.args\.metrics: got 3, expected .*\{rmse: \{\}"),
        ({"metrics": {"rmse": {"a": 1}}}, r"metrics.rmse not implemented"),
        ({"metrics": {"rmse": {}}, "other": 1}, r"other not implemented"),
        ({"var_weighting": "inverse_variance"}, r"expected 'none' or 'manual'"),
        ({"variable_weights": {"Z": 1.0}}, r"\['Z'\] are no targets"),
        ({"variable_weights": [1.0]}, r"variable_weights: got \[1\.0\], expected a"),
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
    assert needs_climatology(config) is needed
