"""The choice of a mesh: candidates, replicas, and the command."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import yaml

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.scale.comm_volume import TENSOR, least_volume
from credit_jax.cli.commands import OK
from credit_jax.config import build_config, load_config
from credit_jax.extensions.mesh_choice import command as mesh
from credit_jax.extensions.mesh_choice import search as mesh_search
from credit_jax.extensions.mesh_choice.accelerators import ACCELERATORS
from credit_jax.extensions.mesh_choice.command import main
from credit_jax.extensions.mesh_choice.replica import replica_work, traced_work
from credit_jax.extensions.mesh_choice.search import (
    BATCH,
    MEMORY,
    USABLE,
    Cluster,
    MeshChoice,
    MeshSearch,
    Ranked,
    batch_of,
    replicas,
)
from credit_jax.models.crossformer.crossformer import WXFormerConfig
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan import plan_model
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("mesh_choice")

ROOT = Path(__file__).parents[3]
REASONS = {
    "",
    MEMORY,
    BATCH,
    "idle rows",
    "launches",
    "recomputation",
    "repetition",
    "transfers",
    "update",
    "work",
}


@pytest.fixture(scope="module")
def mapping():
    """The demo's config with narrow layers."""
    config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    config["model"] |= WXFormerConfig.small_keys
    return config


@pytest.fixture(scope="module")
def search(mapping):
    ensure_devices(4)
    config = build_config(mapping)
    cluster = Cluster(ACCELERATORS["h100"], 4, 4, 80e9)
    return MeshSearch(config, build(config.model), cluster, 8)


@pytest.fixture(scope="module")
def ranked(search):
    return search.ranked()


def again(search, *, batch=8, **changes):
    """Another ranking with the same counts of programs."""
    cluster = replace(search.cluster, **changes)
    other = MeshSearch(search.config, search.model_def, cluster, batch)
    other._counts = search._counts
    return other.ranked()


def test_every_mesh_is_ranked_and_every_loser_has_a_reason(ranked):
    names = {row.choice.name for row in ranked}
    assert {"ddp4", "fsdp4", "ddp2xfsdp2", "tp2xdomain2", "domain4"} <= names
    assert {"domain2xulysses2" in name for name in names} == {True, False}
    rates = [row.rate for row in ranked]
    assert rates == sorted(rates, reverse=True)
    assert ranked[0].loses == ""
    assert all(row.loses for row in ranked[1:])
    assert {row.loses for row in ranked} <= REASONS
    by_remat = {}
    for row in ranked:
        assert min(asdict(row.times).values()) >= 0
        assert row.rate == pytest.approx(8 / row.times.total)
        choice = row.choice
        key = (choice.name, choice.over_domain, choice.reshard)
        by_remat.setdefault(key, {})[choice.remat] = row.rate
    for rate in by_remat.values():
        assert rate["none"] >= rate["selective"], "there is room for all"
        assert rate["none"] > rate["full"]


def test_every_mesh_is_a_section_that_a_run_takes(ranked, mapping):
    for row in {row.choice.name: row for row in ranked}.values():
        choice = row.choice
        section = choice.trainer(build_config(mapping))
        config = build_config({**mapping, "trainer": mapping["trainer"] | section})
        parallelism = config.trainer.parallelism
        plan = plan_model(config.model, parallelism, num_devices=4)
        assert plan.dims.mesh_axes == choice.dims.mesh_axes
        trainer = config.trainer
        assert trainer.mp_policy == build_config(mapping).trainer.mp_policy
        samples = trainer.train_batch_size * trainer.grad_accum_every
        assert samples * choice.dims.batch_size == 8


def test_what_fits_decides_samples_at_a_time(search, ranked):
    best = ranked[0]
    least = 1.01 * min(sum(search._bytes(row.choice)) for row in ranked)
    tight = again(search, memory=least / USABLE)
    assert all(row.memory <= least for row in tight if row.times)
    assert {row.loses for row in tight if row.times is None} == {MEMORY}
    assert all(row.memory > least for row in tight if row.loses == MEMORY)
    assert tight[0].rate < best.rate
    accumulated = again(search, memory=0.7 * best.memory / USABLE)
    assert any(row.choice.accumulate > 1 for row in accumulated if row.times)


def test_ranks_that_do_not_share_the_batch(search):
    rows = again(search, batch=2)
    assert {row.choice.dims.batch_size for row in rows if row.loses == BATCH} == {4}


@CASES.case
def no_ranks_share_the_batch(search, monkeypatch):
    other = MeshSearch(search.config, search.model_def, search.cluster, 3)
    choices = [c for c in other._choices([ParallelDims()]) if c.dims.batch_size == 4]
    monkeypatch.setattr(other, "_choices", lambda *_: choices)
    other.ranked()


@CASES.case
def members_that_no_ranks_are(search, mapping):
    changes = {"trainer": mapping["trainer"] | {"ensemble_size": 3}}
    changes["loss"] = {"training_loss": "ring-crps"}
    config = build_config({**mapping, **changes})
    MeshSearch(config, search.model_def, search.cluster, 8).ranked()


@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [
        ({"scheduler_type": "linear-warmup-cosine", "total_steps": 40}, [2000, 80]),
        ({"scheduler_type": "cosine-annealing", "T_max": 9}, []),
    ],
)
def test_lengths_in_micro_batches(mapping, schedule, lengths):
    """As many updates as before, and the same rates."""
    trainer = mapping["trainer"] | {"grad_accum_every": 2, "batches_per_epoch": 9}
    trainer |= {"use_scheduler": True, "scheduler": schedule}
    config = build_config({**mapping, "trainer": trainer})
    choice = MeshChoice(ParallelDims(), accumulate=4)
    section = choice.trainer(config)
    assert section["batches_per_epoch"] == 5 * 4
    keys = ("warmup_steps", "total_steps") if lengths else ()
    changed = section.get("scheduler", {})
    assert [changed[key] for key in keys] == lengths
    build_config({**mapping, "trainer": trainer | section})
    same = replace(choice, accumulate=2).trainer(config)
    assert not {"batches_per_epoch", "scheduler"} & same.keys()


def test_links_between_nodes_are_slower(search, ranked):
    near = {row.choice: row.times for row in ranked}
    apart = again(search, node=1)
    assert {row.choice.dims.tp * row.choice.dims.domain for row in apart} == {1}
    pairs = [(row.times, near[row.choice]) for row in apart]
    assert all(far.transfers >= close.transfers for far, close in pairs)
    assert any(far.transfers > close.transfers for far, close in pairs)
    assert all(far.work == close.work for far, close in pairs)


@pytest.mark.parametrize("members", [1, 2])
def test_the_batch_of_a_config_on_more_devices(mapping, members):
    """Ranks of an ensemble share the batch."""
    changes = {"trainer": mapping["trainer"] | {"ensemble_size": members}}
    config = build_config({**mapping, **changes, "loss": {"training_loss": "KCRPS"}})
    trainer = config.trainer
    each = trainer.train_batch_size * trainer.grad_accum_every
    assert batch_of(config, 64) == each * (1 if members > 1 else 64)


def test_replicas_divide_the_devices(search):
    found = replicas(search.model_def, 12, 4)
    assert {dims.world_size for dims in found} == {1, 2, 3, 4}
    assert any(dims.domain == 3 for dims in found)
    assert not any(dims.tp == 3 for dims in found)  # no model of 2 heads


@pytest.mark.slow
def test_the_step_of_one_h200_is_the_measured_one():
    """Of the published model with one sample, without an average of the weights."""
    config = load_config(ROOT / "configs" / "wxformer_025deg.yaml")
    trainer = config.trainer.model_copy(update={"use_ema": False})
    config = config.model_copy(update={"trainer": trainer})
    h200 = ACCELERATORS["h200"]
    cluster = Cluster(h200, 1, 1, h200.memory)
    search = MeshSearch(config, build(config.model), cluster, 1)
    times = search.times(MeshChoice(ParallelDims()))
    path = ROOT / "benchmarks" / "reports" / "gpu_step.json"
    sides = json.loads(path.read_text())["items"]
    measured = sides["credit_jax"]["result"]["step"]["median"]
    assert times.total == pytest.approx(measured, rel=0.02)


def test_the_constants_are_those_of_the_report():
    path = ROOT / "benchmarks" / "reports" / "accelerator_025deg.json"
    report = json.loads(path.read_text())
    programs = {p["mesh"]: p for p in reversed(report["programs"])}

    def exposed(*purposes):
        rows = [
            row
            for program in programs.values()
            for row in program["collectives"]
            if row["purpose"] in purposes
        ]
        waits = sum(row["exposed_seconds"] for row in rows)
        return waits / sum(row["seconds"] for row in rows)

    inner = exposed("tensor", "halo", "long attention")
    assert pytest.approx(inner, abs=0.02) == mesh_search.EXPOSED
    assert pytest.approx(exposed("sums"), abs=0.03) == mesh_search.EXPOSED_SUMS

    model_def = build(report["recipe"]["config"]["model"])
    update = programs["1"]["parts"]["update"]
    each = update["bytes"] / model_def.num_parameters
    assert pytest.approx(each, rel=0.02) == mesh_search.UPDATE_BYTES
    kernels = update["kernels"] / len(model_def.param_specs)
    assert pytest.approx(kernels, rel=0.02) == mesh_search.UPDATE_KERNELS


H100 = ACCELERATORS["h100"]
UNET = {"name": "unet", "encoder_name": "resnet18", "encoder_weights": None}
SMALL = build({**SMALL_MODEL, "depth": [1, 0, 0, 0]})
N = 256
BYTES = 4 * N * N


def work(model_def=SMALL, options=None, accelerator=H100, **degrees):
    dims = ParallelDims(**degrees, world_size=math.prod(degrees.values()))
    return replica_work(model_def, dims, accelerator, **(options or {}))


@pytest.fixture(scope="module")
def alone():
    return work()


@pytest.mark.parametrize(
    ("function", "kernels", "moved"),
    [
        # One kernel that reads and writes once.
        (lambda x: jnp.tanh(2 * x.T[None] + 1).reshape(-1), 1, 2 * BYTES),
        # A reduction computes what it reduces; two of one array read it once.
        (lambda x: jnp.exp(x).sum(0), 1, BYTES + 4 * N),
        (lambda x: (x.sum(0), (x * x).sum(0)), 1, BYTES + 8 * N),
        # A product reads and writes memory.
        (lambda x: jnp.tanh(x) @ x + 1, 3, 7 * BYTES),
        # What another depth uses is written.
        (lambda x: jnp.exp(x) / jnp.exp(x).sum(0, keepdims=True), 3, 4 * BYTES + 8 * N),
        # A loop reads and writes memory in each turn.
        (lambda x: jax.lax.fori_loop(0, 9, lambda _, y: jnp.sin(y), x), 9, 18 * BYTES),
    ],
)
def test_kernels_and_bytes_of_a_program(function, kernels, moved):
    program = jax.jit(function).trace(jax.ShapeDtypeStruct((N, N), jnp.float32))
    slow = replace(H100, bandwidth=1.0, peak=math.inf)
    counted, stored = traced_work(program.jaxpr.jaxpr, {}, slow)
    assert counted.kernels == kernels
    assert counted.seconds == pytest.approx(moved, rel=1e-3)
    assert not any(stored)


def test_what_ranks_share_and_send(alone):
    assert alone.one.messages == alone.one.sent == 0
    assert alone.stored.seconds > 0
    shared = work(tp=2)
    assert shared.one.seconds < alone.one.seconds
    least = least_volume(SMALL, ParallelDims(tp=2, world_size=2).mesh_axes, 1)[TENSOR]
    assert least <= shared.one.sent < 1.5 * least
    two = alone.of_samples(2)
    assert 1 < two.seconds / alone.one.seconds < 2, "weights are read once"
    assert two.kernels == alone.one.kernels


@pytest.mark.slow
def test_replicas_send_each_other_what_batch_norms_sum():
    sizes = {"image_height": 32, "image_width": 64, "levels": 2, "channels": 2}
    sizes |= {"surface_channels": 1, "input_only_channels": 1, "frames": 1}
    section = {"type": "unet", **sizes, "output_only_channels": 0}
    section["architecture"] = UNET
    assert work(build(section), dp_replicate=2).one.messages > 0
    assert work(dp_replicate=2).one.messages == 0


@pytest.mark.slow
def test_what_takes_longer(alone):
    even, uneven = (work(domain=n).one.seconds * n for n in (2, 3))
    assert alone.one.seconds <= even < uneven, "rows are shared unevenly"
    again = work(options={"ac_mode": "full"}).one
    assert again.seconds > alone.one.seconds, "recomputation is more work"
    assert again.sent == 0
    gathered = work(dp_shard=2, options={"min_shard_size": 0}).one
    assert gathered.seconds > 1.02 * alone.one.seconds, "what is saved is written"
    assert gathered.messages == 0
    slower = work(accelerator=replace(H100, achieved=0.5)).one
    assert slower.seconds == pytest.approx(2 * alone.one.seconds), "a timed step"
    assert slower.kernels == alone.one.kernels


@pytest.fixture
def config(tmp_path):
    """The demo's config with the smallest model."""
    mapping = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    keys = "image_height", "image_width", "frames", "levels", "channels"
    keys += "surface_channels", "input_only_channels", "output_only_channels"
    section = {key: mapping["model"][key] for key in keys}
    mapping["model"] = {"type": "debugger", **section}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("device", "measured"),
    [
        ("h100", "nothing was measured"),
        ("h200", "a step that was timed on one device"),
    ],
)
def test_the_section_of_the_first_mesh(device, measured, config, tmp_path, capsys):
    out = tmp_path / "mesh.yaml"
    options = ["--devices", "4", "--nodes", "2", "--batch", "8", "--out", str(out)]
    options += ["--device", device]
    assert main(["--config", str(config), *options]) == OK
    printed = capsys.readouterr().out
    assert "samples/s" in printed
    assert measured in printed
    assert "activations of debugger are not estimated" in printed
    assert printed.endswith(out.read_text())
    section = yaml.safe_load(out.read_text())["trainer"]
    mapping = yaml.safe_load(config.read_text())
    config.write_text(
        yaml.safe_dump(mapping | {"trainer": mapping["trainer"] | section})
    )
    trainer = load_config(config).trainer
    assert trainer.num_devices == 4
    assert trainer.train_batch_size * trainer.grad_accum_every in (2, 4, 8)


def test_a_table_is_as_wide_as_its_rows(capsys):
    """Neither names of meshes nor numbers are cut off."""
    degrees = {"dp_replicate": 4, "dp_shard": 2, "ep": 2, "tp": 2, "domain": 2}
    dims = ParallelDims(**degrees, ulysses_degree=2, world_size=64)
    choice = MeshChoice(dims, "selective", over_domain=True, reshard=False)
    ranked = [Ranked(choice, 123.4e9, rate=56789.0, loses="recomputation")]
    mesh._print(ranked, 64, ACCELERATORS["h100"])
    printed = capsys.readouterr().out
    row = "ddp4xfsdp2xep2xtp2xdomain2xulysses2 selective over domain, kept 1 x 1 123.4"
    assert f"{row} 5.679e+04 recomputation" in " ".join(printed.split())


def test_the_document(config, capsys):
    given = ["--config", str(config), "--devices", "4", "--batch", "6", "--json"]
    assert main(given) == OK
    document = json.loads(capsys.readouterr().out)
    assert document["batch"] == 6
    first, *others = document["choices"]
    assert first["loses_by"] is None
    assert first["samples_per_second"] > 0
    assert first["trainer"]["num_devices"] == 4
    assert {"batch"} < {choice["loses_by"] for choice in others}


CASES.rows(
    lambda options, config: main(["--config", str(config), "--devices", "4", *options]),
    (["--devices", "0"],),
    (["--nodes", "3"],),
    (["--memory", "-1"],),
    (["--batch", "0"],),
    (["--out", "nowhere/mesh.yaml"],),
    (["--set", "model.levels=-1"],),
    (["--memory", "1e-9"],),
)
