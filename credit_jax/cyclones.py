"""`python -m credit_jax.cyclones`, which is `credit-jax cyclones`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
