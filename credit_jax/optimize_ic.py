"""`python -m credit_jax.optimize_ic`, which is `credit-jax optimize-ic`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
