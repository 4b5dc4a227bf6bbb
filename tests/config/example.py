"""A small valid config for the tests of this folder."""

import copy
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from tests.data.world import set_key

EXAMPLE: dict[str, Any] = yaml.safe_load("""
save_loc: ./run
data:
  source:
    ERA5:
      dataset_type: local
      level_coord: level
      levels: [1.0, 2.0]
      variables:
        prognostic: {vars_3D: [T, U], vars_2D: [SP], path: ./d_%Y.nc}
        dynamic_forcing: {vars_2D: [tsi], path: ./d_%Y.nc}
        static: {vars_2D: [LSM], path: ./static.nc}
        diagnostic: {vars_2D: [TP], path: ./d_%Y.nc}
  start_datetime: "2000-01-01"
  end_datetime: "2000-01-14"
  timestep: 6h
  history_len: 1
  forecast_len: 1
model: {type: wxformer, frames: 1, levels: 2}
loss: {training_loss: mse}
trainer:
  type: gen2
  parallelism: {data: none, tensor: 1, domain: 1}
  learning_rate: 0.001
  weight_decay: 0
  amp: false
  train_batch_size: 2
  valid_batch_size: 2
""")


def example(**changes: Any) -> dict[str, Any]:
    """Returns a copy of the example; `trainer__epochs=3` sets a key of a section."""
    config = copy.deepcopy(EXAMPLE)
    for dotted, value in changes.items():
        set_key(config, dotted, value)
    return config


class Inner(StrictModel):
    """A section nested in another."""

    size: int = Field(1, ge=1)
    kind: Literal["a", "b"] = "a"

    ignored: ClassVar = {"old": "of no use"}


class Outer(StrictModel):
    """A section with a field of every kind."""

    name: str
    rate: float = 1.0
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = ()
    named: dict[str, Inner] = Field(default_factory=dict)
    free: dict[str, Any] = Field(default_factory=dict)
    maybe: Inner | None = None

    unavailable: ClassVar = {"later": Unavailable("use rate", (0,))}
