"""The covariance of background errors."""

import numpy as np
import pytest
from scipy.special import sph_harm_y

from credit_jax.extensions.assimilation import (
    BackgroundCovariance,
    fit_background,
    read_background,
)
from credit_jax.extensions.assimilation.background import (
    Harmonics,
    covariance_of,
    symmetric_root,
)
from credit_jax.extensions.assimilation.background_fit import default_truncation
from credit_jax.named_fields.variables import Variable
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("background")
GAUSSIAN = np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(16)[0]))[::-1]
GRIDS = {
    "gaussian": (GAUSSIAN, np.arange(32) * 11.25),
    "poles": (np.linspace(90, -90, 17), np.arange(32) * 11.25 - 180.0),
    "south_first": (np.linspace(-85, 85, 18), np.arange(31) * 360 / 31),
}
CHANNELS = (("T", 500.0), ("T", 850.0), ("SP", np.nan))


def harmonics(grid="gaussian", truncation=8):
    return Harmonics(*GRIDS[grid], truncation)


def covariance(seed=0, truncation=8, grid="gaussian"):
    """A covariance with deviations and correlations drawn at random."""
    rng = np.random.default_rng(seed)
    shape = truncation + 1, len(CHANNELS), 2 * len(CHANNELS)
    factors = (
        rng.standard_normal(shape) / (1 + np.arange(truncation + 1))[:, None, None]
    )
    deviation = rng.uniform(1, 2, (len(CHANNELS), len(GRIDS[grid][0])))
    root = symmetric_root(factors @ factors.transpose(0, 2, 1))
    return BackgroundCovariance(CHANNELS, harmonics(grid, truncation), deviation, root)


@pytest.mark.parametrize("grid", GRIDS)
def test_harmonics_are_those_of_scipy(grid):
    """Real and imaginary parts, scaled, with squares that sum to 2 degree + 1."""
    latitude, longitude = GRIDS[grid]
    theta = np.deg2rad(90 - latitude)[:, None]
    phi = np.deg2rad(longitude)[None]
    for degree, order in ((0, 0), (3, 0), (3, 2), (8, 8)):
        for part in range(2 if order else 1):
            unit = np.zeros((9, 1, 2, 9))
            unit[degree, 0, part, order] = 1
            complex_values = sph_harm_y(degree, order, theta, phi)
            expected = (complex_values.imag if part else complex_values.real) * (
                np.sqrt(4 * np.pi * (2 if order else 1)) * (-1) ** order
            )
            (actual,) = harmonics(grid).fields(unit)
            np.testing.assert_allclose(actual, expected, atol=1e-12)


def assert_adjoint(forward, transposed, x, y, rel=1e-11):
    assert np.vdot(forward(x), y) == pytest.approx(np.vdot(x, transposed(y)), rel=rel)


@pytest.mark.parametrize("grid", GRIDS)
def test_coefficients_and_transpose(grid):
    rng, basis = np.random.default_rng(0), harmonics(grid)
    x = rng.standard_normal((9, 3, 2, 9)) * np.tril(np.ones((9, 9)))[:, None, None]
    x[:, :, 1, 0] = 0
    np.testing.assert_allclose(basis.coefficients(basis.fields(x)), x, atol=1e-11)
    y = rng.standard_normal((3, *map(len, GRIDS[grid])))
    assert_adjoint(basis.fields, basis.transposed, x, y, 1e-10)


@pytest.mark.parametrize("grid", GRIDS)
def test_winds_are_derivatives_of_potentials(grid):
    """u = -dpsi/dlat + dchi/dlon / cos, v = dpsi/dlon / cos + dchi/dlat."""
    rng, basis = np.random.default_rng(0), harmonics(grid)
    x = rng.standard_normal((9, 2, 2, 9)) * np.tril(np.ones((9, 9)))[:, None, None]
    x[0], x[:, :, 1, 0] = 0, 0
    u, v = basis.winds(x)
    n = np.arange(9)[:, None, None, None]
    potentials = x / np.sqrt(np.maximum(n * (n + 1), 1))
    step, (latitude, longitude) = 1e-4, GRIDS[grid]

    def slope(lat, lon):
        near = [
            Harmonics(latitude + s * lat, longitude + s * lon, 8).fields(potentials)
            for s in (step, -step)
        ]
        return (near[0] - near[1]) / np.deg2rad(2 * step)

    inside = abs(latitude) < 89
    cosine = np.cos(np.deg2rad(latitude))[:, None]
    north, east = slope(1, 0), slope(0, 1)
    for actual, expected in (
        (u, -north[0] + east[1] / cosine),
        (v, east[0] / cosine + north[1]),
    ):
        np.testing.assert_allclose(actual[inside], expected[inside], atol=1e-7)
    # At a pole the wind is that near to it.
    assert np.isfinite(u).all()
    assert abs(u[~inside]).max(initial=0) < abs(u).max()
    np.testing.assert_allclose(basis.potentials(np.stack([u, v])), x, atol=1e-9)
    y = rng.standard_normal((2, *u.shape))
    assert_adjoint(lambda x: np.stack(basis.winds(x)), basis.winds_transposed, x, y)


def test_the_root_is_that_of_the_covariance():
    """R R' has the variances S^2 times those of L L', and the same correlations."""
    b, rng = covariance(), np.random.default_rng(3)
    y = rng.standard_normal((3, 16, 32))
    x = rng.standard_normal(b.shape)
    assert_adjoint(b.fields, b.transposed, x, y, 1e-12)
    size = 2 * np.arange(9) + 1
    for channel, row in ((0, 3), (2, 9)):
        point = np.zeros((3, 16, 32))
        point[channel, row, 5] = 1
        column = b.fields(b.transposed(point))[:, row, 5]
        expected = np.einsum("n,ncd,nbd->cb", size, b.root, b.root)[channel]
        expected = expected * b.deviation[channel, row] * b.deviation[:, row]
        np.testing.assert_allclose(column, expected, rtol=1e-12)


def test_fit_finds_the_covariance():
    """Of many differences drawn from it, up to sampling and the given variance."""
    truth, rng = covariance(truncation=5), np.random.default_rng(1)
    size = 2 * np.arange(6) + 1
    variance = np.einsum("n,ncd,ncd->c", size, truth.root, truth.root)
    drawn = [truth.fields(rng.standard_normal(truth.shape)) for _ in range(600)]
    fitted = fit_background(lambda: drawn, CHANNELS, *GRIDS["gaussian"], 5)
    expected = np.sqrt(variance)[:, None] * truth.deviation
    np.testing.assert_allclose(fitted.deviation, expected, rtol=0.1)
    unit = 1 / np.sqrt(variance)
    for degree in range(6):
        ours = fitted.root[degree] @ fitted.root[degree].T
        theirs = truth.root[degree] @ truth.root[degree].T * unit[:, None] * unit
        scale = np.sqrt(np.outer(np.diag(theirs), np.diag(theirs)))
        assert np.abs((ours - theirs) / scale).max() < 0.25, degree
    total = np.einsum("n,ncd,ncd->c", size, fitted.root, fitted.root)
    np.testing.assert_allclose(total, 1, rtol=1e-9)


WINDS = (("U", 500.0), ("V", 500.0), ("T", 500.0))


def geostrophic(count, seed=1, divergent=0.1, ageostrophic=0.2):
    """Differences with winds of psi, and T of the sine of latitude times psi."""
    rng, basis = np.random.default_rng(seed), harmonics()
    mask = np.tril(np.ones((9, 9)))[:, None, None]
    mask = mask / (1 + np.arange(9))[:, None, None, None]
    drawn = []
    for _ in range(count):
        psi, chi, rest = rng.standard_normal((3, 9, 1, 2, 9)) * mask
        winds = basis.winds(np.concatenate([psi, divergent * chi], 1))
        sine = np.sin(np.deg2rad(GAUSSIAN))[:, None]
        t = sine * basis.fields(psi) + ageostrophic * basis.fields(rest)
        drawn.append(np.concatenate([winds, t]))
    return drawn


def test_winds_are_fitted_with_their_balance():
    """T at a point changes the wind around it, in opposite directions by hemisphere."""
    drawn = geostrophic(200)
    names = ("U", "V")
    fitted = fit_background(lambda: drawn, WINDS, *GRIDS["gaussian"], 8, names)
    plain = fit_background(lambda: drawn, WINDS, *GRIDS["gaussian"], 8)
    assert fitted.winds == (0, 1)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(fitted.shape), rng.standard_normal((3, 16, 32))
    assert_adjoint(fitted.fields, fitted.transposed, x, y)
    sampled = np.stack(drawn)
    for row in (3, 12):
        point = np.zeros((3, 16, 32))
        point[2, row, 8] = 1
        expected = np.einsum("s,scyx->cyx", sampled[:, 2, row, 8], sampled) / 200
        errors = [
            np.linalg.norm((b.fields(b.transposed(point)) - expected)[:2])
            / np.linalg.norm(expected[:2])
            for b in (fitted, plain)
        ]
        assert errors[0] < 0.5 < 0.9 < errors[1], (row, errors)
    deviations = np.stack(
        [fitted.fields(rng.standard_normal(x.shape)) for _ in range(300)]
    )
    actual, expected = (
        np.sqrt(np.square(f).mean((0, 2, 3))) for f in (deviations, sampled)
    )
    np.testing.assert_allclose(actual, expected, rtol=0.1)


def test_few_differences_correlate_little_at_large_scales():
    """Two differences are no evidence of correlations between means."""
    rng = np.random.default_rng(1)
    drawn = [np.ones((3, 1, 1)) * rng.standard_normal((1, 16, 32)) for _ in range(2)]
    fitted = fit_background(lambda: drawn, CHANNELS, *GRIDS["gaussian"], 5)
    for degree, expected in ((0, 2 / 5), (5, 22 / 25)):
        c = fitted.root[degree] @ fitted.root[degree].T
        assert c[0, 1] / c[0, 0] == pytest.approx(expected, 1e-9)


def test_a_channel_that_never_changes_has_no_errors():
    rng = np.random.default_rng(1)
    drawn = [rng.standard_normal((3, 16, 32)) for _ in range(3)]
    for field in drawn:
        field[1] = 0
    fitted = fit_background(lambda: drawn, CHANNELS, *GRIDS["gaussian"], 5)
    fields = fitted.fields(rng.standard_normal(fitted.shape))
    assert not fields[1].any()
    assert np.isfinite(fields).all()
    assert fields[[0, 2]].std() > 0.5


def test_files_and_the_order_of_a_model(tmp_path):
    b = covariance()
    b.write(tmp_path / "b.nc")
    again = read_background(str(tmp_path / "b.nc"), 2.0)
    variables = (
        Variable("X/prognostic/2d/SP"),
        Variable("X/prognostic/3d/T", np.array([850.0, 500.0])),
    )
    of_model = covariance_of(again, variables, *GRIDS["gaussian"])
    assert of_model.size == np.prod(b.shape)
    y = np.random.default_rng(0).standard_normal((3, 16, 32))
    by_key = {"X/prognostic/2d/SP": y[2:], "X/prognostic/3d/T": y[[1, 0]]}
    # B has no order of its channels; its root has one.
    actual = of_model.fields(of_model.transposed(by_key))
    expected = 4 * b.fields(b.transposed(y))
    np.testing.assert_allclose(actual["X/prognostic/2d/SP"], expected[2:], rtol=1e-9)
    t = actual["X/prognostic/3d/T"]
    np.testing.assert_allclose(t, expected[[1, 0]], rtol=1e-9)


def test_files_with_winds(tmp_path):
    """In the order of a model; a model without them is refused."""
    drawn = geostrophic(5)
    b = fit_background(lambda: drawn, WINDS, *GRIDS["gaussian"], 8, ("U", "V"))
    b.write(tmp_path / "b.nc")
    again = read_background(str(tmp_path / "b.nc"))
    variables = [
        Variable(f"X/prognostic/3d/{name}", np.array([500.0])) for name in "TVU"
    ]
    of_model = covariance_of(again, variables, *GRIDS["gaussian"])
    y = np.random.default_rng(0).standard_normal((3, 16, 32))
    by_key = dict(zip(of_model.levels, y[[2, 1, 0], None], strict=True))
    actual = np.concatenate([*of_model.fields(of_model.transposed(by_key)).values()])
    expected = b.fields(b.transposed(y))[[2, 1, 0]]
    np.testing.assert_allclose(actual, expected, atol=1e-10)
    assert default_truncation(np.zeros(721), np.zeros(1440)) == 127


def without_winds():
    drawn = geostrophic(5)
    b = fit_background(lambda: drawn, WINDS, *GRIDS["gaussian"], 8, ("U", "V"))
    covariance_of(b, [Variable("X/3d/U", np.array([500.0]))], *GRIDS["gaussian"])


def of_model(levels, step=1):
    latitude, longitude = GRIDS["gaussian"]
    variables = (Variable("X/prognostic/3d/T", np.array(levels)),)
    return lambda: covariance_of(covariance(), variables, latitude[::step], longitude)


def fit(truncation=5, zoom=1.0, channel=None):
    """Fits one difference of ones, without values in a channel."""
    fields, (latitude, longitude) = np.ones((3, 16, 32)), GRIDS["gaussian"]
    if channel is not None:
        fields[channel] = np.nan
    grid = latitude, zoom * longitude
    return lambda: fit_background(lambda: [fields], CHANNELS, *grid, truncation)


CASES.call("winds that the model lacks", without_winds)
CASES.call("a level that it lacks", of_model([500.0, 300.0]))
CASES.call("other latitudes", of_model([500.0], step=-1))
CASES.call("no file", lambda tmp_path: read_background(str(tmp_path / "none.nc")))
CASES.call("truncation", fit(16))
CASES.call("half of the longitudes", fit(zoom=0.5))
CASES.call("values that are not finite", fit(channel=1))
