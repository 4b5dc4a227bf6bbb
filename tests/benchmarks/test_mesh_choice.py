"""Choices of compiled programs, and their report."""

import json

import pytest

from benchmarks.accelerator.targets import ROOT
from benchmarks.mesh_choice import NAME, _agreement, choice_of
from benchmarks.report import REPORTS


@pytest.mark.parametrize(
    ("mesh", "name"),
    [("1", "1"), ("dp8", "fsdp8"), ("ddp8", "ddp8"), ("tp2xdomain4", "tp2xdomain4")],
)
def test_the_choice_of_a_program(mesh, name):
    choice = choice_of({"mesh": mesh, "remat": "full", "over_domain": True})
    assert choice.name == name
    assert choice.remat == "full"
    assert choice.over_domain
    assert choice.accumulate == choice.micro_batch == 1


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
