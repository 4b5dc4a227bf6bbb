"""`python -m credit_jax.assimilate`, which is `credit-jax assimilate`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
