"""The transforms by section of the config and CREDIT's type names: one line each."""

from credit_jax.transforms.base import POSTBLOCKS, PREBLOCKS, TransformEntry, Where
from credit_jax.transforms.post.reconstruct import Reconstruct, ReconstructArgs
from credit_jax.transforms.pre.concat import (
    ConcatArgs,
    ToDeviceArgs,
    build_concat,
    build_to_device,
)
from credit_jax.transforms.pre.normalize import NormalizerArgs, build_normalizer

_PREBLOCKS: dict[str, TransformEntry] = {
    "concat": TransformEntry(ConcatArgs, build_concat, PREBLOCKS, Where.BOTH),
    "era5_normalizer": TransformEntry(
        NormalizerArgs,
        build_normalizer,
        PREBLOCKS,
        Where.BOTH,
        files=("mean_path", "std_path"),
    ),
    "to_device": TransformEntry(ToDeviceArgs, build_to_device, PREBLOCKS, Where.BOTH),
}

_POSTBLOCKS: dict[str, TransformEntry] = {
    "reconstruct": TransformEntry(ReconstructArgs, Reconstruct, POSTBLOCKS, Where.BOTH),
}

# Section -> type -> transform. Some types mean another transform in each section.
TRANSFORMS: dict[str, dict[str, TransformEntry]] = {
    "preblocks": _PREBLOCKS,
    "postblocks": _POSTBLOCKS,
}


def transform_types(section: str) -> tuple[str, ...]:
    """The types that a section may have.

    Args:
        section: "preblocks" or "postblocks".
    """
    return tuple(TRANSFORMS[section])
