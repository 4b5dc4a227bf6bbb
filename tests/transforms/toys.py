"""Transforms of every phase and place, and a forecast of several steps with them."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from credit_jax.transforms import Phase, Transform, Where
from credit_jax.transforms.base import map_fields
from credit_jax.transforms.normalize import Denormalizer
from tests.support.gradients import draw
from tests.transforms.cases import CONCAT, LEVELS, LSM, SP, TP, TSI, T

NUM_STEPS = 3
INPUT = {T: slice(0, LEVELS), SP: slice(LEVELS, LEVELS + 1)}
INPUT |= {LSM: slice(LEVELS + 1, LEVELS + 2), TSI: slice(LEVELS + 2, LEVELS + 3)}
TARGET = {T: slice(0, LEVELS), SP: slice(LEVELS, LEVELS + 1)}
TARGET |= {TP: slice(LEVELS + 1, LEVELS + 2)}
MAPS = {"input_channel_map": INPUT, "channel_map": TARGET}
MIXING = 0.3 * draw((LEVELS + 2, LEVELS + 3), seed=5)


class Warm(Transform):
    """Increases every T of the initial state."""

    phases: ClassVar = (Phase.INITIAL,)

    by: float

    def __call__(self, tree, context=None):
        warmer = lambda key, x: x + self.by if key == T else x  # noqa: E731
        return map_fields(tree, warmer, ("input",))


class MassFixerToy(Transform):
    """Multiplies surface pressure by the ratio of its global means before and after."""

    phases: ClassVar = (Phase.AFTER_STEP,)
    where: ClassVar = Where.TRACED

    latitude: tuple[float, ...]

    def __call__(self, tree, context=None):
        weights = np.cos(np.deg2rad(np.asarray(self.latitude)))
        means = [
            context.reducer.sample_mean(tree[part]["S"][SP], weights)
            for part in ("input", "y_processed")
        ]
        ratio = (means[0] / means[1])[..., None, None]
        changed = lambda key, x: x * ratio if key == SP else x  # noqa: E731
        return map_fields(tree, changed, ("y_processed",))


class RainTotal(Transform):
    """Sums TP over the steps, after the rollout."""

    phases: ClassVar = (Phase.AFTER_ROLLOUT,)
    where: ClassVar = Where.HOST

    def __call__(self, tree, context=None):
        return {**tree, "rain": np.sum(tree["steps"], axis=0)}


class ReadAgain(Transform):
    """Does nothing, on the host."""

    where: ClassVar = Where.HOST

    def __call__(self, tree, context=None):
        return dict(tree)


class CenterOutput(Transform):
    """Subtracts its global mean from the model's output before the loss."""

    phases: ClassVar = (Phase.AFTER_STEP,)
    where: ClassVar = Where.TRACED

    def __call__(self, tree, context=None):
        mean = context.reducer.sample_mean(tree["y_pred"])[..., None, None]
        return {**tree, "y_pred": tree["y_pred"] - mean}


TOYS = {
    "preblocks": {"warm": Warm, "read_again": ReadAgain},
    "postblocks": {
        "denormalize": Denormalizer,
        "mass_fixer": MassFixerToy,
        "rain_total": RainTotal,
        "read_again": ReadAgain,
        "center_output": CenterOutput,
    },
}


def sections(files, latitude):
    """Returns preblocks and postblocks of a forecast, as in a config."""
    norm = {"type": "era5_normalizer", "args": files}
    pre = {
        "ic_only": {"warm": {"type": "warm", "args": {"by": 0.5}}},
        "per_step": {"norm": norm, "concat": CONCAT},
    }
    fixer = {"type": "mass_fixer", "args": {"latitude": list(latitude)}}
    per_step = {
        "reconstruct": {"type": "reconstruct", "args": {"detach": False}},
        "denormalize": {"type": "denormalize", "args": files},
        "fixer": fixer,
    }
    post = {
        "per_step": per_step,
        "post_rollout": {"rain": {"type": "rain_total"}},
    }
    return pre, post


def model(x):
    """Mixes channels and adds the next longitude: (batch, channel, time, rows, lon)."""
    mixed = jnp.einsum(
        "oc,bctyx->botyx", jnp.asarray(MIXING, x.dtype), x, precision="highest"
    )
    return jnp.tanh(mixed + 0.1 * jnp.roll(mixed, 1, axis=-1))


def forecast(pipeline, fields, context) -> tuple[Any, Any]:
    """Returns the last state and TP of every step, from the initial fields."""
    tree = pipeline.run(Phase.INITIAL, {"input": {"S": fields}, **MAPS}, context)
    rain = []
    for _ in range(NUM_STEPS):
        x = pipeline.run(Phase.BEFORE_STEP, tree, context)["x"]
        done = pipeline.run(Phase.AFTER_STEP, {**tree, "y_pred": model(x)}, context)
        new = done["y_processed"]["S"]
        rain.append(new[TP])
        state = {key: new.get(key, x) for key, x in tree["input"]["S"].items()}
        tree = {"input": {"S": state}, **MAPS}
    return tree["input"]["S"], rain
