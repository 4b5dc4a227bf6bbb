"""`python -m credit_jax.forecast`: forecasts of a trained model, to files."""
