"""Small models of every family against values of serial CREDIT, made on a CPU.

The values are in `models.npz`, as sketches (`draws`): of the prediction by channel, and
of the gradient of mean(prediction**2) by parameter; with them go the vectors of
spectral norm and the running statistics, which CREDIT computed. `benchmarks.gpu.
reference` makes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import draws
from benchmarks.gpu.records import Results, Setting
from benchmarks.meshes import build_mesh
from benchmarks.report import Table
from benchmarks.small_models import SECTIONS, SEVERAL
from benchmarks.speed.cases import KIN, make_case
from credit_jax.kernels import use_implementation
from credit_jax.models.conversion import from_state_dict
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn import context
from credit_jax.nn.context import Noise
from credit_torch_bridge.compare.jax_side import compile_pass

TITLE = "Small models of every family against CREDIT on a CPU, float32"
TOLERANCES = {"forward": 1e-5, "gradient": 1e-4}
VALUES = Path(__file__).with_name("models.npz")
# CREDIT has neither experts nor a second name of WXFormer.
FAMILIES = (
    *(name for name in KIN if name not in ("wxformer_base", "wxformer_moe")),
    *SECTIONS,
    *SEVERAL,
)
KERNELS, PLAIN = "kernels", "plain"
ArraysByName = dict[str, np.ndarray]


def items(setting: Setting) -> list[str]:
    """Every family with the kernels of the device, then with the plain definitions."""
    families = ("debugger",) if setting.rehearse else FAMILIES
    return [f"{family}, {way}" for way in (KERNELS, PLAIN) for family in families]


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns the distances of one family from CREDIT, and whether they are allowed."""
    del setting, save
    family, way = item.split(", ")
    errors = distances(family, read_values(VALUES, family), plain=way == PLAIN)
    right = all(errors[name] <= TOLERANCES[name] for name in TOLERANCES)
    return {"family": family, "way": way, "right": right, **errors}


def write_values(path: Path, families: Mapping[str, ArraysByName]) -> None:
    """Writes the values of families as one vector each, with names and sizes.

    Args:
        path: path of the file.
        families: values by family; names as `distances` takes them, each array of one
            dim or none.
    """
    arrays: ArraysByName = {}
    for family, values in families.items():
        arrays[f"{family} names"] = np.array("\n".join(values))
        arrays[f"{family} sizes"] = np.array([np.size(a) for a in values.values()])
        joined = np.concatenate([np.ravel(a) for a in values.values()])
        arrays[f"{family} values"] = joined.astype(np.float32)
    np.savez_compressed(path, **arrays)


def read_values(path: Path, family: str) -> ArraysByName:
    """Returns the values of a family from the file of `write_values`."""
    with np.load(path) as file:
        names, sizes, values = (
            file[f"{family} {kind}"] for kind in ("names", "sizes", "values")
        )
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return dict(zip(str(names).split("\n"), parts, strict=True))


def distances(family: str, values: ArraysByName, *, plain: bool) -> dict[str, float]:
    """Returns the distances of prediction and gradient from the values of CREDIT.

    Args:
        family: one of `FAMILIES`.
        values: as `sketches` names them, and arrays of CREDIT's state dict that are
            not drawn, "state NAME" each.
        plain: whether to use the plain definitions, not the kernels of the device.
    """
    model_def = make_case("tiny", family).model_def
    state = draws.drawn_state(model_def)
    for name, like in state.items():
        if f"state {name}" in values:
            state[name] = values[f"state {name}"].reshape(like.shape).astype(like.dtype)
    model = build_parallel_model(model_def, build_mesh("1"))
    params, model_state = from_state_dict(model_def, state)
    drawn = Noise(jax.random.key(0)) if model_def.draws_noise else None
    with (
        mock.patch.object(context, "random_normal", _ones),
        use_implementation("xla") if plain else nullcontext(),
    ):
        run_jax = compile_pass(model, params, model_state, [])
        outputs = run_jax(draws.inputs_of(model_def), drawn)
    ours = sketches(outputs.prediction, outputs.gradients)
    return {
        name: draws.distance(
            ours, {k: v for k, v in values.items() if k.startswith(f"{name} ")}
        )
        for name in TOLERANCES
    }


def sketches(
    prediction: np.ndarray, gradients: Mapping[str, np.ndarray]
) -> ArraysByName:
    """Returns sketches of a prediction by channel and of gradients by parameter."""
    channels = {
        f"forward {c}": prediction[:, c] for c in range(prediction.shape[1])
    } | {f"gradient {key}": array for key, array in gradients.items()}
    return {name: draws.sketch(name, array) for name, array in channels.items()}


def _ones(key: Any, high: Any, low: Any) -> Any:
    """Replaces random draws by ones, as the values of CREDIT were made."""
    del key
    return jnp.ones(jnp.broadcast_shapes(high.shape, low.shape))


def tables(results: Results) -> Sequence[str | Table]:
    """The table of distances, the largest first."""
    compared = [r for r in results.values() if "forward" in r]
    compared.sort(key=lambda r: -max(r[name] / TOLERANCES[name] for name in TOLERANCES))
    limits = ", ".join(f"{name} {limit:.0e}" for name, limit in TOLERANCES.items())
    right = sum(r["right"] for r in compared)
    rows = [
        [
            f"{r['family']}, {r['way']}",
            *(f"{r[name]:.1e}" for name in TOLERANCES),
            "yes" if r["right"] else "**no**",
        ]
        for r in compared
    ]
    return [
        f"{right} of {len(compared)} are right. Relative distances, allowed: {limits}.",
        Table("Models", ["model", *TOLERANCES, "right"], rows),
    ]


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    numbers = ", ".join(f"{name} {result[name]:.1e}" for name in TOLERANCES)
    return f"{'right' if result['right'] else 'WRONG'}: {numbers}"
