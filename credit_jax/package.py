"""`python -m credit_jax.package`, which is `credit-jax package`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
