"""What a step does of the preblocks and checks, beside the same on the host."""

import io

import jax
import numpy as np
import pytest
from rich.console import Console

from credit_jax.config import build_config
from credit_jax.named_fields.bridgescaler import write_scalers
from credit_jax.parallel.placement import place_batch
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.run import run_training
from credit_jax.training.setup import prepare
from tests.data.damaged import load, rewrite, setting
from tests.data.world import NUM_LAT, NUM_LON, raw_config, write_weights
from tests.support import assert_close, make_mesh
from tests.support.whole_fields import field_context, field_spec
from tests.training.conftest import compiled_once as compiled_once
from tests.training.conftest import tiny_model as tiny_model
from tests.training.tiny import tiny_config

T, U, SP = (f"ERA5/prognostic/{name}" for name in ("3d/T", "3d/U", "2d/SP"))
TSI, TP = "ERA5/dynamic_forcing/2d/tsi", "ERA5/diagnostic/2d/TP"
LOG = {"type": "log_transform", "args": {"variables": [TP, TSI], "eps": 1e-3}}
FILL = {
    "type": "fill_values",
    "args": {"variables": [TSI], "rules": [{"search": 0.5, "op": ">", "fill": 0.25}]},
}
RENAME = {
    "type": "rename",
    "args": {"mapping": {T: "ERA5/prognostic/3d/A", TSI: "ERA5/static/2d/sun"}},
}


def scalers(path, *, per_point=False):
    """Scalers in float64 whose means float32 cannot hold; SP by point if asked."""
    count = NUM_LAT * NUM_LON if per_point else 1
    both = {"type": "DStandardScaler", "channels_last": False}
    two = {
        "mean_x_": np.array([280.0000123, 279.9999]),
        "var_x_": np.array([100.3, 99.7]),
    }
    point = {
        "mean_x_": 1e5 + np.arange(count) / 3,
        "var_x_": (1e3 + np.arange(count) / 7) ** 2,
    }
    side = {"ERA5": {T: both | two, SP: both | point}}
    write_scalers(path, {"input": side, "target": side})
    args = {"scaler_path": str(path), "variables": [T, SP]}
    if per_point:
        args["spatial_variables"] = [SP]
    return {"type": "bridgescaler_transform", "args": args}


def coarser(path):
    """A regrid of U that takes the value of the next column."""
    points = np.arange(NUM_LAT * NUM_LON).reshape(NUM_LAT, NUM_LON)
    write_weights(path, np.roll(points, 1, 1).ravel(), points.size)
    return {"type": "regrid", "args": {"weight_file": str(path), "variables": [U]}}


# Blocks before the normalizer, whether fields are read straight into x and y, and how
# far a step may be from the host: not at all, or a rounding of float32.
CASES = {
    "normalizer": (lambda path: {}, True, 0.0),
    "log": (lambda path: {"log": LOG}, True, 1e-7),
    "fill": (lambda path: {"fill": FILL}, True, 0.0),
    "rename": (lambda path: {"new": RENAME}, True, 0.0),
    "scalers": (lambda path: {"scale": scalers(path / "s.json")}, True, 1e-7),
    "scalers_of_points": (lambda path: {"scale": of_points(path)}, True, 1e-7),
    "regrid": (lambda path: {"fill": FILL, "new": coarser(path / "w.nc")}, False, 0.0),
}


def of_points(path):
    return scalers(path / "s.json", per_point=True)


def config_of(case, world, path, **changes):
    blocks, *expected = CASES[case]
    raw = raw_config(world, **changes)
    steps = raw["preblocks"]["per_step"]
    if case.startswith("scalers"):
        del steps["norm"]
    raw["preblocks"]["per_step"] = {**blocks(path), **steps}
    return raw, *expected


def prepared(raw, batch, mesh):
    """x, y and the suspicion that a step on a mesh makes of a raw batch."""
    placed, spec = place_batch(batch.arrays, mesh), field_spec(mesh)
    run = jax.shard_map(
        lambda local: raw.preparation(local, field_context(NUM_LAT, mesh)),
        mesh=mesh,
        in_specs=(dict.fromkeys(placed, spec),),
        out_specs=({"x": spec, "y": spec}, jax.sharding.PartitionSpec()),
    )
    made, suspicion = jax.jit(run)(placed)
    fields = [np.asarray(made[name])[..., :NUM_LAT, :] for name in ("x", "y")]
    return *fields, int(suspicion)


@pytest.mark.parametrize("case", CASES)
def test_x_and_y_are_those_of_the_host(world, tmp_path, case):
    config, direct, tolerance = config_of(case, world, tmp_path)
    loader = load(world, config)
    raw = loader.for_step()
    assert (raw.samples._direct is not None) == direct
    expected, batch = loader.read([3, 1]), raw.read([3, 1])
    assert batch.is_raw
    for mesh in ({}, {"dp": 2}, {"domain": 3}, {"dp": 2, "domain": 4}):
        x, y, suspicion = prepared(raw, batch, make_mesh(**mesh))
        assert not suspicion
        for name, ours in (("x", x), ("y", y)):
            assert_close(ours, getattr(expected, name), tolerance, f"{name} on {mesh}")


def test_rows_of_scalers_of_points(world, tmp_path):
    """All rows are needed to scale them on the host, those of a shard in the step."""
    config, *_ = config_of("scalers_of_points", world, tmp_path)
    loader = load(world, config)
    assert loader.for_rows(slice(1, 3)).rows is None
    part = loader.for_step().for_rows(slice(1, 3))
    raw = loader.for_step().read([2])
    assert np.array_equal(part.read([2]).x, raw.x[..., 1:3, :])
    assert part.fault(2) is None


DAMAGE = {
    "nan": (np.s_[4, 2], np.nan, 2),
    "fill": (np.s_[4, 2:4, :3], -9999.0, 2),
    "fill_on_one_shard": (np.s_[4, 5, :9], 1e20, 2),
    "outlier": (np.s_[4, 2, 1], 2e5, 1),
    "nothing": (np.s_[:0], 0.0, 0),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_suspicious_values(folder, kind):
    place, value, expected = DAMAGE[kind]
    rewrite(folder / "w_2000.nc", setting("SP", place, value))
    raw = load(folder).for_step()
    index = int(np.flatnonzero(raw.dataset.starts == np.datetime64("2000-01-02"))[0])
    for mesh in ({}, {"domain": 4}, {"dp": 2, "domain": 3}):
        batch = raw.read([index, index - 5])
        assert prepared(raw, batch, make_mesh(**mesh))[2] == expected
        assert prepared(raw, raw.read([index - 5] * 2), make_mesh(**mesh))[2] == 0


def run(folder, path, batches=8, **changes):
    """A training of one epoch: its state, its output, or the error that ended it."""
    changes = {"trainer__train_batch_size": 4, "trainer__epochs": 1} | changes
    changes |= {"trainer__batches_per_epoch": batches}
    config = build_config(tiny_config(folder, path, **changes))
    setup = prepare(plan_run(config, num_devices=1), jax.devices()[:1])
    stream = io.StringIO()
    outcome = run_training(setup, path, Display(Console(file=stream, width=300)))
    return outcome.state, stream.getvalue()


@pytest.fixture
def damaged(tiny_model, folder):
    """Data that have a bad field at 2000-01-02T00."""
    rewrite(folder / "w_2000.nc", setting("SP", np.s_[4, 2], np.nan))
    return folder


def test_a_bad_value_is_named_and_nothing_is_trained_on_it(damaged, tmp_path):
    text = r"w_2000.nc: SP of the (input|target).* 10 of 60 values"
    with pytest.raises(ValueError, match=text):
        run(damaged, tmp_path / "run", trainer__save_every_steps=1)


def test_skipped_samples_are_as_if_they_had_been_replaced(
    damaged, tmp_path, monkeypatch
):
    skip = {"data__on_bad_sample": "skip"}
    state, text = run(damaged, tmp_path / "one", **skip)
    assert text.count("bad sample: ") == 2
    assert "at 2000-01-02T00:00 is replaced by that at 2000-01-02T06:00" in text
    # With two updates in flight the same ones are done again.
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        ahead, _ = run(damaged, tmp_path / "two", **skip)
    # With x and y made and checked on the host, bad samples are seen before.
    monkeypatch.setattr("credit_jax.data.loader.Loader.for_step", lambda self: self)
    before, _ = run(damaged, tmp_path / "three", **skip)
    for other in (ahead, before):
        assert jax.tree.all(jax.tree.map(np.array_equal, state.params, other.params))
