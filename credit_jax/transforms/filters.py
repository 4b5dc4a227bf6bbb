"""The filters of fields: `laplace_filter` near the poles, `wind_artifact_filter`."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, field_validator

from credit_jax.config import StrictModel
from credit_jax.physics.arrays import all_rows, namespace
from credit_jax.physics.laplace_filter import (
    SMALLEST_GRID,
    Kernel,
    blend_smoothed,
    filter_scalar,
    filter_wind,
    gaussian,
    strong_wind_mask,
)
from credit_jax.transforms.base import (
    OUTPUT,
    FieldTree,
    OutputBlock,
    StepContext,
    Transform,
    get_field,
    postblock,
    with_fields,
)


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


@postblock("laplace_filter")
class LaplaceFilter(OutputBlock):
    """Damps noise near the poles and divergence, as gen1's `use_laplace_filter`.

    Attributes:
        winds: the winds.
        scalars: groups of other variables.
    """

    winds: tuple[WindArgs, ...] = ()
    scalars: tuple[ScalarArgs, ...] = ()

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces the variables; rows are gathered, as the filter is global.

        Raises:
            ValueError: a variable is missing, or the grid is too small.

        Differs from CREDIT: its functions name variables by the channels of models of
        16 levels; here the config names them.
        """
        fixed: dict[str, Any] = {}
        for wind in self.winds:
            keys = wind.u, wind.v
            parts = [self._whole(tree, key, context) for key in keys]
            both = filter_wind(parts[0], parts[1], wind.steps)
            fixed |= dict(zip(keys, both, strict=True))
        for group in self.scalars:
            for key in group.variables:
                full = self._whole(tree, key, context)
                fixed[key] = filter_scalar(full, group.steps, group.strength)
        if context is not None:
            for key, field in fixed.items():
                xp = namespace(field)
                rows = context.local_rows(xp.moveaxis(field, -2, 0))
                fixed[key] = xp.moveaxis(rows, 0, -2)
        return with_fields(tree, self.key, fixed)

    def _whole(self, tree: FieldTree, key: str, context: StepContext) -> Any:
        field = all_rows(get_field(tree, self.key, key), context)
        shape, least = field.shape[-2:], SMALLEST_GRID
        if shape[0] < least[0] or shape[1] < least[1]:
            raise ValueError(
                f"the grid has {shape[0]} x {shape[1]} points; the "
                f"filter takes ten rows at each pole, and needs {least[0]} rows"
            )
        return field


@postblock("wind_artifact_filter")
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
    dilation_zonal: int = 13
    dilation_meridional: int = 5
    falloff_sigma: PositiveFloat = 4.0
    preserve_amplitude: bool = False

    @field_validator("dilation_zonal", "dilation_meridional")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value < 1 or value % 2 == 0:
            raise ValueError("expected an odd number of grid points")
        return value

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces the target variables, of which only the first time is kept.

        Raises:
            ValueError: a variable or `mask_level` is missing.
        """
        level = slice(self.mask_level, self.mask_level + 1)
        u = get_field(tree, OUTPUT, self.u_var)[:, level, :1]
        v = get_field(tree, OUTPUT, self.v_var)[:, level, :1]
        if not u.shape[1]:
            raise ValueError(
                f"{self.u_var} has no level {self.mask_level} "
                "(counted from 0); set mask_level"
            )
        ones = np.ones(self.dilation_meridional), np.ones(self.dilation_zonal)
        dilation, sigma = Kernel(*ones), self.falloff_sigma
        # CREDIT's reach: 2 sigma along latitude, and twice that along longitude.
        falloff = Kernel(gaussian(sigma, 2 * sigma), gaussian(2 * sigma, 4 * sigma))
        mask = strong_wind_mask(u, v, self.speed_threshold, dilation, falloff, context)
        fixed = {
            key: self._smooth(get_field(tree, OUTPUT, key)[:, :, :1], mask, context)
            for key in self.target_vars
        }
        return with_fields(tree, OUTPUT, fixed)

    def _smooth(self, field: Any, mask: Any, context: StepContext) -> Any:
        """Smooths the target levels of a field."""
        chosen = sorted({n for n in self.target_levels if n < field.shape[1]})
        if not chosen:
            return field
        sigmas = (
            self.smooth_sigma if width is None else width
            for width in (self.smooth_sigma_meridional, self.smooth_sigma_zonal)
        )
        smooth = blend_smoothed(
            field[:, np.asarray(chosen)],
            mask,
            Kernel(*(gaussian(sigma, 3 * sigma) for sigma in sigmas)),
            context,
            preserve_amplitude=self.preserve_amplitude,
        )
        indices = {level: part for part, level in enumerate(chosen)}
        levels = [
            smooth[:, indices[n] : indices[n] + 1]
            if n in indices
            else field[:, n : n + 1]
            for n in range(field.shape[1])
        ]
        return namespace(field).concatenate(levels, axis=1)
