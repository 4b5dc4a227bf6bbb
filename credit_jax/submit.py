"""`python -m credit_jax.submit`, which is `credit-jax submit`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
