"""What is said of wrong sections `loss` and `metrics`, and of wrong fields."""

import jax.numpy as jnp
import numpy as np

from credit_jax.config.loss import LossConfig, MetricsConfig
from credit_jax.losses import build_channel_weights, build_loss
from credit_jax.metrics import build_metrics
from credit_jax.named_fields import keys_of_tree
from tests.losses.rows import (
    BY_LEVEL,
    BY_ROW,
    BY_VARIABLE,
    CHANNELS,
    KCRPS,
    LEARNABLE,
    VARIANCES,
    WEIGHTS,
    T,
    U,
    fields,
    named,
    plain,
    variables,
    with_poles,
)
from tests.losses.toys import ByVariable
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.whole_fields import field_context, of_pair

CASES = Cases("losses")


def loss(section, channels=CHANNELS, **settings):
    return build_loss(LossConfig(**section), channels, **settings)


def of_args(**args):
    loss(variables(**args), variances=VARIANCES)


CASES.rows(
    loss,
    (plain("MSE"),),
    (plain("mse", delta=1.0),),
    (plain("mse", reduction="sum"),),
    (plain("huber", delta="wide"),),
    (BY_ROW,),
    ({"use_variable_weights": True},),
    ({"tendency_weights": "t.json"},),
    (BY_LEVEL,),
    {"section": BY_LEVEL, "levels": {U: (1.0, 2.0)}},
    {"section": KCRPS, "num_members": 1},
    (variables(),),
    (variables(), None),
    name="loss",
)
CASES.rows(
    lambda section: loss(section, latitude=with_poles(13)),
    (BY_ROW | {"use_power_loss": True, "spectral_lambda_reg": 1.0},),
    (LEARNABLE,),
    name="with rows",
)
CASES.rows(
    build_channel_weights,
    ({"U": 1.0}, CHANNELS),
    (WEIGHTS | {"Z": 1.0}, CHANNELS),
    (WEIGHTS | {"U": [1.0, 2.0]}, CHANNELS),
    name="weights",
)
CASES.rows(
    of_args,
    {"training_loss": "KCRPS"},
    {"training_loss": "spectral"},
    {"base_loss_overrides": {T: {"loss": "ring-crps"}}},
    {"base_loss_overrides": {T: {"loss": "huber", "parameters": {"beta": 2.0}}}},
    {"base_loss_overrides": {T: {"loss": "l1"}}},
    {"var_weighting": "learned"},
    {"variable_weights": {"T": 1.0}},
    {"base_loss_parameters": {"a": 1}},
    {"scaler": "a"},
    name="base",
)


def called(section, **settings):
    """Calls a loss on fields and named fields."""
    settings = {"variances": VARIANCES, "latitude": with_poles(13)} | settings
    arrays = map(jnp.asarray, fields(13, 1))
    pair = dict(zip(("y_pred", "y"), arrays, strict=True))
    tree = {**pair, "y_processed": named(pair["y_pred"])}
    tree["y_target_processed"] = named(pair["y"])
    loss(section, **settings)(tree, field_context(13))


AMSE = plain("amse")
CASES.rows(
    called,
    (KCRPS,),
    (plain("covmse") | BY_VARIABLE,),
    (variables(variable_weights={f"{T}x": 2.0}),),
    (variables(base_loss_overrides={f"{T}x": {"loss": "mae"}}),),
    (LEARNABLE | {"args": LEARNABLE["args"] | {"include_computed_diagnostics": True}},),
    (plain("amse", truncation=6),),
    {"section": AMSE, "latitude": None},
    name="call",
)
CASES.call(
    "amse of a part of the globe",
    lambda: called(AMSE, latitude=np.linspace(60.0, 20.0, 13)),
)


@CASES.case
def base_without_named_fields():
    of_pair(loss(variables(), variances={}))(*fields(8, 1), field_context(8))


@CASES.case
def a_user_loss_without_channels():
    of_pair(ByVariable())(*fields(8, 1), field_context(8))


@CASES.case
def a_key_that_is_not_there():
    tree = {"y_pred": 1, "y": 2, "y_processed": {"S": {T: 3}}}
    with keys_of_tree("the loss", tree):
        tree["z"]


def metrics(**args):
    args = {"metrics": {"rmse": {}}, "var_weighting": "none"} | args
    build_metrics(MetricsConfig(args=args), CHANNELS)


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
    BY_ROW,
    name="metrics",
)


def climatology(*shape):
    config = MetricsConfig(type="acc", args={"climatology_path": "a.nc"})
    read = lambda _: {"T": np.zeros(shape)}  # noqa: E731
    scores = build_metrics(config, CHANNELS, climatology=read)
    of_pair(scores)(*map(jnp.asarray, fields(8, 1)), field_context(8))


CASES.rows(climatology, (2, 8, 12), (9, 12), name="climatology")


@CASES.case
def a_computed_variable_of_the_forecast_alone():
    ours, theirs = (named(x) for x in fields(8, 1))
    del theirs["S"]["S/computed/2d/Z"]
    scores = build_metrics(MetricsConfig(args={"metrics": {"mae": {}}}), CHANNELS)
    scores({"y_processed": ours, "y_target_processed": theirs}, field_context(8))
