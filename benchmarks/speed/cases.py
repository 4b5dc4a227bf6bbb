"""The sizes that are timed: one model, weights and batch for both sides."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.compiled_step import CONFIGS
from benchmarks.networks import network_of, random_arrays
from benchmarks.small_models import SECTIONS, SEVERAL, WIDER, placed
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import MODELS, build


@dataclass(frozen=True)
class Size:
    """A size of the benchmark.

    Attributes:
        config: file whose `model:` section it is.
        batch: samples.
        changes: keys of the model that differ from the file.
    """

    config: str
    batch: int
    changes: Mapping[str, Any]


# The block of 0.25 degrees has all channels and blocks of the model on a sixteenth of
# the globe: 160 x 320 points, which 2 cores and 24 GB of memory can train.
_BLOCK = {
    "image_height": 160,
    "image_width": 320,
    "padding_conf": {"activate": False},
    "interp": False,
}
# The model of the reports: 32 x 64 points without padding.
_SMALL = {
    "padding_conf": {"activate": False},
    "dim": [32, 64, 128, 256],
    "depth": [1, 1, 2, 1],
    "dim_head": 16,
    "local_window_size": 2,
}
# For the tests.
_TINY = {
    **_SMALL,
    "image_height": 32,
    "image_width": 64,
    "dim": [8, 16, 32, 64],
    "depth": [1, 1, 1, 1],
    "dim_head": 8,
}

# Models that take the keys of a size.
KIN = ("camulator", "crossformer", "wxformer", "wxformer_base", "wxformer_moe")

# All models for which a case can be built.
MODEL_TYPES = (*KIN, *SECTIONS, *SEVERAL)

SIZES: Mapping[str, Size] = {
    "tiny": Size("demo.yaml", 2, _TINY),
    "demo": Size("demo.yaml", 8, _SMALL),
    "1deg": Size("wxformer_1deg.yaml", 1, {}),
    "025deg_block": Size("wxformer_025deg.yaml", 1, _BLOCK),
    "025deg": Size("wxformer_025deg.yaml", 1, {}),
}


@dataclass(frozen=True)
class Case:
    """A size with its model and data.

    Attributes:
        name: name of the size.
        block: its `model:` section.
        model_def: the model of credit_jax, or the network of its process.
        inputs: inputs of one forward pass by name, float32.
        y: (batch, channel_out, time_out, lat, lon) float32.
    """

    name: str
    block: dict[str, Any]
    model_def: ModelDef
    inputs: dict[str, np.ndarray]
    y: np.ndarray

    @property
    def x(self) -> np.ndarray:
        """(batch, channel, time, lat, lon), the main input."""
        return self.inputs["x"]

    @property
    def is_of_one_field(self) -> bool:
        """Whether x is the only input, so that a prediction can be the next input."""
        return self.inputs.keys() == {"x"}


def _small(name: str, model_type: str) -> dict[str, Any]:
    """The `model:` section of another architecture."""
    if name not in ("tiny", "demo"):
        raise ValueError(
            f"--size {name} is of WXFormer's kind; with --model {model_type} use demo"
        )
    wider = WIDER.get(model_type, {}) if name == "demo" else {}
    section = {**SECTIONS, **SEVERAL}[model_type]
    block = {"type": model_type, **section, **wider}
    return placed({"model": block}, _scratch())["model"]


@cache
def _scratch() -> Path:
    """A folder for files of models, which is removed when the process ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def initial_weights(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and model state of a case, on the host."""
    keys = jax.random.split(jax.random.key(0))
    params = jax.jit(case.model_def.init)(keys[0])
    model_state = jax.jit(case.model_def.init_model_state)(keys[1], params)
    return jax.device_get((params, model_state))


def make_case(name: str, model_type: str | None = None) -> Case:
    """A size by its name, with random data.

    Args:
        name: one of `SIZES`.
        model_type: another model: with the keys of that size if it is one of KIN,
            otherwise that of `small_models`, wider for the size "demo".

    Raises:
        ValueError: the model does not have that size.
    """
    size = SIZES[name]
    block = {**read_yaml(CONFIGS / size.config)["model"], **size.changes}
    if model_type is not None and model_type not in KIN:
        block = _small(name, model_type)
    elif model_type is not None:
        known = MODELS[model_type].config.model_fields
        block = {key: value for key, value in block.items() if key in known}
        block["type"] = model_type
    return case_of(name, block, size.batch)


def case_of(name: str, block: dict[str, Any], batch: int) -> Case:
    """A case of a `model:` section, with random data.

    Args:
        name: name of the case.
        block: the section.
        batch: samples.
    """
    model = build(block)
    inputs = random_arrays(model, batch, np.random.default_rng(0))
    y = inputs.pop("y")
    return Case(name, block, network_of(model), inputs, y)
