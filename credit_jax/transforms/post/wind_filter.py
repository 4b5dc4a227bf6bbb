"""`wind_artifact_filter`: smooths levels where the wind is strong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from pydantic import PositiveFloat, field_validator

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.physics.arrays import namespace
from credit_jax.physics.wind_filter import (
    Kernel,
    blend_smoothed,
    gaussian,
    strong_wind_mask,
)
from credit_jax.transforms.base import FieldTree, Transform
from credit_jax.transforms.named import OUTPUT, get_field, with_fields


class WindFilterArgs(StrictModel):
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


@dataclasses.dataclass(frozen=True)
class WindFilter(Transform):
    """Smooths levels of the output near strong winds.

    Attributes:
        args: see `WindFilterArgs`.
    """

    args: WindFilterArgs

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces the target variables, of which only the first time is kept.

        Raises:
            ValueError: a variable or `mask_level` is missing.
        """
        args = self.args
        level = slice(args.mask_level, args.mask_level + 1)
        u = get_field(tree, OUTPUT, args.u_var)[:, level, :1]
        v = get_field(tree, OUTPUT, args.v_var)[:, level, :1]
        if not u.shape[1]:
            raise ValueError(
                f"wind_artifact_filter: {args.u_var} has no level {args.mask_level} "
                "(counted from 0); set mask_level"
            )
        dilation, falloff = self._mask_kernels()
        mask = strong_wind_mask(u, v, args.speed_threshold, dilation, falloff, context)
        fixed = {
            key: self._smooth(get_field(tree, OUTPUT, key)[:, :, :1], mask, context)
            for key in args.target_vars
        }
        return with_fields(tree, OUTPUT, fixed)

    def _smooth(self, field: Any, mask: Any, context: FieldContext | None) -> Any:
        """Smooths the target levels of a field."""
        chosen = sorted({n for n in self.args.target_levels if n < field.shape[1]})
        if not chosen:
            return field
        smooth = blend_smoothed(
            field[:, np.asarray(chosen)],
            mask,
            self._smoothing(),
            context,
            preserve_amplitude=self.args.preserve_amplitude,
        )
        places = {level: place for place, level in enumerate(chosen)}
        levels = [
            smooth[:, places[n] : places[n] + 1] if n in places else field[:, n : n + 1]
            for n in range(field.shape[1])
        ]
        return namespace(field).concatenate(levels, axis=1)

    def _mask_kernels(self) -> tuple[Kernel, Kernel]:
        args = self.args
        ones = np.ones(args.dilation_meridional), np.ones(args.dilation_zonal)
        sigma = args.falloff_sigma
        # CREDIT's reach: 2 sigma along latitude, and twice that along longitude.
        edge = gaussian(sigma, 2 * sigma), gaussian(2 * sigma, 4 * sigma)
        return Kernel(*ones), Kernel(*edge)

    def _smoothing(self) -> Kernel:
        args = self.args
        sigmas = [
            args.smooth_sigma if width is None else width
            for width in (args.smooth_sigma_meridional, args.smooth_sigma_zonal)
        ]
        return Kernel(*(gaussian(sigma, 3 * sigma) for sigma in sigmas))
