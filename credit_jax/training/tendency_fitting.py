"""Fits the variances of tendencies, by which `loss.tendency_weights` weighs channels.

A tendency is the change of a predicted variable in one step, as the model sees it:
after all preblocks, the target minus the last input time. The samples are those that
scalers are fitted to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.config import Config
from credit_jax.data import Loader, build_loader
from credit_jax.io.activity import activity
from credit_jax.io.atomic import move_aside, new_file
from credit_jax.training.display import Display
from credit_jax.transforms import build_pipeline
from credit_jax.transforms.statistics import Moments, merge_trees

# (function, items) -> results in order, such as `map`.
Mapped = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


@activity("fitting tendencies")
def fit_tendencies(
    config: Config, path: Path, display: Display, *, mapped: Mapped = map
) -> None:
    """Fits the variances of the tendencies of a config and writes them as JSON.

    With `on_bad_sample: skip`, bad samples are reported and left out.

    Args:
        config: the config, whose scalers and normalizers have their files.
        path: file to write: variances of the channels by key of the variable. An
            existing one is renamed.
        display: shows the progress.
        mapped: applies a function to the samples.

    Raises:
        ValueError, OSError: the data are damaged, or a variable does not change.
    """
    loader = open_single_steps(config)
    batches = loader.sampler.batches(0)[: config.trainer.batches_per_epoch or None]
    indices = np.sort(np.concatenate(batches)).tolist()
    display.start("fitting tendencies", total=len(indices))
    total, count = dict[str, Moments](), 0
    for part, bad in mapped(partial(tendencies_of, loader), indices):
        total = merge_trees(total, part) if total and part else total or part
        count += not bad
        for line in bad:
            display.message(f"left out: {line}")
        display.advance(1, 1)
    still = [key for key, moments in total.items() if not (moments.variance > 0).all()]
    if still or not total:
        raise ValueError(
            f"loss.tendency_weights: {', '.join(still) or 'every variable'} has a "
            f"channel that does not change in {count} samples, and so no weight; leave "
            "tendency_weights out"
        )
    values = {key: moments.variance.tolist() for key, moments in total.items()}
    with new_file(path) as partial_file:
        text = json.dumps(values, indent=1) + "\n"
        partial_file.write_text(text, encoding="utf-8")
        if path.exists():
            display.message(f"{path} is now {move_aside(path)}")
    display.message(f"Fitted to {count} samples: {path}")


def open_single_steps(config: Config) -> Loader:
    """The training samples with one step, all of them in the batches of an epoch."""
    data = config.data.model_copy(update={"forecast_len": 1})
    return build_loader(
        config.model_copy(update={"data": data}),
        split="train",
        keep_partial=True,
        pipeline=build_pipeline(config.preblocks, config.postblocks),
    )


def tendencies_of(
    loader: Loader, index: int
) -> tuple[dict[str, Moments], tuple[str, ...]]:
    """Moments of the tendencies of a sample, by key of the variable.

    Variables that are no input, such as diagnostic ones, have none.

    Returns:
        The moments, and no lines; or no moments, and the reason why the sample is bad.
    """
    batch, schema = loader.read([index]), loader.schema
    if batch.replaced:
        return {}, batch.replaced
    inputs, moments = schema.input_slices(), {}
    for key, place in schema.target_slices().items():
        if key not in inputs:
            continue
        before, after = batch.x[:, inputs[key], -1:], batch.y[:, place]
        change = np.subtract(after, before, dtype=np.float64)
        moments[key] = Moments.of(change, axis=1)
    return moments, ()
