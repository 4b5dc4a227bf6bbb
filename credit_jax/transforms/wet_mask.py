"""`wet_mask_samudra`: sets land to 0, by Samudra's masks of every depth."""

from __future__ import annotations

from os.path import expandvars
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped
from pydantic import PrivateAttr

from credit_jax.config import StrictModel
from credit_jax.config.components import FilePath, UnreadFile
from credit_jax.io.open_files import opened
from credit_jax.named_fields.axes import horizontal
from credit_jax.named_fields.coordinates import (
    UNKNOWN,
    GridCoordinates,
    as_values,
    on_grid,
)
from credit_jax.transforms.base import (
    FieldTree,
    StepContext,
    Transform,
    TreeSchema,
    postblock,
)
from credit_jax.transforms.pointwise import is_numpy

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


@postblock("wet_mask_samudra")
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
    _axes: GridCoordinates = PrivateAttr(UNKNOWN)

    def open(self) -> None:
        """Reads the masks.

        Raises:
            FileNotFoundError: there is no such store.
            ValueError: the store has no masks.
        """
        data = self.conf.data
        with opened(expandvars(data.data_path)) as store:
            depths = _depths(store, data.data_path)
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
        mask = on_grid(self._mask, self._axes, grid)
        return self.with_values(_mask=mask, _axes=UNKNOWN)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Masks the entry `key`, (batch, channel, time, lat, lon).

        Raises:
            ValueError: there is no such array, or it has another number of channels.
        """
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
        return {**tree, self.key: x * (mask if is_numpy(x) else jnp.asarray(mask))}


def _depths(store: xr.Dataset, path: str) -> Shaped[np.ndarray, "depth lat lon"]:
    """Reads the masks of all depths."""
    names = [f"mask_{depth}" for depth in range(NUM_DEPTHS)]
    if names[0] not in store and "wetmask" in store:
        return store["wetmask"].values[:NUM_DEPTHS]
    lacking = [name for name in names if name not in store]
    if lacking:
        raise ValueError(f"{path} lacks {', '.join(lacking)}, and has no wetmask")
    masks = [store[name] for name in names]
    return np.stack(
        [
            mask.isel(time=0).values if "time" in mask.dims else mask.values
            for mask in masks
        ]
    )
