"""Mistakes in calls of `check`, `predict` and `train`, before anything is compiled."""

import io
import os
import shlex
import zipfile
from functools import partial

import numpy as np

from credit_jax.cli.check import check_config
from credit_jax.cli.commands import OK, ProcessOptions
from credit_jax.cli.console import main as console
from credit_jax.cli.predict import main as predict_main
from credit_jax.cli.train import main as train_main
from credit_jax.config import build_config, write_config
from credit_jax.models.registry import build
from credit_jax.plan import plan_run
from tests.cli.test_check import CONCAT, MODEL
from tests.cli.test_commands import call, group
from tests.config.example import example
from tests.data.world import set_key
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.configs import plan_problems
from tests.support.processes import ROOT
from tests.training.tiny import MODEL as TINY
from tests.training.tiny import tiny_config, write_yaml

CASES = Cases("commands")


def problems(devices=None, **changes):
    """Problems, or notes where there are none."""
    model = {k[7:]: changes.pop(k) for k in [*changes] if k.startswith("model__")}
    raw = example(model={**MODEL, **model}, **{"preblocks": CONCAT, **changes})
    options = {"num_devices": devices, "with_data": False}
    config = build_config(raw)
    return [*plan_problems(config, **options)] or [*plan_run(config, **options).notes]


CASES.rows(
    problems,
    {"devices": 4},
    {"trainer__parallelism": {"domain": 3}},
    {"trainer__parallelism": {"tensor": 4}, "devices": 4},
    {"trainer__parallelism": {"pp": 2}},
    {"trainer__parallelism": {"ep": 2}},
    {"model__levels": 3},
    {"model__frames": 2},
    {"model__global_window_size": [3, 2, 2, 1]},
    {"metrics": {"args": {"metrics": {"rmze": {}}}}},
    {"preblocks": {"per_step": {"a": {"type": "regird"}}}},
    name="problems",
)


def check(options, tmp_path):
    path = tmp_path / "config.yml"
    write_config(build_config(example(model=dict(MODEL), preblocks=CONCAT)), path)
    words = options.replace("CONFIG", str(path)).split()
    return lambda: console(["check", *words, "--json"])


IGNORED = "trainer.xyzzy=1 --set model.post_conf={activate:True,x:{activate:True}}"
CASES.rows(
    check,
    "-c CONFIG --no-data --devices 2",
    f"-c CONFIG --no-data --set {IGNORED}",
    f"-c CONFIG --no-data --set trainer.epoch=3 --set {IGNORED}",
    "-c CONFIG --set trainer.epoch=3",
    "-c no.yaml",
    name="check",
)


def of_forecasts(inference, tmp_path, **changes):
    """They are checked without loss, trainer and dates, as `forecast` takes them."""
    alone = example(model=dict(MODEL), preblocks=CONCAT, inference=inference)
    del alone["loss"], alone["trainer"]
    for key in ("start_datetime", "end_datetime", "forecast_len"):
        del alone["data"][key]
    for key, value in changes.items():
        set_key(alone, key, value)
    report = check_config(write_yaml(tmp_path / "alone.yml", alone))
    return [*report.problems, *report.notes]


ZARR = {"output": {"format": "zarr"}}
SINGULAR = {"members": 3, "perturbation": {"type": "singular"}}
CASES.rows(
    of_forecasts,
    {"inference": ZARR},
    {"inference": ZARR, "data__start_datetime": "2000-01-05"},
    {"inference": SINGULAR},
    {"inference": {"output": {"format": "grib"}}, "model__levels": 3},
    name="forecasts alone:",
)


def latitudes(section, path):
    """Changes of a config by which a section weights latitudes from a file."""
    weights = {"use_latitude_weights": True, "latitude_weights": str(path)}
    if section == "loss":
        return {f"loss__{key}": value for key, value in weights.items()}
    metrics = {"type": "combined", "args": {"metrics": {"rmse": {}}, **weights}}
    return {"loss__use_latitude_weights": False, "metrics": metrics}


def files(expected_files=(), **changes):
    config = build_config(example(model=dict(MODEL), preblocks=CONCAT, **changes))
    options = {"expected_files": expected_files}
    return [*plan_problems(config, **options)] or [*plan_run(config, **options).notes]


DATA = ["./d_2000.nc", "./static.nc"]
CASES.rows(
    files,
    {},
    {"expected_files": DATA[:1]},
    {"expected_files": DATA},
    {"expected_files": DATA, **latitudes("metrics", "absent.nc")},
    name="files",
)


@CASES.case
def latitudes_that_nothing_reads():
    skipped = {"trainer__skip_validation": True, **latitudes("metrics", "absent.nc")}
    return files(DATA, **skipped)


def demo(pattern, tmp_path, monkeypatch):
    """The first training makes the demo data, but another file is none of them."""
    monkeypatch.chdir(tmp_path)
    key = "data.source.demo.variables.prognostic.path"
    path = f"demo_data/T21/{pattern}"
    report = check_config(ROOT / "configs/demo.yaml", [f"{key}={path}"])
    return [*report.problems, *report.notes]


CASES.rows(demo, "demo_%Y.zarr", "nope_%Y.zarr", name="demo")


def memory(device):
    dims = "model.dim=[512, 2048, 8192, 32768]"
    report = check_config(
        ROOT / "configs/demo.yaml", [dims], with_data=False, device=device
    )
    return list(report.problems)


CASES.rows(memory, "h100", name="memory of")


# All commands: their ends, and outputs that are there already.


ERRORS = "bad value", "no file", "no memory", "diverged", "different", "interrupted"
CASES.rows(call, *(("--how", how) for how in ERRORS))
CASES.rows(call, ("--times", "0"))
CASES.rows(group, ("othr",), ("xyz",), name="command")


@CASES.case
def a_missing_extra(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    return group("more")


class Waiting(ProcessOptions):
    """Does nothing."""

    def run(self):
        return OK


TIMEOUTS = "--connect-timeout", "--heartbeat-timeout"
CASES.rows(
    lambda option: Waiting.main([option]),
    *(f"{name}={value}" for name in TIMEOUTS for value in ("2.5", "0", "nan", "inf")),
    name="seconds",
)


def existing(words, tmp_path, monkeypatch):
    """Commands say so before they read anything."""
    command, *options = shlex.split(words)
    (tmp_path / options[-1]).write_text("of mine")
    monkeypatch.chdir(tmp_path)
    return lambda: console([command, *options])


START = "--config c --init-time 2000-01-01"
CASES.rows(
    existing,
    "init --like demo --out f.yaml",
    "mesh --config c --devices 2 --out f.yaml",
    "certify --config c --out f.md",
    f"sensitivity {START} --lead 6h --of 'mean T' --out f.nc",
    "predict --config c --checkpoint d --input x.npy --output f.npy",
    name="an output of",
)


@CASES.case
def the_data_of_a_certificate(tmp_path, monkeypatch):
    (tmp_path / "f.json").write_text("of mine")
    monkeypatch.chdir(tmp_path)
    return lambda: console(["certify", "--config", "c", "--out", "f.md"])


@CASES.case
def the_analysis_of_optimize_ic(tmp_path, monkeypatch):
    (tmp_path / "analysis.nc").write_text("of mine")
    monkeypatch.chdir(tmp_path)
    return lambda: console(["optimize-ic", *START.split(), "--out", "."])


# The command `predict`.


def inputs():
    model = build({**TINY, "type": "tiny"})
    grid = model.image_height, model.image_width
    return np.ones((4, model.input_channels, model.frames, *grid), np.float32)


def predict(change, run, tmp_path):
    x = inputs()
    np.save(tmp_path / "x.npy", x)
    options = {
        "config": run / "model.yml",
        "checkpoint": run / "run",
        "input": tmp_path / "x.npy",
        "output": tmp_path / "y.npy",
        "cache": "none",
    }
    options |= change(tmp_path, x) if callable(change) else change
    words = [str(part) for k, v in options.items() for part in (f"--{k}", v)]
    return lambda: predict_main(words)


CASES.rows(
    predict,
    ({"parallelism": "tensr=2"},),
    ({"parallelism": "tensor"},),
    ({"parallelism": "tensor=two"},),
    ({"parallelism": "tensor=3"},),
    ({"parallelism": "data=ddp", "devices": 3},),
    ({"step": 7},),
    ({"checkpoint": "."},),
    ({"config": "none.yml"},),
    ({"output": "no/y.npy"},),
    ({"precision": "int8"},),
    ({"input": "README.md"},),
    name="predict",
)


def saved(folder, array):
    np.save(folder / "a.npy", array, allow_pickle=True)
    return {"input": folder / "a.npy"}


def another_name(folder, x):
    np.savez(folder / "a.npz", y=x)
    return {"input": folder / "a.npz"}


def huge(name, folder, x):
    """A file that says to hold 10^12 samples."""
    header = io.BytesIO()
    content = {"descr": "<f4", "fortran_order": False, "shape": (10**12, *x.shape[1:])}
    np.lib.format.write_array_header_1_0(header, content)
    (folder / name).write_bytes(header.getvalue())
    if name.endswith(".npz"):
        with zipfile.ZipFile(folder / name, "w") as file:
            file.writestr("x.npy", header.getvalue())
    return {"input": folder / name}


for _name, _change in {
    "fewer channels": lambda folder, x: saved(folder, x[:, :2]),
    "no sample": lambda folder, x: saved(folder, x[:0]),
    "whole numbers": lambda folder, x: saved(folder, x.astype(int)),
    "NaN": lambda folder, x: saved(folder, x * np.nan),
    "objects": lambda folder, x: saved(folder, np.asarray([{}])),
    "another name": another_name,
    "a huge array": partial(huge, "a.npy"),
    "a huge archive": partial(huge, "a.npz"),
}.items():
    CASES.call(f"predict from {_name}", partial(predict, _change))


# The command `train`.


def train(world, tmp_path, monkeypatch, options=(), **changes):
    def never(*_, **__):
        raise AssertionError("called too early")

    monkeypatch.setattr("jax.jit", never)
    raw = tiny_config(world, tmp_path / "run", **changes)
    words = ["--config", write_yaml(tmp_path / "config.yml", raw), "--cache", "none"]
    return lambda: train_main([*words, "--devices", "1", *options])


PROGNOSTIC = "data__source__ERA5__variables__prognostic__path"
CASES.rows(
    train,
    {"options": ("--resume",)},
    {"model__image_height": 7},
    {"model__input_only_channels": 5},
    {PROGNOSTIC: "data/nope_%Y.zarr"},
    {"trainer__training_metric": "valid_acc"},
    {"loss__training_loss": "KCRPS"},
    {
        "options": ("--devices", "3"),
        "trainer__parallelism": {"data": "none", "tensor": 3, "domain": 1},
    },
    name="train",
)


@CASES.case
def save_loc_that_cannot_be_written(world, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    options = ("--save-loc", os.fspath(tmp_path / "file" / "run"))
    return train(world, tmp_path, monkeypatch, options)


@CASES.case
def a_diverging_run(world, tmp_path):
    large = {"trainer__learning_rate": 1e38, "trainer__grad_max_norm": 0.0}
    raw = tiny_config(world, tmp_path / "run", **large)
    config = write_yaml(tmp_path / "config.yml", raw)
    code = train_main(["--config", config, "--cache", "none", "--devices", "1"])
    assert code == 3
    return code
