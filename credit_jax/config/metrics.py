"""The `metrics:` section; `credit_jax.metrics.registry` lists the metrics."""

from typing import Any

from pydantic import Field

from credit_jax.config.base import StrictModel


class MetricsConfig(StrictModel):
    """What is measured besides the loss.

    Attributes:
        type: "combined", or the name of one metric.
        args: its arguments; `metrics: {rmse: {}, acc: {}}` names those of "combined".
    """

    type: str = "combined"
    args: dict[str, Any] = Field(default_factory=dict)
