"""Ensemble members that are perturbed by singular vectors."""

import numpy as np
import pandas as pd
import pytest

from credit_jax.data.perturbations import Members
from credit_jax.data.schedule import ForecastSchedule
from credit_jax.extensions.adjoint import growth
from credit_jax.extensions.adjoint.growth import Singular
from tests.forecast.tiny_run import chunks, forecast, make_run, read
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close

CASES = Cases("singular_members")

STD = 1e-2
SINGULAR = ("--perturbation", "singular")
VARIABLES = ("T", "U", "SP")


@pytest.fixture(scope="module")
def config(world, tmp_path_factory, tiny_model):
    inference = {
        "batch_forecast": {
            "forecast_length": "12h",
            "first_init_date": "2000-01-01",
            "last_init_date": "2000-01-01T12",
            "init_interval": "12h",
        },
        "output": {"format": "zarr"},
        "members": 5,
        "perturbation": {"vectors": 2, "lead": "12h", "std": STD},
    }
    return make_run(world, tmp_path_factory.mktemp("singular"), inference=inference)


@pytest.fixture(scope="module")
def computed(config, tmp_path_factory):
    """The folder of the forecasts, and the singular values of each start date."""
    values, compute = [], growth.singular_vectors

    def recorded(*args):
        vectors = compute(*args)
        values.append(vectors.values)
        return vectors

    folder = tmp_path_factory.mktemp("forecasts") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "singular_vectors", recorded)
        assert forecast(config, folder, *SINGULAR) == 0
    return folder, np.array(values)


def sizes(store, member, lead, names):
    """Norm of the perturbation of a member, by start date, in units of `STD`."""
    states = store.sel(number=member) - store.sel(number=0)
    control = store.sel(number=0).isel(prediction_timedelta=0)
    area = np.cos(np.deg2rad(store["latitude"].astype("float64")))
    grid = ["latitude", "longitude"]
    squares = []
    for name in names:
        field = control[name].astype("float64")
        mean = field.weighted(area).mean(grid)
        deviation = np.sqrt(((field - mean) ** 2).weighted(area).mean(grid))
        change = states[name].isel(prediction_timedelta=lead).astype("float64")
        square = ((change / (STD * deviation)) ** 2).weighted(area).mean(grid)
        squares.append(square.mean([d for d in square.dims if d != "time"]).values)
    return np.sqrt(np.mean(squares, axis=0))


@pytest.mark.slow
def test_pairs_of_norm_1_grow_by_the_singular_values(computed):
    folder, values = computed
    store = read(folder)
    starts = store.isel(prediction_timedelta=0)
    names = [name for name in store.data_vars if np.isfinite(starts[name]).all()]
    assert values.shape == (2, 2), "computed once for each start date"
    for vector, member in enumerate((1, 3)):
        assert_close(sizes(store, member, 0, names), np.ones(2), 1e-3, "norm")
        growth = sizes(store, member, -1, names)
        assert_close(growth, values[:, vector], 1e-2, "growth")
        for name in names:
            first = starts[name].astype("float64")
            pair = first.sel(number=member) + first.sel(number=member + 1)
            assert_close(pair, 2 * first.sel(number=0), 1e-6, name)


@pytest.mark.slow
def test_the_norm_of_energy(config, computed, tmp_path, monkeypatch, capsys):
    """Variables that have no energy are not perturbed; sizes are those of `std`."""
    energy = (*SINGULAR, "--set", "inference.perturbation.norm=energy")
    assert forecast(config, tmp_path / "none", *energy) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "norm: energy: no prognostic variable of the data has one of" in error

    def factors(outputs, keys, where, instead):
        return {key: 0.5 for key in keys if key.endswith(("/U", "/T"))}

    monkeypatch.setattr(growth, "energy_factors", factors)
    assert forecast(config, tmp_path / "energy", *energy) == 0
    store, other = read(tmp_path / "energy"), read(computed[0])
    starts, others = (x.isel(prediction_timedelta=0) for x in (store, other))
    names = [name for name in store.data_vars if np.isfinite(starts[name]).all()]
    for member in (1, 3):
        assert_close(sizes(store, member, 0, names), np.ones(2), 1e-3, "size")
        pair = starts["SP"].sel(number=[0, member])
        np.testing.assert_array_equal(*pair.transpose("number", ...).values)
        change = starts["T"].sel(number=member) - others["T"].sel(number=member)
        assert abs(change).max() > 0, "another norm, other vectors"


@pytest.mark.slow
def test_members_made_in_parts_are_the_same_bitwise(config, computed, tmp_path):
    for shard in ("3/3", "1/3", "2/3"):
        options = ("--shard", shard, "--batch", "2")
        assert forecast(config, tmp_path / "parts", *SINGULAR, *options) == 0
    assert chunks(tmp_path / "parts") == chunks(computed[0])


@pytest.mark.slow(but=["data=none,tensor=2,domain=2"])
@pytest.mark.parametrize("mesh", ["data=ddp", "data=none,tensor=2,domain=2"])
def test_members_do_not_depend_on_the_mesh(config, computed, tmp_path, mesh):
    devices = "2" if mesh == "data=ddp" else "4"
    options = ("--parallelism", mesh, "--devices", devices)
    assert forecast(config, tmp_path / "mesh", *SINGULAR, *options) == 0
    one, other = read(computed[0]), read(tmp_path / "mesh")
    for name in VARIABLES:
        assert_close(other[name], one[name], 1e-6, name)


CASES.rows(
    lambda changed, config, tmp_path: (
        lambda: forecast(
            *(config, tmp_path / "out", *SINGULAR),
            *("--set", f"inference.perturbation.{changed}"),
        )
    ),
    *("std=0", "lead=24h", "lead=7h", "vectors=1"),
)


@pytest.mark.parametrize(
    ("frames", "draws_noise", "text"),
    [(2, False, "the model reads 2 times"), (1, True, "the model draws noise")],
)
def test_models_without_singular_vectors(frames, draws_noise, text):
    starts = np.array(["2000-01-01"], "datetime64[ns]")
    schedule = ForecastSchedule(starts, 8, pd.Timedelta("6h"), num_members=3)
    (problem,) = Singular().problems(schedule, frames, draws_noise)
    assert text in problem


CASES.call("in Python", lambda: Singular().bind(object.__new__(Members)))
