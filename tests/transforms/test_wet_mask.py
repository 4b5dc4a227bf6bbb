"""`wet_mask_samudra`: the masks of CREDIT's block, applied to channels."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax.named_fields.coordinates import GridCoordinates
from tests.support import make_mesh
from tests.support.whole_fields import field_context, field_spec, run_on_mesh
from tests.transforms.credit_blocks import built

LAT, LON, DEPTHS = 5, 4, 19


@pytest.fixture
def store(tmp_path):
    """A store of masks, and a statistics store without their variables."""
    wet = np.random.default_rng(0).integers(0, 2, (DEPTHS, LAT, LON)).astype(bool)
    dims = ("lat", "lon")
    masks = {f"mask_{depth}": (dims, own) for depth, own in enumerate(wet)}
    forcing = {
        name: (("time", *dims), np.zeros((2, LAT, LON))) for name in ("hfds", "tauuo")
    }
    forcing["hfds_anomalies"] = forcing["hfds"]
    xr.Dataset({**masks, **forcing}).to_zarr(tmp_path / "data.zarr", zarr_format=2)
    xr.Dataset({"a": ((), 0.0)}).to_zarr(tmp_path / "stats.zarr", zarr_format=2)
    xr.Dataset({"wetmask": (("lev", *dims), wet)}).to_zarr(
        tmp_path / "lev.zarr", zarr_format=2
    )
    return tmp_path


def conf(store, kind="thermo", name="data"):
    stats = str(store / "stats.zarr")
    data = {
        "data_path": str(store / f"{name}.zarr"),
        "mean_path": stats,
        "std_path": stats,
        "prognostic_vars_key": kind,
        "dynamic_forcing_vars_key": "hfds_anom",
    }
    return {"data": data}


@pytest.mark.reference
@pytest.mark.parametrize(("kind", "count"), [("thermo", 39), ("thermo_dynamic", 77)])
def test_as_credit(credit, store, rng, kind, count):
    import torch
    from credit.postblock.wet_mask_samudra import WetMaskBlock

    x = rng.normal(size=(2, count, 1, LAT, LON)).astype(np.float32)
    theirs = WetMaskBlock(conf(store, kind), key="y_pred")
    expected = theirs({"y_pred": torch.tensor(x)})["y_pred"].numpy()
    for name in ("data", "lev"):
        args = {"conf": conf(store, kind, name), "key": "y_pred"}
        block = built("postblocks", "wet_mask_samudra", **args)
        assert np.array_equal(block({"y_pred": x})["y_pred"], expected)
    for num_shards in (1, 3):
        mesh = make_mesh(domain=num_shards) if num_shards > 1 else None
        context = field_context(LAT, mesh)
        run = lambda x: block({"y_pred": x}, context)["y_pred"]  # noqa: E731, B023
        if mesh is None:
            found = jax.jit(run)(jnp.asarray(x))
        else:
            found = run_on_mesh(run, mesh, x, out_specs=field_spec(mesh))
        assert np.array_equal(np.asarray(found)[..., :LAT, :], expected)


def test_masks_are_matched_by_their_coordinates(store, rng):
    """Whatever the order of their rows and columns; others are refused."""
    axes = {"lat": np.linspace(-60, 60, LAT), "lon": np.arange(LON) * 90.0}
    with xr.open_zarr(store / "lev.zarr") as plain:
        located = plain.load().drop_encoding().assign_coords(axes)
    located.to_zarr(store / "located.zarr", zarr_format=2)
    turned = located.isel(lat=slice(None, None, -1)).roll(lon=1, roll_coords=True)
    turned = turned.assign_coords(lon=(turned.lon + 180) % 360 - 180)
    turned.to_zarr(store / "turned.zarr", zarr_format=2)
    data = GridCoordinates(
        *(tuple(values.tolist()) for values in axes.values()), where="w.nc"
    )
    x = rng.normal(size=(1, 39, 1, LAT, LON)).astype(np.float32)

    def masked(name):
        args = {"conf": conf(store, name=name), "key": "y"}
        block = built("postblocks", "wet_mask_samudra", **args)
        return block.at({}, data)({"y": x})["y"]

    assert np.array_equal(masked("turned"), masked("located"))
    assert not np.array_equal(masked("located"), x)
    moved = located.assign_coords(lat=axes["lat"] + 3)
    moved.to_zarr(store / "moved.zarr", zarr_format=2)
    with pytest.raises(ValueError, match=r"moved\.zarr: 5 latitudes run from -57"):
        masked("moved")


def test_errors(store):
    block = built("postblocks", "wet_mask_samudra", conf=conf(store))
    with pytest.raises(ValueError, match="must be an array of 39 channels"):
        block({"y_pred": np.zeros((1, 39, 1, LAT, LON))})
    text = "stats.zarr lacks mask_0, mask_1"
    with pytest.raises(ValueError, match=re.escape(text)):
        built("postblocks", "wet_mask_samudra", conf=conf(store, name="stats"))
