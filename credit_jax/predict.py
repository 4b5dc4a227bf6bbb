"""`python -m credit_jax.predict`, which is `credit-jax predict`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
