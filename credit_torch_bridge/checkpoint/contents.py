"""The contents of a checkpoint, and what each key is converted to, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from credit_jax.checkpoint import EMA, CheckpointStore
from credit_jax.checkpoint.store import label_of
from credit_jax.config.load import read_model_section
from credit_jax.models.registry import build
from credit_jax.state_dict.key_table import compare_shapes
from credit_jax.state_dict.torch_model import is_domain_parallel
from credit_torch_bridge.checkpoint.jax_checkpoint import RunConfig, read_run_config
from credit_torch_bridge.checkpoint.torch_checkpoint import (
    TorchCheckpoint,
    open_checkpoint,
)
from credit_torch_bridge.checkpoint.torch_to_jax import (
    recognized_model,
    renamed_keys,
    upgraded,
)


def contents(path: Path, find_config: Callable[[], Path]) -> Iterator[str]:
    """Yields lines on what a checkpoint holds and what each of its keys becomes."""
    if path.is_dir() and (path / "checkpoints").is_dir():
        store = CheckpointStore(path, num_latest=10**9, keep_best=False, pins=True)
        with closing(store):
            yield f"{path}: run of credit_jax"
            for step in store.steps():
                progress, items = store.progress(step), store.item_names(step)
                label = label_of(average=EMA in items)
                yield (
                    f"  {step} micro-batches: {', '.join(items)}; epoch "
                    f"{progress.epoch + 1}, batch {progress.batches + 1} is next; "
                    f"forecasts take the {label}"
                )
        if (config := path / "model.yml").exists():
            for name, spec in build(read_model_section(config)).param_specs.items():
                yield f"  {name} {spec.shape}"
        return
    checkpoint = open_checkpoint(path)
    numbers = {
        key: tensor.numel()
        for key, tensor in checkpoint.model.items()
        if not key.endswith(("_u", "_v"))
    }
    vectors = len(checkpoint.model) - len(numbers)
    domain = is_domain_parallel(checkpoint.model)
    kind = ", of a domain-parallel run" if domain else ""
    yield f"{checkpoint.path}: {checkpoint.format}{kind}"
    yield (
        f"  weights: {sum(numbers.values()):,} numbers in {len(numbers)} arrays"
        + (f", {vectors} vectors of spectral norm" if vectors else "")
    )
    if recognized := recognized_model(checkpoint.model):
        yield f"  model: {recognized}"
    states = {
        "optimizer": checkpoint.optimizer,
        "schedule": checkpoint.scheduler,
        "loss scaling": checkpoint.scaler,
        "average": checkpoint.average and checkpoint.average.shadow,
    }
    present = [name for name, state in states.items() if state]
    yield f"  besides: {', '.join(present) or 'nothing'}; epoch {checkpoint.epoch}"
    yield from (f"  note: {note}" for note in checkpoint.notes)
    try:
        config = find_config()
    except FileNotFoundError:
        yield "no config: name it with --config to see what becomes of each key"
        for key, tensor in checkpoint.model.items():
            yield f"  {key} {tuple(tensor.shape)}"
        return
    yield from _keys(read_run_config(config), checkpoint)


def _keys(run_config: RunConfig, checkpoint: TorchCheckpoint) -> Iterator[str]:
    """Yields a line for each key of the file: shape, and parameter it becomes."""
    yield f"model.type {run_config.model_def.config.type} ({run_config.source})"
    checkpoint, is_older = upgraded(run_config, checkpoint)
    if is_older:
        yield f"  note: {checkpoint.notes[-1]}"
    renamed = renamed_keys(run_config, checkpoint)
    entries = {mapping.key: mapping for mapping in run_config.key_map.entries}
    for entry in renamed:
        mapping = entries.get(entry.name)
        done = f" [{', '.join(entry.steps)}]" if entry.steps else ""
        shape = tuple(checkpoint.model[entry.file_key].shape)
        if mapping is None:
            yield f"  {entry.file_key} {shape}{done} -> not known"
            continue
        layer = "" if mapping.layer is None else f"[{mapping.layer}]"
        leaf = f" ({mapping.leaf})" if mapping.leaf else ""
        yield f"  {entry.file_key} {shape}{done} -> {mapping.path}{layer}{leaf}"
    actual = {r.name: tuple(checkpoint.model[r.file_key].shape) for r in renamed}
    expected = {
        key: mapping.arrangement.torch_shape(mapping.shape)
        for key, mapping in entries.items()
    }
    problems = compare_shapes(actual, expected)
    yield f"{len(problems)} problem(s)" if problems else "every key has its place"
    yield from (f"  {problem}" for problem in problems)
