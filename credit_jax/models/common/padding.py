"""`padding_conf`: padding of the input of a model, and cropping of its output."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from credit_jax.config.base import StrictModel
from credit_jax.parallel.domain.padding import check_padding


def repeated(count: int) -> Any:
    """Validator of a tuple field: one integer stands for `count` equal ones."""

    def repeat(value: Any) -> Any:
        return (value,) * count if isinstance(value, int) else value

    return BeforeValidator(repeat)


Ends = Annotated[tuple[int, int], repeated(2)]


class PaddingConfig(StrictModel):
    """`padding_conf`: rows beyond the poles and columns around the globe.

    Attributes:
        activate: whether to pad.
        mode: "earth" (across the pole) or "mirror" (reflected).
        pad_lat: rows to add (north, south); one number for both.
        pad_lon: columns to add (west, east); one number for both.
    """

    activate: bool = True
    mode: Literal["earth", "mirror"] = "earth"
    pad_lat: Ends = (40, 40)
    pad_lon: Ends = (40, 40)


def padding_problems(
    padding: PaddingConfig | None, height: int, width: int
) -> list[str]:
    """The error of a padding that needs more points than the grid has, if any.

    Args:
        padding: active padding, or None.
        height, width: of the grid.
    """
    if padding is None:
        return []
    try:
        check_padding(padding.mode, padding.pad_lat, padding.pad_lon, height, width)
    except ValueError as error:
        return [f"model.{error}"]
    return []
