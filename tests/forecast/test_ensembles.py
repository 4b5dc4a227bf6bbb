"""Ensemble members are equal alone, in a batch, on any mesh, and when repeated."""

import numpy as np
import pytest

from credit_jax.data.perturbations import spherical_noise
from tests.data.world import MODEL
from tests.forecast.test_forecaster import DIFFUSION
from tests.forecast.tiny_run import chunks, forecast, make_run, read, write_config
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
INFERENCE = {"batch_forecast": BATCH, "output": {"format": "zarr"}, "members": 3}
# Sizes of perturbations by those asked for; bred ones are of the state a step before.
RATIOS = {"gaussian": (0.6, 1.4), "spherical": (0.2, 3), "bred": (0.5, 1.5)}
RATIOS["lagged"] = 0.1, np.inf
DIMS = ("latitude", "longitude")
# Of bred and lagged members the steps before the start date are rounded, too.
ROUNDING = 1e-6
# WXFormer as wide as that of the demo, whose products depend on their number of rows.
WIDE = {
    **MODEL,
    **{"dim": [48, 96, 96, 384], "depth": [1, 1, 1, 1], "dim_head": 24},
    **{"global_window_size": [4, 4, 2, 1], "local_window_size": [2, 2, 2, 1]},
    **{"use_spectral_norm": False, "cross_embed_strides": [2, 2, 2, 2]},
    "cross_embed_kernel_sizes": [[4], [2], [2], [2]],
    "padding_conf": {"mode": "earth", "pad_lat": [5, 5], "pad_lon": [3, 3]},
}
MESH = "domain 2, tp 2"
LAYOUTS = {
    "six in a batch": ("--batch", "6"),
    "three devices": ("--parallelism", "data=ddp", "--devices", "3"),
    MESH: ("--parallelism", "data=none,tensor=2,domain=2"),
}


@pytest.fixture(scope="module")
def ensemble(world, run, tmp_path_factory):
    """`ensemble(name)`: the config of three members, and the folder of forecasts."""
    made = {}

    def of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            inference = INFERENCE | {"perturbation": TYPES[name]}
            config = write_config(world, run / "run", folder, inference=inference)
            assert forecast(config, folder / "one") == 0
            made[name] = config, folder / "one"
        return made[name]

    return of


@pytest.mark.slow(but=["gaussian"])
@pytest.mark.parametrize("name", TYPES)
def test_members_do_not_depend_on_the_layout(ensemble, tmp_path, name):
    config, made = ensemble(name)
    one = read(made)
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


@pytest.mark.slow(but=["lagged"])
@pytest.mark.parametrize("name", TYPES)
def test_members_differ_as_asked_for(ensemble, name):
    first = read(ensemble(name)[1]).isel(prediction_timedelta=0)
    area = first.weighted(np.cos(np.deg2rad(first["latitude"])))
    control = first.isel(number=0)
    spread = control - area.mean(DIMS).isel(number=0)
    for variable in ("T", "SP", "U"):
        std = 0.1
        if name == "spherical":
            std = TYPES[name]["std"].get(variable, 0.0)
        sizes = [
            np.sqrt((x[variable] ** 2).weighted(area.weights).mean(DIMS))
            for x in (first.isel(number=1) - control, spread)
        ]
        ratio = (sizes[0] / sizes[1]).values
        low, high = RATIOS[name]
        assert ((ratio >= low * std) & (ratio <= high * std)).all(), variable


@pytest.mark.slow
def test_a_member_alone_and_run_again_is_the_same_bitwise(ensemble, tmp_path):
    config, one = ensemble("bred")
    for shard in ("3/3", "1/3", "2/3"):
        assert forecast(config, tmp_path, "--shard", shard) == 0
    assert chunks(tmp_path) == chunks(one)


@pytest.mark.slow
def test_the_control_is_the_forecast_without_members(ensemble, tmp_path):
    config, many = ensemble("gaussian")
    assert forecast(config, tmp_path, "--members", "1") == 0
    control, alone = read(many).isel(number=0), read(tmp_path)
    for variable in alone.data_vars:
        same = np.array_equal(control[variable], alone[variable], equal_nan=True)
        assert same, variable


@pytest.mark.slow
def test_lagged_members_need_no_data_after_their_start(ensemble, tmp_path):
    """Those of short lags, beside others of longer ones."""
    last = ("--init-time", "2000-01-10", "--steps", "1")
    stores = []
    for batch in ("3", "1"):
        options = (*last, "--batch", batch)
        assert forecast(ensemble("lagged")[0], tmp_path / batch, *options) == 0
        stores.append(read(tmp_path / batch)["T"])
    assert_close(*stores, ROUNDING, "side by side")


def batches(config, folder, *options):
    """Forecasts of 3 members alone; asserts that those of `--batch` 3 are equal."""
    for batch in (1, 3):
        out = folder / f"batch {batch}"
        assert forecast(config, out, "--batch", str(batch), *options) == 0
        assert chunks(out) == chunks(folder / "batch 1"), batch
    return read(folder / "batch 1")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=none", "data=ddp,domain=2"])
def test_members_of_a_wide_model_are_bitwise_those_alone(world, tmp_path, mesh):
    one = {"batch_forecast": BATCH | {"last_init_date": "2000-01-01"}}
    config = make_run(world, tmp_path, model=WIDE, inference=INFERENCE | one)
    options = ("--parallelism", mesh, "--devices", "1" if mesh == "data=none" else "4")
    batches(config, tmp_path, *options)


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_noise_of_a_model_is_that_of_the_member(world, tmp_path, name):
    inference = INFERENCE | {"perturbation": TYPES[name] | {"std": 0.0}}
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
        last = found[variable].isel(prediction_timedelta=-1, latitude=0, longitude=0)
        last = last.stack(run=("time", "number"))
        assert len(np.unique(last, axis=-1).T) == 6
    meshed = tmp_path / "mesh"
    assert forecast(config, meshed, "--parallelism", "domain=2", "--batch", "2") == 0
    assert_close(read(meshed)["T"], found["T"], 1e-6, "two shards")


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
