"""gen1's Laplace filter beside CREDIT's class, in the functions that it consists of."""

import jax
import numpy as np
import pytest

from credit_jax.physics.laplace_filter import filter_scalar, filter_wind
from credit_torch_bridge.compare.jax_side import import_credit
from tests.support import assert_close

# With fewer columns no wave is filtered near the poles; 151 have no Nyquist wave.
GRIDS = [(24, 150), (22, 151)]


def drawn(rows: int, columns: int) -> np.ndarray:
    """Three fields (1, 1, 1, row, column)."""
    rng = np.random.default_rng(rows)
    return 10 * rng.normal(size=(3, 1, 1, 1, rows, columns))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")
@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_as_credit(credit, torch, rows, columns):
    theirs = import_credit("pol_lapdiff_filt").Diffusion_and_Pole_Filter(rows, columns)
    fields = drawn(rows, columns)
    x, u, v = (torch.from_numpy(field[0, 0, 0].copy()) for field in fields)
    for steps, strength, function in (
        (5, 1e8, theirs.polefilt_lap2d_V1),
        (8, 0.5e8, theirs.polefilt_lap2d_QV1),
    ):
        expected = function(x.clone(), substeps=steps).numpy()
        ours = filter_scalar(fields[0], steps, strength)[0, 0, 0]
        # CREDIT's ramp is of float32.
        assert_close(ours, expected, 1e-9, f"{steps} steps of a scalar")
        waves = filter_scalar(fields[0], 0, strength)[0, 0, 0]
        assert_close(ours - waves, expected - waves, 1e-6, "of it diffusion")
        assert abs(waves - fields[0, 0, 0, 0]).max() > 1.0, "of it the poles"
    expected = theirs.polefilt_lap2d_V2(u.clone(), v.clone(), substeps=6)
    ours, waves = (filter_wind(fields[1], fields[2], steps) for steps in (6, 0))
    for own, plain, other, name in zip(ours, waves, expected, "uv", strict=True):
        assert_close(own[0, 0, 0], other.numpy(), 1e-9, name)
        rest = other.numpy() - plain[0, 0, 0]
        assert_close((own - plain)[0, 0, 0], rest, 1e-6, f"{name}, of it diffusion")


def test_traced_as_on_the_host():
    rows, columns = GRIDS[0]
    x, u, v = drawn(rows, columns).astype(np.float32)
    found = jax.jit(lambda x: filter_scalar(x, 5, 1e8))(x)
    assert found.dtype == np.float32
    assert_close(np.asarray(found), filter_scalar(x, 5, 1e8), 1e-6, "scalar")
    both = jax.jit(lambda u, v: filter_wind(u, v, 6))(u, v)
    for ours, expected, name in zip(both, filter_wind(u, v, 6), "uv", strict=True):
        assert_close(np.asarray(ours), expected, 1e-6, name)
