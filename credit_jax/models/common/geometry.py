"""Sizes of a model's stages, for checks and tables."""

from __future__ import annotations

from dataclasses import dataclass

from credit_jax.parallel.domain.heads import attention_layouts
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.mesh.axes import DOMAIN
from credit_jax.parallel.rows.layout import block_layout


@dataclass(frozen=True)
class StageGeometry:
    """Sizes of one encoder stage.

    Attributes:
        height, width: number of latitudes and of longitudes of the fields.
        channels: number of channels of the fields.
        depth: number of transformer blocks; 0 for a stage without attention.
        heads: number of heads of an attention.
        head_channels: number of channels of a head.
        local_window, global_window: tokens along each side of a window.
        attentions: number of attentions, and of feed-forward layers, of a block: 2 for
            short and long windows, else 1.
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

    def shares(self, domain: int, ulysses: int = 1) -> dict[str, float]:
        """Returns the load of the busiest shard relative to an even share.

        Args:
            domain: number of latitude shards.
            ulysses: number of neighboring shards that share complete windows.

        Returns:
            Ratio of points, at least 1, by kind of attention ("short", "long").
        """
        blocks = block_layout(self.height, domain, DOMAIN)
        sides = self.local_window, self.global_window
        if self.attentions == 2:
            windows = Windows(self.height, self.width, *sides)
            both = attention_layouts(blocks, windows, ulysses)
        else:
            both = (window_layout(blocks, self.height, self.local_window),)
        kinds = ("short", "long") if self.global_window > 1 else ("short",)
        even = self.height / domain
        lengths = [layout.length / layout.strips for layout in both]
        return {k: n / even for k, n in zip(kinds, lengths, strict=False)}


@dataclass(frozen=True)
class Geometry:
    """Grid sizes along the layers of a model, (lat, lon) each.

    Attributes:
        grid: size of the input.
        padded: size after padding.
        patched: size after the patch embedding.
        stages: sizes of the stages of the encoder.
        decoded: size after the decoder.
        output: size of the prediction.
    """

    grid: tuple[int, int]
    padded: tuple[int, int]
    patched: tuple[int, int]
    stages: tuple[StageGeometry, ...]
    decoded: tuple[int, int]
    output: tuple[int, int]
