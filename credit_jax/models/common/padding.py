"""`padding_conf`: padding of the input of a model, and cropping of its output."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from credit_jax.config import StrictModel
from credit_jax.parallel.domain.padding import check_padding


def repeated(count: int) -> Any:
    """Returns a validator of a tuple field: an integer is repeated `count` times."""

    def repeat(value: Any) -> Any:
        return (value,) * count if isinstance(value, int) else value

    return BeforeValidator(repeat)


Ends = Annotated[tuple[int, int], repeated(2)]


class PaddingConfig(StrictModel):
    """`padding_conf`: rows beyond the poles and columns around the globe.

    Attributes:
        activate: whether to pad.
        mode: "earth" (across the pole) or "mirror" (reflected); see
            `parallel.domain.padding.pad_globe`.
        pad_lat: number of rows to add (north, south); an integer for both.
        pad_lon: number of columns to add (west, east); an integer for both.
    """

    activate: bool = True
    mode: Literal["earth", "mirror"] = "earth"
    pad_lat: Ends = (40, 40)
    pad_lon: Ends = (40, 40)


def padding_problems(
    padding: PaddingConfig | None, height: int, width: int
) -> list[str]:
    """Returns an error if a padding needs more points than the grid has.

    Args:
        padding: active padding, or None.
        height, width: size of the grid.
    """
    if padding is None:
        return []
    try:
        check_padding(padding.mode, padding.pad_lat, padding.pad_lon, height, width)
    except ValueError as error:
        return [f"model.{error}"]
    return []


def flat_padding_problems(
    padding: PaddingConfig | None, pad_lat: int | None, pad_lon: int | None
) -> list[str]:
    """Returns an error if a config has flat padding keys but no `padding_conf`.

    Args:
        padding: `model.padding_conf`.
        pad_lat, pad_lon: the flat keys of older configs.
    """
    flat = {"pad_lat": pad_lat, "pad_lon": pad_lon}
    nonzero = {key: value for key, value in flat.items() if value}
    if not nonzero or padding is not None:
        return []
    return [
        f"model has {' and '.join(f'{k}: {v}' for k, v in nonzero.items())} and "
        "no padding_conf: CREDIT's older programs pad by reflection then, "
        "its newer ones not at all. For the weights of an older run write "
        "padding_conf: {activate: true, mode: mirror, pad_lat: "
        f"{[pad_lat or 0] * 2}, pad_lon: {[pad_lon or 0] * 2}}}, "
        "else remove the keys"
    ]
