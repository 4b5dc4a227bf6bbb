"""`python -m credit_jax.preprocess`, which is `credit-jax preprocess`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
