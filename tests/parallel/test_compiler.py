"""Options of the compiler that hold for a whole process."""

import os
import subprocess
import sys

import pytest

from credit_jax.parallel.compiler import compile_sooner

PROGRAM = """
import jax, sys
from credit_jax.parallel.compiler import compile_sooner
jax.config.update("jax_platforms", "cpu")
if sys.argv[1] == "sooner":
    compile_sooner()
jax.jit(lambda x, y: x * jax.numpy.exp(y) + y)(*jax.numpy.ones((2, 64, 64)))
"""


OURS = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", OURS),
        ("--xla_dump_to=x", f"--xla_dump_to=x {OURS}"),
        ("--xla_backend_extra_options=own", "--xla_backend_extra_options=own"),
    ],
)
def test_what_the_user_asks_of_xla_stays(monkeypatch, before, after):
    monkeypatch.setenv("XLA_FLAGS", before)
    for _ in range(2):
        compile_sooner()
        assert os.environ["XLA_FLAGS"] == after


def test_xla_makes_shorter_code(tmp_path):
    sizes = {how: machine_code(how, tmp_path / how) for how in ("plain", "sooner")}
    print(sizes)
    assert 0 < sizes["sooner"] < sizes["plain"], sizes


def machine_code(how, folder):
    """Bytes of all object files that a process dumps."""
    environment = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={folder}"}
    command = [sys.executable, "-c", PROGRAM, how]
    subprocess.run(command, env=environment, check=True)
    return sum(file.stat().st_size for file in folder.glob("*.o"))
