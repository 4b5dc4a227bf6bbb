"""What meshes cost: collectives, times and memory of steps, and the choice of one."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from benchmarks.accelerator.targets import ROOT
from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.mesh_cases import BATCH, CASES, CHOICES, job_of, stored_account
from benchmarks.mesh_choice import NAME, _agreement
from benchmarks.meshes import num_data, num_devices, parse_mesh
from benchmarks.report import REPORTS
from benchmarks.scale import __main__ as times
from benchmarks.scale import comm_volume, memory
from benchmarks.scale.comm_volume import EXCHANGE, FSDP, SUMS, TENSOR, least_volume
from benchmarks.scale.hlo import Collective, collectives
from credit_jax.config import build_config
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.rows.exchange import HALO
from tests.support import make_mesh

ROWS = PartitionSpec("domain")
LOCAL = 2 * 16 * 4  # bytes of one of four shards


def permute(x):
    return lax.ppermute(x, "domain", [(i, i + 1) for i in range(3)])


def gather(x):
    return lax.all_gather(x, "domain", tiled=True).sum(0, keepdims=True) * x


def loop(x):
    return lax.scan(lambda x, _: (2.0 * permute(x), None), x, length=5)[0]


@pytest.mark.parametrize(
    ("kind", "body", "out", "times", "sent"),
    [
        ("collective-permute", permute, ROWS, 1, LOCAL),
        ("collective-permute", loop, ROWS, 5, 5 * LOCAL),
        ("all-gather", gather, ROWS, 1, 3 * LOCAL),
        (
            *("all-reduce", lambda x: lax.psum(x, "domain"), PartitionSpec(), 1),
            2 * 3 / 4 * LOCAL,
        ),
    ],
)
def test_bytes_and_runs_of_each_kind(kind, body, out, times, sent):
    mesh = make_mesh(domain=4)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=ROWS, out_specs=out)
    compiled = jax.jit(mapped).lower(jnp.zeros((8, 16), jnp.float32)).compile()
    (found,) = collectives(compiled.as_text())
    assert (found.kind, found.times, found.sent) == (kind, times, sent)


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("replica_groups={{0,2},{1,3}}", (0, 2)),
        ("replica_groups=[4,2]<=[8]", (0, 1)),
        ("replica_groups=[4,2]<=[2,2,2]T(1,0,2)", (0, 1)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", (0, 4)),
        ("replica_groups=mesh['dp'=2,'tp'=4] {'dp'}", (0, 4)),
        ("replica_groups=mesh['dp'=2,'tp'=2,'domain'=2] {'dp','domain'}", (0, 1, 4, 5)),
    ],
)
def test_groups_are_read_however_they_are_written(text, members):
    hlo = f"""ENTRY %main (x: f32[4]) -> f32[4] {{
      ROOT %r = f32[4]{{0}} all-reduce(%x), {text}, to_apply=%add
    }}"""
    (found,) = collectives(hlo)
    assert found.members == members


GATHERED = "jit(step)/(jvp(decoder)/norm/all_gather:jvp(parameters)/all_gather)"


@pytest.mark.parametrize(
    ("kind", "members", "name", "axes", "purpose"),
    [
        ("all-gather", (0, 4), "", ("dp_shard",), FSDP),
        ("all-reduce", (0, 2), "", ("tp",), TENSOR),
        ("all-reduce", (1, 3), "", ("tp",), TENSOR),
        ("all-reduce", (0, 1), "", ("domain",), SUMS),
        ("all-reduce", (0, 1, 4, 5), "", ("dp_shard", "domain"), SUMS),
        ("all-gather", (0, 1), "jit(step)/decoder/norm/all_gather", ("domain",), SUMS),
        ("all-gather", (0, 1), GATHERED, ("domain",), FSDP),
        ("collective-permute", (0, 1), "jit(step)/halo/ppermute", ("domain",), HALO),
        ("all-to-all", (0, 1), "jit(step)/windows/x", ("domain",), EXCHANGE),
        ("all-gather", (0, 1), "an activation", ("domain",), None),
    ],
)
def test_axes_and_a_purpose_for_everything_that_moves(
    kind, members, name, axes, purpose
):
    mesh, moved = {"dp_shard": 2, "tp": 2, "domain": 2}, Collective(kind, 4, members, 1)
    assert moved.axes(mesh) == axes
    moved = Collective(kind, 4, members, 1, name)
    if purpose is None:
        with pytest.raises(ValueError, match="all-gather over"):
            comm_volume.purpose(moved, mesh)
    else:
        assert comm_volume.purpose(moved, mesh) == purpose


def test_least_volume_of_one_device_is_nothing():
    model_def = build(SMALL_MODEL)
    assert not any(least_volume(model_def, MeshAxes(), 8).values())
    replicas = MeshAxes.from_degrees({"dp_replicate": 4})
    least = least_volume(model_def, replicas, 8)
    assert least[SUMS] == pytest.approx(2 * 3 / 4 * 4 * model_def.num_parameters)
    assert not least[FSDP]


@pytest.fixture
def named():
    """Programs whose operations have their named scopes, as outside of tests."""
    name = "jax_include_full_tracebacks_in_locations"
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    jax.clear_caches()
    yield
    jax.config.update(name, before)


@pytest.mark.slow
@pytest.mark.usefixtures("named")
def test_volume_and_memory_of_one_mesh(tmp_path):
    options = ["--model", "small", "--out", str(tmp_path)]
    path = comm_volume.main(["--meshes", "dp2xtp2xdomain2", *options])
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    print("sent", run["sent"], "least", run["least"])
    ratio = {name: run["sent"][name] / run["least"][name] for name in run["least"]}
    assert 1.0 <= ratio[HALO] < 1.2, "rows beyond the convolutions' reach are moved"
    assert 1.0 <= ratio[TENSOR] < 1.2, "more is summed over tp than blocks need"
    assert 0.0 < ratio[FSDP] <= 1.0, "parameters are gathered more than twice"
    assert ratio[EXCHANGE] == 1.0, "long attention moves more than its two exchanges"
    path = memory.main(["--meshes", "1", *options])
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert run["peak"] > run["temporary"] > 0


def derived(tmp_path, *, over_domain=False):
    """Step times derived from the costs of programs of one and of eight devices."""
    programs = [
        {
            **{"mesh": mesh, "remat": "none", "over_domain": shared},
            "steps": {"1": step / 2, "2": step, "5": 2 * step},
            "exposed_seconds": waits,
        }
        for mesh, step, waits, shared in (
            ("1", 0.1, 0.0, False),
            ("domain8", 0.02, 5e-3, over_domain),
        )
    ]
    recipe = {"config": {"model": SMALL_MODEL}, "commit": "none"}
    report = {"target": "h100", "programs": programs, "recipe": recipe}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    written = times.main(["--report", str(path), "--out", str(tmp_path)])
    return json.loads(written.with_suffix(".json").read_text())["times"]


def test_step_times_add_up(tmp_path):
    one, eight, shards, *_ = rows = derived(tmp_path)
    assert one["fsdp"] == 0
    assert one["none_hidden"] == one["kernels"] == 0.1
    assert eight["rate"] == 8 * one["rate"], "FSDP is hidden behind kernels"
    # Two gathers in two bytes and one scatter in four, each of 7/8 of the parameters.
    size = build(SMALL_MODEL).num_parameters
    assert eight["fsdp"] == pytest.approx(7 / 8 * 8 * size / 450e9, rel=0.02)
    assert shards["fsdp"] == 0, "sums over the domain axis are in the program"
    assert shards["kernels"] == pytest.approx(0.015)
    assert shards["none_hidden"] == 0.02
    # With parameters over domain, other nodes are sent an eighth. Within a node there
    # is one gather more, in two bytes, of 7/8 of the parameters.
    alone, shared = (
        next(t["fsdp"] for t in each if (t["devices"], t["mesh"]) == (64, "domain8"))
        for each in (rows, derived(tmp_path, over_domain=True))
    )
    within = 7 / 8 * 2 * size / 450e9
    assert shared - within == pytest.approx(alone / 8, rel=0.1)


# Names of meshes, their cases, and the report of the choice of one.


def test_names_of_meshes():
    assert parse_mesh("1") == {}
    assert parse_mesh("dp2xtp2xdomain3") == {"dp_shard": 2, "tp": 2, "domain": 3}
    assert num_devices("ddp4xdomain2") == 8
    assert num_data("ddp2xep2xdomain2") == 4
    for wrong in ("dp", "2", "dp2xdp4", "domain0", "dp2-tp2"):
        with pytest.raises(ValueError, match="expected 1, or factors dpN, ddpN"):
            parse_mesh(wrong)
    assert {num_devices(mesh) for mesh, _, _ in CHOICES} == {8}
    assert all(BATCH % num_data(mesh) == 0 for mesh, _, _ in CHOICES)
    assert len(set(CHOICES)) == len(CHOICES)


@pytest.mark.parametrize("name", ["swin_6h", "wxformer_moe_1deg"])
def test_a_small_config_is_valid(name, tmp_path):
    config = build_config(CASES[name].mapping(tmp_path))
    assert build(config.model).num_parameters > 1e6
    assert not config.trainer.use_ema
    assert config.trainer.mp_policy is not None


def test_what_is_stored_is_not_compiled_again(tmp_path):
    job = job_of(CASES["swin_6h"], tmp_path, "ddp2xtp4")
    assert job.samples == BATCH // 2
    assert stored_account(job, tmp_path, compiles=False) is None
    path = job.folder(tmp_path).with_suffix(".json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"step": 1.0}))
    assert stored_account(job, tmp_path) == {"step": 1.0}


def test_the_docs_say_what_the_report_has():
    report = json.loads((REPORTS / f"{NAME}.json").read_text())
    docs = (ROOT / "docs" / "mesh.md").read_text()

    def ratios(result):
        each = [row["derived"] / row["compiled"] for row in result["programs"]]
        return min(each), max(each)

    for device, low, high in (("h100", 1.035, 1.135), ("a100", 0.975, 1.125)):
        result = report["compared"][device]
        least, most = ratios(result)
        assert low < least < most < high
        assert min(result["correlation"], result["share_of_best"]) >= 0.9
    for name, result in report["cases"].items():
        agreement = f"{result['share_of_best']:.2f} | {result['correlation']:.2f}"
        least, most = ratios(result)
        assert f"| {name}" in docs
        assert f"| {agreement} | {least:.2f} to {most:.2f} |" in docs


def test_the_agreement_of_rates():
    same = _agreement([(1.0, 3.0), (2.0, 4.0), (4.0, 5.0)])
    assert same == pytest.approx({"correlation": 1, "share_of_best": 1})
    reverse = _agreement([(1.0, 5.0), (2.0, 4.0), (4.0, 3.0)])
    assert reverse == pytest.approx({"correlation": -1, "share_of_best": 0.25})
