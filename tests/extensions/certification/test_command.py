"""`credit-jax certify`: its page, its exit code, and its errors."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.checkpoint.run import open_run
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.train import main as train
from credit_jax.config import build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.certification import Certificate
from credit_jax.extensions.certification.certify import MeshVerdict
from credit_jax.extensions.certification.command import (
    _against_credit,
    main,
    page_of,
    small_config,
    write_plain,
)
from credit_jax.extensions.certification.small_config import SAMPLES, certified_mapping
from credit_jax.extensions.certification.verdict import FLOAT32, Check
from credit_jax.models.debugger import DebuggerConfig
from credit_jax.models.registry import build
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.configs import CONFIGS

CASES = Cases("certify")


def demo():
    return yaml.safe_load((CONFIGS / "demo.yaml").read_text())


def small_debugger():
    """The demo's config with the smallest model."""
    mapping = demo()
    keys = DebuggerConfig.model_fields.keys() & mapping["model"]
    section = {key: mapping["model"][key] for key in keys}
    return mapping | {"model": section | {"type": "debugger"}}


def write(path, mapping):
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return path


@pytest.fixture
def certified(tmp_path):
    """`certified(config, ...)` -> what the page and its JSON say of a config."""

    def certify(config, *options, code=OK):
        out = tmp_path / "page.html"
        given = ["--config", str(config), "--out", str(out), "--cache", "none"]
        assert main([*given, *options]) == code
        if code == OK:
            return out.read_text(), json.loads(out.with_suffix(".json").read_text())
        return None

    return certify


@pytest.mark.slow
def test_a_page_and_its_json(certified, tmp_path, capsys):
    """Every mesh is a process of its own."""
    config = write(tmp_path / "small.yaml", small_debugger())
    page, facts = certified(config, "--meshes", "domain3,fsdp2")
    assert "OK: 2 meshes give what one device gives" in capsys.readouterr().out
    assert facts["passed"]
    assert [v["mesh"] for v in facts["verdicts"]] == ["domain3", "fsdp2"]
    quantities = {check["quantity"] for check in facts["verdicts"][0]["checks"]}
    assert {"prediction", "loss of each update"} <= quantities
    assert {"change of all weights", "checkpoint restored here"} <= quantities
    assert "Passed: 2 meshes give what mesh 1 gives." in page
    assert facts["provenance"]["jax"] in page


@pytest.mark.slow
def test_adapters_and_stages(certified, tmp_path):
    """Without the base; there is a loss of each stage."""
    mapping = demo()
    lora = {"rank": 2, "alpha": 4, "targets": ["*attention/to_*", "*feed_forward*"]}
    mapping["trainer"]["finetune"] = {"from": "nowhere", "lora": lora}
    mapping["trainer"]["curriculum"] = [
        {"until": 20000, "forecast_len": 1, "train_batch_size": 16},
        {"until": 24000, "forecast_len": 2, "learning_rate": 1e-6},
        {"forecast_len": 6, "backprop": "full"},
    ]
    config = write(tmp_path / "c", mapping)
    _, facts = certified(config, "--meshes", "fsdp2xdomain2")
    (verdict,) = facts["verdicts"]
    quantities = {check["quantity"] for check in verdict["checks"]}
    assert {"change of the average", "loss of each update"} <= quantities


LORA = {"rank": 2, "alpha": 4.0}


@pytest.mark.parametrize(
    ("finetune", "left"),
    [
        ({"freeze": ["stages/*", "layers.1.1.layers.1.*"]}, {"freeze": ["stages/*"]}),
        (
            {
                "train": ["head/*"],
                "lora": {"targets": ["*feed_forward*", "stages/9/*"]},
            },
            {"train": ["head/*"], "lora": {"targets": ["*feed_forward*"]}},
        ),
    ],
)
def test_what_a_small_model_has_is_frozen(tmp_path, finetune, left):
    mapping = demo()
    for section in (finetune, left):
        if "lora" in section:
            section["lora"] |= LORA
    mapping["trainer"]["finetune"] = {"from": "nowhere", **finetune}
    mapping["trainer"]["curriculum"] = [
        {"until": "5 epochs", "grad_accum_every": 2},
        {"forecast_len": 4, "batches_per_epoch": 10},
    ]
    small = certified_mapping(mapping, tmp_path, num_samples=4, num_updates=3)
    section = {k: v for k, v in small["trainer"]["finetune"].items() if v}
    assert section == {"from": "nowhere", **left}
    assert small["trainer"]["curriculum"] == [{"until": 1}, {"forecast_len": 4}]
    first, last = (small["data"][f"{k}_datetime"] for k in ("start", "end"))
    days = (pd.Timestamp(last) - pd.Timestamp(first)) // pd.Timedelta("24h")
    assert days + 1 - 4 == SAMPLES
    build_config(small)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A config with data of its own, two kinds of parallelism, and a trained run."""
    folder = tmp_path_factory.mktemp("certified")
    mapping = small_debugger()
    parallelism = {"data": "fsdp2", "tensor": 2, "domain": 2}
    mapping["trainer"]["parallelism"] = parallelism
    small = small_config(mapping, folder)
    small["trainer"]["parallelism"] = parallelism
    path = write_plain(small, folder / "whole.yml")
    with contextlib.chdir(folder):
        assert train(["--config", str(path), "--devices", "4", "--cache", "none"]) == OK
    return path, folder / "run"


@pytest.mark.slow
def test_the_config_as_it_is_with_the_weights_of_a_run(
    run_folder, certified, tmp_path, capsys
):
    """Weights that are not finite show that they are those of the checkpoint."""
    config, run = run_folder
    options = ["--full", "--meshes", "fsdp2", "--checkpoint"]
    with contextlib.chdir(config.parent):
        _, facts = certified(config, *options, str(run))
        weights = open_run(run)
        recorded = facts["provenance"]["checkpoint"]
        assert recorded.startswith(f"{run}, step {weights.step}, ")
        assert recorded.endswith(weights.digest)
        broken = tmp_path / "broken"
        params, model_state = weights.on_host(build(read_yaml(config)["model"]))
        store = CheckpointStore(broken)
        params = {path: np.nan * array for path, array in params.items()}
        items = {"weights": {"params": params, **model_state}}
        store.save(3, items, Progress(epoch=0))
        store.close()
        for name in ("page.html", "page.json"):
            (tmp_path / name).unlink()
        capsys.readouterr()
        certified(config, *options, str(broken), code=USER_ERROR)
    first = f"(weights {sorted(params)[0]}), with which nothing can be compared"
    assert first in " ".join(capsys.readouterr().err.split())


def wrong(*options, tmp_path):
    config = write(tmp_path / "small.yaml", small_debugger())
    out = ["--out", str(tmp_path / "page.html")]
    return lambda: main(["--config", str(config), *out, *options])


CASES.rows(
    wrong,
    ("--checkpoint", "RUN"),
    ("--full", "--checkpoint", "nowhere"),
    ("--full",),
    ("--devices", "0"),
    ("--devices", "1"),
    ("--processes", "0"),
    ("--meshes", ""),
    ("--meshes", "1"),
    ("--out", "nowhere/page.html"),
    ("--meshes", "dp2"),
    ("--meshes", "tp16"),
    ("--set", "model.type=wxfomer"),
)


@pytest.mark.slow
def test_errors_of_a_whole_config(run_folder, certified, tmp_path, capsys):
    (tmp_path / "checkpoint.pt").touch()
    with contextlib.chdir(run_folder[0].parent):
        for options, message in (
            (["--checkpoint", str(tmp_path)], "has no model.yml"),
            (["--set", "model.surface_channels=2"], "surface_channels"),
            (["--set", "data.source.demo.vars_3D=[Z]"], "vars_3D"),
        ):
            certified(run_folder[0], "--full", *options, code=USER_ERROR)
            assert message in capsys.readouterr().err


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
    for text in (
        "tp4, domain2.",
        "output of layers.0.1",
        "(channel 2)",
        "&lt;error&gt;",
    ):
        assert text in page
    assert "<model>" not in page


def test_float64_decides():
    broken = Check("prediction", 2e-6, 1e-6, "channel 0")
    verdict = MeshVerdict("tp2", (broken,), (Check("prediction", 1e-15, 1e-12),))
    assert verdict.passed
    assert certificate(verdict).passed
    (line,) = verdict.lines()
    assert "the same: prediction (channel 0) 2.0e-06, bound 1e-06" in line
    assert "the same in float64" in line
    assert not MeshVerdict("tp2", (broken,)).passed
    assert not MeshVerdict("tp2").passed


def test_a_model_that_credit_cannot_build(monkeypatch, tmp_path):
    """The meshes were compared: what was seen is not thrown away."""
    ended = subprocess.CompletedProcess([], USER_ERROR, "", "a note\nerror: no model\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: ended)
    code, *lines = _against_credit(tmp_path / "config.yml", tmp_path)
    assert code != str(OK)
    assert lines == ["not compared with CREDIT:", "error: no model"]


WORKER = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from credit_jax.extensions.certification.processes import begin_process
arguments = Path(sys.argv[1]), 1, None
worker = ProcessPoolExecutor(1, get_context("spawn"), begin_process, arguments)
print(worker.submit(os.getpid).result(), flush=True)
worker.submit(time.sleep, 600).result()
"""


def test_no_worker_outlives_a_certificate_that_is_ended(tmp_path):
    command = [sys.executable, "-c", WORKER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        worker = Path("/proc") / parent.stdout.readline().strip()
        assert worker.exists()
        parent.terminate()
    for _ in range(300):
        if not worker.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{worker} is there after 30 s")
