"""A model and config sections that mesh tests share."""

from typing import Any

MODEL = {
    "type": "wxformer",
    "image_height": 32,
    "image_width": 32,
    "frames": 1,
    "channels": 2,
    "levels": 2,
    "surface_channels": 1,
    "dim": [8, 16, 32, 64],
    "depth": [1, 1, 1, 1],
    "dim_head": 4,
    "global_window_size": [4, 2, 2, 1],
    "local_window_size": [2, 2, 2, 2],
    "cross_embed_strides": [2, 2, 2, 2],
    "cross_embed_kernel_sizes": [[2, 4], [2, 4], [2, 4], [2, 4]],
}

# Two replicas of the parameters, each split over the other data-parallel axis.
HSDP = {"data": "fsdp2", "dp_replicate": 2, "tensor": 2, "domain": 1}


def section(data: str = "fsdp2", tensor: int = 1, domain: int = 1) -> dict[str, Any]:
    """Returns CREDIT's `parallelism` section."""
    return {"data": data, "tensor": tensor, "domain": domain}
