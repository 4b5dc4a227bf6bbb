"""The mass fixer in float32 against CREDIT's in float32 and in float64."""

import numpy as np
import pytest
import xarray as xr

from benchmarks.trajectory import atmosphere
from credit_jax.transforms.conservation import MassFixer

pytestmark = pytest.mark.reference

ARGS = atmosphere.fixers()["mass"]["args"]
Q, SP = ARGS["q_var"], ARGS["sp_var"]
NUM_TIMES = 12
PAIRS = (slice(None, -1), slice(1, None))


def states(fields, dtype):
    """Returns the state before and after each of several steps, in a dtype."""
    humidity = fields["Q"].values[: NUM_TIMES + 1, :, None].astype(dtype)
    pressure = fields["SP"].values[: NUM_TIMES + 1, None, None].astype(dtype)
    both = {Q: humidity, SP: pressure}
    before, after = ({k: x[own] for k, x in both.items()} for own in PAIRS)
    return {"x_physical": {"ERA5": before}, "y_processed": {"ERA5": after}}


def credit_fixed(tree, dtype):
    """Returns surface pressure after CREDIT's fixer, computed in a dtype."""
    import torch
    from credit.postblock.conservation import GlobalMassFixer

    wide = getattr(torch, dtype)
    fixer = GlobalMassFixer(**ARGS).to(wide)
    for owner in (fixer, fixer.core):
        for name, value in list(vars(owner).items()):
            if torch.is_tensor(value) and value.is_floating_point():
                setattr(owner, name, value.to(wide))
    tensors = {
        part: {"ERA5": {k: torch.tensor(x) for k, x in own["ERA5"].items()}}
        for part, own in tree.items()
    }
    return fixer(tensors)["y_processed"]["ERA5"][SP].numpy()


def test_mean_surface_pressure_is_nearer_to_float64_than_credit(
    credit, tmp_path, monkeypatch
):
    """CREDIT subtracts global sums in float32, which biases the fixed field."""
    monkeypatch.chdir(tmp_path)
    atmosphere.write(tmp_path)
    with xr.open_dataset("d_2000.nc") as fields:
        exact = credit_fixed(states(fields, np.float64), "float64")
        theirs = credit_fixed(states(fields, np.float32), "float32")
        tree = states(fields, np.float32)
    fixer = MassFixer(**ARGS)
    fixer.open()
    ours = fixer(tree)["y_processed"]["ERA5"][SP]
    assert exact.dtype == np.float64
    assert ours.dtype == theirs.dtype == np.float32

    def away(values):
        """Returns the largest difference of global means, in Pa."""
        return np.abs((values - exact).mean((1, 2, 3, 4))).max()

    print(f"mean of surface pressure: {away(ours):.1e} Pa, CREDIT {away(theirs):.1e}")
    one_bit = np.spacing(np.float32(1e5))
    assert away(ours) <= one_bit
    assert away(theirs) > away(ours)
