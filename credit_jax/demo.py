"""`python -m credit_jax.demo`, which is `credit-jax demo`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
