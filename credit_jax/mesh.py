"""`python -m credit_jax.mesh`, which is `credit-jax mesh`."""

from credit_jax.cli.console import run_module

run_module(__name__, __spec__)
