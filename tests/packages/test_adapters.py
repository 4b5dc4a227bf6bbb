"""A package of adapters alone, and what it is with its base."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from credit_jax.checkpoint.run import open_run
from credit_jax.cli import forecast
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.train import main as train
from credit_jax.extensions.packaging import command as package
from credit_jax.forecast.labeled import open_forecaster
from credit_jax.models.registry import build
from credit_jax.packages.manifest import ADAPTERS, WEIGHTS
from credit_jax.packages.package import open_package
from tests.data.world import MODEL
from tests.training.tiny import tiny_config, write_yaml

START = ("--init-time", "2000-01-01", "--steps", "3", "--format", "zarr")
POSTBLOCKS = {"per_step": {"reconstruct": {"type": "reconstruct"}}}


def finetune(world: Path, folder: Path, section: dict[str, Any]) -> Path:
    """Trains two updates; returns the folder of the run."""
    config = tiny_config(
        world,
        folder / "run",
        postblocks=POSTBLOCKS,
        trainer__batches_per_epoch=2,
        trainer__skip_validation=True,
        trainer__finetune=section,
    )
    path = write_yaml(folder / "config.yml", config)
    assert train(["--config", path, "--cache", "none", "--devices", "1"]) == OK
    return folder / "run"


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    """The folder of the run that is fine-tuned."""
    return folder


@pytest.fixture(scope="module")
def tuned(world: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with adapters, and a bias that is trained besides."""
    lora = {"rank": 1, "alpha": 2, "targets": ["dense/up", "dense/down"]}
    section = {"from": str(base), "lora": lora, "train": ["dense/bias"]}
    return finetune(world, tmp_path_factory.mktemp("tuned"), section)


@pytest.fixture(scope="module")
def adapters(tuned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of its adapters."""
    out = tmp_path_factory.mktemp("packages") / "adapters"
    options = ["--checkpoint", str(tuned), "--adapters", "--out", str(out)]
    assert package.main(options) == OK
    return out


@pytest.mark.slow
def test_with_its_base_it_is_the_run_bit_for_bit(
    world: Path, tuned: Path, adapters: Path, base: Path, data: Path, tmp_path: Path
) -> None:
    assert (adapters / ADAPTERS).is_file()
    assert not (adapters / WEIGHTS).exists()
    expected, state = open_run(tuned).on_host(build({**MODEL, "type": "tiny"}))
    params, model_state = open_package(adapters, base).weights
    assert params.keys() == expected.keys()
    for path, value in expected.items():
        assert np.array_equal(params[path], value), path
    for path, vectors in state["spectral_norm"].items():
        for side in "uv":
            one = model_state["spectral_norm"][path][side]
            assert np.array_equal(one, vectors[side]), path
    moved = shutil.move(shutil.copytree(adapters, tmp_path / "copy"), tmp_path / "else")
    given = ["--package", str(moved), "--base", str(base), "--data", str(data)]
    of_run = ["--config", str(tuned / "model.yml")]
    for name, options in (("a", given), ("b", of_run)):
        out = ["--out", str(tmp_path / name), "--cache", "none"]
        assert forecast.main([*options, *START, *out]) == OK
    a, b = (xr.open_dataset(tmp_path / name / "forecast.zarr").load() for name in "ab")
    xr.testing.assert_identical(a.drop_attrs(), b.drop_attrs())
    assert "--base BASE" in (adapters / "README.md").read_text()
    with xr.open_dataset(world / "w_2000.nc") as fields:
        initial = fields.sel(time=[np.datetime64("2000-01-01", "ns")]).load()
    steps = open_forecaster(moved, data=data, base=base)(initial, 3)
    for lead, step in enumerate(steps, 1):
        for name in ("T", "U", "SP"):
            stored = a[name].isel(time=0, prediction_timedelta=lead)
            assert np.array_equal(step[name].values.squeeze(), stored.values.squeeze())
    with pytest.raises(ValueError, match="base must name the run, package or checkp"):
        open_forecaster(moved, data=data)
    with pytest.raises(ValueError, match="is a run with all its weights; leave it out"):
        open_forecaster(tuned, base=base)


@pytest.mark.slow
def test_the_command_that_forecasts_names_the_base(
    tuned: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, needs in (("--adapters", f" --base {base}"), ("--weights=average", "")):
        out = tmp_path / option.strip("-")
        options = ["--checkpoint", str(tuned), option, "--out", str(out)]
        assert package.main(options) == OK
        text = " ".join(capsys.readouterr().out.split())
        assert f"forecast --package {out}{needs} --data FILE makes fore" in text


def test_a_package_of_the_base_is_the_base(
    adapters: Path, base: Path, tmp_path: Path
) -> None:
    """The digest is of the arrays, not of files."""
    out = tmp_path / "base"
    assert package.main(["--checkpoint", str(base), "--out", str(out)]) == OK
    params, _ = open_package(adapters, base).weights
    again, _ = open_package(adapters, out).weights
    for path, value in params.items():
        assert np.array_equal(again[path], value), path
    with pytest.raises(ValueError, match="has all its weights; leave --base out"):
        open_package(out, base)


def test_another_base_and_none_are_refused(
    tuned: Path, adapters: Path, data: Path, tmp_path: Path, capsys: Any
) -> None:
    given = ["--package", str(adapters), "--data", str(data), *START]
    options = [*given, "--out", str(tmp_path / "out"), "--cache", "none"]
    for more, message in (
        ([], "has adapters alone; --base must name the run, package or checkpoint"),
        (["--base", str(tmp_path / "no")], f"--base: {tmp_path}/no: no such file"),
        (["--base", str(tuned)], f"--base: the weights of {tuned}/checkpoints/2, m"),
    ):
        capsys.readouterr()
        assert forecast.main([*options, *more]) == USER_ERROR
        assert message in " ".join("".join(capsys.readouterr()).split())


def test_only_adapters_of_the_channels_of_the_base_are_packed(
    base: Path, tuned: Path, tmp_path: Path, capsys: Any
) -> None:
    for run, setting, message in (
        (base, "save_loc=NEW", "trainer.finetune.lora: missing; the run has"),
        (
            tuned,
            "trainer.finetune.new_channels=zero",
            "new_channels: the base has other channels",
        ),
        (tuned, f"trainer.finetune.from={tuned}", "are not those that the adapters"),
    ):
        options = ["--checkpoint", str(run), "--adapters", "--set", setting]
        code = package.main([*options, "--out", str(tmp_path / "out")])
        text = " ".join("".join(capsys.readouterr()).split())
        assert code == USER_ERROR
        assert message in text
        assert not (tmp_path / "out").exists()
