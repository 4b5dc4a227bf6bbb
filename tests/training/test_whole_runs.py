"""Runs of the commands: ensembles, learned variances, precision, forecast lengths.

And runs that go on with other devices than they began with: the same batches.
"""

import re
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from credit_jax import ParallelDims
from credit_jax.checkpoint import LOSS, CheckpointStore
from credit_jax.cli.check import main as check
from credit_jax.cli.train import main
from credit_jax.config import load_config
from credit_jax.models import registry
from credit_jax.plan import plan_run
from credit_jax.plan.restart import mesh_of_restart
from credit_jax.training.loggers import read_log
from credit_jax.training.loop import TIME_COLUMNS
from credit_jax.training.setup import prepare
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.reference.scalers import SCALED, write_scalers
from tests.support import assert_close
from tests.training.noisy import Noisy, NoisyConfig
from tests.training.tiny import tiny_config, write_yaml

pytestmark = pytest.mark.usefixtures("tiny_model", "noisy_model")
SLOW = pytest.mark.slow
CASES = Cases("training")

DP2 = {"data": "ddp", "tensor": 1, "domain": 1}
DP2_TP2_DOMAIN2 = {"data": "fsdp2", "tensor": 2, "domain": 2}
EIGHT = {"devices": 8, "trainer__parallelism": DP2_TP2_DOMAIN2}
EIGHT |= {"trainer__train_batch_size": 2, "trainer__valid_batch_size": 1}
ENSEMBLE = {
    "model__type": "noisy",
    "trainer__ensemble_size": 2,
    "trainer__train_batch_size": 2,
    "trainer__valid_batch_size": 1,
    "loss": {"training_loss": "KCRPS"},
    "trainer__skip_validation": False,
}


KINDS = ("train", "valid")
RING = {**ENSEMBLE, "loss": {"training_loss": "ring-crps"}, "trainer__parallelism": DP2}


@pytest.fixture(scope="module")
def noisy_model():
    with pytest.MonkeyPatch.context() as patch:
        entry = registry.ModelEntry(NoisyConfig, Noisy)
        patch.setitem(registry.MODELS, "noisy", entry)
        yield


@pytest.fixture
def run(world, tmp_path, capsys, monkeypatch):
    """`run(*flags, **changes)` -> the output of both commands.

    With `report=True` it makes forecasts of held-out days, their scores and maps.
    """

    def run_it(*flags, devices=1, report=False, **changes):
        few = {"trainer__batches_per_epoch": 3, "trainer__valid_batches_per_epoch": 2}
        once = {"trainer__epochs": 1, "trainer__num_devices": devices}
        mapping = tiny_config(world, tmp_path / "run", **few | once | changes)
        path = write_yaml(tmp_path / "config.yml", mapping)
        codes = [check(["--config", path])]
        with monkeypatch.context() as patch:
            if not report:
                patch.setattr("credit_jax.training.run.extensions", lambda _: {})
            codes.append(main(["--config", path, "--cache", "none", *flags]))
        text = "".join(capsys.readouterr())
        assert codes == [0, 0], text
        assert ("Scores: " in text) == report
        return text

    return run_it


def rows(tmp_path):
    return read_log(tmp_path / "run" / "training_log.csv")


@pytest.mark.slow
def test_an_ensemble_on_two_ranks(run, tmp_path):
    dp2 = {"devices": 2, "trainer__parallelism": DP2}
    text = run(report=True, **dp2, **ENSEMBLE)
    (row,) = rows(tmp_path)
    assert row["train_std"] > 0.1
    assert {"train_loss", "valid_loss", "valid_rmse"} <= set(row)
    assert "3 batches of 2 an epoch" in text, "both ranks have the same samples"
    run("--resume", **dp2, **ENSEMBLE)
    run("--fresh", devices=2, **RING)
    assert rows(tmp_path)[0]["valid_loss"] > 0


def test_ranks_get_the_same_samples(world, tmp_path):
    """In CRPS training; in validation each rank has different samples."""
    mapping = tiny_config(world, tmp_path, trainer__parallelism=DP2, **ENSEMBLE)
    path = write_yaml(tmp_path / "c.yml", mapping)
    setup = prepare(plan_run(load_config(path), num_devices=2), jax.devices()[:2])
    batch = next(setup.train_loader.epoch(0))
    trained = setup.place_train([batch])["x_raw"]
    scored = setup.place_valid(next(setup.valid_loader.epoch(0)))["x_raw"]
    (first, second), ranks = (
        [np.asarray(shard.data) for shard in placed.addressable_shards]
        for placed in (trained, scored)
    )
    assert np.array_equal(first, second)
    assert np.array_equal(first[0], batch.x)
    assert not np.array_equal(*ranks)
    alone = load_config(path, ["trainer.parallelism.data=none"])
    one = prepare(plan_run(alone, num_devices=1), jax.devices()[:1])
    assert np.array_equal(batch.x, next(one.train_loader.epoch(0)).x)


def ensembles(**changes):
    def case(world, tmp_path, tiny_model, noisy_model):
        mapping = tiny_config(world, tmp_path, **{**RING, **changes})
        path = write_yaml(tmp_path / "c.yml", mapping)
        return lambda: plan_run(load_config(path), num_devices=2)

    return case


KCRPS = {"loss": {"training_loss": "KCRPS"}}
OVER_DOMAIN = {"data": "none", "tensor": 1, "domain": 2}
CASES.call("one member", ensembles(trainer__ensemble_size=1, **KCRPS))
CASES.call("four members of two ranks", ensembles(trainer__ensemble_size=4))
CASES.call("members of one rank", ensembles(trainer__parallelism=OVER_DOMAIN))


def named_blocks(scaler):
    """Returns blocks that scale, with fields in physical units for the loss."""
    args = {"scaler_path": str(scaler), "variables": [*SCALED.values()]}
    kind = "bridgescaler_transform"
    inverse = {"type": kind, "args": {**args, "method": "inverse_transform"}}
    key = "y_target_processed"
    twin = {"type": "reconstruct", "args": {"in_key": "y", "out_key": key}}
    return {
        "preblocks": {
            "per_step": {
                "scaler": {"type": kind, "args": {**args, "method": "transform"}},
                "concat": {"type": "concat"},
            }
        },
        "postblocks": {
            "per_step": {
                "named": {"type": "reconstruct", "args": {"detach": False}},
                "scaler": inverse,
                "twin": twin,
                "scaler_twin": {**inverse, "args": {**inverse["args"], "key": key}},
            }
        },
    }


@pytest.fixture
def scaler(credit, world, tmp_path):
    (tmp_path / "d.nc").symlink_to(world / "w_2000.nc")
    write_scalers(tmp_path, "d.nc", levels=[0, 2])
    return tmp_path / "scaler.json"


@pytest.mark.slow
def test_learned_variances_are_saved_and_go_on(run, scaler, tmp_path):
    """Two epochs in one run equal two runs of one epoch on different meshes."""
    args = {"var_weighting": "learnable", "scaler_path": str(scaler)}
    changes = {
        **named_blocks(scaler),
        "loss": {"type": "base", "args": args},
        "trainer__learning_rate": 0.05,
        "trainer__scheduler": {"scheduler_type": "lambda"},
        "trainer__training_metric": "valid_loss_var/ERA5/prognostic/3d/T",
    }
    run(**changes, trainer__epochs=2, report=True)
    expected, straight = rows(tmp_path), learned(tmp_path)
    run("--fresh", **changes)
    first = learned(tmp_path)
    text = run("--resume", **changes, **EIGHT, trainer__epochs=2)
    assert "goes on" in text or "Going on" in text
    assert_close(learned(tmp_path), straight, 1e-6, "log-variances")
    assert np.abs(first - straight).max() > 1e-3, "they are trained"
    names = {f"{kind}_loss_var/{k}" for k in SCALED.values() for kind in KINDS}
    for found, row in zip(rows(tmp_path), expected, strict=True):
        assert names <= set(row)
        for name in set(row) - TIME_COLUMNS:
            assert_close(found[name], row[name], 1e-5, name)


def learned(folder):
    """Returns the log-variances of the newest checkpoint."""
    store = CheckpointStore(folder / "run")
    step = store.latest_step()
    params = np.zeros(len(SCALED), np.float32)
    moments = {"count": np.int32(0), "mu": {"log_variance": params}}
    moments["nu"] = moments["mu"]
    like = {"params": {"log_variance": params}, "opt_state": {"adam": moments}}
    found = store.restore(step, {LOSS: like})[LOSS]["params"]["log_variance"]
    store.close()
    return np.asarray(found)


@pytest.mark.slow
def test_validation_has_its_own_lengths(run, scaler, tmp_path):
    """Training has one forecast step, validation three."""
    run(**named_blocks(scaler), validation_data__forecast_len=3, report=True)
    (row,) = rows(tmp_path)
    assert [row[f"{kind}_forecast_len"] for kind in KINDS] == [1, 3]
    assert [row[f"{kind}_history_len"] for kind in KINDS] == [1, 1]


HALF = {"trainer__fsdp2_mp_policy": {"param_dtype": "float16"}}
AMP = [
    ({"trainer__amp": True}, "float16", "float32"),
    ({"trainer__amp": True, **EIGHT}, "bfloat16", "bfloat16"),
    ({"trainer__amp": False}, "float32", "float32"),
    ({"trainer__amp": True, **HALF}, "float16", "float16"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "training", "validation"), AMP)
def test_values_of_amp(run, tmp_path, changes, training, validation):
    """CREDIT validates without autocast, but fsdp2 keeps its precision."""
    text = run(**changes, report=training != validation)
    assert re.search(f"cpu devices?, {training}\n", text)
    assert np.isfinite(rows(tmp_path)[0]["valid_loss"])
    config = load_config(tmp_path / "config.yml")
    devices = config.trainer.num_devices
    setup = prepare(plan_run(config, num_devices=devices), jax.devices()[:devices])
    precision = setup.valid_model.parallel_config.precision
    assert precision.compute.name == validation


# Devices are lost, and others are there: a run on dp 2 x tp 2 x domain 2.

NUM_SAMPLES = 4  # of a batch: 2 data-parallel ranks of 2 samples


@pytest.fixture(scope="module")
def straight(world, tmp_path_factory, tiny_model, noisy_model):
    """The folder of a run of two epochs, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("straight")
    assert main(["--config", config_of(world, folder), "--devices", "8"]) == 0
    return folder


def config_of(world, folder):
    mapping = tiny_config(
        world,
        folder / "run",
        model__type="noisy",
        trainer__parallelism=DP2_TP2_DOMAIN2,
        trainer__train_batch_size=2,
        trainer__valid_batch_size=2,
        trainer__epochs=2,
        trainer__save_every_steps=1,
        trainer__grad_accum_every=2,
    )
    return write_yaml(folder / "config.yml", mapping)


# Devices of the second and the third start.
@pytest.mark.parametrize(
    "starts",
    [(6, 8), *(pytest.param(each, marks=SLOW) for each in [(4, 3), (1, 5), (7, 2)])],
)
def test_losses_stay(starts, straight, world, tmp_path, capsys):
    """After a loss within an epoch, and another one, as if nothing had happened."""
    shutil.copytree(straight / "run", tmp_path / "run")
    path = config_of(world, tmp_path)
    for devices in starts:
        store = CheckpointStore(tmp_path / "run")
        shutil.rmtree(store.path(store.latest_step()))
        store.close()
        assert main(["--config", path, "--devices", str(devices), "--resume"]) == 0
        text = " ".join("".join(capsys.readouterr()).split())
        assert f"batches of {NUM_SAMPLES} an epoch" in text
        assert ("meant for dp 2 x tensor 2 x domain 2" in text) == (devices != 8)
    for row, like in zip(rows(tmp_path), rows(straight), strict=True):
        for name in row.keys() - TIME_COLUMNS:
            # Of a batch in parts these are means of the parts.
            if not name.startswith(("train_rmse", "train_r2score")):
                assert_close(row[name], like[name], 1e-6, name)


# Degrees of the section, samples of a rank, data-parallel ranks at the start; processes
# and their devices; degrees and devices that the run goes on with.
MESHES = {
    "a node of four": (("fsdp2", 2, 2), 1, 4, (3, 4), (2, 2, 3), 12),
    "devices idle": (("fsdp2", 1, 1), 1, 8, (1, 7), (4, 1, 1), 4),
    "another divisor": (("ddp", 1, 1), 3, 4, (3, 2), (6, 1, 1), 6),
    "too few for tensor and domain": (("fsdp2", 2, 2), 2, 1, (1, 2), (1, 1, 2), 2),
    "more": (("fsdp2", 2, 1), 4, 2, (4, 2), (4, 2, 1), 8),
    "none": (("none", 1, 2), 1, 1, (1, 3), (1, 1, 2), 2),
}


def restarted(world, folder, num_processes, per_process, ranks, **changes):
    """The mesh with which a run of so many data-parallel ranks goes on."""
    path = write_yaml(folder / "c.yml", tiny_config(world, folder, **changes))
    devices = [
        SimpleNamespace(process_index=n)
        for n in range(num_processes)
        for _ in range(per_process)
    ]
    config = load_config(path)
    return lambda: mesh_of_restart(config, devices, ranks)


@pytest.mark.parametrize("name", MESHES)
def test_mesh(name, world, tmp_path):
    degrees, size, ranks, processes, expected, num = MESHES[name]
    section = dict(zip(("data", "tensor", "domain"), degrees, strict=True))
    changes = {"trainer__parallelism": section, "trainer__valid_batch_size": size}
    changes |= {"trainer__train_batch_size": size}
    chosen, used, notes = restarted(world, tmp_path, *processes, ranks, **changes)()
    dims = ParallelDims.from_config(chosen, len(used))
    assert (dims.batch_size, dims.tp, dims.domain) == expected
    count, _ = processes
    per_process = [sum(d.process_index == n for d in used) for n in range(count)]
    assert per_process == [num // count] * count
    assert bool(notes) == (expected != (ranks, *degrees[1:]))


@CASES.case
def members_need_their_ranks(world, tmp_path, tiny_model):
    return restarted(world, tmp_path, 1, 1, 2, trainer__ensemble_size=2, **KCRPS)
