"""A model and config sections that mesh tests share."""

from typing import Any

from tests.models.cases import BASE
from tests.models.cases import section as resized

MODEL = resized(
    BASE,
    grid=(32, 32),
    depth=[1, 1, 1, 1],
    cross_embed_kernel_sizes=[[2, 4]] * 4,
    padding_conf=None,
)

# Two replicas of the parameters, each split over the other data-parallel axis.
HSDP = {"data": "fsdp2", "dp_replicate": 2, "tensor": 2, "domain": 1}


def section(data: str = "fsdp2", tensor: int = 1, domain: int = 1) -> dict[str, Any]:
    """Returns CREDIT's `parallelism` section."""
    return {"data": data, "tensor": tensor, "domain": domain}
