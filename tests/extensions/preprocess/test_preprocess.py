"""The command preprocess: files, options, interruption, damaged data, beside CREDIT."""

import copy
import io
import json
import logging
import os
import signal
import socket
import sys
import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
import yaml
from rich.console import Console

from credit_jax.cli.commands import INTERRUPTED, OK, USER_ERROR
from credit_jax.data import ChannelGroup, open_dataset
from credit_jax.data.dataset import collate
from credit_jax.extensions.preprocess import scaler_fitting as fitting
from credit_jax.extensions.preprocess.command import main
from credit_jax.extensions.preprocess.data_store import write_store
from credit_jax.extensions.preprocess.scaler_fitting import fit_scalers
from credit_jax.named_fields import read_scalers
from credit_jax.transforms import Normalizer, Phase, build_pipeline
from credit_jax.transforms.scaling import num_channels
from credit_torch_bridge.compare.jax_side import import_torchvision
from tests.config.example import example
from tests.data.credit_batches import credit_loader
from tests.data.damaged import in_units, rewrite, rewrite_all, setting
from tests.data.sources.test_stores import (
    LATITUDE,
    OMEGA,
    RADIUS,
    WINDS,
    native_blocks,
    native_data,
)
from tests.data.world import parsed, raw_config
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Case, Cases
from tests.support import assert_close
from tests.support.whole_fields import field_context
from tests.transforms.cases import pipeline_of

CASES = Cases("preprocess")
DEEP = ["ERA5/prognostic/3d"]
FIRST = {"channels_last": False}


def scaler(path, kind="standard", variables=(), params=FIRST, **args):
    """Returns a block of scalers."""
    return {
        "type": "bridgescaler_transform",
        "args": {
            "scaler_path": str(path),
            "variables": list(variables),
            "scaler_type": kind,
            "scaler_params": params,
            **args,
        },
    }


def raw(world, blocks, **changes):
    """Returns a raw config with given `per_step` preblocks before `concat`."""
    made = raw_config(world, **changes)
    made["preblocks"]["per_step"] = {**blocks, "concat": {"type": "concat"}}
    return made


def config(world, blocks, **changes):
    """Returns the same config, parsed."""
    return parsed(raw(world, blocks, **changes))


def all_kinds(folder):
    """Returns blocks of every kind of scaler, one of them after a `log`."""
    point = "ERA5/dynamic_forcing/2d/tsi"
    quantile = {**FIRST, "compression": 40, "distribution": "normal"}
    flat, rain = ["ERA5/prognostic/2d"], ["ERA5/diagnostic", "ERA5/prognostic/3d/T"]
    log = {"variables": ["ERA5/prognostic/2d/SP"]}
    kinds = {
        "deep": {"variables": DEEP},
        "flat": {"kind": "minmax", "variables": flat, "data_types": ["input"]},
        "points": {"variables": [point], "spatial_variables": [point]},
        # CREDIT's default.
        "columns": {
            "kind": "minmax",
            "variables": ["ERA5/static"],
            "params": {"channels_last": True},
        },
        "rain": {"kind": "quantile", "variables": rain, "params": quantile},
    }
    made = {name: scaler(folder / f"{name}.json", **own) for name, own in kinds.items()}
    return {"log": {"type": "log_transform", "args": log}, **made}


T, SP, TP = (
    f"ERA5/{n}" for n in ("prognostic/3d/T", "prognostic/2d/SP", "diagnostic/2d/TP")
)


def fit(world, blocks, *, overwrite=False, threads=2, **changes):
    """Runs the command; returns its printed lines."""
    out = Console(file=io.StringIO(), width=200)
    own = config(world, blocks, **changes)
    fit_scalers(own, num_threads=threads, overwrite=overwrite, console=out)
    return out.file.getvalue()


def written(world, blocks, folder, *options, **changes):
    """Writes a config file."""
    path = folder / "config.yml"
    path.write_text(yaml.safe_dump(raw(world, blocks, **changes), sort_keys=False))
    return ["--config", str(path), *options]


def samples(world, key, part="input", **changes):
    """Returns all samples of a variable, (sample, level, time, lat, lon)."""
    own = config(world, {}, **changes)
    dataset = open_dataset(own.data)
    read = [getattr(dataset[i], part)["ERA5"][key] for i in range(len(dataset))]
    return np.stack(read).astype(np.float64)


def test_every_sample_counts_once(world, tmp_path):
    path = tmp_path / "new" / "scaler.json"
    shown = fit(world, {"scale": scaler(path)}, trainer__train_batch_size=4)
    for part in ("input", "target"):
        own = read_scalers(path)[part]["ERA5"][T]
        x = samples(world, T, part)
        np.testing.assert_allclose(own.mean, x.mean((0, 2, 3, 4)), rtol=1e-7)
        np.testing.assert_allclose(own.variance, x.var((0, 2, 3, 4)), rtol=1e-6)
    assert f"Fitted to {len(x)} samples: {path}" in shown
    assert f"input ERA5 {T}: mean 279." in shown
    assert sorted(p.name for p in path.parent.iterdir()) == ["scaler.json"]


def both_of(folder):
    """The files of means and deviations, and their block."""
    args = {"mean_path": str(folder / "m.nc"), "std_path": str(folder / "s.nc")}
    return args, {"norm": {"type": "era5_normalizer", "args": args}}


@pytest.mark.slow
def test_threads_change_nothing(world, tmp_path):
    texts = []
    for threads in (1, 3):
        paths = [tmp_path / f"{threads}{name}.json" for name in ("", "s")]
        deep, flat = scaler(paths[0], "quantile", DEEP), scaler(paths[1])
        fit(world, {"scale": deep, "flat": flat}, threads=threads)
        texts.append([path.read_text() for path in paths])
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_blocks_before_a_scaler(world, tmp_path):
    """Also blocks of the initial state, which CREDIT does not apply."""
    new = "ERA5/prognostic/2d/PS"
    blocks = {
        "log": {"type": "log_transform", "args": {"variables": [new]}},
        "scale": scaler(tmp_path / "scaler.json", variables=[new]),
    }
    rename = {"type": "rename", "args": {"mapping": {SP: new}}}
    fit(world, blocks, preblocks__ic_only={"name": rename})
    own = read_scalers(tmp_path / "scaler.json")
    x = np.log(samples(world, SP) + 1e-8) - np.log(1e-8)
    np.testing.assert_allclose(own["input"]["ERA5"][new].mean, x.mean(), rtol=1e-6)
    assert list(own["target"]["ERA5"]) == [new]


def test_coefficients_are_fields_before_a_scaler(native, tmp_path):
    """A store would have the coefficients and the points on one grid."""
    path, blocks = tmp_path / "scaler.json", native_blocks(native)
    per_step = {**blocks, "scale": scaler(path), "concat": blocks["concat"]}
    del per_step["logs"]
    per_step["concat"] = per_step.pop("concat")
    own = example(data=native_data(native), preblocks={"per_step": per_step})
    fit_scalers(parsed(own), console=Console(file=io.StringIO()))
    fitted = read_scalers(path)["target"]["ERA5"]
    names = {key.split("/")[-1]: one.mean for key, one in fitted.items()}
    flat = {"surface_pressure", "2m_temperature"}
    assert {*names} == {"temperature", *WINDS, "specific_humidity", *flat}
    np.testing.assert_allclose(names["temperature"], [280, 840], rtol=1e-6)
    wind = OMEGA * RADIUS * np.cos(np.deg2rad(LATITUDE)).mean()
    np.testing.assert_allclose(names[WINDS[0]], [wind, 3 * wind], rtol=1e-5)
    np.testing.assert_allclose(names["surface_pressure"], np.exp(11.5), rtol=1e-6)
    with pytest.raises(ValueError, match="copy its stores to a folder"):
        write_store(parsed(own), tmp_path / "store")


SPATIAL = {"spatial_variables": [SP]}


@pytest.mark.parametrize(
    "args",
    [{}, {"kind": "minmax"}, {"params": {"channels_last": True}}, SPATIAL],
    ids=["by level", "minmax", "by longitude", "by point"],
)
def test_a_postblock_undoes_its_preblock(world, tmp_path, args):
    """Also by longitude, as CREDIT scales by default; both name the same points."""
    path, concat = tmp_path / "scaler.json", {"type": "concat"}
    pre = scaler(path, variables=[SP], **args)
    fit(world, {"scale": pre})
    post = {"scaler_path": str(path), "variables": [SP]}
    points = {k: v for k, v in args.items() if k in SPATIAL}

    def pair(**points):
        scale = {"type": pre["type"], "args": {**post, **points}}
        after = {"split": {"type": "reconstruct"}, "scale": scale}
        before = {"scale": pre, "concat": concat}
        return pipeline_of({"per_step": before}, {"per_step": after})

    dataset, pipeline = open_dataset(config(world, {}).data), pair(**points)
    schema = dataset.schema.as_read()
    pipeline.check(schema)
    batch = collate([dataset[0], dataset[1]])
    truth = batch["target"]["ERA5"][SP]
    y = pipeline.run(Phase.BEFORE_STEP, batch)["y"]
    slices = dataset.schema.input_slices(), dataset.schema.target_slices()
    assert np.abs(y[:, slices[1][SP]]).max() < 10
    after = pipeline.postprocess(*slices)
    context = field_context(truth.shape[-2])
    found = after({"x": None, "y_pred": jnp.asarray(y)}, context)["y_processed"]["ERA5"]
    np.testing.assert_allclose(found[SP], truth, rtol=1e-6)
    with pytest.raises(ValueError, match="name it in both or in neither"):
        pair(**({} if points else SPATIAL)).check(schema)


def test_existing_files_are_kept(world, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    blocks = {
        "one": scaler(first, variables=DEEP),
        "two": scaler(second, variables=[SP]),
    }
    first.write_text("mine")
    shown = fit(world, blocks)
    assert f"{first} is there and kept" in shown
    assert first.read_text() == "mine"
    assert list(read_scalers(second)["input"]["ERA5"]) == [SP]
    with pytest.raises(ValueError, match=r"nothing to fit: .*--overwrite"):
        fit(world, blocks)
    shown = fit(world, blocks, overwrite=True)
    assert set(read_scalers(first)["input"]["ERA5"]) > {T}
    kept = [p for p in tmp_path.iterdir() if p.name.startswith("first_")]
    assert [p.read_text() for p in kept] == ["mine"]
    assert f"{first} is now {kept[0]}" in shown


@pytest.mark.reference
def test_means_and_deviations(credit, world, tmp_path):
    """Both packages read these files, with levels counted from 1."""
    args, blocks = both_of(tmp_path)
    args["levels"] = [2, 4]
    fit(world, blocks)
    own = config(world, blocks)
    with xr.open_dataset(args["mean_path"], engine="h5netcdf") as mean:
        assert mean["T"].shape == (4,)
        np.testing.assert_allclose(mean["TP"], samples(world, TP, "target").mean())
    dataset = open_dataset(own.data)
    batch = collate([dataset[i] for i in range(len(dataset))])
    for block in (
        build_pipeline(own.preblocks).blocks[0].transform,
        credit_normalizer(args),
    ):
        done = block({k: batch[k] for k in ("input", "target")})
        for key, x in done["input"]["ERA5"].items():
            x = np.asarray(x, np.float64)
            assert abs(x.mean((0, 2, 3, 4))).max() < 1e-4, key
            assert abs(x.std((0, 2, 3, 4)) - 1).max() < 1e-4 or "LSM" in key


def credit_normalizer(args):
    import torch
    from credit.preblock.norm import ERA5Normalizer

    return lambda tree: ERA5Normalizer(**args)(jax.tree.map(torch.tensor, tree))


def test_killed_between_the_files_of_a_pair(world, tmp_path):
    """The next start, as it was, makes both, and loses nothing."""
    _, block = both_of(tmp_path)
    fit(world, block)
    expected = [(tmp_path / name).read_bytes() for name in ("m.nc", "s.nc")]
    (tmp_path / "m.nc").write_text("mine")
    left = f".s.partial-{socket.gethostname()}-999999.nc"
    (tmp_path / "s.nc").rename(tmp_path / left)
    shown = fit(world, block)
    assert "m.nc is there without the other file of the pair" in shown
    assert [(tmp_path / name).read_bytes() for name in ("m.nc", "s.nc")] == expected
    (old,) = tmp_path.glob("m_*.nc")
    assert old.read_text() == "mine"
    assert len([*tmp_path.iterdir()]) == 3, "what the dead process left is removed"


def test_interrupted(world, tmp_path, monkeypatch, capsys):
    """No file remains, not even a partial one."""
    target = tmp_path / "files"
    target.mkdir()
    blocks = {"a": scaler(target / "a.json"), "b": scaler(target / "b.json", "minmax")}
    seen = []
    advance = fitting.Display.advance

    def interrupted(self, *args):
        advance(self, *args)
        seen.append(args)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fitting.Display, "advance", interrupted)
    # A process that a shell started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(written(world, blocks, tmp_path)) == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted" in capsys.readouterr().err
    assert len(seen) == 3
    assert not list(target.iterdir())


def test_the_command(world, tmp_path, capsys):
    first = scaler(tmp_path / "s.json", params={"channels_last": True}, variables=[SP])
    level = scaler(tmp_path / "l.json", params=None, variables=[T])
    blocks = {"scale": first, "level": level}
    # CREDIT's `weatherbench2_era5_wxformer.yml` has no model, loss and parallelism.
    command = written(world, blocks, tmp_path, "--threads", "1")
    path = tmp_path / "config.yml"
    given = yaml.safe_load(path.read_text())
    del given["model"], given["loss"], given["trainer"]["parallelism"]
    path.write_text(yaml.safe_dump(given, sort_keys=False))
    assert main(command) == OK
    shown = capsys.readouterr().out
    assert shown.count("one scaler for each longitude") == 1
    assert num_channels(read_scalers(tmp_path / "l.json")["input"]["ERA5"][T]) == 2
    assert "32/32" in shown
    assert main(written(world, blocks, tmp_path)) == USER_ERROR
    assert "nothing to fit" in capsys.readouterr().err


def test_parts_of_the_samples_are_merged(world, tmp_path, capsys):
    """Of 16 jobs; what one job fits is within 1e-12."""
    for name in ("one", "parts"):
        folder = tmp_path / name
        folder.mkdir()
        files = {"mean_path": f"{folder}/m.nc", "std_path": f"{folder}/s.nc"}
        blocks = {
            "scale": scaler(folder / "s.json", variables=[T]),
            "limits": scaler(folder / "l.json", "minmax", variables=[SP]),
            "norm": {"type": "era5_normalizer", "args": files},
        }
        arguments = written(world, blocks, folder)
        if name == "one":
            assert main(arguments) == OK
            continue
        for number in range(1, 17):
            assert main([*arguments, "--merge"]) == USER_ERROR
            assert main([*arguments, "--shard", f"{number}/16"]) == OK
        said = capsys.readouterr().err
        assert "expected those of one array" in said
        assert "of the 16 parts" in said
        assert not (folder / "s.json").exists()
        (few := folder / "few").mkdir()
        other = written(world, blocks, few, trainer__batches_per_epoch=2)
        assert main([*other, "--merge"]) == USER_ERROR
        assert "is of other data, preblocks or samples" in capsys.readouterr().err
        assert main([*arguments, "--merge"]) == OK
        assert not list(folder.glob("*.npz"))
    one, parts = tmp_path / "one", tmp_path / "parts"
    assert (one / "l.json").read_text() == (parts / "l.json").read_text()
    for name in ("m.nc", "s.nc"):
        with xr.open_dataset(one / name) as a, xr.open_dataset(parts / name) as b:
            xr.testing.assert_allclose(a, b, rtol=1e-12)
    for key, each in read_scalers(one / "s.json")["input"]["ERA5"].items():
        other = read_scalers(parts / "s.json")["input"]["ERA5"][key]
        np.testing.assert_allclose(each.mean, other.mean, rtol=1e-12)
        np.testing.assert_allclose(each.variance, other.variance, rtol=1e-12)


CASES.rows(
    lambda blocks, world: fit(world, blocks),
    ({},),
    ({"a": scaler("x.json"), "b": scaler("./x.json")},),
    ({"a": scaler("x.json", params={"channel_last": False})},),
    ({"a": scaler("x.json", params={"compression": 20})},),
    ({"a": scaler("x.json", spatial_variables=[T])},),
)


@CASES.case
def parts_of_a_quantile_scaler(world, tmp_path):
    blocks = {"scale": scaler(tmp_path / "q.json", "quantile", DEEP)}
    words = written(world, blocks, tmp_path)
    return lambda: main([*words, "--shard", "1/2"])


@CASES.case
def without_crick(world, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "crick", None)
    block = scaler(tmp_path / "s.json", "quantile")
    return lambda: fit(world, {"scale": block})


def damaged(change, folder):
    rewrite_all(folder, change, ["w_1999"])
    return lambda: fit(folder, {"scale": scaler(folder / "s.json")})


for name, change in {
    "a value of 1e30": setting("SP", np.s_[20, 2:4, :3], 1e30),
    "a value that is infinite": setting("SP", np.s_[20, 2:4, :3], np.inf),
}.items():
    CASES.add(Case(name, damaged, (change,)))


@CASES.case
def a_variable_without_values(folder):
    rewrite(folder / "w_2000.nc", lambda d: d.assign(SP=d["SP"] * np.nan))
    return damaged(lambda d: d.assign(SP=d["SP"] * np.nan), folder)


def test_variables_that_are_not_there(world, tmp_path):
    """Also at most the batches of an epoch."""
    block = scaler(tmp_path / "s.json", variables=["ERA5/prognostic/3d/T", "ERA5/prog"])
    few = {"trainer__train_batch_size": 3, "trainer__batches_per_epoch": 2}
    shown = fit(world, {"scale": block}, **few)
    assert "'ERA5/prog' is no variable here" in shown
    assert "Fitted to 6 samples" in shown


@pytest.mark.slow
def test_nan_is_left_out(folder, tmp_path):
    rewrite_all(folder, setting("SP", np.s_[:, 2:4, :3], np.nan))
    fit(folder, {"scale": scaler(tmp_path / "s.json", variables=[SP])})
    own = read_scalers(tmp_path / "s.json")["input"]["ERA5"][SP]
    np.testing.assert_allclose(own.mean, np.nanmean(samples(folder, SP)), rtol=1e-6)


def test_units_and_levels_are_kept(folder, tmp_path):
    """Units of variables that no earlier block changed; levels are found by value."""
    rewrite_all(folder, in_units(T="K", SP="Pa"))
    args, block = both_of(tmp_path)
    log = {"type": "log_transform", "args": {"variables": [SP]}}
    fit(folder, {"log": log, **block})
    with xr.open_dataset(args["mean_path"], engine="h5netcdf") as mean:
        assert mean["T"].attrs == {"units": "K"}
        assert not mean["SP"].attrs
        assert mean["T"].level_2.values.tolist() == [1.0, 5.0]
        assert mean["SP"].dims == ()
        first, last = mean["T"].values
    block = Normalizer(**args)
    block.open()
    turned = block.at({"input": [ChannelGroup(T, 2, 1, (5.0, 1.0))]})
    assert turned.statistics(T, 2)[0].tolist() == [np.float32(last), np.float32(first)]


# A partial last batch, and batches of 2 times.
CHANGES = {"trainer__train_batch_size": 4, "data__forecast_len": 2}


def credit_preprocess(raw_config, folder):
    """Runs CREDIT's command in this process."""
    import torch

    path, root = folder / "config.yml", logging.root
    path.write_text(yaml.safe_dump(raw_config, sort_keys=False))
    handlers, level = root.handlers[:], root.level
    deterministic = torch.are_deterministic_algorithms_enabled()
    words = mock.patch.object(sys, "argv", ["credit-preprocess", "-c", str(path)])
    with warnings.catch_warnings(), mock.patch.dict(os.environ), words:
        warnings.simplefilter("ignore")
        import_torchvision()
        from credit.applications.preprocess import main as credit_main

        credit_main()
    root.handlers[:], root.level = handlers, level
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def fitted(credit, world, tmp_path_factory):
    """Folders with CREDIT's files and with ours."""
    theirs, ours = (tmp_path_factory.mktemp(name) for name in ("theirs", "ours"))
    made = raw(world, all_kinds(theirs), **CHANGES, save_loc=str(theirs))
    credit_preprocess(copy.deepcopy(made), theirs)
    fit_scalers(config(world, all_kinds(ours), **CHANGES), num_threads=2)
    return theirs, ours


@pytest.mark.reference
def test_the_same_text(fitted):
    for name in ("flat", "columns", "rain"):
        theirs, ours = ((folder / f"{name}.json").read_text() for folder in fitted)
        assert theirs == ours, name


@pytest.mark.reference
@pytest.mark.parametrize("name", ["deep", "points"])
def test_layout_and_moments(fitted, name):
    texts = [json.loads((folder / f"{name}.json").read_text()) for folder in fitted]
    both = [read_scalers(folder / f"{name}.json") for folder in fitted]
    assert [*texts[0]] == [*texts[1]]
    for part, sources in texts[0].items():
        assert [*sources["ERA5"]] == [*texts[1][part]["ERA5"]]
        for key in sources["ERA5"]:
            theirs, ours = (json.loads(text[part]["ERA5"][key]) for text in texts)
            assert list(theirs) == list(ours), key
            for attribute, value in theirs.items():
                if isinstance(value, dict):
                    for about in ("dtype", "shape"):
                        assert value[about] == ours[attribute][about], attribute
                else:
                    assert value == ours[attribute], attribute
            expected, mine = (own[part]["ERA5"][key] for own in both)
            assert mine.mean.dtype == expected.mean.dtype
            assert_close(mine.mean, expected.mean, 2e-6, f"mean of {part}, {key}")
            assert_close(mine.variance, expected.variance, 2e-6, f"var, {part}, {key}")


@pytest.mark.reference
def test_credit_reads_ours(fitted, world):
    from credit.preblock import apply_preblocks, build_preblocks

    made = [raw(world, all_kinds(folder), **CHANGES) for folder in fitted]
    for own in made:
        own["data"]["forecast_len"] = 1
    batch = next(iter(credit_loader(made[0], 0, 1, True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = (apply_preblocks(build_preblocks(own), batch) for own in made)
    for which in ("x", "y"):
        error = np.abs(theirs[which].numpy() - ours[which].numpy()).max()
        print(which, error)
        assert error < 2e-6
