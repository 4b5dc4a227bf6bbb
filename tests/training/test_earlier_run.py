"""The work of an earlier run is neither written over nor split nor lost."""

import os

import pytest

from credit_jax.training import earlier_run
from credit_jax.training.earlier_run import (
    end_interrupted_move,
    move_earlier_run,
    refuse_earlier_run,
)

FILES = {
    "checkpoints/6/weights/d": "w",
    "training_log.csv": "index,epoch\n0,0\n",
    "training_steps.jsonl": '{"event": "start"}\n{"step": 1}\n',
    "scores/scores.csv": "s",
    "forecast/forecast.zarr/x": "f",
}
SHARED = {"jobs/train.sh": "#!/bin/bash", "cache/program": "c"}


def fill(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def files_of(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


@pytest.mark.parametrize(
    "name",
    ["checkpoints/6/x", "training_log.csv", "checkpoint.pt", "best_checkpoint_0.pt"],
)
def test_work_is_refused(name, tmp_path):
    fill(tmp_path, {name: "x"})
    text = f"holds an earlier run .{name.partition('/')[0]}.*--resume.*--fresh"
    with pytest.raises(ValueError, match=text):
        refuse_earlier_run(tmp_path)


def test_a_start_without_updates_is_no_work(tmp_path):
    fill(tmp_path, {"training_steps.jsonl": '{"event": "start"}\n', **SHARED})
    (tmp_path / "checkpoints").mkdir()
    refuse_earlier_run(tmp_path)
    fill(tmp_path, {"training_steps.jsonl": FILES["training_steps.jsonl"]})
    with pytest.raises(ValueError, match=r"training_steps\.jsonl"):
        refuse_earlier_run(tmp_path)


def test_runs_move_whole_each_to_its_folder(tmp_path):
    earlier = []
    for number in range(3):
        fill(tmp_path, SHARED | {k: f"{v}{number}" for k, v in FILES.items()})
        earlier.append(move_earlier_run(tmp_path))
        refuse_earlier_run(tmp_path)
    assert len(set(earlier)) == 3
    for number, folder in enumerate(earlier):
        assert files_of(folder) == {k: f"{v}{number}" for k, v in FILES.items()}
    assert {p.name for p in tmp_path.iterdir()} - {p.name for p in earlier} == {
        "jobs",
        "cache",
    }
    assert move_earlier_run(tmp_path) is None


def test_what_the_new_run_reads_stays(tmp_path, monkeypatch):
    """Whatever key of its config names it, and the config itself."""
    inputs = {
        "mean.nc": "m",
        "scalers/deep/s.json": "s",
        "d_2000.nc": "d",
        "my.yml": "c",
    }
    others = {"model.yml": "o", "e_2000.nc": "e", "forecasts/x": "x", **FILES}
    fill(tmp_path, {**inputs, **others, **SHARED})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", str(tmp_path))
    config = {
        "save_loc": str(tmp_path),
        "inference": {"save_forecast": str(tmp_path / "forecasts")},
        "data": {"source": {"A": {"path": str(tmp_path / "d_%Y.nc")}}},
        "preblocks": [{"args": {"mean_path": "$HERE/mean.nc", "levels": [1]}}],
        "scaler_path": "scalers/deep/s.json",
        "run_mode": "forecast",
    }
    earlier = move_earlier_run(tmp_path, earlier_run.files_of(config, "my.yml"))
    assert files_of(earlier) == others
    for name, text in {**inputs, **SHARED}.items():
        assert (tmp_path / name).read_text() == text
    moved = move_earlier_run(tmp_path, earlier_run.files_of(config, "my.yml"))
    assert moved is None, "there is nothing left to move"


@pytest.mark.parametrize("at", range(7))
def test_a_move_that_is_killed_is_ended(at, tmp_path, monkeypatch):
    fill(tmp_path, FILES)
    rename, done = os.rename, []

    def killed(*paths):
        if len(done) == at:
            raise SystemExit
        done.append(rename(*paths))

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", killed)
        if at <= len(FILES):
            with pytest.raises(SystemExit):
                move_earlier_run(tmp_path)
        else:
            move_earlier_run(tmp_path)
    end_interrupted_move(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert files_of(folder) == FILES
