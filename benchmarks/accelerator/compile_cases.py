"""Compiles the table of cases for a GPU, in a separate process.

The optimized HLO of each case goes to a folder, where XLA puts its list of launches and
the PTX of every kernel beside it (`--xla_dump_to`). Run by `own_kernels`, with the
environment of the target.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.accelerator.targets import TARGETS

KERNEL, DEFINITION = "kernel", "definition"


def function_name(case: str, dtype: str, side: str) -> str:
    """Returns the name of the compiled function, which its files begin with.

    >>> function_name("dense, 72000 x 256", "bfloat16", "kernel")
    'dense_72000_x_256_bfloat16_kernel'
    """
    return re.sub(r"\W+", "_", f"{case} {dtype} {side}")


def main() -> None:
    """Compiles the jobs of the first argument for the target of the second.

    The jobs are (case, dtype, side) as JSON, the texts go to the folder of the third.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from benchmarks.accelerator.cases import cases

    jobs, target = json.loads(sys.argv[1]), TARGETS[sys.argv[2]]
    folder, table = Path(sys.argv[3]), {case.name: case for case in cases("025deg")}
    sharding = SingleDeviceSharding(target.devices()[0])
    for name, dtype, side in jobs:
        case = table[name]
        shapes: Any = [
            jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
            for shape in case.shapes
        ]
        began = time.perf_counter()
        function = case.with_gradients(getattr(case, side))
        function.__name__ = function_name(name, dtype, side)
        lowered = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))
        program = lowered.compile()
        (folder / f"{function.__name__}.hlo").write_text(program.as_text())
        seconds = time.perf_counter() - began
        print(f"{name}, {dtype}, {side}: {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
