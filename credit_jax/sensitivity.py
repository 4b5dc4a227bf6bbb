"""`python -m credit_jax.sensitivity`, which is `credit-jax sensitivity`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
