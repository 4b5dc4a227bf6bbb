"""Names of meshes, their cases, and the report of the choice of one."""

import json

import pytest

from benchmarks.accelerator.targets import ROOT
from benchmarks.mesh_cases import BATCH, CASES, CHOICES, job_of, stored_account
from benchmarks.mesh_choice import NAME, _agreement
from benchmarks.meshes import num_data, num_devices, parse_mesh
from benchmarks.report import REPORTS
from credit_jax.config import build_config
from credit_jax.models.registry import build


def test_names_of_meshes():
    assert parse_mesh("1") == {}
    assert parse_mesh("dp2xtp2xdomain3") == {"dp_shard": 2, "tp": 2, "domain": 3}
    assert num_devices("ddp4xdomain2") == 8
    assert num_data("ddp2xep2xdomain2") == 4
    for wrong in ("dp", "2", "dp2xdp4", "domain0", "dp2-tp2"):
        with pytest.raises(ValueError, match="expected 1, or factors dpN, ddpN"):
            parse_mesh(wrong)


def test_meshes_are_of_eight_devices_that_share_the_batch():
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


def test_the_report_keeps_what_the_docs_say():
    report = json.loads((REPORTS / f"{NAME}.json").read_text())
    for device, low, high in (("h100", 1.035, 1.135), ("a100", 0.975, 1.125)):
        result = report["compared"][device]
        ratios = [row["derived"] / row["compiled"] for row in result["programs"]]
        assert low < min(ratios) < max(ratios) < high
        assert result["correlation"] >= 0.9
        assert result["share_of_best"] >= 0.9


def test_the_docs_have_the_table_of_the_report():
    cases = json.loads((REPORTS / f"{NAME}.json").read_text())["cases"]
    docs = (ROOT / "docs" / "mesh.md").read_text()
    for name, result in cases.items():
        ratios = [row["derived"] / row["compiled"] for row in result["programs"]]
        agreement = f"{result['share_of_best']:.2f} | {result['correlation']:.2f}"
        line = f"| {agreement} | {min(ratios):.2f} to {max(ratios):.2f} |"
        assert f"| {name}" in docs
        assert line in docs


def test_the_agreement_of_rates():
    same = _agreement([(1.0, 3.0), (2.0, 4.0), (4.0, 5.0)])
    assert same == pytest.approx({"correlation": 1, "share_of_best": 1})
    reverse = _agreement([(1.0, 5.0), (2.0, 4.0), (4.0, 3.0)])
    assert reverse == pytest.approx({"correlation": -1, "share_of_best": 0.25})
