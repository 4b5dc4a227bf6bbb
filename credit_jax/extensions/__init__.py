"""What training and forecasting do without; the core imports none of it.

It finds them by the entry points `credit_jax.extension.*` of pyproject.toml.
"""
