"""`python -m credit_jax.certify`, which is `credit-jax certify`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
