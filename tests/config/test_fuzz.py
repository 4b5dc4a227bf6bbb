"""Mutated configs give a report or one error, no traceback, in bounded time."""

from __future__ import annotations

import contextlib
import copy
import io
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

from credit_jax.cli.check import check_config, main
from credit_jax.cli.commands import OK, USER_ERROR
from tests.support.memory import MemoryWatch
from tests.support.processes import run_program

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
@pytest.mark.parametrize(
    "seeds",
    [(0, 60), (60, 500)],
    ids=["short", "long"],
)
def test_mutations(tmp_path: Path, seeds: tuple[int, int]) -> None:
    run_program(__name__, str(tmp_path / "config.yml"), *map(str, seeds))


FOUND: dict[str, dict[str, Any]] = {
    "metrics that are no mapping": {"metrics": {"args": {"metrics": ["rmse"]}}},
    "metrics that are a text": {"metrics": {"args": {"metrics": "rmse"}}},
    "metrics that are a number": {"metrics": 3},
    "a section that is a list": {"trainer": [1]},
    "a model without a type": {"model": {"type": None}},
    "a model with a wrong size": {"model": {"frames": "x"}},
    "kernels of one stage": {"model": {"cross_embed_kernel_sizes": [[4]]}},
    "stages without rows": {"model": {"image_height": 3}},
    "more steps than fit into memory": {"data": {"forecast_len": 10**9}},
    "more rows than fit into memory": {"model": {"image_height": 10**30}},
    "more columns than fit into memory": {"model": {"image_width": 10**9}},
    "more input times than fit into memory": {"data": {"history_len": 10**9}},
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(tmp_path: Path, name: str) -> None:
    config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    for section, found in FOUND[name].items():
        own = config.get(section)
        merged = isinstance(own, dict) and isinstance(found, dict)
        config[section] = own | found if merged else found
    assert check(tmp_path / "config.yml", config) == "refused"


def test_a_cyclic_alias(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text("model: &a\n  type: wxformer\n  again: *a\n")
    report = check_config(str(path))
    assert any("must be outside of what it names" in line for line in report.problems)


if __name__ == "__main__":
    for seed, name, result in try_seeds(
        Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3]))
    ):
        if result not in ("ok", "refused"):
            sys.exit(f"seed {seed}, {name}: {result}")
