"""Processes start programs together, however late one of them is."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from credit_jax.cli import commands
from credit_jax.cli.commands import ProcessOptions, option
from credit_jax.forecast.forecaster import to_host
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.joint import failed_collective, joint
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.processes.coordinator import of_all, of_first, process_number
from credit_jax.parallel.processes.watch import RESUME
from tests.support import make_mesh
from tests.support.processes import on_processes

GLOO = "UNKNOWN: Gloo all-reduce failed:\n [connection.cc:84] timed out"
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


@pytest.mark.slow
@pytest.mark.parametrize("stall", [0, 35])
def test_programs_start_when_all_have_compiled_them(tmp_path: Path, stall: int) -> None:
    """Of the processes now the one, now the other compiles for longer.

    And within the first program, a shard may be late by more than gloo waits.
    """
    options = ("--out", str(tmp_path), "--stall", str(stall))
    on_processes(2, "tests.parallel.test_joint", *options)
    results = [json.loads((tmp_path / f"{n}.json").read_text()) for n in (0, 1)]
    assert results[0] == results[1]
    assert results[0]["early"] == []
    assert results[0]["texts"] == {
        "all": ["process 0", "process 1"],
        "again": ["0", "2"],
        "first": "process 0",
    }
    num_compiled = len([*tmp_path.glob("0 *")])
    assert num_compiled == len([*tmp_path.glob("1 *")])
    for size, found in zip((2, 2, 4), results[0]["found"], strict=True):
        x = np.arange(size * 2.0).reshape(2, size // 2, 2)
        shifted, total, by_dp = map(np.asarray, found)
        np.testing.assert_array_equal(shifted, x[::-1].reshape(size, 2))
        np.testing.assert_array_equal(total, x.sum(axis=(0, 2))[:, None])
        np.testing.assert_array_equal(by_dp, x.sum(axis=0))


def test_a_process_alone_calls_its_program_as_it_is() -> None:
    program = jax.jit(lambda x: x)
    assert joint(program, make_mesh()) is program


def test_collectives_that_fail_by_gloo_are_told_from_other_errors() -> None:
    failed = jax.errors.JaxRuntimeError(GLOO)
    line = failed_collective(failed)
    assert line is not None
    assert "(UNKNOWN: Gloo all-reduce failed: [connection.cc:84] timed out)" in line
    assert "--resume (exit code 75)" in line
    assert "\n" not in line
    consequence = RuntimeError("a save")
    consequence.__cause__ = failed
    assert failed_collective(consequence) == line
    assert failed_collective(jax.errors.JaxRuntimeError("out of memory")) is None
    assert failed_collective(RuntimeError(GLOO)) is None


class Failing(commands.Command):
    """A command in which a collective fails."""

    def run(self) -> int:
        raise jax.errors.JaxRuntimeError(GLOO)


@pytest.mark.parametrize("options", [[], ["--debug"]])
def test_a_command_ends_all_processes(
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the code that says resume me; `--debug` shows the traceback instead."""
    ended: list[tuple[int, str]] = []
    monkeypatch.setattr(commands.watch, "wait_for_reason", lambda: True)
    monkeypatch.setattr(commands.watch, "end_all", lambda *how: ended.append(how))
    with pytest.raises(jax.errors.JaxRuntimeError):
        Failing.main(options)
    printed = capsys.readouterr().err
    if options:
        assert "Traceback" in printed
        assert not ended
    else:
        assert printed == ""
        assert [code for code, _ in ended] == [RESUME]
