"""Notes on models and devices that gain nothing from float8."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.params.precision import Precision

# Lowest compute capability of NVIDIA GPUs with float8 matrix products.
_FIRST_CAPABILITY = (8, 9)


def float8_notes(
    model_def: ModelDef, precision: Precision, devices: Iterable[Any] = ()
) -> list[str]:
    """Returns the reasons why a model gains nothing from float8, one line each.

    Args:
        model_def: the model.
        precision: its precision; without float8 there are no reasons.
        devices: devices that it runs on, if known.
    """
    if precision.float8 is None:
        return []
    if not model_def.float8_matrices(precision):
        least = precision.float8.min_channels
        return [
            f"float8: no dense layer of the model has {least} input and output "
            "channels (in multiples of 16), so none is multiplied in float8; "
            "trainer.float8.min_channels sets the least"
        ]
    without = [device for device in devices if not multiplies_float8(device)]
    if not without:
        return []
    return [
        f"float8: {without[0].device_kind} has no float8 products; values are rounded "
        "to float8 and multiplied in a wider dtype, with the same result but slower "
        "than without float8"
    ]


def multiplies_float8(device: Any) -> bool:
    """Whether a device has float8 (e4m3) products: NVIDIA GPUs since Ada and Hopper."""
    if device.platform not in ("gpu", "cuda"):
        return False
    capability = str(getattr(device, "compute_capability", "0"))
    return tuple(map(int, capability.split("."))) >= _FIRST_CAPABILITY
