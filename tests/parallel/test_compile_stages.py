"""The log of what is compiled."""

import jax
import jax.numpy as jnp

from credit_jax.io.activity import activity, description
from credit_jax.parallel import compile_stages
from credit_jax.parallel.compile_stages import report_stages


def test_stages_are_activities(monkeypatch, capsys):
    """Tracing, lowering and compiling, also of what is compiled by plain `jax.jit`."""
    report_stages()
    monkeypatch.setattr(compile_stages, "_LONG", 0.0)
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
