"""`python -m credit_jax.train`, which is `credit-jax train`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
