"""Mutated configs give a report or one error, no traceback, in bounded time."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import random
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from credit_jax.cli.check import main
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.parallel.mesh.dims import ParallelDims
from tests.support.memory import MemoryWatch
from tests.support.processes import run_program
from tests.support.properties import fixed

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.y*ml"))
VALUES: list[Any] = [
    None, True, -1, 0, 3, 10**9, 10**30, 1e-300, 1e308, float("nan"), float("inf"), "",
    "none", "0", "1e3", "2000-02-30", "../../etc", "näme \u202e", "x" * 5000, [], [[]],
    "[/x] [red]", [1, 2], [None], ["a"], {}, {"a": 1}, {"type": "mse"},
]  # fmt: skip
SECONDS = 20.0


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all values of a mapping."""
    items = tree.items() if isinstance(tree, dict) else ()
    items = enumerate(tree) if isinstance(tree, list) else items
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(config: dict[str, Any], chosen: random.Random) -> dict[str, Any]:
    """Returns a config with one to three changes."""
    config = copy.deepcopy(config)
    for _ in range(chosen.randint(1, 3)):
        path = chosen.choice([*places(config)])
        parent: Any = config
        for key in path[:-1]:
            parent = parent[key]
        how = chosen.choice(["value", "value", "value", "remove", "extra", "deeper"])
        if how == "remove":
            del parent[path[-1]]
        elif how == "extra" and isinstance(parent, dict):
            parent[f"{path[-1]}x"] = chosen.choice(VALUES)
        elif how == "deeper":
            parent[path[-1]] = {"a": [parent[path[-1]]]}
        else:
            parent[path[-1]] = chosen.choice(VALUES)
    return config


def check(path: Path, config: Any, *options: str) -> str:
    """Returns the outcome of `check`: "ok", "refused", or the failure."""
    path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    seen = io.StringIO()
    began = time.process_time()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(seen),
            contextlib.redirect_stderr(seen),
        ):
            warnings.simplefilter("ignore")
            code = main(["--config", str(path), *options])
    except Exception:
        return traceback.format_exc()[-3000:]
    text = seen.getvalue()
    if "Traceback" in text or (code == USER_ERROR) != ("error: " in text):
        return f"exit code {code}: {text[-2000:]}"
    if time.process_time() - began > SECONDS:
        return f"took {time.process_time() - began:.0f} s"
    return "ok" if code == OK else "refused"


def try_seeds(path: Path, seeds: range) -> Iterator[tuple[int, str, str]]:
    """Yields (seed, name of the config, outcome)."""
    memory = MemoryWatch()
    for seed in seeds:
        chosen = random.Random(seed)
        source = chosen.choice(CONFIGS)
        config = yaml.safe_load(source.read_text())
        options = [o for o in ("--json", "--no-data") if chosen.random() < 0.5]
        yield seed, source.stem, check(path, mutated(config, chosen), *options)
    yield from memory.problems(seeds.stop)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(0, 60), (60, 500)], ids=["short", "long"])
def test_mutations(tmp_path: Path, seeds: tuple[int, int]) -> None:
    run_program(__name__, str(tmp_path / "config.yml"), *map(str, seeds))


FOUND: list[dict[str, Any]] = [
    {"metrics": {"args": {"metrics": ["rmse"]}}},
    {"metrics": {"args": {"metrics": "rmse"}}},
    {"metrics": 3},
    {"trainer": [1]},
    {"model": {"type": None}},
    {"model": {"frames": "x"}},
    {"model": {"cross_embed_kernel_sizes": [[4]]}},  # of one stage
    {"model": {"image_height": 3}},  # stages without rows
    # More than fits into memory.
    {"data": {"forecast_len": 10**9}},
    {"model": {"image_height": 10**30}},
    {"model": {"image_width": 10**9}},
    {"data": {"history_len": 10**9}},
]


@pytest.mark.parametrize("found", FOUND, ids=str)
def test_what_was_found(tmp_path: Path, found: dict[str, Any]) -> None:
    config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    for section, value in found.items():
        own = config.get(section)
        merged = isinstance(own, dict) and isinstance(value, dict)
        config[section] = own | value if merged else value
    assert check(tmp_path / "config.yml", config) == "refused"


# Random degrees of a mesh.


KEYS = ("tensor", "domain", "dp_replicate", "dp_shard", "ep", "pp", "cp")
DEGREES = st.dictionaries(
    st.sampled_from([*KEYS, "ulysses_degree"]), st.integers(-1, 6)
)


@fixed
@given(
    degrees=DEGREES,
    data=st.sampled_from([None, "fsdp2", "ddp", "none"]),
    world_size=st.integers(1, 24),
)
def test_degrees_make_up_the_devices(
    degrees: dict[str, int], data: str | None, world_size: int
) -> None:
    section: dict[str, Any] = {**degrees, **({} if data is None else {"data": data})}
    try:
        dims = ParallelDims.from_config(section, world_size)
    except ValueError:
        return
    names = ("dp_replicate", "dp_shard", "ep", "pp", "tp", "domain")
    used = math.prod(getattr(dims, name) for name in names)
    assert used == dims.world_size
    assert used <= world_size
    if data != "none":
        assert used == world_size, "none stays idle"
    for key in ("tensor", "domain"):
        if degrees.get(key, -1) > 0:
            assert getattr(dims, {"tensor": "tp"}.get(key, key)) == degrees[key]


if __name__ == "__main__":
    for seed, name, result in try_seeds(
        Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3]))
    ):
        if result not in ("ok", "refused"):
            sys.exit(f"seed {seed}, {name}: {result}")
