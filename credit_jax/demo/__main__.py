"""`python -m credit_jax.demo`, which is `credit-jax demo`."""

import importlib

importlib.import_module("credit_jax.cli.console").run_module(__name__, __spec__)
