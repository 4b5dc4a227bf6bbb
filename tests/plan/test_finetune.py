"""The plan of `trainer.finetune`: bases, and parameters that are frozen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from credit_jax.config import ConfigError, parse
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.models.registry import build
from credit_jax.nn.low_rank import LowRank
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
from tests.training.conftest import tiny_model
from tests.training.settings import trainer_config
from tests.training.tiny import write_yaml

CASES = Cases("finetune")

__all__ = ["tiny_model"]

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


def test_paths_and_keys_of_credit_freeze_the_same() -> None:
    model_def = build(WXFORMER)
    blocks = {path for path in model_def.param_specs if path.startswith(BLOCKS)}
    assert blocks
    assert frozen(freeze=[f"{BLOCKS}*"]) == blocks
    assert frozen(freeze=["layers.0.1.*"]) == blocks
    each = ["layers.0.1.layers.0.*", "layers.0.1.layers.1.*"]
    assert frozen(freeze=each) == blocks
    kernel = f"{BLOCKS}short_attention/to_qkv/kernel"
    for suffix in ("", "_orig"):
        key = f"layers.0.1.layers.*.0.to_qkv.weight{suffix}"
        assert frozen(freeze=[key]) == {kernel}, "spectral norm renames weights"


def test_train_is_the_other_way_round() -> None:
    every = frozenset(build(WXFORMER).param_specs)
    assert frozen(train=["head/*"]) == {p for p in every if not p.startswith("head/")}
    assert frozen(train=["head/*"]) == every - frozen(freeze=["up_block4.*"])
    assert frozen() == frozenset()


def test_a_model_without_keys_of_credit(tiny_model: None) -> None:
    section = {**MODEL, "type": "tiny"}
    paths = frozen_parameters(build(section), finetune(freeze=["dense/*p"]))
    assert paths == {"dense/up"}


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


def test_kinds_of_bases(tmp_path: Path) -> None:
    write_yaml(tmp_path / "model.yml", {"model": WXFORMER})
    (tmp_path / "checkpoint.pt").touch()
    for path, kind in ((tmp_path, "torch"), (tmp_path / "checkpoint.pt", "torch")):
        assert find_base(path).kind == kind
    (tmp_path / "checkpoints").mkdir()
    assert find_base(tmp_path).kind == "run"
    (tmp_path / "package.json").touch()
    assert find_base(tmp_path).kind == "package"


def test_another_grid_carries_all_and_names_what_positions_change(
    tmp_path: Path,
) -> None:
    padding = {
        "activate": False,
        "mode": "earth",
        "pad_lat": [8, 8],
        "pad_lon": [8, 8],
    }
    changes: dict[str, Any] = {"image_width": 128, "padding_conf": padding}
    changes["local_window_size"] = [2, 1, 1, 1]
    write_yaml(tmp_path / "model.yml", {"model": WXFORMER})
    section = finetune(**{"from": str(tmp_path)}, new_grid=True)
    model_def = build(WXFORMER | changes)
    check_base(find_base(section.base), model_def, section)
    notes = notes_on_base(find_base(section.base), model_def)
    width, windows, pad = notes
    assert width.endswith("model.image_width is 128, that of the base 64")
    assert "local_window_size is [2, 1, 1, 1], that of the base [1," in windows
    assert windows.endswith("where windows are larger")
    assert pad.endswith('"pad_lon": [8, 8]}, that of the base null')


def test_bases_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"finetune\.from: .*no such file"):
        find_base(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"has no model\.yml"):
        find_base(tmp_path)
    write_yaml(tmp_path / "model.yml", {"data": {}})
    with pytest.raises(ValueError, match="has no model section with a type"):
        find_base(tmp_path)


def other_base(tmp_path: Path, **changes: Any) -> None:
    write_yaml(tmp_path / "model.yml", {"model": WXFORMER | changes})
    check_base(find_base(tmp_path), build(WXFORMER), finetune())


CASES.rows(
    other_base,
    {"type": "crossformer"},
    {"type": "unknown"},
    {"surface_channels": 2},
    {"use_spectral_norm": False},
    {"image_width": 32},
    name="a base with",
)


def test_a_base_of_the_same_model(tmp_path: Path) -> None:
    other_base(tmp_path)


def test_a_base_of_other_sizes_beside_other_channels(tmp_path: Path) -> None:
    changes = {"dim": [8, 16, 32, 128], "surface_channels": 2, "image_width": 128}
    write_yaml(tmp_path / "model.yml", {"model": WXFORMER | changes})
    base, section = find_base(tmp_path), finetune(new_channels="zero")
    with pytest.raises(ConfigError) as raised:
        check_base(base, build(WXFORMER), section)
    (problem,) = raised.value.problems
    assert "its grid is 32 x 128, expected 32 x 64" in problem
    assert "model.dim: [8, 16, 32, 64], in the base [8, 16, 32, 128]" in problem


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
    model_def = build(WXFORMER)
    section = finetune(lora={"rank": 2, "alpha": 4, "targets": ["*"]})
    assert frozen_parameters(model_def, section) == model_def.param_specs.keys()


@pytest.mark.parametrize(
    ("targets", "keys", "message"),
    [
        (("*nothing*",), {}, r"targets: '\*nothing\*' matches no parameter"),
        (("*/bias",), {}, r"'\*/bias' matches no matrix of a dense layer"),
        (("head/out/*",), {}, "matches no matrix of a dense layer"),
        (("*to_qkv*",), {"train": ["stages/0/*"]}, "would be trained and have adap"),
        (("*to_qkv*",), {"freeze": ["head/*"]}, "freeze is given beside lora"),
    ],
)
def test_adapters_that_are_refused(
    targets: tuple[str, ...], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        lora(*targets, **keys)
