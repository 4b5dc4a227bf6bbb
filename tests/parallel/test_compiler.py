"""Compiler options of a whole process, and the log of what is compiled."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.io.activity import activity, description
from credit_jax.parallel import compiler
from credit_jax.parallel.collectives import ppermute_each
from credit_jax.parallel.compiler import (
    _OPTIONS,
    accepted_options,
    as_flags,
    check_options,
    compile_program,
    compile_sooner,
    report_stages,
)
from credit_jax.parallel.mesh.device_mesh import DOMAIN
from tests.support import make_mesh

PROGRAM = """
import jax, sys
from credit_jax.parallel.compiler import compile_sooner
jax.config.update("jax_platforms", "cpu")
if sys.argv[1] == "sooner":
    compile_sooner()
jax.jit(lambda x, y: x * jax.numpy.exp(y) + y)(*jax.numpy.ones((2, 64, 64)))
"""


UNROLLED = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling"
# Until XLA loses the option.
(NOT_TUNED,) = as_flags({"xla_gpu_experimental_enable_fusion_autotuner": False})
OURS = f"{UNROLLED} {NOT_TUNED}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", OURS),
        ("--xla_dump_to=x", f"--xla_dump_to=x {OURS}"),
        (
            "--xla_backend_extra_options=own",
            f"--xla_backend_extra_options=own {NOT_TUNED}",
        ),
    ],
)
def test_what_the_user_asks_of_xla_stays(monkeypatch, before, after):
    monkeypatch.setenv("XLA_FLAGS", before)
    for _ in range(2):
        compile_sooner()
        assert os.environ["XLA_FLAGS"] == after


REMOVED, UNKNOWN = "xla_cpu_use_fusion_emitters", "xla_cpu_no_such_option"
QUICKLY = """
import os
from credit_jax.parallel.compiler import add_flags, compile_quickly
compile_quickly()
add_flags({"xla_cpu_no_such_option": True})
print(os.environ["XLA_FLAGS"])
import jax
jax.jit(lambda x: x + 1)(1.0)
"""


def test_flags_that_xla_does_not_know_are_left_out():
    """A process that has such a flag is aborted when it first compiles."""
    command = [sys.executable, "-c", QUICKLY]
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    )
    flags = done.stdout.split()
    assert "--xla_llvm_disable_expensive_passes=true" in flags
    assert "--xla_backend_optimization_level=0" in flags
    older = jax.__version_info__ < (0, 11)
    assert (f"--{REMOVED}=false" in flags) == older
    assert UNKNOWN not in done.stdout


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_xla_takes_the_options_of_programs(platform):
    """Also those of which the name alone is compared with XLA's library."""
    options = accepted_options({**_OPTIONS[platform], UNKNOWN: True})
    assert options == _OPTIONS[platform]
    check_options(options | {"xla_gpu_enable_latency_hiding_scheduler": True})


@pytest.mark.slow
def test_xla_makes_shorter_code(tmp_path):
    sizes = []
    for how in ("plain", "sooner"):
        environment = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path / how}"}
        command = [sys.executable, "-c", PROGRAM, how]
        subprocess.run(command, env=environment, check=True)
        files = (tmp_path / how).glob("*.o")
        sizes.append(sum(file.stat().st_size for file in files))
    assert 0 < sizes[1] < sizes[0]


def test_a_cache_whose_writer_was_killed_is_written_again(tmp_path):
    """JAX looks for the time of a program's last use, whose file is missing."""
    (tmp_path / "killed-cache").write_bytes(b"a program")
    settings = {
        "JAX_COMPILATION_CACHE_MAX_SIZE": "1000000",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
    }
    program = (
        "import jax; from credit_jax.parallel.compiler import use_cache; "
        f"use_cache({str(tmp_path)!r}); jax.jit(lambda x: x + 1)(1.0)"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    subprocess.run(command, env={**os.environ, **settings}, check=True)
    assert len(list(tmp_path.glob("*-cache"))) > 1


def test_options_that_xla_does_not_know():
    options = {"xla_gpu_enable_everything": True, "xla_cpu_use_onednn": "perhaps"}
    with pytest.raises(ValueError, match=r"everything.*onednn"):
        check_options(options)


def test_options_reach_the_program():
    mesh = make_mesh()
    program = compile_program(jnp.sin, mesh, options={"xla_gpu_no_such_option": True})
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_no_such_option"):
        program(0.5)


@pytest.mark.parametrize("x64", [False, True])
def test_convolutions_in_float64_are_ynnpacks(monkeypatch, x64):
    """Eigen has none of them, and XLA's own loops are 200 times as slow."""
    options = {}

    def jit(function, *, compiler_options, **_):
        options.update(compiler_options)
        return function

    with jax.enable_x64(x64):
        monkeypatch.setattr(jax, "jit", jit)
        compile_program(jnp.sin, make_mesh(), level=0)
        monkeypatch.undo()
    assert ("xla_cpu_experimental_ynn_fusion_type" in options) != x64
    assert options["xla_backend_optimization_level"] == 0


def test_both_directions_of_a_halo_in_one_group():
    mesh, x = make_mesh(domain=4), jnp.arange(24.0).reshape(8, 3)
    pairs = [[(s, s + hop) for s in range(4) if 0 <= s + hop < 4] for hop in (1, -1)]

    def halo(x):
        low, high = ppermute_each([x[-1:], x[:1]], DOMAIN, pairs)
        return jnp.sin(low) * x[:1] + high

    sharded = jax.shard_map(halo, mesh=mesh, in_specs=P(DOMAIN), out_specs=P(DOMAIN))

    def both(x):
        return jax.value_and_grad(lambda x: jnp.sum(sharded(x) ** 2))(x)

    found = {}
    for grouped in (False, True):
        program = compile_program(both, mesh, group_halos=grouped)
        text = program.lower(x).as_text()
        assert ("_collectives_group" in text) == grouped
        found[grouped] = program(x)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), *found.values()))


def test_stages_are_activities(monkeypatch, capsys):
    """Tracing, lowering and compiling, also of what is compiled by plain `jax.jit`."""
    report_stages()
    monkeypatch.setattr(compiler, "_LONG", 0.0)
    seen = []
    listen = lambda *_, **__: seen.append(description())  # noqa: E731
    jax.monitoring.register_scalar_listener(listen)

    @jax.jit
    def inner(x):
        return jnp.sin(x) * 2

    @jax.jit
    def a_new_program(x):
        return inner(x) + 1

    x = jnp.arange(3.0)
    try:
        with activity("update 1"):
            del seen[:]
            a_new_program(x)
    finally:
        jax.monitoring.unregister_scalar_listener(listen)
    of_program = "update 1: compiling a_new_program, {} (0 s)"
    stages = ("tracing", "lowering", "XLA")
    assert [*dict.fromkeys(seen)] == [of_program.format(own) for own in stages]
    assert description() == ""
    assert capsys.readouterr().err.splitlines()[-1] == (
        "compiled a_new_program in 0 s (tracing 0 s, lowering 0 s, XLA 0 s)"
    )
