"""Ensemble members are equal alone, in a batch, on any mesh, and when repeated."""

import numpy as np
import pandas as pd
import pytest

from credit_jax.data.perturbations import member_keys, spherical_noise
from credit_jax.data.schedule import ForecastSchedule
from tests.data.world import MODEL
from tests.forecast.test_campaign import chunks
from tests.forecast.test_forecaster import DIFFUSION
from tests.forecast.tiny_run import forecast, make_run, read
from tests.support import assert_close

TYPES = {
    "gaussian": {"type": "gaussian", "std": 0.1},
    "spherical": {"type": "spherical", "std": {"T": 0.2, "SP": 0.1}},
    "bred": {"type": "bred", "std": 0.1, "num_cycles": 2},
    "lagged": {"type": "lagged", "lag": "6h"},
}
BATCH = {
    "forecast_length": "12h",
    "first_init_date": "2000-01-01",
    "last_init_date": "2000-01-01T12",
    "init_interval": "12h",
}
# Of bred and lagged members the steps before the start date are rounded, too.
ROUNDING = 1e-6
# WXFormer as wide as that of the demo, whose products depend on their number of rows.
WIDE = {
    **MODEL,
    "dim": [48, 96, 96, 384],
    "depth": [1, 1, 1, 1],
    "dim_head": 24,
    "global_window_size": [4, 4, 2, 1],
    "local_window_size": [2, 2, 2, 1],
    "use_spectral_norm": False,
    "cross_embed_kernel_sizes": [[4], [2], [2], [2]],
    "cross_embed_strides": [2, 2, 2, 2],
    "padding_conf": {
        "activate": True,
        "mode": "earth",
        "pad_lat": [5, 5],
        "pad_lon": [3, 3],
    },
}
MESH = "domain 2, tp 2"
LAYOUTS = {
    "six in a batch": ("--batch", "6"),
    "three devices": ("--parallelism", "data=ddp", "--devices", "3"),
    MESH: ("--parallelism", "data=none,tensor=2,domain=2"),
}


def ensemble(world, folder, name, members=3):
    inference = {
        "batch_forecast": BATCH,
        "output": {"format": "zarr"},
        "members": members,
        "perturbation": TYPES[name],
    }
    return make_run(world, folder, inference=inference)


@pytest.mark.slow(but=["gaussian"])
@pytest.mark.parametrize("name", TYPES)
def test_members_do_not_depend_on_the_layout(world, tmp_path, tiny_model, name):
    config = ensemble(world, tmp_path, name)
    assert forecast(config, tmp_path / "one") == 0
    one = read(tmp_path / "one")
    assert one["T"].dims[:3] == ("time", "number", "prediction_timedelta")
    assert one.sizes["number"] == 3
    layouts = LAYOUTS if name == "gaussian" else {MESH: LAYOUTS[MESH]}
    for layout, options in layouts.items():
        assert forecast(config, tmp_path / layout, *options) == 0
        other = read(tmp_path / layout)
        for variable in ("T", "U", "SP"):
            found, expected = other[variable], one[variable]
            assert_close(found, expected, ROUNDING, f"{layout}, {variable}")
            if name in ("gaussian", "spherical"):
                lead = {"prediction_timedelta": 0}
                assert np.array_equal(found[lead], expected[lead]), "initial states"


def batches(config, folder, *options):
    """Forecasts of 3 members alone; asserts that those of `--batch` 3 are equal."""
    for batch in (1, 3):
        out = folder / f"batch {batch}"
        assert forecast(config, out, "--batch", str(batch), *options) == 0
        assert chunks(out) == chunks(folder / "batch 1"), batch
    return read(folder / "batch 1")


MESHES = ["data=none", "data=ddp,domain=2"]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_members_of_a_wide_model_are_bitwise_those_alone(world, tmp_path, mesh):
    inference = {
        "batch_forecast": BATCH | {"last_init_date": "2000-01-01"},
        "output": {"format": "zarr"},
        "members": 3,
    }
    config = make_run(world, tmp_path, model=WIDE, inference=inference)
    options = ("--parallelism", mesh, "--devices", "1" if mesh == "data=none" else "4")
    batches(config, tmp_path, *options)


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_noise_of_a_model_is_that_of_the_member(world, tmp_path, name):
    inference = {
        "batch_forecast": BATCH,
        "output": {"format": "zarr"},
        "members": 3,
        "perturbation": TYPES[name] | {"std": 0.0},
    }
    config = make_run(world, tmp_path, model=DIFFUSION, inference=inference)
    if name != "gaussian":
        assert forecast(config, tmp_path / "out", "--batch", "3") == 0
        return
    found = batches(config, tmp_path)
    assert forecast(config, tmp_path / "two", "--members", "2", "--batch", "3") == 0
    two = read(tmp_path / "two")
    for variable in ("T", "TP"):
        expected = found[variable].isel(number=[0, 1])
        assert np.array_equal(two[variable], expected, equal_nan=True), variable
        last = (
            found[variable].isel(prediction_timedelta=-1).stack(run=("time", "number"))
        )
        assert len(np.unique(last.isel(latitude=0, longitude=0), axis=-1).T) == 6
    meshed = tmp_path / "mesh"
    assert forecast(config, meshed, "--parallelism", "domain=2", "--batch", "2") == 0
    assert_close(read(meshed)["T"], found["T"], 1e-6, "two shards")


@pytest.mark.slow
def test_a_member_alone_and_run_again_is_the_same_bitwise(world, tmp_path, tiny_model):
    config = ensemble(world, tmp_path, "bred")
    assert forecast(config, tmp_path / "all") == 0
    for shard in ("3/3", "1/3", "2/3"):
        assert forecast(config, tmp_path / "parts", "--shard", shard) == 0
    assert chunks(tmp_path / "parts") == chunks(tmp_path / "all")


@pytest.mark.slow(but=["lagged"])
@pytest.mark.parametrize("name", TYPES)
def test_members_differ_as_asked_for(world, tmp_path, tiny_model, name):
    config = ensemble(world, tmp_path, name, members=2)
    assert forecast(config, tmp_path / "two") == 0
    two = read(tmp_path / "two")
    first = two.isel(prediction_timedelta=0)
    difference = first.isel(number=1) - first.isel(number=0)
    weights = np.cos(np.deg2rad(two["latitude"]))
    for variable, std in (("T", 0.1), ("SP", 0.1), ("U", 0.1)):
        if name == "spherical":
            std = TYPES[name]["std"].get(variable, 0.0)
        control = first[variable].isel(number=0)
        spread = control - control.weighted(weights).mean(("latitude", "longitude"))
        sizes = [
            np.sqrt((x**2).weighted(weights).mean(("latitude", "longitude")))
            for x in (difference[variable], spread)
        ]
        ratio = (sizes[0] / sizes[1]).values
        if name == "lagged":
            assert (ratio > 0.01).all()
        elif name == "bred":
            assert np.allclose(ratio, std, rtol=0.5), "of the analysis a step before"
        elif std == 0:
            assert (ratio == 0).all()
        elif name == "gaussian":
            assert np.allclose(ratio, std, rtol=0.4)
        else:
            assert ((ratio > 0.2 * std) & (ratio < 3 * std)).all()


@pytest.mark.slow
def test_the_control_is_the_forecast_without_members(world, tmp_path, tiny_model):
    config = ensemble(world, tmp_path, "gaussian", members=2)
    assert forecast(config, tmp_path / "two") == 0
    assert forecast(config, tmp_path / "one", "--members", "1") == 0
    control = read(tmp_path / "two").isel(number=0)
    alone = read(tmp_path / "one")
    for variable in alone.data_vars:
        same = np.array_equal(control[variable], alone[variable], equal_nan=True)
        assert same, variable


def test_a_lag_reads_data_that_have_to_be_there(world, tmp_path, tiny_model, capsys):
    config = ensemble(world, tmp_path, "lagged", members=40)
    assert forecast(config, tmp_path / "out") == 2
    assert "1999-12-22" in capsys.readouterr().err


@pytest.mark.slow
def test_lagged_members_need_no_data_after_their_start(world, tmp_path, tiny_model):
    """Those of short lags, beside others of longer ones."""
    config = ensemble(world, tmp_path, "lagged")
    last = ("--init-time", "2000-01-10", "--steps", "1")
    assert forecast(config, tmp_path / "three", *last, "--batch", "3") == 0
    assert forecast(config, tmp_path / "one", *last) == 0
    one, three = read(tmp_path / "one"), read(tmp_path / "three")
    assert_close(three["T"], one["T"], ROUNDING, "side by side")


def test_keys_are_those_of_seed_start_and_member():
    starts = np.array(["2000-01-01", "2000-01-02"], "datetime64[ns]")
    many = member_keys(
        7, ForecastSchedule(starts, 1, pd.Timedelta("6h"), num_members=9)
    )
    one = member_keys(
        7, ForecastSchedule(starts[1:], 1, pd.Timedelta("6h"), num_members=8)
    )
    assert np.array_equal(many[1, :8], one[0])
    assert len({tuple(key) for key in many.reshape(-1, 2)}) == 18
    other = member_keys(
        8, ForecastSchedule(starts, 1, pd.Timedelta("6h"), num_members=9)
    )
    assert not (many == other).all(axis=-1).any()


@pytest.mark.slow
def test_spherical_noise_is_isotropic():
    scale = 25.0
    latitude, longitude = np.linspace(90, -90, 19), np.arange(36) * 10.0
    draw = spherical_noise(latitude, longitude, scale)
    fields = draw(np.random.default_rng(0), (4000, 19, 36))
    variance = fields.var(axis=0)
    print(f"variance from {variance.min():.3f} to {variance.max():.3f}")
    assert np.allclose(variance, 1, atol=0.12)
    assert np.allclose(fields[:, 0], fields[:, 0, :1]), "one value at the pole"
    for row, column, angle in ((9, 2, 20.0), (7, 0, 20.0), (4, 0, 50.0)):
        correlation = np.mean(fields[:, 9, 0] * fields[:, row, column])
        expected = np.exp(-((angle / scale) ** 2) / 2)
        print(f"{angle} degrees: {correlation:.3f}, expected {expected:.3f}")
        assert abs(correlation - expected) < 0.06
