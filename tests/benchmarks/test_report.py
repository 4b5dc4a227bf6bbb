"""Reports and demos, and what becomes of CREDIT's own configs."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from benchmarks import assimilation_demo, finetune_demo
from benchmarks.assimilation_bound import best_estimate
from benchmarks.assimilation_demo import VARIABLES, observe
from benchmarks.certificates import CONFIGS, meshes_of
from benchmarks.configs import table
from benchmarks.configs.survey import find_configs, survey
from benchmarks.configs.training import train_two_steps
from benchmarks.finetune_demo import BASE, SCRATCH, TUNED
from benchmarks.report import write_report
from credit_jax.config import Config, load_config
from tests.extensions.assimilation.test_background import covariance
from tests.support.processes import run_program

ROOT = Path(__file__).parents[2]
LIMIT = 100_000  # bytes


def test_the_json_has_a_line_for_each_result(tmp_path: Path) -> None:
    recipe = {"date": "Monday", "commit": "abc", "python": "3.11", "machine": "2 cores"}
    recipe |= {"versions": {"jax": "0.10"}, "config": {"steps": 3}}
    data = {"recipe": recipe, "runs": [{"a": [1.5, None]}, {"b": "x\ny"}], "none": []}
    path = write_report("report", ["# Title"], data, tmp_path)
    text = path.with_suffix(".json").read_text()
    assert json.loads(text) == data
    assert ' "runs": [\n  {"a": [1.5, null]},\n  {"b": "x\\ny"}\n ],\n' in text
    assert "- date: Monday" in path.read_text()


def test_no_tracked_json_is_large() -> None:
    """The tables of a report are in its markdown; rows of raw data stay untracked."""
    listed = ("git", "ls-files", "-z", "*.json")
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    files = {name: ROOT / name for name in done.stdout.split("\0") if name}
    assert "benchmarks/reports/accuracy.json" in files
    sizes = {n: file.stat().st_size for n, file in files.items() if file.exists()}
    assert not {name: size for name, size in sizes.items() if size > LIMIT}


@pytest.mark.slow
def test_the_report_of_fuzzers(tmp_path: Path) -> None:
    sizes = ("--configs", "3", "--checkpoints", "3", "--packages", "3")
    sizes += ("--datasets", "3", "--out", str(tmp_path))
    run_program("benchmarks.fuzz", *sizes)
    report = json.loads((tmp_path / "fuzz.json").read_text())
    assert report["problems"] == []
    assert sum(int(cell) for row in report["rows"] for cell in row[1:]) == 12


@pytest.mark.parametrize("name", ["demo", "assimilate_demo"])
def test_the_meshes_of_a_certificate(name: str) -> None:
    """The model of the second config is one of custom_objects."""
    names = meshes_of(CONFIGS / f"{name}.yaml")
    assert names[:3] == ["ddp2", "fsdp2", "tp2"]
    assert len(names) >= 12
    assert "1" not in names


# The demo of fine-tuning.


def write_run(folder: Path, losses: list[float], rmse: float) -> None:
    """Writes the results of a run: its log, steps, and scores of two levels."""
    (folder / "scores").mkdir(parents=True)
    pd.DataFrame({"valid_loss": losses}).to_csv(folder / "training_log.csv")
    steps = [{"event": "start", "step": 0}]
    steps += [{"step": n, "step_seconds": 0.5} for n in (1, 2 * len(losses))]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (folder / "training_steps.jsonl").write_text(lines)
    rows = [
        ("rmse", system, f"T{level}", "T", "global", hours, value * level * hours / 24)
        for system, value in {"forecast": rmse, "persistence": 2.0}.items()
        for level in (1, 7)
        for hours in (24, 48)
    ]
    names = ["metric", "system", "channel", "variable", "region", "lead_hours", "value"]
    scores = pd.DataFrame(rows, columns=names)
    scores.to_csv(folder / "scores" / "scores.csv", index=False)


@pytest.mark.parametrize(("rmse", "status"), [(0.9, 0), (1.1, 1)])
def test_the_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rmse: float, status: int
) -> None:
    configs: dict[str, Config] = {}

    def train(config: Path, settings: Mapping[str, Any], folder: Path) -> None:
        sets = [f"{key}={value}" for key, value in settings.items()]
        configs[folder.name] = load_config(config, sets)
        tuned = folder.name == TUNED
        losses = [0.5, 0.4] if tuned else [0.6, 0.45, 0.7]
        write_run(folder, losses, rmse if tuned else 1)

    monkeypatch.setattr(finetune_demo, "_train", train)
    # Scores of other days than those of the validation.
    score = lambda folder: shutil.copytree(folder / "scores", folder / "test")  # noqa: E731
    monkeypatch.setattr(finetune_demo, "_score", score)
    runs, out = tmp_path / "runs", tmp_path / "out"
    options = ["--folder", str(runs), "--out", str(out)]
    assert finetune_demo.main(options) == status
    lengths = {
        name: (c.trainer.epochs, c.trainer.scheduler.model_dump()["total_steps"])
        for name, c in configs.items()
    }
    assert [*lengths.items()] == [
        *((BASE, (10, 620)), (TUNED, (6, 84)), (SCRATCH, (60, 840)))
    ]
    assert configs[SCRATCH].trainer.finetune is None
    text = (out / "finetune_demo.md").read_text()
    assert f"| T | 10 | {5 * rmse:.3g} | 5 |" in text
    assert "fine-tuned 0.4000 and 0.4000; from scratch 0.4500 and 0.7000" in text
    assert f"is {'' if not status else 'not '}better" in text
    assert (out / "finetune_demo.png").stat().st_size > 5000
    configs.clear()
    assert finetune_demo.main(options) == status
    assert not configs, "runs that have scores are not repeated"


# The demo of assimilation: its observations and its bound.


def test_observations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 % of the points of every variable, with errors of 10 % of a spread of 1."""
    rng = np.random.default_rng(0)
    axes = {"level": np.array([0.25, 0.75]), "latitude": np.linspace(75, -75, 6)}
    axes["longitude"] = np.arange(8) * 45.0
    years = {}
    for start, end in (("2001-06-10", "2001-06-26"), ("2000-01-01", "2000-01-20")):
        times = pd.date_range(start, end, freq="6h")
        coords = {"time": times, **axes}
        dims = {
            n: [*coords] if n != "SP" else ["time", *[*axes][1:]] for n in VARIABLES
        }
        fields = {
            name: (own, rng.normal(size=[len(coords[d]) for d in own]).astype("f4"))
            for name, own in dims.items()
        }
        years[start[:4]] = xr.Dataset(fields, coords)
        years[start[:4]].to_zarr(tmp_path / f"demo_{start[:4]}.zarr", zarr_format=2)
    monkeypatch.setattr(assimilation_demo, "DATA", tmp_path)
    start = pd.Timestamp("2001-06-15")
    observed = observe(start, pd.Timedelta("10D"))
    assert observed["time"].min() >= start
    assert observed["time"].max() == start + pd.Timedelta("9D18h")
    rows = observed[observed["variable"] == "U"]
    assert len(rows) / (40 * 2 * 6 * 8) == pytest.approx(0.05, abs=0.01)
    assert rows["error"].to_numpy() == pytest.approx(0.1, rel=0.1)
    truth = years["2001"]["U"].to_dataframe().reset_index()
    joined = rows.merge(truth, on=["time", "level", "latitude", "longitude"])
    assert len(joined) == len(rows)
    scaled = (joined["value"] - joined["U"]) / joined["error"]
    assert scaled.std() == pytest.approx(1, rel=0.2)
    assert observed.loc[observed["variable"] == "SP", "level"].isna().all()


def test_the_best_estimate_is_that_of_dense_matrices() -> None:
    b, rng = covariance(truncation=4), np.random.default_rng(0)
    shape = len(b.channels), 16, 32
    observed, sizes = rng.random(shape) < 0.02, np.array([1.0, 2.0, 3.0])
    values = b.fields(rng.standard_normal(b.shape))
    points = np.flatnonzero(observed)
    units = np.eye(observed.size)[points].reshape(-1, *shape)
    dense = np.stack([b.fields(b.transposed(unit)).ravel() for unit in units])
    errors = np.repeat(sizes, 16 * 32)[points]
    system = dense[:, points] + np.diag(errors**2)
    expected = np.linalg.solve(system, values.ravel()[points]) @ dense
    actual = best_estimate(b, values, observed, sizes).ravel()
    assert np.linalg.norm(actual - expected) < 0.03 * np.linalg.norm(expected)


# CREDIT's own configs: the verdict on each, and two training steps of some.


# Why a config of generation 2 trains neither with credit_jax nor with CREDIT.
NO_MODEL = "no config to train: it has no model"
OLD_TRAINER = (
    "refused: data.source.ERA5.dataset_type: missing; this key is required (and 2 more)"
)
REASONS = {
    "credit_smoke_test_v2": OLD_TRAINER,
    "credit_smoke_test_v2_025deg": OLD_TRAINER,
    "multi_source_data": NO_MODEL,
    "weatherbench2_era5_wxformer": NO_MODEL,
    "weatherbench2_era5_wxformer_tiny": NO_MODEL,
    "wxformer_npj_era5_028deg": "refused: preblocks.norm: blocks stand in ic_only or "
    "per_step, and CREDIT refuses others, too; move it to preblocks.per_step.norm",
}


@cache
def verdicts() -> Any:
    return [survey(path, table.FOLDER) for path in find_configs(table.FOLDER)]


def test_the_page_has_a_verdict_on_each_config() -> None:
    """`python -m benchmarks.configs --docs` writes it; here without CREDIT's part."""
    page = table.DOCS.read_text()
    text = page.partition(table.BEGIN)[2].partition(table.END)[0]
    without = [""] * len(verdicts())
    rows = table.docs_rows(verdicts(), without)
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert [line[2:].split(" | ")[:-1] for line in lines] == [row[:-1] for row in rows]
    assert "\n".join(table.docs_notes(verdicts(), without)) in text
    ours = [v for v in verdicts() if v.kind == "gen2"]
    assert len(ours) == 30
    refused = {Path(v.name).stem: table.outcome(v) for v in ours if not v.trains}
    assert refused == REASONS


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.usefixtures("credit")
def test_what_credit_itself_says() -> None:
    from benchmarks.configs.credit_verdict import credit_verdict

    theirs = [credit_verdict(path) for path in find_configs(table.FOLDER)]
    written = set(table.DOCS.read_text().splitlines())
    rows = table.docs_table(verdicts(), theirs).splitlines()
    assert [row for row in rows if row not in written] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # A Zarr store of another layout, logarithms, fills, quantile scalers.
        "wb2_perlmutter_tiny",
        # GRIB files of two products.
        "integration_test_hrrr",
        # FuXi from two states, seven forecast steps, converted from generation 1.
        "fuxi_6h_multi_step",
    ],
)
def test_two_steps(name: str, tmp_path: Path) -> None:
    verdict = next(v for v in verdicts() if Path(v.name).stem == name)
    assert math.isfinite(train_two_steps(verdict.config, tmp_path).train_loss)
