"""`spectral_to_grid` against scipy's harmonics, and closed forms."""

import jax
import numpy as np
import pytest
import xarray as xr
from scipy.special import sph_harm_y

from credit_jax.data import ChannelSchema
from credit_jax.named_fields.tree import by_key
from credit_jax.transforms import Advance, Phase, channel_units, units_after
from credit_jax.transforms.spectral import reduced_grid_weights
from tests.support import assert_close
from tests.support.whole_fields import field_context
from tests.transforms.cases import CONCAT, LEVELS, LSM, build, group, preblocks

TRUNCATION, RADIUS, RINGS = 21, 6371229.0, 32
T, VO, D, U, V = (f"S/prognostic/3d/{name}" for name in ("T", "vo", "d", "U", "V"))
Q, LNSP, SP = "S/prognostic/3d/q", "S/prognostic/2d/lnsp", "S/prognostic/2d/SP"
DEGREE = np.concatenate([np.arange(m, TRUNCATION + 1) for m in range(TRUNCATION + 1)])
ORDER = np.repeat(np.arange(TRUNCATION + 1), np.arange(TRUNCATION + 1, 0, -1))
RING_LATITUDE = np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(RINGS)[0]))[::-1]
# As many points as the orders need, but for the rings next to the poles.
COUNTS = np.full(RINGS, 48)
COUNTS[[0, -1]], COUNTS[[1, -2]] = 44, 64
EQUIANGULAR = {"target_grid": "equiangular", "nlat": 19, "nlon": 48}
ARGS = {
    "scalar_vars": {T: T, LNSP: SP},
    "vector_vars": [{"vorticity": VO, "divergence": D, "u": U, "v": V}],
    "exp_vars": [SP],
    "truncation": TRUNCATION,
}


def coefficients(scale, levels, rng):
    """Returns complex coefficients (batch, level, time, harmonic), real of order 0."""
    parts = rng.normal(size=(2, 2, levels, 1, DEGREE.size)) * scale / (1 + DEGREE)
    return parts[0] + 1j * parts[1] * (ORDER > 0)


def packed(values):
    return np.stack([values.real, values.imag], -1).reshape(*values.shape[:-1], -1)


def write_rings(path):
    """Writes the rings of the reduced grid; returns its file."""
    rings = {"ring_lats": ("ring", RING_LATITUDE), "ring_nlon": ("ring", COUNTS)}
    xr.Dataset(rings).to_netcdf(path)
    return str(path)


@pytest.fixture(params=["rings", "points", "equiangular"])
def grid(request, tmp_path):
    """Returns arguments of a grid, its points, and the shape of fields."""
    if request.param == "equiangular":
        latitude, longitude = np.linspace(90, -90, 19), np.arange(48) * 7.5
        points = np.meshgrid(latitude, longitude, indexing="ij")
        return EQUIANGULAR, points, (19, 48)
    latitude = np.repeat(RING_LATITUDE, COUNTS)
    longitude = np.concatenate([np.arange(n) * 360 / n for n in COUNTS])
    content = {"latitude": ("values", latitude), "longitude": ("values", longitude)}
    path = tmp_path / "grid.nc"
    if request.param == "rings":
        write_rings(path)
    else:
        xr.Dataset(content).to_netcdf(path)
    return {"grid_file": str(path)}, (latitude, longitude), latitude.shape


def test_against_scipy(grid):
    args, (latitude, longitude), shape = grid
    rng = np.random.default_rng(0)
    t, vo, d = (coefficients(x, LEVELS, rng) for x in (10, 1e-5, 1e-5))
    lnsp = coefficients(0.1, 1, rng)
    values = {T: t, VO: vo, D: d, LNSP: lnsp}
    fields = {key: packed(x).astype(np.float32) for key, x in values.items()}
    fields[Q] = np.ones((2, LEVELS, 1, *shape), np.float32)
    block = build("spectral_to_grid", ARGS | args, "preblocks")
    found = block({"input": {"S": fields}})["input"]["S"]
    # Winds are in the positions of vorticity and divergence, as channels are.
    assert list(found) == [T, U, V, SP, Q]
    theta, phi = np.deg2rad(90 - latitude.ravel()), np.deg2rad(longitude.ravel())
    inner = np.sin(theta) > 1e-8
    y, slopes = sph_harm_y(
        DEGREE[:, None], ORDER[:, None], theta[inner], phi[inner], diff_n=1
    )
    # IFS has no sign of Condon and Shortley, and a mean square of 1.
    factor = (-1.0) ** ORDER * np.sqrt(4 * np.pi) * np.where(ORDER, 2, 1)
    inverse = -(RADIUS**2) / np.maximum(DEGREE * (DEGREE + 1), 1) * (DEGREE > 0)

    def total(values, functions):
        return ((values * factor) @ functions).real

    by_theta, by_phi = slopes[..., 0], slopes[..., 1] / np.sin(theta[inner])
    psi, chi = vo * inverse, d * inverse
    expected = {
        T: total(t, y),
        SP: np.exp(total(lnsp, y)),
        U: (total(chi, by_phi) + total(psi, by_theta)) / RADIUS,
        V: (total(psi, by_phi) - total(chi, by_theta)) / RADIUS,
    }
    for key, x in expected.items():
        assert found[key].shape == (*x.shape[:3], *shape)
        flat = found[key].reshape(*x.shape[:3], -1)[..., inner]
        assert_close(flat, x, 2e-6, key)
    assert np.array_equal(found[Q], fields[Q])
    if block.target_grid == "equiangular":
        assert np.array_equal(found[U][..., 0, :], found[U][..., 1, :])
        assert np.array_equal(found[V][..., -1, :], found[V][..., -2, :])


def test_a_rotation_and_the_mean():
    """2 omega sin(lat) is the vorticity of the wind omega a cos(lat)."""
    omega = 2e-5
    values = np.zeros((2, 1, 1, 1, DEGREE.size), complex)
    values[0, ..., (DEGREE == 1) & (ORDER == 0)] = 2 * omega / np.sqrt(3)
    values[1, ..., 0] = 288.0
    fields = {VO: packed(values[0]), D: 0 * packed(values[0]), T: packed(values[1])}
    args = {**ARGS, **EQUIANGULAR, "scalar_vars": [T, VO], "exp_vars": []}
    found = build("spectral_to_grid", args, "preblocks")({"target": {"S": fields}})
    found = found["target"]["S"]
    assert list(found) == [VO, V, T, U]
    latitude = np.deg2rad(np.linspace(90, -90, 19))[:, None]
    wind = np.broadcast_to(omega * RADIUS * np.cos(latitude), (19, 48))
    assert_close(found[U][0, 0, 0, 1:-1], wind[1:-1], 1e-6, "u")
    assert np.abs(found[V]).max() < 1e-6
    assert_close(found[VO][0, 0, 0, :, 0], 2 * omega * np.sin(latitude[:, 0]), 1e-6, "")
    assert_close(found[T], np.full_like(found[T], 288.0), 1e-6, "the mean")


def test_names_units_and_the_grid_after_it():
    step = {"type": "spectral_to_grid", "args": {**ARGS, **EQUIANGULAR}}
    pipeline = preblocks(spectral=step, concat=CONCAT)
    groups = [group(T, 2), group(VO, 2), group(D, 2), group(LNSP, 1)]
    after = pipeline.schema_after({"input": groups, "target": groups})
    assert [g.var_key for g in after["target"]] == [T, U, V, SP]
    assert pipeline.grid.shape == (19, 48)
    assert pipeline.grid.latitude[0] == 90
    # The unit of vorticity is not that of the wind.
    units = dict.fromkeys((T, VO, LNSP), ("1", "file"))
    assert [*units_after(pipeline, units)] == [T]
    assert pipeline.described({})[V]["units"] == "m s**-1"
    y = np.ones((1, 7, 1, 19, 48), np.float32)
    physical = channel_units(pipeline, groups).denormalize(y)
    assert np.array_equal(physical[:, :6], y[:, :6])
    assert not physical[:, 6].any()


ROWS, COLUMNS = (
    np.array([90.0, RING_LATITUDE[5], 20, -1, -33, -89.9]),
    np.arange(9) * 40,
)


def regridding(tmp_path, *variables):
    """Returns a block `regrid` from the reduced grid."""
    weights = reduced_grid_weights(write_rings(tmp_path / "grid.nc"), ROWS, COLUMNS)
    weights.to_netcdf(tmp_path / "weights.nc")
    args = {"weight_file": str(tmp_path / "weights.nc"), "variables": [*variables]}
    return {"type": "regrid", "args": args}


def test_weights_of_the_reduced_grid(tmp_path, rng):
    """Linear along rings and between them; what has no weight spreads no NaN."""
    points = rng.normal(size=COUNTS.sum()).astype(np.float32)
    rings = np.split(points, COUNTS.cumsum()[:-1])
    along = np.array(
        [
            np.interp(COLUMNS, np.arange(n) * 360 / n, x, period=360)
            for n, x in zip(COUNTS, rings, strict=True)
        ]
    )
    # `np.interp` keeps the values of the outer rings poleward of them.
    expected = [np.interp(-ROWS, -RING_LATITUDE, column) for column in along.T]
    points[: COUNTS[0]], poleward = np.nan, along[0]
    block = build("regrid", regridding(tmp_path, T)["args"], "preblocks")
    found = block({"input": {"S": {T: points[None, None, None]}}})["input"]["S"][T]
    assert found.shape == (1, 1, 1, 6, 9)
    assert np.isnan(found[..., 0, :]).all()
    assert np.allclose(poleward, np.array(expected)[:, 0], rtol=1e-6)
    assert_close(found[0, 0, 0, 1:], np.array(expected).T[1:], 1e-6, "fields")
    grid = block.effects.grid
    assert np.array_equal(grid.latitude, ROWS)
    assert np.array_equal(grid.longitude, COLUMNS)


def test_later_steps_begin_with_fields(tmp_path, rng):
    """What is predicted is no coefficients, and is clamped before its logarithm."""
    rings = {"grid_file": write_rings(tmp_path / "grid.nc")}
    humidity = {"variables": [Q]}
    rules = [{"search": 0.0, "op": "<", "fill": 0.0}]
    pipeline = preblocks(
        device={"type": "to_device"},
        spectral={"type": "spectral_to_grid", "args": ARGS | rings},
        clamp={"type": "fill_values", "args": {"rules": rules, **humidity}},
        regrid=regridding(tmp_path, T, U, V, SP, Q, LSM),
        logs={"type": "log_transform", "args": humidity},
        concat=CONCAT,
    )
    sizes = {T: LEVELS, VO: LEVELS, D: LEVELS, Q: LEVELS, LNSP: 1, LSM: 1}
    scales = {T: 10, VO: 1e-5, D: 1e-5, LNSP: 0.1}
    fields = {
        key: packed(coefficients(scales[key], count, rng)).astype(np.float32)
        if key in scales
        else rng.uniform(-0.2, 1, (2, count, 1, COUNTS.sum())).astype(np.float32)
        for key, count in sizes.items()
    }
    groups = {key: group(key, count) for key, count in sizes.items()}
    predicted = [g for key, g in groups.items() if key != LSM]
    schema = ChannelSchema((*groups.values(),), (*predicted,)).after(pipeline)
    tree = {"input": {"S": fields}}
    expected = pipeline.run(Phase.BEFORE_STEP, tree)["x"]
    state = by_key(pipeline.aligned(tree, Phase.BEFORE_STEP)["input"])
    assert state[Q].min() == 0
    names = [g.var_key for g in schema.target]
    assert names == [T, U, V, Q, SP]
    advance = Advance(pipeline, schema.input_slices(), schema.target_slices())
    tree = {"x": np.zeros_like(expected)}
    tree["y_processed"] = {"S": {key: state[key] for key in names}}
    run = jax.jit(lambda *given: advance(*given, field_context(len(ROWS))))
    found = run(tree, {}, {"S": {LSM: state[LSM]}})
    assert_close(found["x"], expected, 1e-5, "x of the next step")
