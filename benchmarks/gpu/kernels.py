"""Every GPU kernel against its plain definition: values, gradients, and repeats.

The truth is the definition in float32 of the same arrays, with full precision. A kernel
is right if it is at most twice as far from it as the definition in the dtype of the
arrays is, or within `LIMITS`, and if a second call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator.cases import Case, cases
from benchmarks.gpu.records import Results, Setting
from benchmarks.report import Table

TITLE = "Every kernel against its plain definition"
# Relative L2 distances that are right whatever the definition's is.
LIMITS = {"float32": 2e-5, "bfloat16": 1e-2}
# Operations of a rehearsal, of which the first case is taken, with their dtypes.
_REHEARSED = {"conv2d": "bfloat16", "layer_norm_and_skip": "bfloat16"}


def case_of(item: str, setting: Setting) -> tuple[Case, str]:
    """Returns the case and the dtype of an item."""
    name, dtype = item.rsplit(", ", 1)
    (case,) = (case for case in _cases(setting) if case.name == name)
    return case, dtype


def items(setting: Setting) -> list[str]:
    """All cases in the dtypes of the models, bfloat16 first."""
    if setting.rehearse:
        first = {case.operation: case for case in reversed(_cases(setting))}
        return [f"{first[name].name}, {dtype}" for name, dtype in _REHEARSED.items()]
    every = [(dtype, case.name) for case in _cases(setting) for dtype in case.dtypes]
    every.sort(key=lambda pair: pair[0])
    return [f"{name}, {dtype}" for dtype, name in every]


def _cases(setting: Setting) -> list[Case]:
    return cases("small" if setting.rehearse else "025deg")


def kernel_of(case: Case) -> Callable[..., Any]:
    """Returns the kernel, or the same in an interpreter where there is no GPU."""
    return case.kernel if jax.default_backend() == "gpu" else case.interpreted


def run(item: str, setting: Setting, save: Callable[[Any], None]) -> dict[str, Any]:
    """Returns distances of value and gradients, and whether a repeat is the same."""
    del save
    case, dtype = case_of(item, setting)
    arrays = [jnp.asarray(a) for a in case.arrays(seed=0, dtype=jnp.dtype(dtype))]
    with jax.default_matmul_precision("highest"):
        wide = [array.astype(jnp.float32) for array in arrays]
        plain = jax.jit(case.with_gradients(case.definition))
        truth = jax.tree.leaves(plain(*wide))
        base = _distances(jax.tree.leaves(plain(*arrays)), truth)
        kernel = jax.jit(case.with_gradients(kernel_of(case)))
        first = jax.tree.leaves(kernel(*arrays))
        distances = _distances(first, truth)
        again = jax.tree.leaves(kernel(*arrays))
    same = all(bool(_equal(a, b)) for a, b in zip(first, again, strict=True))
    limit = LIMITS[dtype]
    near = all(f <= max(2 * b, limit) for f, b in zip(distances, base, strict=True))
    return {
        "case": case.name,
        "dtype": dtype,
        "right": near and same,
        "repeats": same,
        "kernel": distances,
        "definition": base,
    }


@jax.jit
def _distance(actual: Any, expected: Any) -> Any:
    a, b = (x.astype(jnp.float32) for x in (actual, expected))
    # NaN and infinity stay what they are.
    return jnp.linalg.norm((a - b).ravel()) / jnp.maximum(
        jnp.linalg.norm(b.ravel()), 1e-30
    )


def _distances(actual: Sequence[Any], expected: Sequence[Any]) -> list[float]:
    return [float(_distance(a, b)) for a, b in zip(actual, expected, strict=True)]


@jax.jit
def _equal(a: Any, b: Any) -> Any:
    """Whether two arrays have the same bits."""
    kind = {2: jnp.uint16, 4: jnp.uint32}[a.dtype.itemsize]
    view = jax.lax.bitcast_convert_type
    return (view(a, kind) == view(b, kind)).all()


def tables(results: Results) -> Sequence[str | Table]:
    """The table, what is wrong first."""
    compared = [r for r in results.values() if "kernel" in r]
    compared.sort(key=lambda r: (r["right"], -max(r["kernel"])))
    rows = [
        [
            f"{r['case']}, {r['dtype']}",
            f"{max(r['kernel']):.1e}",
            f"{max(r['definition']):.1e}",
            "yes" if r["repeats"] else "**no**",
            "yes" if r["right"] else "**no**",
        ]
        for r in compared
    ]
    header = ["kernel", "largest distance", "definition's", "same bits again", "right"]
    right = sum(r["right"] for r in compared)
    return [
        f"{right} of {len(compared)} are right. Distances from the definition in "
        "float32, of the value and each gradient the one that is furthest away.",
        Table("Kernels", header, rows),
    ]


def line(result: Mapping[str, Any]) -> str:
    """The result in a few words."""
    far = f"{max(result['kernel']):.1e}, the definition {max(result['definition']):.1e}"
    repeat = "" if result["repeats"] else ", and a repeat differs"
    return f"{'right' if result['right'] else 'WRONG'}: {far}{repeat}"
