"""A small `model:` section of the debugger."""

from __future__ import annotations

from typing import Any

DEBUGGER: dict[str, Any] = {
    "type": "debugger",
    "image_height": 7,
    "image_width": 6,
    "frames": 2,
    "channels": 2,
    "surface_channels": 1,
    "input_only_channels": 2,
    "output_only_channels": 1,
    "levels": 2,
}
