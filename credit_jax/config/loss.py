"""The `loss:` section, in CREDIT's two styles, and the `metrics:` section."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from credit_jax.config.base import StrictModel

BASE, RING = "base", "ring-crps"
# The values of `var_weighting` that need variances.
SCALED = ("inverse_variance", "learnable")


# One number, or one for each level.
TermWeights = Annotated[
    tuple[float, ...],
    BeforeValidator(lambda value: [value] if isinstance(value, int | float) else value),
]


# A factor of each step relative to the one before, or one weight for each step.
LeadWeights = (
    Annotated[float, Field(gt=0)]
    | Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
)


class LevelWeights(StrictModel):
    """Weights of the levels of a variable, `max(minimum, slope * level)`.

    Attributes:
        slope: weight of a level for each unit of its value, as `levels` of the source
            has it, such as hPa.
        minimum: smallest weight.
    """

    slope: float = Field(gt=0)
    minimum: float = Field(0.0, ge=0)


class WeightArgs(StrictModel):
    """Weights of variables and latitudes in losses and metrics.

    Attributes:
        scaler_path: scaler file, for weights by variances.
        variable_weights: factors by key of a variable; 1 for missing keys.
        normalize_weights: whether to divide the weights by their mean.
        include_computed_diagnostics: whether variables that a postblock computes are
            included.
        use_latitude_weights: whether to weight by cos(latitude) / mean(cos(latitude)).
        latitude_weights: file with the latitudes.
    """

    scaler_path: str | None = None
    variable_weights: dict[str, float] = Field(default_factory=dict)
    normalize_weights: bool = True
    include_computed_diagnostics: bool = True
    use_latitude_weights: bool = False
    latitude_weights: str | None = None


class LossConfig(StrictModel):
    """The training and validation loss.

    Attributes:
        type: `base`, whose arguments are those of
            `credit_jax.losses.build.BaseLoss`, or the name of a loss for
            training and validation; null selects the flat style of the other keys.
        args: arguments of `type`.
        training_loss: name of the training loss, such as "mse".
        training_loss_parameters: arguments of the training loss.
        validation_loss: name of the validation loss; null is "mae" with weights or
            `ring-crps`, and else the training loss.
        validation_loss_parameters: arguments of the validation loss.
        use_latitude_weights: whether to weight by cos(latitude) / mean(cos(latitude)).
        latitude_weights: file with the latitudes.
        use_variable_weights: whether to weight channels by `variable_weights`.
        variable_weights: weight per variable, or list of weights per level.
        lead_weights: weights of the steps of a training forecast: one for each step of
            `data.forecast_len`, or a number w for 1, w, w^2, ... CREDIT has no such
            key; its steps count alike.
        level_weights: weights of levels, in losses of any type. CREDIT has no such key.
        tendency_weights: file of the variances of tendencies, which `preprocess` fits:
            channels are weighted by 1 / variance, with mean 1, others by 1. Not with
            `type: base`. CREDIT has no such key.
        use_power_loss: whether to add the loss `power`, times `spectral_lambda_reg`, to
            a weighted training loss.
        use_spectral_loss: whether to add the loss `spectral`, times the same factor.
        spectral_lambda_reg: factor of these two terms.
        spectral_wavenum_init: smallest zonal wavenumber of these two terms.

    Differs from CREDIT: without `validation_loss` and weights CREDIT raises KeyError.
    """

    type: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    training_loss: str = "mse"
    training_loss_parameters: dict[str, Any] = Field(default_factory=dict)
    validation_loss: str | None = None
    validation_loss_parameters: dict[str, Any] = Field(default_factory=dict)
    use_latitude_weights: bool = False
    latitude_weights: str | None = None
    use_variable_weights: bool = False
    variable_weights: dict[str, TermWeights] = Field(default_factory=dict)
    lead_weights: LeadWeights | None = None
    level_weights: LevelWeights | None = None
    tendency_weights: str | None = None
    use_power_loss: bool = False
    use_spectral_loss: bool = False
    spectral_lambda_reg: float | None = None
    spectral_wavenum_init: int | None = None

    passes_over: ClassVar = True

    ignored: ClassVar = {"use_vgg": "CREDIT does not read it"}

    def conflicts(self) -> Iterator[str]:
        if self.is_base and self.tendency_weights is not None:
            yield (
                "tendency_weights are for losses of the model's normalized output; "
                "type: base scores physical units, take var_weighting and "
                "variable_weights"
            )

    def step_weights(self, num_steps: int) -> tuple[float, ...] | None:
        """Weight of the loss of each step of a forecast; None if all count alike."""
        weights = self.lead_weights
        if isinstance(weights, int | float):
            return tuple(weights**step for step in range(num_steps))
        return weights

    @property
    def is_base(self) -> bool:
        return self.type == BASE

    @property
    def name(self) -> str:
        """Name of the training loss; for `base`, of the loss of single variables."""
        if self.type is None:
            return self.training_loss
        return self.args.get("training_loss", "mse") if self.is_base else self.type

    @property
    def members_are_ranks(self) -> bool:
        """Whether each data-parallel rank has one member (`ring-crps`)."""
        return self.name == RING

    @property
    def learns(self) -> bool:
        """Whether the loss has trained parameters."""
        return self.is_base and self.args.get("var_weighting") == "learnable"

    @property
    def weighs_rows(self) -> bool:
        """Whether rows are weighted by area."""
        if self.type is None:
            return self.use_latitude_weights
        return self.is_base and bool(self.args.get("use_latitude_weights"))

    @property
    def is_weighted(self) -> bool:
        """Whether a loss in flat style has weights of rows or of variables."""
        flat = self.type is None
        return flat and (self.use_latitude_weights or self.use_variable_weights)

    @property
    def latitude_file(self) -> tuple[str, str | None]:
        """Dotted key and path of the latitude file."""
        if self.is_base:
            return "loss.args.latitude_weights", self.args.get("latitude_weights")
        return "loss.latitude_weights", self.latitude_weights

    @property
    def scaler_file(self) -> str | None:
        """Path of the scaler file (`loss.args.scaler_path`) if variances are needed."""
        mode = self.args.get("var_weighting") or "inverse_variance"
        needed = self.is_base and mode in SCALED
        return self.args.get("scaler_path") if needed else None

    def without_effect(self) -> dict[str, str]:
        notes = {}
        terms = [
            key for key in ("use_power_loss", "use_spectral_loss") if getattr(self, key)
        ]
        if not self.is_weighted:
            notes |= dict.fromkeys(terms, "counts in a loss with weights alone")
        elif not terms:
            keys = ("spectral_lambda_reg", "spectral_wavenum_init")
            used = [key for key in keys if getattr(self, key) is not None]
            notes |= dict.fromkeys(used, "no spectral term is used")
        return notes


COMBINED = "combined"


class MetricsConfig(StrictModel):
    """The metrics of a run.

    Attributes:
        type: "combined", or the name of one metric.
        args: arguments of `type`; for "combined", `metrics: {rmse: {}, acc: {}}` lists
            the metrics with their own arguments.
    """

    type: str = COMBINED
    args: dict[str, Any] = Field(default_factory=dict)
