"""Step times derived from the costs of compiled programs."""

import json

import pytest

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.scale.__main__ import main
from credit_jax.models.registry import build


def _program(mesh, step, waits, *, over_domain=False):
    return {
        "mesh": mesh,
        "remat": "none",
        "over_domain": over_domain,
        "steps": {"1": step / 2, "2": step, "5": 2 * step},
        "exposed_seconds": waits,
    }


def _times(tmp_path, programs, *options):
    recipe = {"config": {"model": SMALL_MODEL}, "commit": "none"}
    report = {"target": "h100", "programs": programs, "recipe": recipe}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    written = main(["--report", str(path), "--out", str(tmp_path), *options])
    return json.loads(written.with_suffix(".json").read_text())["times"]


def test_step_times_add_up(tmp_path):
    times = _times(tmp_path, [_program("1", 0.1, 0.0), _program("domain8", 0.02, 5e-3)])
    one, eight, shards, *_ = times
    assert one["fsdp"] == 0
    assert one["none_hidden"] == one["kernels"] == 0.1
    assert eight["rate"] == 8 * one["rate"], "FSDP is hidden behind kernels"
    # Two gathers in two bytes and one scatter in four, each of 7/8 of the parameters.
    size = build(SMALL_MODEL).num_parameters
    assert eight["fsdp"] == pytest.approx(7 / 8 * 8 * size / 450e9, rel=0.02)
    assert shards["fsdp"] == 0, "sums over the domain axis are in the program"
    assert shards["kernels"] == pytest.approx(0.015)
    assert shards["none_hidden"] == 0.02


@pytest.mark.slow
def test_parameters_over_domain_send_an_eighth_to_other_nodes(tmp_path):
    found = []
    for shared in (False, True):
        eight = _program("domain8", 0.02, 5e-3, over_domain=shared)
        times = _times(tmp_path, [_program("1", 0.1, 0.0), eight])
        (time,) = (t for t in times if (t["devices"], t["mesh"]) == (64, "domain8"))
        found.append(time["fsdp"])
    # Within a node one gather more, in two bytes, of 7/8 of the parameters.
    within = 7 / 8 * 2 * build(SMALL_MODEL).num_parameters / 450e9
    print(f"{found[0]:.2e} s, shared {found[1]:.2e} s, of it {within:.2e} in the node")
    assert found[1] - within == pytest.approx(found[0] / 8, rel=0.1)


def test_another_launch(tmp_path):
    (one, *_) = _times(tmp_path, [_program("1", 0.1, 0.0)], "--launch", "5")
    assert one["none_hidden"] == 0.2


def test_a_report_without_one_device(tmp_path):
    with pytest.raises(ValueError, match="no program of one device"):
        _times(tmp_path, [_program("domain8", 0.1, 0.0)])
