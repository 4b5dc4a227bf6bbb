"""What is damped or masked after the model.

`laplace_filter` near the poles, `wind_artifact_filter`, and `wet_mask_samudra` on land.
"""

from __future__ import annotations

from os.path import expandvars
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveFloat, PrivateAttr

from credit_jax.config import StrictModel
from credit_jax.config.base import checked_by
from credit_jax.config.components import FilePath, UnreadFile
from credit_jax.io.open_files import opened
from credit_jax.named_fields import coordinates
from credit_jax.named_fields.axes import horizontal
from credit_jax.named_fields.coordinates import GridCoordinates, as_values
from credit_jax.physics import laplace_filter
from credit_jax.physics.arrays import all_rows, clip, namespace
from credit_jax.physics.laplace_filter import Kernel, gaussian
from credit_jax.transforms import base
from credit_jax.transforms.base import FieldTree, StepContext, Transform, TreeSchema


class ScalarArgs(StrictModel):
    """A group of variables of `laplace_filter`.

    Attributes:
        variables: their keys.
        steps: steps of diffusion.
        strength: diffusion of a step, m^2.
    """

    variables: tuple[str, ...]
    steps: NonNegativeInt = 5
    strength: float = 1e8


class WindArgs(StrictModel):
    """A wind of `laplace_filter`.

    Attributes:
        u, v: keys of its components.
        steps: steps of diffusion of its divergence.
    """

    u: str
    v: str
    steps: NonNegativeInt = 6


@base.postblock("laplace_filter")
class LaplaceFilter(base.OutputBlock):
    """Damps noise near the poles and divergence, as gen1's `use_laplace_filter`.

    Attributes:
        winds: the winds.
        scalars: groups of other variables.
    """

    winds: tuple[WindArgs, ...] = ()
    scalars: tuple[ScalarArgs, ...] = ()

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces the variables; rows are gathered, as the filter is global."""
        # Differs from CREDIT: its functions name variables by the channels of models of
        # 16 levels; here the config names them.
        fixed: dict[str, Any] = {}
        for wind in self.winds:
            keys = wind.u, wind.v
            parts = [self._all_rows(tree, key, context) for key in keys]
            both = laplace_filter.filter_wind(parts[0], parts[1], wind.steps)
            fixed |= dict(zip(keys, both, strict=True))
        for group in self.scalars:
            for key in group.variables:
                full = self._all_rows(tree, key, context)
                fixed[key] = laplace_filter.filter_scalar(
                    full, group.steps, group.strength
                )
        if context is not None:
            for key, field in fixed.items():
                xp = namespace(field)
                rows = context.local_rows(xp.moveaxis(field, -2, 0))
                fixed[key] = xp.moveaxis(rows, 0, -2)
        return base.with_fields(tree, self.key, fixed)

    def _all_rows(self, tree: FieldTree, key: str, context: StepContext) -> Any:
        field = all_rows(base.get_field(tree, self.key, key), context)
        shape, least = field.shape[-2:], laplace_filter.SMALLEST_GRID
        if shape[0] < least[0] or shape[1] < least[1]:
            raise ValueError(
                f"the grid has {shape[0]} x {shape[1]} points; the "
                f"filter takes ten rows at each pole, and needs {least[0]} rows"
            )
        return field


def _check_odd(value: int) -> None:
    if value < 1 or value % 2 == 0:
        raise ValueError("expected an odd number of grid points")


Width = Annotated[int, checked_by(_check_odd)]


@base.postblock("wind_artifact_filter")
class WindFilter(Transform):
    """Smooths levels where the wind is strong.

    Attributes:
        u_var, v_var: keys of the wind.
        target_vars: keys of the variables to smooth, on the levels of the wind.
        mask_level: level, counted from 0, whose wind is compared with the threshold.
        target_levels: levels to smooth, counted from 0; levels that a variable does not
            have are skipped.
        speed_threshold: threshold of the wind speed, in the unit of the wind at this
            block; CREDIT's default is for normalized winds.
        smooth_sigma: standard deviation of the smoothing, in grid points.
        smooth_sigma_zonal, smooth_sigma_meridional: standard deviation along longitude
            and latitude; null is `smooth_sigma`.
        dilation_zonal, dilation_meridional: width of the kernels that grow the region
            of strong wind, an odd number of grid points.
        falloff_sigma: standard deviation of the smoothing of the region's edge along
            latitude, in grid points; it is twice as large along longitude.
        preserve_amplitude: whether to preserve the mean square of each smoothed level.
    """

    u_var: str
    v_var: str
    target_vars: tuple[str, ...]
    mask_level: int = 14
    target_levels: tuple[int, ...] = tuple(range(9, 21))
    speed_threshold: float = 3.0193274566643846
    smooth_sigma: PositiveFloat = 1.0
    smooth_sigma_zonal: PositiveFloat | None = None
    smooth_sigma_meridional: PositiveFloat | None = None
    dilation_zonal: Width = 13
    dilation_meridional: Width = 5
    falloff_sigma: PositiveFloat = 4.0
    preserve_amplitude: bool = False

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces the target variables, of which only the first time is kept."""
        level = slice(self.mask_level, self.mask_level + 1)
        u = base.get_field(tree, base.OUTPUT, self.u_var)[:, level, :1]
        v = base.get_field(tree, base.OUTPUT, self.v_var)[:, level, :1]
        if not u.shape[1]:
            raise ValueError(
                f"{self.u_var} has no level {self.mask_level} "
                "(counted from 0); set mask_level"
            )
        ones = np.ones(self.dilation_meridional), np.ones(self.dilation_zonal)
        dilation, sigma = Kernel(*ones), self.falloff_sigma
        # CREDIT's reach: 2 sigma along latitude, and twice that along longitude.
        falloff = Kernel(gaussian(sigma, 2 * sigma), gaussian(2 * sigma, 4 * sigma))
        # 1 where the wind is strong, with a smooth edge, and 0 far from there.
        xp = namespace(u)
        strong = (xp.sqrt(u**2 + v**2) > self.speed_threshold).astype(u.dtype)
        mask = falloff(clip(dilation(strong, context), 0.0, 1.0), context)
        sigmas = (
            self.smooth_sigma if width is None else width
            for width in (self.smooth_sigma_meridional, self.smooth_sigma_zonal)
        )
        kernel = Kernel(*(gaussian(sigma, 3 * sigma) for sigma in sigmas))
        fixed = {}
        for key in self.target_vars:
            full = base.get_field(tree, base.OUTPUT, key)[:, :, :1]
            chosen = sorted({n for n in self.target_levels if n < full.shape[1]})
            if chosen:
                smooth = laplace_filter.blend_smoothed(
                    full[:, np.asarray(chosen)],
                    mask,
                    kernel,
                    context,
                    preserve_amplitude=self.preserve_amplitude,
                )
                levels = [full[:, n : n + 1] for n in range(full.shape[1])]
                for part, n in enumerate(chosen):
                    levels[n] = smooth[:, part : part + 1]
                full = namespace(full).concatenate(levels, axis=1)
            fixed[key] = full
        return base.with_fields(tree, base.OUTPUT, fixed)


NUM_DEPTHS = 19
# Samudra's sets of variables with depths, in channel order, before sea surface height.
VARIABLES = {
    "thermo_dynamic": ("uo", "vo", "thetao", "so"),
    "thermo": ("thetao", "so"),
}


class WetMaskData(StrictModel):
    """`conf.data` of `wet_mask_samudra`.

    Attributes:
        data_path: Zarr store with the variables mask_0 to mask_18, or wetmask (lev,
            lat, lon).
        mean_path, std_path: no effect; CREDIT opens these files but does not use them.
        prognostic_vars_key: set of variables of the channels.
        dynamic_forcing_vars_key: no effect.
    """

    data_path: FilePath
    mean_path: UnreadFile | None = None
    std_path: UnreadFile | None = None
    prognostic_vars_key: Literal["thermo_dynamic", "thermo"]
    dynamic_forcing_vars_key: str | None = None


class WetMaskConf(StrictModel):
    """`conf` of `wet_mask_samudra`.

    Attributes:
        data: see `WetMaskData`.
    """

    data: WetMaskData


@base.postblock("wet_mask_samudra")
class WetMask(Transform):
    """Sets land to 0, by Samudra's masks of every depth.

    Attributes:
        conf: see `WetMaskConf`.
        key: entry with the array, such as "y_pred".

    Differs from CREDIT: CREDIT broadcasts the channels of the mask to the batch dim of
    arrays without a time dim, which its trainer has.
    """

    conf: WetMaskConf
    key: str = "prediction"

    # 1 in water and 0 on land, and the latitudes and longitudes that are known.
    _mask: Float[np.ndarray, "channel lat lon"] = PrivateAttr()
    _axes: GridCoordinates = PrivateAttr(coordinates.UNKNOWN)

    def open(self) -> None:
        data = self.conf.data
        with opened(expandvars(data.data_path)) as store:
            names = [f"mask_{depth}" for depth in range(NUM_DEPTHS)]
            if names[0] not in store and "wetmask" in store:
                depths = store["wetmask"].values[:NUM_DEPTHS]
            else:
                lacking = ", ".join(name for name in names if name not in store)
                if lacking:
                    raise ValueError(
                        f"{data.data_path} lacks {lacking}, and has no wetmask"
                    )
                # Masks of stores that repeat them at each time.
                masks = [store[name] for name in names]
                masks = [m.isel(time=0) if "time" in m.dims else m for m in masks]
                depths = np.stack([mask.values for mask in masks])
            axes = (
                None if x is None else as_values(x.values)
                for x in horizontal(store, data.data_path)
            )
            self._axes = GridCoordinates(*axes, where=data.data_path)
        count = len(VARIABLES[data.prognostic_vars_key])
        channels = [*(list(range(NUM_DEPTHS)) * count), 0]
        self._mask = np.asarray(depths[channels], np.float32)

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> WetMask:
        """Returns the block with its mask in the order of the data."""
        mask = coordinates.on_grid(self._mask, self._axes, grid)
        return self.with_values(_mask=mask, _axes=coordinates.UNKNOWN)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Masks the entry `key`, (batch, channel, time, lat, lon)."""
        x = tree.get(self.key)
        if x is None or isinstance(x, dict) or x.shape[1] != len(self._mask):
            got = "nothing" if x is None else getattr(x, "shape", "fields of variables")
            raise ValueError(
                f"key {self.key!r} must be an array of "
                f"{len(self._mask)} channels, such as y_pred; got {got}"
            )
        mask = self._mask[None, :, None]
        if context is not None:
            local = context.local_rows(np.moveaxis(self._mask, 1, 0))
            mask = jnp.moveaxis(local, 0, 1)[None, :, None]
        return {**tree, self.key: x * namespace(x).asarray(mask)}
