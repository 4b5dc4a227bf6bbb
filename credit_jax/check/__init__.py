"""`python -m credit_jax.check`: what a config makes of a machine, without training."""
