"""`python -m credit_jax.check`: reports what a run would use, without training."""
