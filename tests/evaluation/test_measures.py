"""Measures of forecasts, and their sums over a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scores.continuous
import scores.functions
import scores.probability
import xarray as xr

from credit_jax.evaluation.mesh_sums import MeshSums, ScoreGrid, _power
from credit_jax.evaluation.regions import REGIONS, Region, choose_regions
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.placement import place_batch
from tests.evaluation.fields import (
    MEMBER_DIM,
    STARTS,
    labeled,
    random_fields,
    scores_of,
    sums_of,
)
from tests.support.credit_modules import credit_attribute

BOUND = 1e-6
LATITUDE = np.linspace(84.0, -84.0, 8)
LONGITUDE = np.arange(16) * 22.5
GRID = ScoreGrid(LATITUDE, LONGITUDE, REGIONS, REGIONS[:2])
NUM_MEMBERS = 4
SYSTEMS = ("forecast", "persistence", "climatology")


def assert_close(found, expected, label, scale=None):
    """Asserts a bound on the largest difference relative to the expected values."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    size = np.abs(expected) if scale is None else scale
    error = np.max(np.abs(found - expected) / size)
    print(f"{label}: {error:.1e}")
    assert error < BOUND, label


@pytest.fixture(scope="module")
def case():
    """Forecasts, references and their scores."""
    forecast, references = random_fields(LATITUDE, len(LONGITUDE), NUM_MEMBERS)
    return forecast, references, scores_of(forecast, references, GRID)


def fields_of(system, forecast, references):
    if system == "members":
        return labeled(forecast, GRID)
    if system == "forecast":
        return labeled(forecast, GRID).mean(MEMBER_DIM)
    return labeled(references[system], GRID)


def inside(region, fields):
    """Weights and fields of a region."""
    mask = region.mask(*np.meshgrid(LATITUDE, LONGITUDE, indexing="ij"))
    mask = xr.DataArray(mask, dims=["latitude", "longitude"])
    weights = scores.functions.create_latitude_weights(fields.latitude)
    return fields.where(mask), weights.where(mask, 0.0)


@pytest.mark.parametrize("system", [*SYSTEMS, "members"])
def test_errors_as_of_the_package_scores(case, system):
    forecast, references, found = case
    truth = labeled(references["truth"], GRID)
    for region in choose_regions(["tropics", "europe", "north-pacific"]):
        fields, weights = inside(region, fields_of(system, forecast, references))
        options = {"preserve_dims": "channel", "weights": weights}
        own = found.sel(system=system, region=region.name)
        own = own.isel(prediction_timedelta=0)
        label = f"{system} {region.name}"
        theirs = scores.continuous.rmse(fields, truth, **options)
        assert_close(own["rmse"], theirs, f"rmse, {label}")
        theirs = scores.continuous.mae(fields, truth, **options)
        assert_close(own["mae"], theirs, f"mae, {label}")
        if system != "members":
            bias = scores.continuous.additive_bias(fields, truth, **options)
            assert_close(own["bias"], bias, f"bias, {label}", scale=theirs)


def test_ensemble_scores(case):
    import scoringrules

    forecast, references, found = case
    members, truth = labeled(forecast, GRID), labeled(references["truth"], GRID)
    own = found.sel(system="forecast", region="global").isel(prediction_timedelta=0)
    weights = scores.functions.create_latitude_weights(members.latitude)
    options = {"preserve_dims": "channel", "weights": weights}
    theirs = scores.probability.crps_for_ensemble(
        members, truth, MEMBER_DIM, method="fair", **options
    )
    assert_close(own["crps"], theirs, "crps, scores")
    values = scoringrules.crps_ensemble(
        truth.values, members.values, m_axis=1, estimator="fair"
    )
    area = np.cos(np.deg2rad(LATITUDE))[:, None] * np.ones(len(LONGITUDE))
    mean = (values * area).sum(axis=(2, 3)) / area.sum()
    assert_close(own["crps"], mean.mean(axis=0), "crps, scoringrules")
    variance = members.var(MEMBER_DIM, ddof=1)
    spread = np.sqrt(variance.weighted(weights).mean(["time", *variance.dims[2:]]))
    assert_close(own["spread"], spread, "spread")
    ratio = np.sqrt((NUM_MEMBERS + 1) / NUM_MEMBERS) * spread / own["rmse"]
    assert_close(own["spread_skill_ratio"], ratio, "spread over skill")
    for system in SYSTEMS[1:]:
        both = found.sel(system=system, region="global")
        assert np.array_equal(both["crps"], both["mae"]), "of a single forecast"


def test_ranks(case):
    forecast, references, found = case
    members, truth = labeled(forecast, GRID), labeled(references["truth"], GRID)
    # The histogram of `scores` has no weights, hence rows of equal area.
    rows = {"latitude": [-12.0, 12.0]}
    region = Region("two rows", ((-20, 20),))
    grid = ScoreGrid(LATITUDE, LONGITUDE, (region,))
    own = scores_of(forecast, references, grid)["rank_histogram"]
    theirs = scores.probability.rank_histogram(
        members.sel(rows, method="nearest"),
        truth.sel(rows, method="nearest"),
        MEMBER_DIM,
        preserve_dims="channel",
    )
    assert_close(own.sel(system="forecast").squeeze().sum("rank"), [1, 1], "all ranks")
    difference = np.abs(own.sel(system="forecast").squeeze().values - theirs.values)
    assert difference.max() < BOUND
    whole = found["rank_histogram"].sel(system="forecast", region="global")
    assert_close(whole.sum("rank"), np.ones((2, 1)), "all ranks, global")


def test_a_tie_has_all_its_ranks_alike():
    shape = (1, 1, len(LATITUDE), len(LONGITUDE))
    truth = np.ones(shape, np.float32)
    members = np.stack([truth - 1, truth, truth, truth + 1], axis=1)
    sums = sums_of(
        members, {"truth": truth}, ScoreGrid(LATITUDE, LONGITUDE, REGIONS[:1])
    )
    assert np.allclose(sums["forecast/rank"][0, 0, 0], [0, 1 / 3, 1 / 3, 1 / 3, 0])


@pytest.mark.parametrize("system", ["forecast", "persistence"])
def test_anomalies(case, system):
    """Correlation about 0 is Pearson's of the anomalies joined with their negatives."""
    forecast, references, _ = case
    grid = ScoreGrid(LATITUDE, LONGITUDE, (Region("two rows", ((-20, 20),)),))
    own = scores_of(forecast, references, grid).sel(system=system).squeeze()
    rows = slice(3, 5)
    climatology = labeled(references["climatology"], GRID)[:, :, rows]
    both = [
        fields[:, :, rows] - climatology
        for fields in (
            fields_of(system, forecast, references),
            labeled(references["truth"], GRID),
        )
    ]
    mirrored = [xr.concat([x, -x], "sign") for x in both]
    theirs = scores.continuous.correlation.pearsonr(*mirrored, preserve_dims="channel")
    assert_close(own["acc"], theirs, f"{system} acc")
    activity = np.sqrt(np.square(both[0]).mean(["time", "latitude", "longitude"]))
    assert_close(own["activity"], activity, f"{system} activity")


def test_missing_values_are_left_out_and_counted(case):
    forecast, references, _ = case
    forecast, truth = forecast.copy(), references["truth"].copy()
    truth[0, 0, 2:4] = np.nan
    forecast[1, 2, 0, 5, 3:7] = np.nan
    found = scores_of(forecast, {**references, "truth": truth}, GRID)
    own = found.sel(region="global", channel="T500").isel(prediction_timedelta=0)
    weights = scores.functions.create_latitude_weights(labeled(truth, GRID).latitude)
    mean = labeled(forecast, GRID).mean(MEMBER_DIM, skipna=False)
    theirs = scores.continuous.rmse(
        mean, labeled(truth, GRID), preserve_dims="channel", weights=weights
    )
    assert_close(own["rmse"].sel(system="forecast"), theirs[0], "rmse with gaps")
    rows = weights.values / weights.values.sum() / len(STARTS)
    lost = rows[2:4].sum()
    both = lost + rows[5] * 4 / len(LONGITUDE)
    found_share = own["missing"].sel(system=["forecast", "persistence"])
    assert np.allclose(found_share, [both, lost], atol=1e-6)
    whole = found["missing"].sel(region="global", channel="Q500", system="forecast")
    assert float(whole.max()) == 0
    assert np.isfinite(own["energy_spectrum"].sel(system="truth")).all()
    nothing = Region("between the rows", ((0, 5),))
    grid = ScoreGrid(LATITUDE, LONGITUDE, (REGIONS[0], nothing))
    found = scores_of(forecast, references, grid).sel(region=nothing.name)
    assert all(np.isnan(found[name]).all() for name in found.data_vars)


def test_power_adds_up_to_the_mean_square(case):
    """Parseval's theorem, for even and odd numbers of points."""
    forecast, references, _ = case
    for num_lon in (16, 15):
        grid = ScoreGrid(LATITUDE, LONGITUDE[:num_lon], REGIONS[:1], REGIONS[:1])
        fields = {name: x[..., :num_lon] for name, x in references.items()}
        own = scores_of(forecast[..., :num_lon], fields, grid)["energy_spectrum"]
        weights = np.cos(np.deg2rad(LATITUDE))
        square = np.square(fields["truth"].astype(float)).mean(axis=(0, 3))
        mean = (square * weights).sum(axis=1) / weights.sum()
        total = own.sel(system="truth").astype(float).sum("zonal_wavenumber")
        assert_close(total.squeeze(), mean, f"{num_lon} points")


def test_bounds_of_regions():
    (europe,) = [own for own in REGIONS if own.name == "europe"]
    points = np.array([[35, -12.5], [75, 42.5], [50, 347.5], [50, 43], [34.9, 0]])
    assert europe.mask(points[:, 0], points[:, 1]).tolist() == [True] * 3 + [False] * 2


@pytest.mark.reference
def test_errors_and_spread_of_credit():
    """CREDIT averages |error| and standard deviations, over rows and start dates."""
    from credit.verification.ensemble import latitude_slices, spread_error

    regions = tuple(
        Region(name, ((band.start, band.stop),))
        for name, band in latitude_slices.items()
    )
    # xarray slices need ascending coordinates.
    grid = ScoreGrid(LATITUDE[::-1], LONGITUDE, regions)
    forecast, references = random_fields(grid.latitude, len(LONGITUDE), NUM_MEMBERS)
    # The spread is equal at all points, so that its mean equals its root mean square.
    offsets = np.array([-2.0, 1.0, 4.0, 0.5], np.float32).reshape(1, -1, 1, 1, 1)
    forecast = forecast[:, :1, :1] * np.float32(0.1) + offsets
    references = {name: x[:, :1] for name, x in references.items()}
    found = sums_of(forecast, references, grid)
    theirs = spread_error(
        labeled(forecast, grid).isel(channel=0),
        labeled(references["truth"], grid).isel(channel=0),
    )
    for place, region in enumerate(regions):
        own = {
            name: found[f"forecast/{name}"][:, 0, place].astype(float).mean()
            for name in ("absolute", "variance")
        }
        assert_close(own["absolute"], theirs[f"rmse_{region.name}"], region.name)
        # CREDIT divides by m, and multiplies by (m + 1) / (m - 1).
        std = np.sqrt(own["variance"] * (NUM_MEMBERS - 1) / NUM_MEMBERS)
        std *= (NUM_MEMBERS + 1) / (NUM_MEMBERS - 1)
        assert_close(std, theirs[f"std_{region.name}"], f"spread {region.name}")


@pytest.mark.reference
def test_zonal_spectrum_of_credit():
    """CREDIT sums harmonics over latitudes: the same integral where these are exact."""
    import torch

    zonal_spectrum = credit_attribute("verification.standard", "average_zonal_spectrum")
    nodes, quadrature = np.polynomial.legendre.leggauss(16)
    latitude = np.rad2deg(np.arcsin(nodes))[::-1]
    longitude = np.arange(32) * 11.25
    sine = np.sin(np.deg2rad(latitude))[:, None]
    angle = np.deg2rad(longitude)
    field = 3 + sine * np.sqrt(1 - sine**2) * (np.cos(angle) + 0.2 * np.sin(angle))
    field = field + (1 - sine**2) ** 1.5 * np.cos(3 * angle)
    given = xr.DataArray(
        field[None],
        dims=["time", "latitude", "longitude"],
        coords={"latitude": latitude, "longitude": longitude},
    )
    default = torch.get_default_dtype()
    theirs = zonal_spectrum(given, "legendre-gauss")
    assert torch.get_default_dtype() == default
    power, known = jax.device_get(_power(jnp.asarray(field, jnp.float32)[None]))
    assert known.all()
    ours = (power[0].astype(float) * quadrature[:, None]).sum(axis=0) / 2
    # Their harmonics have norm 1 over the sphere, whose area is 4 pi.
    assert_close(4 * np.pi * ours[:4:1][[0, 1, 3]], theirs[[0, 1, 3]], "spectrum")


def mesh_of(data, tensor, domain):
    size = data * tensor * domain
    dims = ParallelDims(dp_replicate=data, tp=tensor, domain=domain, world_size=size)
    return dims.build_mesh(jax.devices()[:size])


@pytest.mark.slow(but=["(4, 1, 2)-7-4"])
@pytest.mark.parametrize(
    ("degrees", "rows", "num_members"),
    [
        ((1, 1, 1), 8, 4),
        ((1, 1, 3), 8, 4),
        ((2, 1, 2), 8, 4),
        ((4, 1, 2), 7, 4),  # members of a start date on two ranks
        ((2, 2, 2), 8, 1),
        ((1, 1, 8), 9, 2),  # some devices have padding alone
    ],
    ids=str,
)
def test_sums_on_a_mesh(degrees, rows, num_members):
    latitude = np.linspace(80.0, -80.0, rows)
    grid = ScoreGrid(latitude, LONGITUDE, REGIONS[:6], REGIONS[:2])
    forecast, references = random_fields(latitude, len(LONGITUDE), num_members)
    forecast[0, 0, 0, 2, 3] = np.nan
    one = sums_of(forecast, references, grid)
    size = forecast.shape[0] * num_members
    measure = MeshSums(mesh_of(*degrees), grid, size, num_members)
    assert measure.gathers == (size // degrees[0] % num_members != 0)
    members = forecast.reshape(size, *forecast.shape[2:])
    many = measure.to_host(
        measure(
            place_batch({"all": members[:, :, None]}, measure.mesh),
            measure.place(references),
        )
    )
    assert many.keys() == one.keys()
    # Sums in the same unit without cancellation are a measure of size.
    other = {"plain": "absolute", "product": "anomaly"}
    for name, expected in one.items():
        system, quantity = name.split("/")
        size = np.abs(one[f"{system}/{other.get(quantity, quantity)}"])
        scale = size.max(axis=(0, *range(2, size.ndim)), keepdims=True)
        assert_close(many[name], expected, name, scale)
