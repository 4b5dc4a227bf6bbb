"""What CREDIT's own commands write is read, or refused as CREDIT refuses it.

`credit init` copies files of CREDIT's repository, which the table of docs/bridge.md
has; `credit begin` asks, and gets the answers that it suggests; `credit convert` makes
generation 2 of generation 1.
"""

from __future__ import annotations

import argparse
import builtins
import warnings
from pathlib import Path
from unittest import mock

import pytest
import yaml

from benchmarks.configs.credit_verdict import TAKES, credit_verdict
from benchmarks.configs.survey import survey
from benchmarks.configs.table import FOLDER
from credit_jax.config import load_config
from credit_torch_bridge.compare.jax_side import import_credit

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore:.*ignored here"),
]

GEN1 = FOLDER / "config" / "gen_1"
# Files that `credit convert` reads, and how the reason begins that the result is
# refused here; CREDIT fails with these, too.
CONVERTED = {
    "arXiv_2024/wxformer_1h_single_step.yml": "",
    "arXiv_2024/fuxi_6h_single_step.yml": "model.frames: 2 differs from data.history_",
    "arXiv_2024/fuxi_6h_multi_step.yml": "trainer.type: trainer 'multi-step' is not ",
    "applications/other_models/unet_1dg_6hr.yml": "",
    "applications/domain_parallel/domain_parallel_test.yml": "model: has 79 input ",
    "applications/ensemble/test_cesm_ensemble.yml": "data.timestep: must be a string",
    "applications/diffusion/unet_diffusion_6hr_CAM.yml": "trainer.type: trainer '",
}
# Data sets of `credit begin` that need a download, and the words of the error.
DOWNLOADS = {
    "mrms": "fetch the files with credit.datasets.gen_2.mrms_download, set mode: local",
    "goes": "fetch the files, set mode: local, and name their folder in path",
}


def begin(number: int, out: Path) -> None:
    """Runs `credit begin` with the data set of a number, and no further answers."""
    answers = {"Dataset name or number": str(number), "Top-level": str(out.parent)}

    def answer(prompt: str) -> str:
        return next((a for words, a in answers.items() if words in prompt), "")

    commands = import_credit("cli._begin")
    with (
        mock.patch.object(builtins, "input", answer),
        mock.patch.object(commands, "_run_check", return_value=0),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        commands._begin(argparse.Namespace(config=str(out)))


@pytest.mark.slow
def test_credit_begin(credit, tmp_path, capsys):
    """Every data set that it offers is read, but for two that need a download."""
    for number, name in enumerate(import_credit("cli._begin")._DATASET_CHOICES, 1):
        out = tmp_path / f"{name}.yml"
        begin(number, out)
        if name not in DOWNLOADS:
            assert survey(out, tmp_path).problems == (), name
            continue
        with pytest.raises(ValueError, match="is not available for") as caught:
            load_config(out)
        assert DOWNLOADS[name] in str(caught.value)


@pytest.mark.parametrize("name", CONVERTED, ids=lambda name: Path(name).stem)
def test_credit_convert(credit, tmp_path, capsys, monkeypatch, name):
    out = tmp_path / "gen2.yml"
    commands = import_credit("cli._convert")
    # It reads files of means and deviations to write a scaler.
    monkeypatch.setattr(commands, "_build_bridgescaler_jsons", lambda *_: ([], []))
    given = argparse.Namespace(config=str(GEN1 / name), output=str(out), defaults=True)
    commands._convert(given)
    assert "source" in yaml.safe_load(out.read_text())["data"]
    verdict = survey(out, tmp_path)
    if not CONVERTED[name]:
        assert verdict.problems == ()
        return
    assert verdict.problems[0].startswith(CONVERTED[name]), verdict.problems
    assert credit_verdict(out) != TAKES


@pytest.mark.parametrize("grid", ["0.25deg", "1deg"])
def test_credit_init(credit, tmp_path, capsys, monkeypatch, grid):
    commands = import_credit("cli._convert")
    monkeypatch.setattr(commands, "_repo_root", lambda: str(FOLDER))
    out = tmp_path / "config.yml"
    given = argparse.Namespace(
        grid=grid, model="wxformer", output=str(out), force=False
    )
    commands._init(given)
    assert survey(out, tmp_path).problems == ()
