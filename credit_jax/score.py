"""`python -m credit_jax.score`, which is `credit-jax score`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
