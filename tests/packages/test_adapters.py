"""A package of adapters alone, and what it is with its base."""

import shutil

import chex
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
from tests.forecast.tiny_run import read
from tests.training.tiny import tiny_config, write_yaml

START = "--init-time=2000-01-01", "--steps=3", "--format=zarr", "--cache=none"


@pytest.fixture(scope="module")
def tuned(world, folder, tmp_path_factory):
    """A run on `folder` with adapters, and a bias that is trained besides."""
    run = tmp_path_factory.mktemp("tuned") / "run"
    lora = {"rank": 1, "alpha": 2, "targets": ["dense/up", "dense/down"]}
    section = {"from": str(folder), "lora": lora, "train": ["dense/bias"]}
    config = tiny_config(
        world,
        run,
        postblocks={"per_step": {"reconstruct": {"type": "reconstruct"}}},
        trainer__batches_per_epoch=2,
        trainer__skip_validation=True,
        trainer__finetune=section,
    )
    path = write_yaml(run.with_name("config.yml"), config)
    assert train(["--config", path, "--cache", "none", "--devices", "1"]) == OK
    return run


@pytest.fixture(scope="module")
def adapters(tuned, tmp_path_factory):
    """A package of its adapters."""
    out = tmp_path_factory.mktemp("packages") / "adapters"
    options = ["--checkpoint", str(tuned), "--adapters", "--out", str(out)]
    assert package.main(options) == OK
    return out


@pytest.mark.slow
def test_with_its_base_it_is_the_run_bit_for_bit(
    initial, tuned, adapters, folder, data, tmp_path
):
    assert (adapters / ADAPTERS).is_file()
    assert not (adapters / WEIGHTS).exists()
    expected = open_run(tuned).on_host(build({**MODEL, "type": "tiny"}))
    chex.assert_trees_all_equal(open_package(adapters, folder).weights, expected)
    moved = shutil.move(shutil.copytree(adapters, tmp_path / "copy"), tmp_path / "else")
    given = ["--package", str(moved), "--base", str(folder), "--data", str(data)]
    of_run = ["--config", str(tuned / "model.yml")]
    for name, options in (("a", given), ("b", of_run)):
        assert forecast.main([*options, *START, "--out", str(tmp_path / name)]) == OK
    a, b = (read(tmp_path / name) for name in "ab")
    xr.testing.assert_identical(a.drop_attrs(), b.drop_attrs())
    assert "--base BASE" in (adapters / "README.md").read_text()
    steps = open_forecaster(moved, data=data, base=folder)(initial, 3)
    for lead, step in enumerate(steps, 1):
        for name in ("T", "U", "SP"):
            stored = a[name].isel(time=0, prediction_timedelta=lead)
            assert np.array_equal(step[name].values.squeeze(), stored.values.squeeze())
    with pytest.raises(ValueError, match="base must name the run, package or checkp"):
        open_forecaster(moved, data=data)
    with pytest.raises(ValueError, match="is a run with all its weights; leave it out"):
        open_forecaster(tuned, base=folder)


@pytest.mark.slow
def test_the_command_that_forecasts_names_the_base(tuned, folder, tmp_path, capsys):
    for option, needs in (
        ("--adapters", f" --base {folder}"),
        ("--weights=average", ""),
    ):
        out = tmp_path / option.strip("-")
        options = ["--checkpoint", str(tuned), option, "--out", str(out)]
        assert package.main(options) == OK
        text = " ".join(capsys.readouterr().out.split())
        assert f"forecast --package {out}{needs} --data FILE makes fore" in text


def test_a_package_of_the_base_is_the_base(adapters, folder, tmp_path):
    """The digest is of the arrays, not of files."""
    out = tmp_path / "base"
    assert package.main(["--checkpoint", str(folder), "--out", str(out)]) == OK
    weights = (open_package(adapters, base).weights for base in (folder, out))
    chex.assert_trees_all_equal(*weights)
    with pytest.raises(ValueError, match="has all its weights; leave --base out"):
        open_package(out, folder)


def test_another_base_and_none_are_refused(
    folder, tuned, adapters, data, tmp_path, capsys
):
    out = tmp_path / "out"
    given = ["--package", str(adapters), "--data", str(data), *START]
    setting = "trainer.finetune.{}".format
    for command, options, message in (
        (
            forecast,
            given,
            "has adapters alone; --base must name the run, package or ch",
        ),
        (
            forecast,
            [*given, "--base", str(tmp_path / "no")],
            f"--base: {tmp_path}/no: no such file",
        ),
        (
            forecast,
            [*given, "--base", str(tuned)],
            f"--base: the weights of {tuned}/checkpoints/2, m",
        ),
        (package, (folder, "save_loc=NEW"), "trainer.finetune.lora: missing; the run"),
        (
            package,
            (tuned, setting("new_channels=zero")),
            "new_channels: the base has other channels",
        ),
        (
            package,
            (tuned, setting(f"from={tuned}")),
            "are not those that the adapters",
        ),
    ):
        if command is package:
            run, change = options
            options = ["--checkpoint", str(run), "--adapters", "--set", change]
        code = command.main([*options, "--out", str(out)])
        text = " ".join("".join(capsys.readouterr()).split())
        assert code == USER_ERROR
        assert message in text
        assert not out.exists()
