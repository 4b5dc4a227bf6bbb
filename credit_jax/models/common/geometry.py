"""Sizes of a model's stages, for checks and tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageGeometry:
    """Sizes of one encoder stage.

    Attributes:
        height, width: points of the stage's fields.
        channels: of the fields.
        depth: number of transformer blocks; 0 is a stage without attention.
        heads: of each attention.
        head_channels: of each head.
        local_window, global_window: tokens along each side of a window.
        attentions: number of attentions, and of feed-forward layers, of a block: those
            of short and of long windows, or one.
    """

    height: int
    width: int
    channels: int
    depth: int
    heads: int
    head_channels: int
    local_window: int
    global_window: int
    attentions: int = 2


@dataclass(frozen=True)
class Geometry:
    """Grid sizes along the layers of a model, (lat, lon) each.

    Attributes:
        grid: of the input.
        padded: after padding.
        patched: after the patch embedding.
        stages: of the encoder.
        decoded: after the decoder.
        output: of the prediction.
    """

    grid: tuple[int, int]
    padded: tuple[int, int]
    patched: tuple[int, int]
    stages: tuple[StageGeometry, ...]
    decoded: tuple[int, int]
    output: tuple[int, int]
