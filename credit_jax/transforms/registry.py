"""The registry of transforms, by config section and CREDIT's type names."""

from collections.abc import Callable
from functools import partial
from typing import Any

from credit_jax.config.components import Registry
from credit_jax.transforms import advection, levels, normalize, scaler_blocks
from credit_jax.transforms.base import POSTBLOCKS, PREBLOCKS, TransformEntry, Where
from credit_jax.transforms.pointwise_blocks import (
    ExpArgs,
    LogArgs,
    PointwisePostblock,
    PointwisePreblock,
    SqrtArgs,
    SquareArgs,
)
from credit_jax.transforms.post import (
    conservation,
    diagnostics,
    flatten,
    reconstruct,
    wet_mask,
)
from credit_jax.transforms.post.full_levels import (
    FullLevelsArgs,
    build_full_levels,
)
from credit_jax.transforms.post.laplace_filter import (
    LaplaceFilter,
    LaplaceFilterArgs,
)
from credit_jax.transforms.post.wind_filter import WindFilter, WindFilterArgs
from credit_jax.transforms.pre import regrid, rename
from credit_jax.transforms.pre.concat import Concat, ConcatArgs, ToDevice, ToDeviceArgs
from credit_jax.transforms.pre.fill_values import FillArgs, FillValues

_BOTH = Where.BOTH


def _fixer(args: type[Any], build: Callable[[Any], Any]) -> TransformEntry:
    """Entry of a fixer, which reads a file of its grid and the previous state."""
    files, needs = ("save_loc_physics",), ("x_physical",)
    return TransformEntry(args, build, POSTBLOCKS, _BOTH, files, needs)


def _diagnostic(args: type[Any], build: Callable[[Any], Any]) -> TransformEntry:
    """Entry of a diagnostic, which reads static fields."""
    files = ("surface_geopotential_file",)
    return TransformEntry(args, build, POSTBLOCKS, _BOTH, files, ("ic_raw",))


def _undoing(name: str, args: type[Any]) -> TransformEntry:
    """Entry of a postblock that undoes an elementwise preblock."""
    return TransformEntry(args, partial(PointwisePostblock, name), POSTBLOCKS, _BOTH)


_PREBLOCKS: Registry[TransformEntry] = Registry("preblock", TransformEntry)
_PREBLOCKS |= {
    "concat": TransformEntry(ConcatArgs, Concat, PREBLOCKS, _BOTH),
    "era5_normalizer": TransformEntry(
        normalize.NormalizerArgs,
        normalize.build_normalizer,
        PREBLOCKS,
        _BOTH,
        files=("mean_path", "std_path"),
        is_fitted=True,
        undone_by="era5_normalizer",
    ),
    "to_device": TransformEntry(ToDeviceArgs, ToDevice, PREBLOCKS, _BOTH),
    "log_transform": TransformEntry(
        LogArgs, PointwisePreblock, PREBLOCKS, _BOTH, undone_by="exp_transform"
    ),
    "sqrt_transform": TransformEntry(
        SqrtArgs, PointwisePreblock, PREBLOCKS, _BOTH, undone_by="square_transform"
    ),
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
        scaler_blocks.ScalerPreArgs,
        scaler_blocks.build_scaler_pre,
        PREBLOCKS,
        _BOTH,
        files=("scaler_path",),
        is_fitted=True,
        undone_by="bridgescaler_transform",
    ),
    "hybrid_level_interp": TransformEntry(
        levels.LevelInterpPreArgs, levels.build_level_interp_pre, PREBLOCKS, _BOTH
    ),
    "semilagrangian_advection": TransformEntry(
        advection.AdvectionPreArgs, advection.build_advection_pre, PREBLOCKS, _BOTH
    ),
}

_POSTBLOCKS: Registry[TransformEntry] = Registry("postblock", TransformEntry)
_POSTBLOCKS |= {
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
        scaler_blocks.ScalerPostArgs,
        scaler_blocks.build_scaler_post,
        POSTBLOCKS,
        _BOTH,
        files=("scaler_path",),
    ),
    "era5_normalizer": TransformEntry(
        normalize.DenormalizerArgs,
        normalize.build_denormalizer,
        POSTBLOCKS,
        _BOTH,
        files=("mean_path", "std_path"),
    ),
    "exp_transform": _undoing("exp_transform", ExpArgs),
    "square_transform": _undoing("square_transform", SquareArgs),
    "wet_mask_samudra": TransformEntry(
        wet_mask.WetMaskArgs, wet_mask.build_wet_mask, POSTBLOCKS, _BOTH
    ),
    "tracer_fixer": TransformEntry(
        conservation.TracerFixerArgs, conservation.build_tracer_fixer, POSTBLOCKS, _BOTH
    ),
    "global_mass_fixer": _fixer(
        conservation.MassFixerArgs, conservation.build_mass_fixer
    ),
    "global_water_fixer": _fixer(
        conservation.WaterFixerArgs, conservation.build_water_fixer
    ),
    "global_energy_fixer": _fixer(
        conservation.EnergyFixerArgs, conservation.build_energy_fixer
    ),
    "global_energy_fixer_updown": _fixer(
        conservation.EnergyFixerArgs, conservation.build_energy_fixer
    ),
    "global_energy_fixer_net": _fixer(
        conservation.NetEnergyFixerArgs, conservation.build_energy_fixer
    ),
    "mslp_diagnostic": _diagnostic(
        diagnostics.SeaLevelArgs, diagnostics.build_sea_level
    ),
    "geopotential_diagnostic": _diagnostic(
        diagnostics.GeopotentialArgs, diagnostics.build_geopotential
    ),
    "pressure_interp_diagnostic": _diagnostic(
        diagnostics.PressureInterpArgs, diagnostics.build_pressure_interp
    ),
    "full_state_pressure_interpolation": _diagnostic(FullLevelsArgs, build_full_levels),
    "hybrid_level_interp": TransformEntry(
        levels.LevelInterpPostArgs, levels.build_level_interp_post, POSTBLOCKS, _BOTH
    ),
    "semilagrangian_advection": TransformEntry(
        advection.AdvectionPostArgs, advection.build_advection_post, POSTBLOCKS, _BOTH
    ),
    "laplace_filter": TransformEntry(
        LaplaceFilterArgs, LaplaceFilter, POSTBLOCKS, _BOTH
    ),
    "wind_artifact_filter": TransformEntry(
        WindFilterArgs, WindFilter, POSTBLOCKS, _BOTH
    ),
}

# Section -> type -> transform. Some types are different transforms in both sections.
TRANSFORMS: dict[str, Registry[TransformEntry]] = {
    "preblocks": _PREBLOCKS,
    "postblocks": _POSTBLOCKS,
}


def transform_types(section: str) -> tuple[str, ...]:
    """Returns the types that a section may have.

    Args:
        section: "preblocks" or "postblocks".
    """
    return tuple(TRANSFORMS[section])
