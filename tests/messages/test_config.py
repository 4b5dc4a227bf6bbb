"""Wrong values of a config, alone and beside each other."""

from pathlib import Path

import yaml

from credit_jax.config import apply_overrides, build_config, load_config, parse
from credit_jax.config.dates import date_label
from credit_jax.config.yaml_file import read_yaml
from tests.config.example import Outer, example
from tests.data.world import raw_config
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("config")
ERA5 = "data__source__ERA5"
STATIC = f"{ERA5}__variables__static__vars_2D"


def config(**changes):
    build_config(example(**changes))


def scheduler(kind, **keys):
    return {"trainer__scheduler": {"scheduler_type": kind, **keys}}


CASES.rows(
    config,
    {"data__forecast_len": 2, "data__backprop_on_timestep": [3]},
    {"data__forecast_len": 0},
    {"data__timestep": "soon"},
    {"data__timestep": "-6h"},
    {"data__start_datetime": "then"},
    {"data__start_datetime": "nat"},
    {"data__start_datetime": "0500-01-01"},
    {"data__start_datetime": None},
    {"data__date_ranges": [["2000-01-01", "2000-02-01"]]},
    {f"{ERA5}__history_len": 2},
    {"data__source": {}},
    {"data__data_clamp": [1, 0]},
    {f"{ERA5}__level_coord": None, f"{ERA5}__levels": [1, 2]},
    {f"{ERA5}__temporal_mode": "last"},
    {f"{ERA5}__calendar": "360_day"},
    {f"{ERA5}__dataset_type": "base"},
    {f"{ERA5}__dataset_type": "mine"},
    {STATIC: []},
    {STATIC: ["A", "A"]},
    {STATIC: ["SP"]},
    {f"{ERA5}__variables": {}},
    {f"{ERA5}__levels": [1.0, float("inf")]},
    {"loss__use_spectral_loss": "often"},
    {"loss__variable_weights": {"T": [1.0, float("nan")]}},
    {"trainer__type": "standard"},
    {"trainer__epoch": 1},
    {"trainer__parallelism": None},
    {"trainer__parallelism__tensor": 0},
    {"trainer__parallelism__data": "fsdp"},
    {"trainer__parallelism__sp": 2},
    {"trainer__ensemble_size": 0},
    {"trainer__grad_max_norm": "big"},
    {"trainer__grad_max_norm": float("inf")},
    {"trainer__weight_decay": float("inf")},
    {"trainer__learning_rate": float("nan")},
    {"trainer__load_schedulr": True},
    {"trainer__use_scheduler": True},
    scheduler("lambda"),
    scheduler("plato"),
    scheduler("platau"),
    scheduler("cos"),
    {"trainer__use_scheduler": True, **scheduler("linear-warmup-cosine", warmup=3)},
    {"trainer__matmul_precision": "tf32"},
    {"trainer__amp": True, "trainer__fp8": True},
    {"trainer__train_batch_size": 80},
    {"trainer__skip_validation": True, "trainer__training_metric": "valid_loss"},
    {"model": {"dim": 8}},
    {"save_loc": "$NOT_SET_AT_ALL/x"},
    {"save_loc": "ftp://bucket/run"},
    {"demo": {"out": "file:///bucket"}},
    {"data__end_datetime": "2000-01-01"},
    {"validation_data__end_datetime": "1999-01-01"},
    {"validation_data__timestep": "12h"},
    # Of no meaning here, or in CREDIT's own training.
    {"pbs": {"queue": "x"}},
    {"custom_models": []},
    {"data__one_shot": True},
    {"data__valid_forecast_len": 0},
    {"visualization": 0},
    {"trainer__mode": "none"},
    {"trainer__compile": True},
    {"trainer__grad_max_norm": "dynamic"},
    {"trainer__load_sheduler": 0},
    {"trainer__xyzzy": 1},
    {"trainer__parallelism__xyzzy": 1},
    {"trainer__float8": {"min_channels": 256}},
    {"data__forecast_len": 2, "data__backprop_on_timestep": [1, 3, 7]},
    {"model__pad_lat": 8, "model__pad_lon": 8},
)

# Stages.
LEARNABLE = {"type": "base", "args": {"var_weighting": "learnable"}}


def stages(stages, **changes):
    changes = {"trainer__curriculum": stages} | changes
    build_config(raw_config(Path("/data"), **changes))


CASES.rows(
    stages,
    ([{"until": 5}],),
    ([{}, {}],),
    ([{"until": 9}, {"until": 9}, {}],),
    ([{"until": 9}, {"until": "3 epochs"}, {}],),
    ([{"until": 0}, {}],),
    ([{"until": "2e4"}, {}],),
    ([{"until": True}, {}],),
    ([{"until": -3}, {}],),
    ([{"forecast_length": 3}],),
    ([{"source": {}}],),
    ([{"forecast_len": 0}],),
    ([{"learning_rate": 0}],),
    ([{"until": 5}, {"forecast_len": 99}],),
    ([{"train_batch_size": 99}],),
    ([{"backprop_on_timestep": [2]}],),
    ([{"loss": LEARNABLE}],),
    ([{"loss": {"train_loss": "mae"}}],),
    ([{"loss": "mae"}],),
    {"stages": {"until": 5}},
    (["until"],),
    # A problem of the run is said once.
    {
        "stages": [{"until": 100}, {"until": 200, "forecast_len": 3}, {}],
        "data__start_datetime": "2001-01-01",
        "data__end_datetime": "2000-01-01",
    },
    ([{"until": 5}, {"forecast_len": 4, "loss": {"lead_weights": [1, 3]}}],),
    *(
        {"stages": [], "data__forecast_len": 2, "loss__lead_weights": weights}
        for weights in ([1, 2, 3], [0, 0], -1, [], ["one", 2])
    ),
    name="stages",
)

# Classes of sections.
CASES.rows(
    lambda mapping, path="": parse(Outer, mapping, path),
    (
        {
            "nam": "x",
            "rate": "fast",
            "inner": {"size": 0, "knd": "a"},
            "parts": [{"size": 1}, {"size": 2.5}],
            "named": {"one": {"kind": "c"}},
            "later": 3,
        },
    ),
    ({}, "model"),
    ({"name": "x", "inner": 3},),
    ({"name": "x", "inner": {"zzz": 1}},),
    ({"name": "x", "inner": {None: 1}},),
    ({"name": None},),
    ({"name": "x", "inner": {"old": 1}, "parts": [{"old": 2}]},),
    name="section",
)
CASES.rows(
    date_label,
    *("01.02.2001", "13.01.2001", "01/02/2001", "2001/02/01", "2001-2-1"),
    *("2001-02-01T6", "2001-W05"),
    *("1 Feb 2001", "today", "now", "NaT", "", "2001-02-30"),
    name="date",
)


# Files and overrides.
def levels(first, more):
    """Anchors of which each refers ten times to the one before."""
    lines = [f"a0: &a0 {first}"]
    lines += [
        f"a{n}: &a{n} {more(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, 30)
    ]
    return "\n".join(lines)


CHAIN = ["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))]
TEXTS = {
    "a key twice": "a: 1\nb: 2\na: 3\n",
    "an open list": "a: [1, 2\nb: 3\n",
    "a list": "- 1\n",
    "nothing": "",
    "a tuple": "a: !python/tuple [1]\n",
    "aliases": levels("[1]", lambda x: f"[{x}]"),
    "merged aliases": levels("{x: 1}", lambda x: f"{{<<: [{x}]}}"),
    "a chain of aliases": "\n".join(CHAIN),
    "an alias in itself": "a: &a [*a]",
    "open brackets": "[" * 30_000,
    "brackets": "[" * 3000 + "]" * 3000,
    "braces": "save_loc: {{run}}",
    "a list as key": "? [1, 2]\n: 3",
    "a tag": 'a: !!timestamp "abc"',
    "another tag": "a: !!int abc",
    "a truth": "a: !!bool maybe",
    "digits": f"a: {'9' * 5000}",
    "an object": "a: !!python/object:os.system x",
    "a long file": "#" * (2**22 + 1),
}


def text(name, tmp_path):
    (tmp_path / "bad.yaml").write_text(TEXTS[name])
    return lambda: read_yaml(tmp_path / "bad.yaml")


CASES.rows(text, *TEXTS, name="text:")


@CASES.case
def no_file(tmp_path):
    return lambda: load_config(tmp_path / "no.yaml")


@CASES.case
def a_folder_in_place_of_a_file(tmp_path):
    return lambda: load_config(tmp_path)


@CASES.case
def a_file_that_lacks_keys(tmp_path):
    (tmp_path / "my.yaml").write_text(yaml.safe_dump({"model": {}, "data": {}}))
    return lambda: load_config(tmp_path / "my.yaml")


CASES.rows(
    lambda *overrides: load_config("configs/demo.yaml", overrides),
    ("trainer.epoch=3",),
    ("data.one_shot=true",),
    ("seed=99999999999999999999",),
    ('save_loc="a\\0b"',),
    ("data.timestep='6'",),
    name="--set",
)
CASES.rows(
    lambda *overrides: apply_overrides({"a": [1], "b": 2}, overrides),
    ("a.3=1", "b.c=1", "nothing", "a=[", "a.x.y=1"),
    name="--set",
)
