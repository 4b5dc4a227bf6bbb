"""`python -m credit_jax.init`, which is `credit-jax init`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
