"""`python -m credit_jax.forecast`, which is `credit-jax forecast`."""

import importlib

importlib.import_module("credit_jax.cli.console").run_module(__name__, __spec__)
