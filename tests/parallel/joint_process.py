"""One of two processes whose programs are late in turn; `test_joint` starts both."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from credit_jax.cli.commands import ProcessOptions, option
from credit_jax.forecast.forecaster import to_host
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.joint import joint
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.processes.coordinator import of_all, of_first, process_number
from tests.support import make_mesh

LATE = 0.5  # seconds


class JointProcess(ProcessOptions):
    """One of the processes."""

    out: Path = option("where to write what it gave", metavar="DIR")
    stall: float = option("of a program in seconds", 0.0)


def main(options: Sequence[str]) -> int:
    """Runs a program several times, and writes what it gave as JSON."""
    parser = argparse.ArgumentParser()
    JointProcess.fill(parser)
    args = JointProcess.model_validate(vars(parser.parse_args(options)))
    args.join()
    ensure_devices(4)
    number = process_number()
    watch = _Watched(args.out, number)
    mesh = make_mesh(dp=2, tp=2)
    specs = PartitionSpec("dp_shard", "tp")

    def body(x: Any) -> Any:
        if args.stall:
            x = jax.pure_callback(watch.stalled(args.stall), x, x)
        shifted = lax.ppermute(x, "dp_shard", [(0, 1), (1, 0)])
        return shifted, lax.psum(x, ("dp_shard", "tp")), lax.psum(x, "dp_shard")

    outs = (specs, PartitionSpec(), PartitionSpec(None, "tp"))
    # Callbacks have no types that say over which axes they vary.
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=specs, out_specs=outs, check_vma=not args.stall
    )
    program, traced = compile_program(mapped, mesh), joint(jax.jit(mapped), mesh)
    found = []
    for size in (2, 2, 4):
        whole = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
        place = NamedSharding(mesh, specs)
        x = jax.make_array_from_callback(whole.shape, place, lambda i, w=whole: w[i])
        shapes = jax.eval_shape(traced, x)
        outputs = program(x)
        assert [y.shape for y in shapes] == [y.shape for y in outputs]
        found.append([to_host(y).tolist() for y in outputs])
    texts = {
        "all": of_all("names", f"process {number}"),
        "again": of_all("names", str(number * 2)),
        "first": of_first("leader", f"process {number}"),
    }
    result = {"found": found, "texts": texts, "early": watch.early}
    (args.out / f"{number}.json").write_text(json.dumps(result))
    return 0


class _Watched:
    """Makes the processes late in turn, and notes what is executed too early.

    Attributes:
        early: names of programs that were executed before both processes had
            compiled them.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.early: list[str] = []
        self._stalled = number == 0
        compiled, executed = jax.stages.Lowered.compile, jax.stages.Compiled.__call__
        turn = [0]

        def compile_late(lowered: jax.stages.Lowered, *args: Any) -> Any:
            turn[0] += 1
            time.sleep(LATE * ((turn[0] + number) % 2))
            found = compiled(lowered, *args)
            (folder / f"{number} {turn[0]}").touch()
            return found

        def execute(program: jax.stages.Compiled, *args: Any) -> Any:
            marks = [folder / f"{n} {turn[0]}" for n in (0, 1)]
            if not all(mark.exists() for mark in marks):
                self.early.append(f"program {turn[0]}")
            return executed(program, *args)

        jax.stages.Lowered.compile = compile_late  # type: ignore[method-assign]
        jax.stages.Compiled.__call__ = execute  # type: ignore[method-assign]

    def stalled(self, seconds: float) -> Callable[[Any], Any]:
        """The identity; within the first program of process 1 it takes its time."""

        def identity(x: Any) -> Any:
            if not self._stalled:
                self._stalled = True
                time.sleep(seconds)
            return x

        return identity
