"""docs/notebook.md: its blocks run in order, and are few."""

import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.forecast.tiny_run import make_run
from tests.support.code_blocks import code_blocks
from tests.training.conftest import compiled_once, tiny_model, world

__all__ = ["compiled_once", "tiny_model", "world"]

PAGE = Path(__file__).parents[2] / "docs/notebook.md"
BLOCKS = code_blocks(PAGE.read_text(), "python")


@pytest.fixture
def folder(world, tmp_path, tiny_model, monkeypatch):
    """The working directory of the page, with its run and its data."""
    config = make_run(world, tmp_path / "tiny")
    shutil.copytree(tmp_path / "tiny/run", tmp_path / "RUN")
    shutil.copyfile(config, tmp_path / "RUN/model.yml")
    shutil.copyfile(world / "w_2000.nc", tmp_path / "era5.nc")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plt.close("all")


def test_the_page_has_at_most_forty_lines_of_code():
    assert sum(len(block.splitlines()) for block in BLOCKS) <= 40


@pytest.mark.slow
def test_the_page_runs(folder, capsys):
    names = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    forecast, era5 = names["forecast"], names["era5"]
    assert forecast["T"].dims == ("time", "level", "latitude", "longitude")
    assert forecast.sizes["time"] == 4
    assert names["ensemble"].sizes["number"] == 3
    ours = (forecast["SP"][0] - era5["SP"].sel(time=forecast.time[0])).values
    weights = np.cos(np.deg2rad(era5.latitude.values))[:, None]
    mean = (ours**2 * weights).sum() / (weights * np.ones_like(ours)).sum()
    np.testing.assert_allclose(names["rmse"][0], np.sqrt(mean), rtol=1e-5)
    assert names["spread"] > 0
    assert (folder / "error.png").stat().st_size > 0
    assert "2000-01-01 06:00:00" in capsys.readouterr().out
