"""Programs that several processes start at the same time.

Each process compiles its programs by itself, and one may take minutes longer than
another, which finds them in its cache or has a less busy host. On CPUs, collectives of
several processes use gloo, where processes that reach a collective more than 30 s apart
fail: in the first collective of a group of devices, and in every reduce-scatter (XLA's
`GlooCommunicator`; jaxlib 0.10.2 has no option for this timeout).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from credit_jax.parallel.collectives import psum_varying
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.watch import RESUME

_LONGEST = 200  # characters of gloo's message


def joint(program: Any, mesh: Mesh) -> Callable[..., Any]:
    """Makes a jitted function that the processes of a mesh start together."""
    processes = sorted({device.process_index for device in mesh.devices.flat})
    # Each compiles a new signature, and executes it when all have. On CPUs they also
    # wait for each other before every later execution.
    return program if len(processes) == 1 else _Joint(program, mesh, processes)


class _Joint:
    """See `joint`."""

    def __init__(self, program: Any, mesh: Mesh, processes: list[int]) -> None:
        self._program, self._mesh, self._processes = program, mesh, processes
        self._by_gloo = mesh.devices.flat[0].platform == "cpu"
        self._name = getattr(program, "__name__", "")
        self._compiled: dict[Any, Any] = {}
        # As of `jax.jit`; what it compiles is not compiled again by a call.
        self.lower = program.lower

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._program(*args)  # nothing is executed: `jax.eval_shape`
        types = ((jax.typeof(x), getattr(x, "sharding", None)) for x in leaves)
        signature = tree, tuple(types)
        is_new = signature not in self._compiled
        if is_new:
            self._compiled[signature] = self._program.lower(*args).compile()
        if is_new or self._by_gloo:
            wait_for_all(f"program {self._name}", self._processes)
        if self._by_gloo:
            _connect(self._mesh)
        return self._compiled[signature](*args)


def failed_collective(error: BaseException | None) -> str | None:
    """Describes a collective that failed in gloo in one line, None for others."""
    while error is not None:
        text = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError) and "gloo" in text.lower():
            cause = " ".join(text.split())[:_LONGEST]
            return (
                f"a collective failed: another process is too slow or cannot be "
                f"reached ({cause}); the run ends here and can go on from its newest "
                f"checkpoint: --resume (exit code {RESUME})"
            )
        error = error.__cause__ or error.__context__
    return None


@cache
def _connect(mesh: Mesh) -> None:
    """Opens gloo's connections of all groups of devices along axes of a mesh."""
    # Later collectives other than reduce-scatters wait for half an hour, also where the
    # shards of a program take different times.
    axes = [name for name, size in mesh.shape.items() if size > 1]
    counts = range(1, len(axes) + 1)
    groups = [g for n in counts for g in itertools.combinations(axes, n)]

    def meet() -> Float[Array, ""]:
        x = jnp.zeros((), jnp.float32)
        for name in axes:
            x = x + lax.axis_index(name)
        for sums in [lax.psum(x, group) for group in groups]:
            x = x + sums
        return psum_varying(x)

    specs = {"in_specs": (), "out_specs": PartitionSpec()}
    jax.block_until_ready(jax.jit(jax.shard_map(meet, mesh=mesh, **specs))())
