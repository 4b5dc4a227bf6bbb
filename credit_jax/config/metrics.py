"""The `metrics:` section; `credit_jax.metrics` validates the names of metrics."""

from typing import Any, Literal

from pydantic import Field

from credit_jax.config.base import StrictModel
from credit_jax.config.loss import WeightArgs

COMBINED = "combined"


class MetricArgs(WeightArgs):
    """Arguments that every metric accepts; those of "combined" share them.

    Attributes:
        var_weighting: weights in the mean over variables: `inverse_variance` divides
            each score by the standard deviation of the target scaler, to the power of
            the variable's unit in the score; `manual` and `none` use only
            `variable_weights`. null is `inverse_variance` with a `scaler_path`, and
            `none` without.

    Differs from CREDIT: without `var_weighting` and `scaler_path` all variables have
    equal weights, where CREDIT requires a scaler.
    """

    var_weighting: Literal["inverse_variance", "manual", "none"] | None = None

    @property
    def by_variance(self) -> bool:
        """Whether variables are weighted by their variances."""
        if self.var_weighting is None:
            return self.scaler_path is not None
        return self.var_weighting == "inverse_variance"


class MetricsConfig(StrictModel):
    """The metrics of a run.

    Attributes:
        type: "combined", or the name of one metric.
        args: arguments of `type`; for "combined", `metrics: {rmse: {}, acc: {}}` lists
            the metrics with their own arguments.
    """

    type: str = COMBINED
    args: dict[str, Any] = Field(default_factory=dict)
