"""The least time of a step on an accelerator."""

import json
from pathlib import Path

import pytest

from credit_jax.cli.check import check_config, main
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.flops import gradient_flops
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.devices import free_memory
from credit_jax.plan.estimates import DEVICES, FLOPS, MODEL

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "demo.yaml"


def _bound(*overrides, config=DEMO, devices=None):
    report = check_config(
        config, overrides, with_data=False, device="h100", num_devices=devices
    )
    assert report.bound is not None, report.problems
    return report.bound


def test_a_run_that_needs_more_memory_than_the_device_has():
    dims = "model.dim=[512, 2048, 8192, 32768]"
    (line,) = check_config(DEMO, [dims], with_data=False, device="h100").problems
    assert line.startswith("trainer: needs about ")
    assert "GB a device, NVIDIA H100 has 80 GB; take a smaller train_batch" in line
    memory, where = free_memory(2)
    assert 0 < memory < 1e13
    assert "for each of 2 devices" in where


REPORTS = {"h100": "accelerator_025deg.json", "a100": "accelerator_025deg-a100.json"}


@pytest.mark.parametrize("name", DEVICES)
def test_the_table_is_that_of_the_report(name):
    device = DEVICES[name]
    path = ROOT / "benchmarks" / "reports" / REPORTS[name]
    report = json.loads(path.read_text())
    assert report["target"] == name
    meshes = {"1": (1, 1), "domain8": (1, 8), "tp2xdomain4": (2, 4)}
    programs = {
        (p["remat"], *meshes[p["mesh"]]): p
        for p in report["programs"]
        if p["mesh"] in meshes
    }
    assert len(programs) == len(device.steps)
    for step in device.steps:
        program = programs[step.remat, step.tensor, step.domain]
        assert step.kernels == program["kernels"]
        assert step.work == pytest.approx(program["seconds"], rel=1e-3)
        assert step.waits == pytest.approx(program["exposed_seconds"], rel=1e-3)
        useful = program["useful_flops"] * step.tensor * step.domain
        assert pytest.approx(useful, rel=1e-3) == FLOPS


def test_operations_of_the_compiled_model():
    model = read_yaml(ROOT / MODEL)["model"]
    assert gradient_flops(build(model)) == pytest.approx(FLOPS, rel=0.01)


@pytest.mark.slow
def test_work_follows_operations_and_launches_stay():
    one, four = _bound(), _bound("trainer.train_batch_size=4")
    assert four.launches == one.launches
    plan = check_config(DEMO, with_data=False).plan
    assert plan is not None
    batch = plan.config.trainer.train_batch_size
    assert four.work == pytest.approx(4 / batch * one.work)
    assert "not compiled" in one.explanation
    assert one.seconds > one.launches > 0


@pytest.mark.slow
def test_the_nearest_mesh():
    bound = _bound(
        "trainer.parallelism={data: none, tensor: 1, domain: 4}",
        "trainer.num_devices=4",
        devices=4,
    )
    assert bound.step.tensor * bound.step.domain == 8
    assert _bound().step.remat == "none", "as the config has it"


@pytest.mark.slow
def test_what_check_prints(capsys):
    main(["--config", str(DEMO), "--no-data", "--device", "h100"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "NVIDIA H100: a micro-batch takes at least" in printed
    assert "no measurement" in printed
    main(["--config", str(DEMO), "--no-data", "--json"])
    assert json.loads(capsys.readouterr().out)["roofline"] is None
