"""Processes start programs together, however late one of them is."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from credit_jax.cli import commands
from credit_jax.parallel.joint import failed_collective, joint
from credit_jax.parallel.processes.watch import RESUME
from tests.support import make_mesh
from tests.support.processes import on_processes

GLOO = "UNKNOWN: Gloo all-reduce failed:\n [connection.cc:84] timed out"


@pytest.mark.slow
@pytest.mark.parametrize("stall", [0, 35])
def test_programs_start_when_all_have_compiled_them(tmp_path: Path, stall: int) -> None:
    """Of the processes now the one, now the other compiles for longer.

    And within the first program, a shard may be late by more than gloo waits.
    """
    options = ("--out", str(tmp_path), "--stall", str(stall))
    on_processes(2, "tests.parallel.joint_process", *options)
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
    monkeypatch.setattr(commands, "wait_for_reason", lambda: True)
    monkeypatch.setattr(commands, "end_all", lambda *how: ended.append(how))
    with pytest.raises(jax.errors.JaxRuntimeError):
        Failing.main(options)
    printed = capsys.readouterr().err
    if options:
        assert "Traceback" in printed
        assert not ended
    else:
        assert printed == ""
        assert [code for code, _ in ended] == [RESUME]
