"""The `metrics:` section. Which metrics exist is known where the metrics are."""

from typing import Any, Literal

from pydantic import Field

from credit_jax.config.base import StrictModel

COMBINED = "combined"


class MetricArgs(StrictModel):
    """What every metric takes, and those of "combined" share.

    Attributes:
        var_weighting: weights of variables in the mean over them: `inverse_variance`
            from the scalers of the targets, to the power that a metric's unit has;
            `manual` or `none` from `variable_weights` alone. null is
            `inverse_variance` with a `scaler_path`, and `none` without.
        scaler_path: file of scalers, for `inverse_variance`.
        variable_weights: factor by key of a variable; 1 where there is none.
        normalize_weights: whether weights are divided by their mean.
        include_computed_diagnostics: whether variables that a postblock computes count.
        use_latitude_weights: weigh by cos(latitude) / mean(cos(latitude)).
        latitude_weights: file with the latitudes.

    Differs from CREDIT: without `var_weighting` and `scaler_path` all variables weigh
    alike, where CREDIT asks for a scaler.
    """

    var_weighting: Literal["inverse_variance", "manual", "none"] | None = None
    scaler_path: str | None = None
    variable_weights: dict[str, float] = Field(default_factory=dict)
    normalize_weights: bool = True
    include_computed_diagnostics: bool = True
    use_latitude_weights: bool = False
    latitude_weights: str | None = None

    @property
    def by_variance(self) -> bool:
        """Whether variances weigh the variables."""
        if self.var_weighting is None:
            return self.scaler_path is not None
        return self.var_weighting == "inverse_variance"


class MetricsConfig(StrictModel):
    """What is measured besides the loss.

    Attributes:
        type: "combined", or the name of one metric.
        args: its arguments; `metrics: {rmse: {}, acc: {}}` names those of "combined".
    """

    type: str = COMBINED
    args: dict[str, Any] = Field(default_factory=dict)
