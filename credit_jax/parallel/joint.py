"""Programs of several processes, which start them together.

Each process compiles a program for itself. One of them may take minutes longer: the
others have it in their cache, or their hosts have less to do. By gloo, which joins the
processes of CPU meshes, a collective fails where one of them comes to it 30 s after
another: for the first time, or within a reduce-scatter at any time (XLA's
`GlooCommunicator`; none of its Python interfaces takes that time).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from credit_jax.parallel.collectives import psum_varying
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.exit_code import RESUME

_LONGEST = 200  # characters of gloo's message


def joint(program: Any, mesh: Mesh) -> Callable[..., Any]:
    """A jitted function that the processes of a mesh start together.

    It is compiled ahead of each execution with new shapes, and executed when all
    processes have compiled it; on CPUs they wait for each other before every execution.

    Args:
        program: of `jax.jit`; all processes of the mesh call it in the same order.
        mesh: that it runs on; in one process the function stays as it is.
    """
    processes = sorted({device.process_index for device in mesh.devices.flat})
    return program if len(processes) == 1 else _Joint(program, mesh, processes)


class _Joint:
    """See `joint`."""

    def __init__(self, program: Any, mesh: Mesh, processes: list[int]) -> None:
        self._program = program
        self._mesh = mesh
        self._processes = processes
        self._by_gloo = mesh.devices.flat[0].platform == "cpu"
        self._name = getattr(program, "__name__", "")
        self._compiled: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> Any:
        signature = _signature(args)
        is_new = signature not in self._compiled
        if is_new:
            compiled = self._program.lower(*args).compile()
            self._compiled[signature] = compiled
        if is_new or self._by_gloo:
            wait_for_all(f"program {self._name}", self._processes)
        if self._by_gloo:
            _connect(self._mesh)
        return self._compiled[signature](*args)


def failed_collective(error: BaseException | None) -> str | None:
    """One line about a collective between processes that failed by gloo, or None.

    Args:
        error: that ended the run, and those that it came from.
    """
    while error is not None:
        text = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError) and "gloo" in text.lower():
            cause = " ".join(text.split())[:_LONGEST]
            return (
                f"a collective failed: another process came too late, or cannot be "
                f"reached ({cause}); the run ends here and can go on from its newest "
                f"checkpoint: --resume (exit code {RESUME})"
            )
        error = error.__cause__ or error.__context__
    return None


def _signature(args: Any) -> Any:
    """What decides on the compiled program."""
    leaves, tree = jax.tree.flatten(args)
    own = ((jax.typeof(x), getattr(x, "sharding", None)) for x in leaves)
    return tree, tuple(own)


@cache
def _connect(mesh: Mesh) -> None:
    """Opens gloo's connections along the axes of a mesh.

    Later collectives along them may have processes that are late by half an hour, also
    within a program whose shards take unlike times.
    """
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
