"""What is said of wrong sections `loss` and `metrics`, and of wrong fields."""

import jax.numpy as jnp
import numpy as np

from credit_jax.config.loss import LossConfig, MetricsConfig
from credit_jax.losses import build_channel_weights, build_loss
from credit_jax.metrics import build_metrics
from credit_jax.named_fields import keys_of_tree
from tests.losses import rows
from tests.losses.toys import ByVariable
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.whole_fields import field_context, of_pair

CASES = Cases("losses")


def loss(section, channels=rows.CHANNELS, **settings):
    return build_loss(LossConfig(**section), channels, **settings)


def of_args(**args):
    loss(rows.variables(**args), variances=rows.VARIANCES)


CASES.rows(
    loss,
    (rows.plain("MSE"),),
    (rows.plain("mse", delta=1.0),),
    (rows.plain("mse", reduction="sum"),),
    (rows.plain("huber", delta="wide"),),
    (rows.BY_ROW,),
    ({"use_variable_weights": True},),
    ({"tendency_weights": "t.json"},),
    (rows.BY_LEVEL,),
    {"section": rows.BY_LEVEL, "levels": {rows.U: (1.0, 2.0)}},
    {"section": rows.KCRPS, "num_members": 1},
    (rows.variables(),),
    (rows.variables(), None),
    name="loss",
)
CASES.rows(
    lambda section: loss(section, latitude=rows.with_poles(13)),
    (rows.BY_ROW | {"use_power_loss": True, "spectral_lambda_reg": 1.0},),
    (rows.LEARNABLE,),
    name="with rows",
)
CASES.rows(
    build_channel_weights,
    ({"U": 1.0}, rows.CHANNELS),
    (rows.WEIGHTS | {"Z": 1.0}, rows.CHANNELS),
    (rows.WEIGHTS | {"U": [1.0, 2.0]}, rows.CHANNELS),
    name="weights",
)
CASES.rows(
    of_args,
    {"training_loss": "KCRPS"},
    {"training_loss": "spectral"},
    {"base_loss_overrides": {rows.T: {"loss": "ring-crps"}}},
    {"base_loss_overrides": {rows.T: {"loss": "huber", "parameters": {"beta": 2.0}}}},
    {"base_loss_overrides": {rows.T: {"loss": "l1"}}},
    {"var_weighting": "learned"},
    {"variable_weights": {"T": 1.0}},
    {"base_loss_parameters": {"a": 1}},
    {"scaler": "a"},
    name="base",
)


def called(section, **settings):
    """Calls a loss on fields and named fields."""
    settings = {"variances": rows.VARIANCES, "latitude": rows.with_poles(13)} | settings
    arrays = map(jnp.asarray, rows.fields(13, 1))
    pair = dict(zip(("y_pred", "y"), arrays, strict=True))
    tree = {**pair, "y_processed": rows.named(pair["y_pred"])}
    tree["y_target_processed"] = rows.named(pair["y"])
    loss(section, **settings)(tree, field_context(13))


AMSE = rows.plain("amse")
CASES.rows(
    called,
    (rows.KCRPS,),
    (rows.plain("covmse") | rows.BY_VARIABLE,),
    (rows.variables(variable_weights={f"{rows.T}x": 2.0}),),
    (rows.variables(base_loss_overrides={f"{rows.T}x": {"loss": "mae"}}),),
    (
        rows.LEARNABLE
        | {"args": rows.LEARNABLE["args"] | {"include_computed_diagnostics": True}},
    ),
    (rows.plain("amse", truncation=6),),
    {"section": AMSE, "latitude": None},
    name="call",
)
CASES.call(
    "amse of a part of the globe",
    lambda: called(AMSE, latitude=np.linspace(60.0, 20.0, 13)),
)


@CASES.case
def base_without_named_fields():
    of_pair(loss(rows.variables(), variances={}))(*rows.fields(8, 1), field_context(8))


@CASES.case
def a_user_loss_without_channels():
    of_pair(ByVariable())(*rows.fields(8, 1), field_context(8))


@CASES.case
def a_key_that_is_not_there():
    tree = {"y_pred": 1, "y": 2, "y_processed": {"S": {rows.T: 3}}}
    with keys_of_tree("the loss", tree):
        tree["z"]


def metrics(**args):
    args = {"metrics": {"rmse": {}}, "var_weighting": "none"} | args
    build_metrics(MetricsConfig(args=args), rows.CHANNELS)


CASES.rows(
    metrics,
    {"metrics": {"crps": {}}},
    {"metrics": {"acc": {}}},
    {"metrics": {"acc": {"climatology_path": "a.nc"}}},
    {"metrics": {}},
    {"metrics": None},
    {"metrics": ["rmse"]},
    {"metrics": 3},
    {"metrics": {"rmse": {"a": 1}}},
    {"metrics": {"log_variance_ratio": {"epsilon": 2}}},
    {"other": 1},
    {"var_weighting": "inverse_variance"},
    {"var_weighting": "learnable"},
    {"variable_weights": {"Z": 1.0}},
    {"variable_weights": [1.0]},
    rows.BY_ROW,
    name="metrics",
)


def climatology(*shape):
    config = MetricsConfig(type="acc", args={"climatology_path": "a.nc"})
    read = lambda _: {"T": np.zeros(shape)}  # noqa: E731
    scores = build_metrics(config, rows.CHANNELS, climatology=read)
    of_pair(scores)(*map(jnp.asarray, rows.fields(8, 1)), field_context(8))


CASES.rows(climatology, (2, 8, 12), (9, 12), name="climatology")


@CASES.case
def a_computed_variable_of_the_forecast_alone():
    ours, theirs = (rows.named(x) for x in rows.fields(8, 1))
    del theirs["S"]["S/computed/2d/Z"]
    scores = build_metrics(MetricsConfig(args={"metrics": {"mae": {}}}), rows.CHANNELS)
    scores({"y_processed": ours, "y_target_processed": theirs}, field_context(8))
