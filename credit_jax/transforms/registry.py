"""The transforms by CREDIT's type names: one line each."""

from credit_jax.transforms.base import (
    POSTBLOCKS,
    PREBLOCKS,
    TransformEntry,
    Where,
)
from credit_jax.transforms.post.reconstruct import Reconstruct, ReconstructArgs
from credit_jax.transforms.pre.concat import (
    ConcatArgs,
    ToDeviceArgs,
    build_concat,
    build_to_device,
)
from credit_jax.transforms.pre.normalize import NormalizerArgs, build_normalizer

TRANSFORMS: dict[str, TransformEntry] = {
    "concat": TransformEntry(ConcatArgs, build_concat, PREBLOCKS, Where.BOTH),
    "era5_normalizer": TransformEntry(
        NormalizerArgs, build_normalizer, PREBLOCKS, Where.BOTH
    ),
    "reconstruct": TransformEntry(ReconstructArgs, Reconstruct, POSTBLOCKS, Where.BOTH),
    "to_device": TransformEntry(ToDeviceArgs, build_to_device, PREBLOCKS, Where.BOTH),
}


def transform_types(section: str) -> tuple[str, ...]:
    """The types that a section may have.

    Args:
        section: "preblocks" or "postblocks".
    """
    return tuple(
        name
        for name, entry in TRANSFORMS.items()
        if any(phase.section == section for phase in entry.phases)
    )
