"""`python -m credit_jax.plot`, which is `credit-jax plot`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
