"""The plan of `trainer.finetune`: bases, channels, adapters, and what is frozen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from credit_jax.config import parse
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.models.registry import build
from credit_jax.named_fields.units import unit_problems
from credit_jax.nn.low_rank import LowRank
from credit_jax.plan.channels import (
    ChannelMatch,
    level_differences,
    match_channels,
    num_in_common,
)
from credit_jax.plan.finetune import (
    check_base,
    find_base,
    frozen_parameters,
    low_rank_of,
    notes_on_base,
)
from tests.data.world import MODEL
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.training.settings import trainer_config
from tests.training.tiny import write_yaml

CASES = Cases("finetune")

# Two blocks in the first stage, which are one array.
WXFORMER = {
    **MODEL,
    "image_height": 32,
    "image_width": 64,
    "dim": [8, 16, 32, 64],
    "depth": [2, 1, 1, 1],
    "dim_head": 4,
    "global_window_size": 1,
    "local_window_size": 1,
}
BLOCKS = "stages/0/blocks/"


def finetune(**keys: Any) -> FinetuneConfig:
    return parse(FinetuneConfig, {"from": "RUN", **keys}, "trainer.finetune")


def frozen(**keys: Any) -> frozenset[str]:
    return frozen_parameters(build(WXFORMER), finetune(**keys))


def test_paths_and_keys_of_credit_freeze_the_same(tiny_model: None) -> None:
    every = frozenset(build(WXFORMER).param_specs)
    blocks = {path for path in every if path.startswith(BLOCKS)}
    assert blocks
    assert frozen(freeze=[f"{BLOCKS}*"]) == blocks
    assert frozen(freeze=["layers.0.1.*"]) == blocks
    each = ["layers.0.1.layers.0.*", "layers.0.1.layers.1.*"]
    assert frozen(freeze=each) == blocks
    kernel = f"{BLOCKS}short_attention/to_qkv/kernel"
    for suffix in ("", "_orig"):
        key = f"layers.0.1.layers.*.0.to_qkv.weight{suffix}"
        assert frozen(freeze=[key]) == {kernel}, "spectral norm renames weights"
    # `train` is the other way round.
    assert frozen(train=["head/*"]) == {p for p in every if not p.startswith("head/")}
    assert frozen(train=["head/*"]) == every - frozen(freeze=["up_block4.*"])
    assert frozen() == frozenset()
    without_keys_of_credit = build({**MODEL, "type": "tiny"})
    freeze = finetune(freeze=["dense/*p"])
    assert frozen_parameters(without_keys_of_credit, freeze) == {"dense/up"}


CASES.rows(
    lambda keys: frozen(**keys),
    ({"freeze": ["stages/9/*"]},),
    ({"train": ["heads/*"]},),
    ({"freeze": ["*"]},),
    ({"freeze": ["layers.0.1.layers.1.*"]},),
    name="patterns",
)
CASES.rows(
    lambda keys: finetune(**keys),
    ({"freeze": "stages/*"},),
    ({"freeze": ["a"], "train": ["b"]},),
    ({"frieze": ["a"]},),
    ({"from": None},),
    name="finetune",
)


def test_a_run_has_one_beginning() -> None:
    section = {"from": "RUN"}
    assert trainer_config(finetune=section).finetune == finetune()
    with pytest.raises(ValueError, match="load_weights is true beside finetune"):
        trainer_config(finetune=section, load_weights=True)


# Bases.


def test_kinds_of_bases(tmp_path: Path) -> None:
    write_yaml(tmp_path / "model.yml", {"model": WXFORMER})
    (tmp_path / "checkpoint.pt").touch()
    for path, kind in ((tmp_path, "torch"), (tmp_path / "checkpoint.pt", "torch")):
        assert find_base(path).kind == kind
    (tmp_path / "checkpoints").mkdir()
    assert find_base(tmp_path).kind == "run"
    (tmp_path / "package.json").touch()
    assert find_base(tmp_path).kind == "package"


@CASES.case
def no_folder(tmp_path: Path) -> Any:
    return lambda: find_base(tmp_path / "nothing")


def other_base(tmp_path: Path, keys: Any = None, **changes: Any) -> Any:
    write_yaml(tmp_path / "model.yml", {"model": WXFORMER | changes})
    section = finetune(**keys or {})
    return lambda: check_base(find_base(tmp_path), build(WXFORMER), section)


def base_of(raw: Any, tmp_path: Path) -> Any:
    if raw is not None:
        write_yaml(tmp_path / "model.yml", raw)
    return lambda: find_base(tmp_path)


CASES.rows(base_of, None, {"data": {}}, name="a base of")
CASES.rows(
    other_base,
    {},
    {"type": "crossformer"},
    {"type": "unknown"},
    {"surface_channels": 2},
    {"use_spectral_norm": False},
    {"image_width": 32},
    {
        "keys": {"new_channels": "zero"},
        "dim": [8, 16, 32, 128],
        "surface_channels": 2,
        "image_width": 128,
    },
    name="a base with",
)


@CASES.case
def another_grid_carries_all_and_names_what_positions_change(tmp_path: Path) -> Any:
    padding = {"activate": False, "mode": "earth", "pad_lat": [8, 8], "pad_lon": [8, 8]}
    changes: dict[str, Any] = {"image_width": 128, "padding_conf": padding}
    changes["local_window_size"] = [2, 1, 1, 1]
    write_yaml(tmp_path / "model.yml", {"model": WXFORMER})
    section = finetune(**{"from": str(tmp_path)}, new_grid=True)
    model_def, base = build(WXFORMER | changes), find_base(section.base)
    check_base(base, model_def, section)
    return [*notes_on_base(base, model_def)]


# Adapters.


def lora(*targets: str, **keys: Any) -> LowRank | None:
    section = finetune(lora={"rank": 2, "alpha": 4, "targets": targets}, **keys)
    model_def = build(WXFORMER)
    marked = replace(model_def, frozen=frozen_parameters(model_def, section))
    return low_rank_of(marked, section)


def test_adapters_of_matrices_alone() -> None:
    adapted = lora("*short_attention*", "layers.0.1.layers.*.1.layers.1.*")
    assert adapted is not None
    assert adapted.scale == 2.0
    names = {path.removeprefix(BLOCKS) for path in adapted.targets if BLOCKS in path}
    assert {"short_attention/to_qkv/kernel", "short_feed_forward/up/kernel"} <= names
    assert not any(name.endswith(("bias", "scale")) for name in names)
    section = {"rank": 2, "alpha": 4, "targets": ["*"]}
    assert frozen(lora=section) == build(WXFORMER).param_specs.keys()


CASES.rows(lora, "*nothing*", "*/bias", "head/out/*", name="adapters of")
for _keys in ({"train": ["stages/0/*"]}, {"freeze": ["head/*"]}):
    CASES.call(f"adapters beside {_keys}", partial(lora, "*to_qkv*", **_keys))


# Channels of a run, matched with those of its base.


LEVELS = (500.0, 850.0, 1000.0)


def group(key: str, levels: tuple[float, ...] | None = None, n: int = 1) -> Any:
    return ChannelGroup(key, n if levels is None else len(levels), 1, levels)


def both(*groups: Any) -> ChannelSchema:
    return ChannelSchema(groups, groups)


PROGNOSTIC = (group("ERA5/prognostic/3d/T", LEVELS), group("ERA5/prognostic/2d/SP"))
BASE = ChannelSchema(
    (*PROGNOSTIC, group("ERA5/static/2d/LSM")),
    (*PROGNOSTIC, group("ERA5/diagnostic/2d/TP")),
)
# Levels in hPa of which one is new, in another order, from another source.
OURS = (
    group("CLIMATE/prognostic/2d/T2M"),
    group("CLIMATE/prognostic/3d/T", (1000.0, 700.0, 500.0)),
    group("CLIMATE/prognostic/2d/SP"),
)
NEW = ChannelSchema((*OURS, group("CLIMATE/dynamic_forcing/2d/tsi")), OURS)


def match(base: ChannelSchema, ours: ChannelSchema, new: Any) -> ChannelMatch:
    chosen = finetune(new_channels=new).new_channels
    assert chosen is not None
    return match_channels(base, ours, chosen)


CASES.call("channels", lambda: [*match(BASE, NEW, {"copy": {"T2M": "T 1000"}}).report])


def test_names_and_levels_decide() -> None:
    change = match(BASE, NEW, {"copy": {"T2M": "T 1000"}}).change
    assert change.input == (None, 2, None, 0, 3, None)
    assert change.output == (None, 2, None, 0, 3)
    assert (change.base_input, change.base_output) == (5, 5)
    assert (change.fill, change.copied) == ("copy", {0: 2})
    change = match(BASE, BASE, "zero").change
    assert change.input == change.output == (0, 1, 2, 3, 4)
    assert {*change.input} - {None} == {*range(change.base_input)}
    mean = match(BASE, NEW, "mean").change
    assert len({*mean.output} - {None}) < mean.base_output


@pytest.mark.parametrize(
    "levels", [LEVELS, (1000.0, 850.0, 500.0), (300.0, 500.0, 850.0)]
)
def test_levels_are_compared_by_their_values(levels: tuple[float, ...]) -> None:
    moved = (group("ERA5/prognostic/3d/T", levels), *PROGNOSTIC[1:])
    ours = ChannelSchema((*moved, BASE.input[-1]), (*moved, BASE.target[-1]))
    line = f"T has the levels {[*levels]}, in the base [500.0, 850.0, 1000.0]"
    assert level_differences(BASE, ours) == ([] if levels == LEVELS else [line])


def test_levels_without_values_are_taken_in_order() -> None:
    unknown = both(group("A/prognostic/3d/T", n=3))
    matched = match(BASE, unknown, "zero")
    assert matched.change.input == (0, 1, 2)
    assert matched.report[0] == "input 0: T (level 1 of 3): channel 0 of the base"
    assert not level_differences(unknown, unknown)


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_are_no_levels_that_the_base_knows(
    first: int, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = tuple(float(n + first) for n in range(3))
    numbered, known = both(group("A/prognostic/3d/T", numbers)), both(PROGNOSTIC[0])
    text = rf"T: has the levels \[{first}.0, .*, but T of the base has \[500.0, 850"
    for compare in (partial(match, new="zero"), level_differences):
        with pytest.raises(ValueError, match=text):
            compare(known, numbered)
    assert num_in_common(known, numbered) == -1
    assert not caplog.messages
    assert match(numbered, known, "zero").change.input == (0, 1, 2)
    assert "one side only numbers them" in caplog.text


CASES.call(
    "fewer levels without values",
    lambda: match(BASE, both(group("A/prognostic/3d/T", n=2)), "zero"),
)
CASES.rows(
    lambda copy: match(BASE, NEW, {"copy": copy}),
    ({"SP": "TP"},),
    ({"T2M": "Q"},),
    ({"T2M": "T 300"},),
    ({"T2M": "T"},),
    name="copies",
)


def test_units_are_compared_by_the_names_of_variables() -> None:
    base = {
        "ERA5/prognostic/3d/T": ("K", "RUN"),
        "ERA5/prognostic/2d/SP": ("Pa", "RUN"),
        "ERA5/static/2d/Z": ("m2 s-2", "RUN"),
        "ERA5/prognostic/3d/Z": ("m2 s-2", "RUN"),
    }
    ours = {
        "CLIMATE/prognostic/3d/T": ("degC", "t.nc"),
        "CLIMATE/diagnostic/2d/SP": ("pascal", "sp.nc"),
        "CLIMATE/static/2d/Z": ("m", "z.nc"),
        "CLIMATE/prognostic/2d/T": ("degC", "t2m.nc"),
    }
    remedy = "as in RUN; bring the file to that unit"
    assert unit_problems(base, ours) == [
        f"t.nc: variable 'T' has units 'degC', expected 'K' {remedy}",
        f"z.nc: variable 'Z' has units 'm', expected 'm2 s-2' {remedy}",
    ]
    assert unit_problems(ours, ours) == unit_problems({}, ours) == []
