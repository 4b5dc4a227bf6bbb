"""The `loss:` section, in CREDIT's flat style."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from credit_jax.config.base import StrictModel, Unavailable

_FLAT = Unavailable("use the flat style: training_loss, use_latitude_weights, ...")
_NO_SPECTRAL = Unavailable("spectral terms are not there; use false", (False,))


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, int | float) else value


# One number, or one for each level.
Weights = Annotated[tuple[float, ...], BeforeValidator(_as_list)]


class LossConfig(StrictModel):
    """What is minimized.

    Attributes:
        training_loss: name of the pointwise loss, such as "mse".
        training_loss_parameters: its arguments.
        validation_loss: name of the loss of the validation; null is "mae" with weights
            and the training loss without.
        validation_loss_parameters: its arguments.
        use_latitude_weights: weigh by cos(latitude) / mean(cos(latitude)).
        latitude_weights: file with the latitudes.
        use_variable_weights: weigh channels by `variable_weights`.
        variable_weights: weight per variable, or list of weights per level.

    Differs from CREDIT: without `validation_loss` and weights CREDIT raises KeyError.
    """

    training_loss: str = "mse"
    training_loss_parameters: dict[str, Any] = Field(default_factory=dict)
    validation_loss: str | None = None
    validation_loss_parameters: dict[str, Any] = Field(default_factory=dict)
    use_latitude_weights: bool = False
    latitude_weights: str | None = None
    use_variable_weights: bool = False
    variable_weights: dict[str, Weights] = Field(default_factory=dict)

    unavailable: ClassVar = {
        "type": _FLAT,
        "args": _FLAT,
        "use_power_loss": _NO_SPECTRAL,
        "use_spectral_loss": _NO_SPECTRAL,
    }
    ignored: ClassVar = {
        "spectral_lambda_reg": "no spectral term is used",
        "spectral_wavenum_init": "no spectral term is used",
    }
