"""Runs commands in several real processes on this machine.

python -c "from tests.support.processes import main; main(MODULE, OPTIONS ...)"
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from tests.support.processes import main; main(*sys.argv[1:])"


def main(module: str, *options: str) -> None:
    """Registers the tiny model and runs a command; exits with its exit code."""
    from credit_jax.models import registry
    from tests.training.tiny import Tiny, TinyConfig

    registry.MODELS["tiny"] = registry.ModelEntry(TinyConfig, Tiny)
    sys.exit(importlib.import_module(module).main(options))


def start_processes(
    count: int, module: str, *options: str
) -> list[subprocess.Popen[str]]:
    """Starts a command in several processes, which connect to each other."""
    coordinator = f"127.0.0.1:{free_port()}"
    by_hand = ["--coordinator", coordinator, "--processes", str(count)]
    environ = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM, module, "--cache", "none", *options),
                *(*by_hand, "--process", str(number), "--connect-timeout", "120"),
            ],
            cwd=ROOT,
            env=environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]


def on_processes(count: int, module: str, *options: str) -> list[str]:
    """Runs a command in several processes, and asserts that all succeed."""
    return outputs(start_processes(count, module, *options))


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Waits for processes, and asserts that all succeed; returns what each printed."""
    texts = [process.communicate(timeout=300)[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(codes), "\n".join(text[-3000:] for text in texts)
    return texts


def free_port() -> int:
    """Returns a free port of this host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run_python(
    text: str, *arguments: str, cwd: Path = ROOT, **environ: str
) -> tuple[int, str]:
    """Runs a program in a process; returns its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        cwd=cwd,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout[-3000:])
    return done.returncode, done.stdout


def run_program(module: str, *arguments: str) -> str:
    """Runs a program of the tests without run-time checks of annotations."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
