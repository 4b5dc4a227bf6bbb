"""Sizes of a model's stages, for checks and tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageGeometry:
    """Sizes of one encoder stage.

    Attributes:
        height, width: points of the stage's fields.
        channels: of the fields.
        heads: of each attention.
        local_window, global_window: tokens along each side of a window.
    """

    height: int
    width: int
    channels: int
    heads: int
    local_window: int
    global_window: int


@dataclass(frozen=True)
class Geometry:
    """Sizes on the way through a model, (lat, lon) each."""

    padded: tuple[int, int]
    patched: tuple[int, int]
    stages: tuple[StageGeometry, ...]
    decoded: tuple[int, int]
    output: tuple[int, int]
