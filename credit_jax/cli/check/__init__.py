"""`python -m credit_jax.check`: checks a config and reports the plan of its run."""
