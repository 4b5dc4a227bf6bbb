"""The table of certificates: results of calls, and configs that do not run."""

import json

import pytest

from benchmarks import certificates
from benchmarks.certificates import CONFIGS, main, meshes_of
from tests.support.custom_objects import no_objects_left

__all__ = ["no_objects_left"]


def document(error, *, wide=()):
    check = {"quantity": "prediction", "error": error, "bound": 1e-6}
    verdict = {"mesh": "tp2", "passed": error < 1e-3, "place": "block 1"}
    return {
        "passed": error < 1e-3,
        "verdicts": [verdict | {"checks": [check], "in_float64": [*wide]}],
    }


@pytest.mark.usefixtures("no_objects_left")
@pytest.mark.parametrize("name", ["demo", "assimilate_demo"])
def test_the_meshes_of_a_config(name):
    """The model of the second is one of custom_objects."""
    names = meshes_of(CONFIGS / f"{name}.yaml")
    assert names[:3] == ["ddp2", "fsdp2", "tp2"]
    assert len(names) >= 12
    assert "1" not in names


@pytest.mark.parametrize(("error", "code"), [(2e-6, 0), (1e-2, 1)])
def test_a_call_replaces_the_results_of_its_configs(tmp_path, monkeypatch, error, code):
    results = {"demo": document(1e-7), "fsdp8": document(error, wide=[{}])}

    def certified(name, meshes, count, cache):
        facts = {"config": name, "meshes": ["tp2"], "seconds": 1.0, "model": "wxformer"}
        return facts | certificates._summary(results[name])

    monkeypatch.setattr(certificates, "certified", certified)
    assert main(["--configs", "demo", "--out", str(tmp_path)]) == 0
    assert main(["--configs", "fsdp8", "--out", str(tmp_path)]) == code
    report = json.loads((tmp_path / "certificates.json").read_text())
    assert [r["config"] for r in report["certificates"]] == ["demo", "fsdp8"]
    text = (tmp_path / "certificates.md").read_text()
    assert "| demo | wxformer | 1 | 1 | 0 | 1.0e-07 |" in text
    assert ("tp2 differs: block 1" in text) == bool(code)


def test_a_config_that_does_not_run(tmp_path, monkeypatch):
    def certified(name, meshes, count, cache):
        facts = {"config": name, "meshes": ["tp2"], "seconds": 1.0}
        return facts | {"passed": False, "error": "no such file"}

    monkeypatch.setattr(certificates, "certified", certified)
    assert main(["--configs", "demo", "--out", str(tmp_path)]) == 1
    text = (tmp_path / "certificates.md").read_text()
    assert "it does not run: no such file" in text
