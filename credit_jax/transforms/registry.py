"""The transforms by section of the config and CREDIT's type names: one line each."""

from credit_jax.transforms.base import POSTBLOCKS, PREBLOCKS, TransformEntry, Where
from credit_jax.transforms.post import flatten, reconstruct, wet_mask
from credit_jax.transforms.post import scaler as post_scaler
from credit_jax.transforms.post.exp import ExpArgs, ExpTransform
from credit_jax.transforms.post.square import SquareArgs, SquareTransform
from credit_jax.transforms.pre import normalize, regrid, rename
from credit_jax.transforms.pre import scaler as pre_scaler
from credit_jax.transforms.pre.concat import Concat, ConcatArgs, ToDevice, ToDeviceArgs
from credit_jax.transforms.pre.fill_values import FillArgs, FillValues
from credit_jax.transforms.pre.log import LogArgs, LogTransform
from credit_jax.transforms.pre.sqrt import SqrtArgs, SqrtTransform

_BOTH = Where.BOTH

_PREBLOCKS: dict[str, TransformEntry] = {
    "concat": TransformEntry(ConcatArgs, Concat, PREBLOCKS, _BOTH),
    "era5_normalizer": TransformEntry(
        normalize.NormalizerArgs,
        normalize.build_normalizer,
        PREBLOCKS,
        _BOTH,
        files=("mean_path", "std_path"),
    ),
    "to_device": TransformEntry(ToDeviceArgs, ToDevice, PREBLOCKS, _BOTH),
    "log_transform": TransformEntry(LogArgs, LogTransform, PREBLOCKS, _BOTH),
    "sqrt_transform": TransformEntry(SqrtArgs, SqrtTransform, PREBLOCKS, _BOTH),
    "fill_values": TransformEntry(FillArgs, FillValues, PREBLOCKS, _BOTH),
    "rename": TransformEntry(
        rename.RenameArgs,
        rename.build_rename,
        PREBLOCKS,
        _BOTH,
        files=("mapping_file",),
    ),
    "regrid": TransformEntry(
        regrid.RegridArgs,
        regrid.build_regrid,
        PREBLOCKS,
        Where.HOST,
        files=("weight_file",),
    ),
    "bridgescaler_transform": TransformEntry(
        pre_scaler.ScalerArgs,
        pre_scaler.build_scaler,
        PREBLOCKS,
        _BOTH,
        files=("scaler_path",),
    ),
}

_POSTBLOCKS: dict[str, TransformEntry] = {
    "reconstruct": TransformEntry(
        reconstruct.ReconstructArgs, reconstruct.Reconstruct, POSTBLOCKS, _BOTH
    ),
    "flatten_to_tensor": TransformEntry(
        flatten.FlattenArgs,
        flatten.build_flatten,
        POSTBLOCKS,
        _BOTH,
        files=("scaler_path",),
    ),
    "bridgescaler_transform": TransformEntry(
        post_scaler.ScalerArgs,
        post_scaler.build_scaler,
        POSTBLOCKS,
        _BOTH,
        files=("scaler_path",),
    ),
    "exp_transform": TransformEntry(ExpArgs, ExpTransform, POSTBLOCKS, _BOTH),
    "square_transform": TransformEntry(SquareArgs, SquareTransform, POSTBLOCKS, _BOTH),
    "wet_mask_samudra": TransformEntry(
        wet_mask.WetMaskArgs, wet_mask.build_wet_mask, POSTBLOCKS, _BOTH
    ),
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
