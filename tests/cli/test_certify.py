"""`credit-jax certify`: its page, its exit code, and its errors."""

import json
from pathlib import Path

import pytest
import yaml

from credit_jax.certification.certify import Certificate, MeshVerdict
from credit_jax.certification.page import page_of
from credit_jax.certification.verdict import FLOAT32, Check
from credit_jax.cli.certify import main
from credit_jax.cli.commands import OK, USER_ERROR

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def config(tmp_path):
    """The demo's config with the smallest model."""
    mapping = yaml.safe_load((CONFIGS / "demo.yaml").read_text())
    keys = "image_height", "image_width", "frames", "levels", "channels"
    keys += "surface_channels", "input_only_channels", "output_only_channels"
    section = {key: mapping["model"][key] for key in keys}
    mapping["model"] = {"type": "debugger", **section}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return path


@pytest.mark.slow
def test_a_page_and_its_json(config, tmp_path, capsys):
    """Every mesh is a process of its own."""
    out = tmp_path / "page.html"
    options = ["--meshes", "domain3,fsdp2", "--out", str(out), "--cache", "none"]
    assert main(["--config", str(config), *options]) == OK
    printed = capsys.readouterr().out
    assert "OK: 2 meshes give what one device gives" in printed
    facts = json.loads(out.with_suffix(".json").read_text())
    assert facts["passed"]
    assert [v["mesh"] for v in facts["verdicts"]] == ["domain3", "fsdp2"]
    quantities = {check["quantity"] for check in facts["verdicts"][0]["checks"]}
    assert {"prediction", "loss of each update", "weights restored here"} <= quantities
    page = out.read_text()
    assert "Passed: 2 meshes give what mesh 1 gives." in page
    assert facts["provenance"]["jax"] in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--checkpoint", "RUN"], "add --full"),
        (["--out", "nowhere/page.html"], "--out: there is no folder nowhere"),
        (["--meshes", "dp2"], "--meshes: got 'dp2'; expected 1, or factors"),
        (["--meshes", "tp16"], "it has 16 devices, there are 8"),
        (["--set", "model.type=wxfomer"], "wxfomer"),
    ],
)
def test_errors(config, tmp_path, capsys, options, message):
    given = ["--config", str(config), "--out", str(tmp_path / "page.html"), *options]
    assert main(given) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def certificate(*verdicts):
    """A certificate of some meshes."""
    return Certificate("<model>", "1", FLOAT32, verdicts, provenance={"a": "<b>"})


def test_a_page_names_the_place_that_differs():
    wrong = Check("prediction", 1e-3, 1e-6, "channel 2")
    fine = Check("prediction", 1e-7, 1e-6)
    page = page_of(
        certificate(
            MeshVerdict("tp2", (fine,)),
            MeshVerdict("tp4", (wrong,), (wrong,), "output of layers.0.1"),
            MeshVerdict("domain2", place="it does not run: <error>"),
        )
    )
    assert "Not passed: tp4, domain2." in page
    assert "output of layers.0.1" in page
    assert "(channel 2)" in page
    assert "&lt;error&gt;" in page
    assert "<model>" not in page


def test_float64_decides():
    broken = Check("prediction", 2e-6, 1e-6, "channel 0")
    same = Check("prediction", 1e-15, 1e-12)
    verdict = MeshVerdict("tp2", (broken,), (same,))
    assert verdict.passed
    assert certificate(verdict).passed
    (line,) = verdict.lines()
    assert "the same: prediction (channel 0) 2.0e-06, bound 1e-06" in line
    assert "the same in float64" in line
    assert not MeshVerdict("tp2", (broken,)).passed
    assert not MeshVerdict("tp2").passed
