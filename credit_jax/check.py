"""`python -m credit_jax.check`, which is `credit-jax check`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
