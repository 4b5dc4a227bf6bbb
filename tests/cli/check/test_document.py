"""`python -m credit_jax.check --json`: one document with stable keys."""

import json
from pathlib import Path

import pytest

from credit_jax.cli.check.command import main
from credit_jax.cli.check.document import document
from credit_jax.cli.check.report import check_config
from credit_jax.config import build_config, write_config
from tests.cli.check.test_check import MODEL
from tests.config.example import example

ROOT = Path(__file__).parents[3]
CREDIT = ROOT / "tests/reference/credit_configs"
KEYS = {
    "schema_version": int,
    "config": str,
    "kind": str,
    "ok": bool,
    "problems": list,
    "notes": list,
    "ignored": list,
    "channels": dict,
    "further_inputs": dict,
    "data": dict,
    "model": dict,
    "mesh": dict,
    "memory": dict,
    "curriculum": list,
    "roofline": type(None),
}


@pytest.fixture
def path(tmp_path):
    preblocks = {"per_step": {"concat": {"type": "concat"}}}
    config = build_config(example(model=dict(MODEL), preblocks=preblocks))
    write_config(config, tmp_path / "config.yaml")
    return str(tmp_path / "config.yaml")


def printed_document(capsys, *arguments):
    code = main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert code == (0 if found["ok"] else 1)
    assert list(found) == list(KEYS)
    return found


def test_a_sound_config(path, capsys):
    found = printed_document(capsys, "-c", path, "--no-data", "--devices", "2")
    assert found["ok"]
    assert found["schema_version"] == 1
    for key, kind in KEYS.items():
        assert isinstance(found[key], kind), key
    channels = found["channels"]
    assert [len(channels[side]) for side in ("input", "target")] == [7, 6]
    assert channels["input"][1] == {
        "channel": 1,
        "variable": "T",
        "source": "ERA5",
        "field_type": "prognostic",
        "level": 2,
        "level_value": 2.0,
    }
    assert channels["target"][-1] == {
        "channel": 5,
        "variable": "TP",
        "source": "ERA5",
        "field_type": "diagnostic",
        "level": None,
        "level_value": None,
    }
    numbers = [own["channel"] for own in channels["input"]]
    assert numbers == list(range(7))
    assert found["data"]["sources"] == {"ERA5": "local"}
    assert found["model"]["grid"] == [32, 64]
    assert found["model"]["parameters"] == sum(found["model"]["parts"].values())
    assert found["mesh"]["devices"] == 2
    assert found["memory"]["bytes_a_device"] == sum(found["memory"]["parts"].values())


def test_ignored_keys_and_problems(path, capsys):
    changes = {
        "trainer.epoch": "3",
        "trainer.xyzzy": "1",
        "model.post_conf": "{activate: true, tracer_fixer: {activate: true}}",
    }
    words = [word for k, v in changes.items() for word in ("--set", f"{k}={v}")]
    found = printed_document(capsys, "-c", path, "--no-data", *words)
    assert found["problems"] == [
        {
            "where": "trainer.epoch",
            "message": "unknown key",
            "fix": "the nearest known key is 'epochs'",
        }
    ]
    assert len(found["channels"]["input"]) == 7, "the data section is sound"
    assert (found["model"], found["mesh"], found["memory"]) == (None, None, None)
    found = printed_document(capsys, "-c", path, "--no-data", *words[2:])
    assert found["ok"]
    reasons = {own["key"]: own["reason"] for own in found["ignored"]}
    assert reasons["trainer.xyzzy"].startswith("unknown key; CREDIT passes over it")
    assert "gen2 training drops it, too" in reasons["model.post_conf"]


def test_missing_files(path, capsys):
    found = printed_document(capsys, "-c", path)
    first = found["problems"][0]
    assert first["where"] == "data.source.ERA5.variables.prognostic.path"
    assert "no file matches './d_%Y.nc'" in first["message"] + str(first["fix"])


def test_the_first_generation(capsys):
    """The report names the command that converts a config of generation 1."""
    path = CREDIT / "config/gen_1/arXiv_2024/wxformer_6h_single_step.yml"
    found = printed_document(capsys, "-c", str(path))
    (problem,) = found["problems"]
    assert (found["kind"], problem["where"]) == ("gen1", "data")
    assert f"credit-jax config --to jax {path} --out " in problem["fix"]


def test_data_alone():
    """The channels of a config without model and trainer are reported."""
    report = check_config(CREDIT / "config/gen_2/examples/multi_source_data.yml")
    # Without loss and trainer it is a config for forecasts.
    assert [line.split(":")[0] for line in report.problems] == ["save_loc", "model"]
    found = document(report)
    assert [len(found["channels"][side]) for side in ("input", "target")] == [74, 71]
    level = found["channels"]["input"][40]
    assert (level["source"], level["variable"]) == ("ERA5_UpperAir", "U")
    assert level["level_value"] == 10.0


def test_no_config(tmp_path, capsys):
    found = printed_document(capsys, "-c", str(tmp_path / "absent.yml"))
    assert (found["kind"], found["channels"]) == (None, None)
    assert "does not exist" in found["problems"][0]["message"]
