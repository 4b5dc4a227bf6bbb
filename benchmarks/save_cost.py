"""Measures the cost of checkpoints: `python -m benchmarks.save_cost`.

The training state of a config (weights, average, moments of AdamW, with random values)
is saved as by `credit-jax train`. Training is blocked while the arrays are copied; the
files are written in the background.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.compiled_step import model_block
from benchmarks.meshes import build_mesh
from benchmarks.report import Table, add_out_option, publish
from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.models.parallel_model import build_parallel_model, shardings
from credit_jax.training.optimizer import adamw
from credit_jax.training.restore import RunStore
from credit_jax.training.state import TrainState, init_state, state_specs

CONFIGS = Path(__file__).parents[1] / "configs"
# The default of `trainer.save_every_minutes`, in seconds.
DEFAULT_SECONDS = 15 * 60.0
GOAL_PERCENT = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the report; returns 1 if a save takes more than GOAL_PERCENT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", nargs="+", default=["demo", "wxformer_1deg"])
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", help="where checkpoints go; a temporary one")
    add_out_option(parser)
    args = parser.parse_args(argv)
    results = {}
    for name in args.configs:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            results[name] = measure(name, Path(folder), args.saves)
    header = ["config", "parameters", "checkpoint, MB", "training stands still, s"]
    header += ["at most, s", "of 15 minutes, %", "written after, s", "of 15 minutes, %"]
    table = Table("Saves", header, [_row(*item) for item in results.items()])
    head = (
        "# What a checkpoint costs\n\n"
        f"{args.saves} saves of a training state (weights, average, moments of AdamW) "
        "on one CPU device. Training stands still while arrays are copied (median and "
        "most of all saves); files are written beside it, by other threads, after so "
        "many seconds (median). At the default, `save_every_minutes: 15`, that is "
        "part of all time once in 15 minutes; the last column is what it would be if "
        "training stood still until the files are on disk, with their digests. A run "
        "shows its own part in `save_percent` of `training_log.csv`."
    )
    config = {"configs": args.configs, "saves": args.saves}
    print(publish("save_cost", [head, table], results, config=config, folder=args.out))
    worst = max(result["percent"] for result in results.values())
    return 1 if worst > GOAL_PERCENT else 0


def measure(name: str, folder: Path, saves: int) -> dict[str, Any]:
    """Times of the saves of a config, in seconds."""
    state, specs = _state(CONFIGS / f"{name}.yaml")
    store = CheckpointStore(folder)
    run = RunStore(store, specs)
    blocked, written = [], []
    for step in range(1, saves + 1):
        began = time.monotonic()
        run.save(step, state, Progress(epoch=step))
        blocked.append(time.monotonic() - began)
        store.wait()
        written.append(time.monotonic() - began)
    paths = store.path(saves).rglob("*")
    size = sum(path.stat().st_size for path in paths if path.is_file())
    store.close()
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "bytes": size,
        "blocked_seconds": blocked,
        "written_seconds": written,
        "percent": 100 * max(blocked) / DEFAULT_SECONDS,
    }


def _state(path: Path) -> tuple[TrainState, Mapping[str, Any]]:
    """A training state of a config's model, and the specs of its parameters."""
    model = build_parallel_model(model_block(str(path)), build_mesh("1"))
    optimizer = adamw(max_norm=1.0)
    start = partial(init_state, model, optimizer, ema=True)
    shapes = jax.eval_shape(start, jax.random.key(0))
    specs = state_specs(model, optimizer, ema=True)
    rng = np.random.default_rng(0)

    def filled(leaf: jax.ShapeDtypeStruct, place: Any) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(jax.random.key(0), place)
        values = rng.standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
        return jax.device_put(values, place)

    state = jax.tree.map(filled, shapes, shardings(specs, model.mesh))
    return state, model.model_def.param_specs


def _row(name: str, result: Mapping[str, Any]) -> list[str]:
    blocked, written = result["blocked_seconds"], result["written_seconds"]
    after = float(np.median(written))
    return [
        name,
        f"{result['parameters']:,}",
        f"{result['bytes'] / 1e6:.1f}",
        f"{np.median(blocked):.2f}",
        f"{max(blocked):.2f}",
        f"{result['percent']:.3f}",
        f"{after:.1f}",
        f"{100 * after / DEFAULT_SECONDS:.2f}",
    ]


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
