"""The report of compiled programs, and the comparison with an older one."""

import json
import re

import jaxlib.version
import pytest

from benchmarks.accelerator.__main__ import main
from benchmarks.accelerator.account import GROWTH
from benchmarks.accelerator.compile_step import ACCOUNT, TEXT, Job
from benchmarks.accelerator.targets import TARGETS
from tests.benchmarks.accelerator.excerpt import EXCERPT

FOUND = {
    "memory": {"arguments": 1, "temporary": 2, "peak": 3},
    "compile_seconds": 1.0,
    "estimate_seconds": None,
    "traced": 4e6,
    "useful": 4e6,
}


@pytest.fixture
def run(tmp_path):
    """Runs the benchmark on a program that was compiled before."""
    for mesh in ("1", "domain2"):
        folder = Job("h100", "small", mesh, "none").folder(tmp_path)
        folder.mkdir(parents=True)
        (folder / TEXT).write_text(EXCERPT)
        (folder / ACCOUNT).write_text(json.dumps(FOUND))

    def run(*options):
        folders = ["--programs", str(tmp_path), "--out", str(tmp_path / "out")]
        always = ["--config", "small", "--remat", "none", "--reuse", *folders]
        meshes = ["--parallelism", "domain2"]
        status = main([*always, *meshes, *options])
        report = tmp_path / "out" / "accelerator_small.json"
        return status, json.loads(report.read_text()), report

    return run


def test_an_account(run):
    status, report, path = run()
    (program,) = report["programs"]
    assert status == 0
    assert program["kernels"] == 18
    assert sum(part["kernels"] for part in program["parts"].values()) == 18
    assert program["useful_flops"] == 2e6, "a sample is shared by two devices"
    assert program["exposed_seconds"] > 0
    assert list(program["steps"]) == ["1", "2", "5"]
    one, two, five = program["steps"].values()
    assert five - two == pytest.approx(3 * (two - one)) == pytest.approx(3 * 18e-6)
    text = path.with_suffix(".md").read_text()
    assert "| domain2, remat none | 18 |" in text
    assert "collective-permute | halo" in text


def test_the_account_of_a_tpu_has_its_compilers_estimate(tmp_path):
    folder = Job("v5p", "small", "domain2", "none").folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / TEXT).write_text(EXCERPT)
    found = FOUND | {"estimate_seconds": 12.3e-3}
    (folder / ACCOUNT).write_text(json.dumps(found))
    folders = ["--programs", str(tmp_path), "--out", str(tmp_path), "--name", "tpu"]
    job = ["--target", "v5p", "--config", "small", "--remat", "none", "--reuse"]
    assert main([*job, "--parallelism", "domain2", *folders]) == 0
    (program,) = json.loads((tmp_path / "tpu.json").read_text())["programs"]
    assert program["steps"] == {"0": program["step"]}, "launches cost nothing"
    text = (tmp_path / "tpu.md").read_text()
    assert "| step, ms | compiler's estimate, ms | MFU" in text
    assert "| 12.3 |" in text
    assert "at 2 us" not in text


def test_a_program_that_grew_fails(run, tmp_path, capsys):
    _, report, _ = run()
    older = tmp_path / "older.json"
    (program,) = report["programs"]
    assert run("--against", _written(older, report))[0] == 0
    program["bytes"] = int(program["bytes"] / (1 + GROWTH) ** 2)
    assert run("--against", _written(older, report))[0] == 1
    printed = capsys.readouterr().err
    assert "bytes grew from" in printed
    assert "kernels grew" not in printed
    assert "of the same jaxlib" not in printed
    report["recipe"]["versions"]["jaxlib"] = "0.1.2"
    assert run("--against", _written(older, report))[0] == 1
    assert "is of jaxlib 0.1.2, this one of" in capsys.readouterr().err
    program["title"] = "domain2, remat full"
    assert run("--against", _written(older, report))[0] == 1
    expected = "domain2, remat none: the older report has no such program to compare"
    assert expected in capsys.readouterr().err


def _written(path, report):
    path.write_text(json.dumps(report))
    return str(path)


def test_the_compilers_are_those_of_the_installed_jaxlib():
    (plugin, pjrt, _), (libtpu,) = TARGETS["h100"].wheels, TARGETS["v5p"].wheels
    assert plugin == f"jax-cuda12-plugin=={jaxlib.version.__version__}"
    assert pjrt == f"jax-cuda12-pjrt=={jaxlib.version.__version__}"
    assert re.fullmatch(r"libtpu==[\d.]+\*", libtpu)


def test_what_a_process_that_compiles_needs(tmp_path):
    environment = TARGETS["h100"].environment(tmp_path)
    assert "--xla_gpu_autotune_level=0" in environment["XLA_FLAGS"]
    assert environment["PYTHONPATH"].startswith(str(tmp_path))
    assert TARGETS["v5p"].environment(tmp_path)["JAX_PLATFORMS"] == "cpu"
